"""The browser that tests of pages use: it hears what a page must not do."""

from pathlib import Path

import browser
import pytest
from playwright.sync_api import Browser


def page(directory: Path, body: str) -> Path:
    path = directory / "page.html"
    path.write_text(f'<!DOCTYPE html><link rel="icon" href="data:,"><body style="margin: 0">{body}</body>')
    return path


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("<script>console.error('went wrong')</script>", "went wrong"),
        ("<script>nothing.here</script>", "nothing is not defined"),
        ("<img src='http://example.org/picture.png'>", "http://example.org/picture.png"),
        ("<script src='missing.js'></script>", "ERR_FILE_NOT_FOUND"),
    ],
)
def test_a_page_that_errs_or_asks_for_more_than_itself_is_found_out(
    chromium: Browser, tmp_path: Path, body: str, complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint), browser.opened(chromium, page(tmp_path, body)) as opened:
        opened.wait_for_load_state("networkidle")


def test_a_quiet_page_passes_and_its_overflow_is_measured(chromium: Browser, tmp_path: Path) -> None:
    wide = page(tmp_path, "<div style='width: 500px; height: 1px'></div>")
    with browser.opened(chromium, wide, browser.PHONE) as opened:
        assert browser.overflow(opened) == 110
    with browser.opened(chromium, wide) as opened:
        assert browser.overflow(opened) == 0
