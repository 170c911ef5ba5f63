"""A browser for the tests of pages: the system's Chromium, which fetches nothing and hears every complaint."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import chromium
import pytest
from playwright.sync_api import Browser, Page

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


def _leaves_the_disk(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:"))
