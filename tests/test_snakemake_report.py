"""Snakemake's own report of a run: what it lists, what it says of it, and that it needs no network."""

import base64
import json
import re
from html import unescape
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from run_from_tables import RunFromTables
from settings import overlaid_settings

from attnid import figures, paths

pytestmark = pytest.mark.slow

NAMES = figures.names(overlaid_settings("smoke.yaml")["groups"])


@pytest.fixture(scope="module")
def place(run_from_tables: RunFromTables) -> Path:
    """The directory of a run with Snakemake's report of it."""
    output = run_from_tables.snakemake("--report", "results/snakemake-report.html")
    assert "ERROR" not in output
    return run_from_tables.root


def held(place: Path, name: str) -> Any:
    """What the page of the report holds under a name."""
    page = (place / "results" / "snakemake-report.html").read_text()
    found = re.search(rf'<script id="[a-z-]+">\s*var {name} = (.*);\n', page)
    assert found is not None
    return json.loads(found[1])


def test_the_report_lists_the_page_the_verdicts_and_every_figure(place: Path) -> None:
    drawn = [str(paths.figure(name, "png")) for name in NAMES]
    listed = held(place, "categories")
    assert {category: list(chain(*parts.values())) for category, parts in listed.items()} == {
        "Page": ["results/report.html"],
        "Claims": ["results/claims.md"],
        "Figures": drawn,
    }
    results = held(place, "results")
    for path, result in results.items():
        assert base64.b64decode(result["data_uri"].split(",")[1]) == (place / path).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_has_its_own_title_and_caption(name: str, place: Path) -> None:
    result, module = held(place, "results")[str(paths.figure(name, "png"))], figures.load(name)
    assert result["labels"] == {"figure": module.TITLE}
    assert unescape(result["caption"]).strip() == f"<p>{module.CAPTION}</p>"


def test_the_report_describes_the_workflow_and_shows_its_rules(place: Path) -> None:
    assert "https://arxiv.org/abs/2609.01231" in held(place, "workflow_desc")
    assert set(held(place, "rules")) == {"draw_figure", "judge_claims", "report_page", "write_latex_tables"}
