"""Snakemake's own report of a run: what it lists, what it says of it, and that it needs no network."""

import base64
import json
import os
import re
import subprocess
import sys
from html import unescape
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import verify
from settings import ROOT, overlaid_settings

from attnid import figures, paths

pytestmark = pytest.mark.slow

NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
NAMES = figures.names(overlaid_settings("smoke.yaml")["groups"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run from tables made elsewhere and Snakemake's report of it."""
    place = tmp_path_factory.mktemp("checkout")
    verify.copy_workflow(place)
    tables = ("--config", f"tables={ROOT / 'reference' / 'smoke'}")
    for arguments in (("--cores", "2"), ("--report", "results/snakemake-report.html")):
        result = subprocess.run(
            [sys.executable, "-m", "snakemake", *arguments, *tables],
            cwd=place,
            env=os.environ | NO_NETWORK,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert result.returncode == 0, result.stdout[-5000:]
        assert "ERROR" not in result.stdout
    return place


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
    assert set(held(place, "rules")) == {"draw_figure", "judge_claims", "report_page"}
