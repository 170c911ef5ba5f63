"""Take the picture of a report that the README shows: python tools/report_picture.py (needs Chromium)

It is the top of results/report.html, as `snakemake --cores 1 --config tables=reference` makes it.
"""

import sys
from pathlib import Path

import chromium

ROOT = Path(__file__).resolve().parent.parent
PAGE, PICTURE = ROOT / "results" / "report.html", ROOT / "docs" / "images" / "report.png"
WIDTH, HEIGHT = 1280, 1100
"""CSS pixels."""

if __name__ == "__main__":
    if chromium.installed() is None:
        sys.exit(f"{', '.join(chromium.NAMES)}: none found on PATH; one of them has to be installed")
    if not PAGE.exists():
        sys.exit(f"{PAGE.relative_to(ROOT)}: not there; make it with snakemake --cores 1 --config tables=reference")
    with chromium.launched() as browser:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(PAGE.as_uri())
        page.screenshot(path=PICTURE)
