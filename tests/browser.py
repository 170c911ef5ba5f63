"""A browser for the tests of pages: the system's Chromium, which fetches nothing and hears every complaint."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import chromium
import pytest
from playwright.sync_api import Browser, Page, expect

PHONE, DESK = 390, 1440
"""Widths of a window, in CSS pixels."""


@contextmanager
def launched() -> Iterator[Browser]:
    """The system's Chromium; the test is skipped where there is none."""
    if chromium.installed() is None:
        pytest.skip("no Chromium on this machine: install the package chromium")
    with chromium.launched() as browser:
        yield browser


@contextmanager
def opened(browser: Browser, path: Path, width: int = DESK, **options: Any) -> Iterator[Page]:
    """A page from disk in a window of this width; `options` are those of a Playwright context.

    AssertionError at the end if the page wrote an error to the console, raised one, or asked for anything that is
    not on disk or in the page.
    """
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    page, complaints = context.new_page(), list[str]()
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if _leaves_the_disk(request.url) else None)
    page.goto(path.resolve().as_uri())
    try:
        yield page
    except BaseException as error:
        error.add_note("\n".join(complaints))
        raise
    finally:
        context.close()
    assert not complaints, "\n".join(complaints)


def overflow(page: Page) -> int:
    """CSS pixels by which a page is wider than its window."""
    width: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return width


def figures_of_a_good_report(browser: Browser, path: Path, **options: Any) -> int:
    """How many pictures a report shows with all claims open, those of the claims among them.

    AssertionError if it is too large, wider than a window, or something of it does not show, on a phone or at a desk.
    """
    assert path.stat().st_size < 5 * 2**20
    counts = set()
    for width in (PHONE, DESK):
        with opened(browser, path, width, **options) as page:
            expect(page.locator("#explorer-chart svg")).to_be_visible()
            assert overflow(page) == 0
            page.get_by_role("button", name="open all").click()
            page.wait_for_function("[...document.images].every(image => image.hidden || image.complete)")
            shown = page.evaluate(
                "[...document.images].filter(image => !image.hidden).map(image => image.naturalWidth)"
            )
            assert 0 not in shown
            assert overflow(page) == 0
            outside = "element => element.getBoundingClientRect().right > innerWidth"
            assert page.evaluate(f"[...document.querySelectorAll('select, fieldset')].filter({outside}).length") == 0
            counts.add(len(shown))
    (count,) = counts
    return int(count)


def _leaves_the_disk(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:"))
