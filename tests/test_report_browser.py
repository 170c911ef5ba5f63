"""The report in a browser: as a reader at a desk or on a phone uses it."""

from pathlib import Path

import browser
import numpy as np
import pytest
import report_contents
import synthetic
from playwright.sync_api import Browser, expect

from attnid import explorer, report, style

TABLES = synthetic.all_tables()
CASES = ("adamw", "sgd")
A4 = 718
"""Width of a sheet without its margins, in CSS pixels."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every verdict, a figure, a missing job and two settings to explore."""
    directory = tmp_path_factory.mktemp("report")
    figure, _ = style.panels(style.DOUBLE, 1.0)
    style.save(figure, directory / "figure.png")
    cells = TABLES["cells"][TABLES["cells"]["case"].isin(CASES)].groupby("case").head(1)
    html = report_contents.page(
        (directory / "figure.png").read_bytes(),
        explorer=explorer.explorer(TABLES | {"cells": cells}),
        missing=[report.MissingJob("muon_h4", "1 to 3", "")],
    )
    (directory / "report.html").write_text(html, encoding="utf-8")
    return directory / "report.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_shows_within_the_window(chromium: Browser, path: Path, scheme: str) -> None:
    assert browser.figures_of_a_good_report(chromium, path, color_scheme=scheme) == 2


def test_claims_are_filtered_sorted_and_linked(chromium: Browser, path: Path) -> None:
    with browser.opened(chromium, path) as page:
        claims = page.locator("details.claim:visible")
        assert claims.count() == 5
        page.get_by_label("search").first.fill("six-heads")
        assert page.inner_text("#shown") == "1 of 5 shown"
        page.locator("nav a[href='#errata']").click()
        page.locator("section[aria-labelledby=errata] a[href='#claim-key-bias-dead']").click()
        expect(page.locator("#claim-key-bias-dead")).to_have_attribute("open", "")
        assert claims.count() == 5
        page.locator("[data-show=reproduced]").click()
        assert {row.get_attribute("data-verdict") for row in claims.all()} == {"reproduced"}
        page.locator("#filters [name=verdict]").select_option("")
        page.locator("#filters [name=sort]").select_option("measured")
        measured = [float(row.get_attribute("data-measured") or "inf") for row in claims.all()]
        assert measured == sorted(measured)
        assert page.evaluate("[...document.querySelectorAll('a[href^=\"#\"]')].every("
                             "a => document.getElementById(decodeURIComponent(a.hash.slice(1))))")  # fmt: skip


def test_numbers_are_saved_to_the_last_digit(chromium: Browser, path: Path) -> None:
    with browser.opened(chromium, path) as page:
        page.locator("#claim-six-heads > summary").click()
        page.locator("#claim-six-heads details > summary").click()
        with page.expect_download() as download:
            page.locator("[data-save='six-heads.csv']").click()
        assert str(11 / 12) in Path(download.value.path()).read_text()


def test_the_explorer_reads_values_and_switches_lines(chromium: Browser, path: Path) -> None:
    heads = TABLES["heads"].merge(TABLES["cells"][["cell", "case"]])
    first = heads[heads["case"] == "adamw"].sort_values(["seed", "layer", "head", "step"])
    first = first[first["cell"] == TABLES["cells"].query("case == 'adamw'")["cell"].iloc[0]]
    count = len(first.drop_duplicates(["seed", "layer", "head"]))
    with browser.opened(chromium, path) as page:
        summary, chart = page.locator("#explorer-summary"), page.locator("#explorer-chart")
        expect(summary).to_contain_text(f"{count} of {count} lines shown.")
        chart.focus()
        page.keyboard.press("ArrowRight")
        said = page.inner_text("#explorer-value")
        name, value = said.rsplit(": ", 1)
        row = first.iloc[0]
        assert name == f"seed {row.seed}, layer {row.layer}, head {row['head']}, step {row.step}"
        assert np.isclose(float(value), row.rho_qk, rtol=5e-4)
        page.get_by_label("no heads").click()
        expect(summary).to_contain_text(f"0 of {count} lines shown.")
        page.locator("[data-kind=head] input").first.check()
        expect(summary).to_contain_text(f"{count // first['head'].nunique()} of {count} lines shown.")
        page.locator("[name=measure]").select_option("val_loss")
        expect(summary).not_to_contain_text("random step")
        for over in ("head", "step"):
            page.locator("[name=measure]").select_option("rho_vo")
            page.locator("[name=over]").select_option(over)
            page.locator("[name=logarithmic]").check()
            expect(summary).to_contain_text("random step")


def test_without_scripts_the_report_still_reads(chromium: Browser, path: Path) -> None:
    with browser.opened(chromium, path, java_script_enabled=False) as page:
        assert page.locator("details.claim").count() == 5
        assert page.locator("#filters").is_hidden()
        assert "needs a browser that runs scripts" in page.inner_text("section[aria-labelledby=explore]")


def test_a_printed_report_has_every_section_and_all_columns(chromium: Browser, path: Path) -> None:
    with browser.opened(chromium, path, A4) as page:
        page.emulate_media(media="print")
        assert page.locator("#filters").is_hidden()
        assert page.locator("h2:visible").count() == page.locator("h2").count()
        hidden = "table => table.parentElement.scrollWidth - table.parentElement.clientWidth"
        assert page.locator("#models-table").evaluate(hidden) == 0
        assert page.pdf(format="A4").startswith(b"%PDF")
