"""A browser for the tests of pages: the system's Chromium, which fetches nothing and hears every complaint."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

PHONE, DESK = 390, 1440
"""Widths of a window, in CSS pixels."""

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's Chromium with an empty profile; the test is skipped where there is none."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on this machine: install the package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


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
