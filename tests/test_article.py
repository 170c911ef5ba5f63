"""The article takes every number from the results, and TeX makes a PDF of it."""

import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from handtyped import handtyped
from hypothesis import given
from hypothesis import strategies as st
from run_from_tables import RunFromTables
from settings import ROOT

from attnid import tables, typesetting
from attnid.claims import render

ARTICLE = (ROOT / "docs" / "article" / "attnid.tex").read_text()
NO_RESULTS = (
    "between the two scales",
    r"$95\,\%$ intervals",
    "$2DE$",
    "$D^2$",
    "$1-1/(2H)$",
    "$1/(2H)$",
    "in double precision",
    "all four matrices",
    "with six heads",
    "Llama-2-70B",
    "with twelve heads",
    "half of training",
    "never zero",
    "a quarter of the run before",
    "numerically zero",
    "the last tenth of training",
)
"""What the article says with numbers that no run gives: closed forms, names, and what a claim or a measure is."""

RESULT = re.compile(r"\\attnid[A-Za-z]+")
needs_tex = pytest.mark.skipif(
    any(shutil.which(program) is None for program in (*typesetting.PROGRAMS, "pdftotext")),
    reason="latexmk, pdflatex or pdftotext is not installed",
)


def test_no_number_in_the_article_is_typed_by_hand() -> None:
    assert handtyped(ARTICLE, NO_RESULTS) == []


@given(
    st.one_of(
        st.integers(0, 10**6).map(str),
        st.floats(0, 1).map("{:.3g}".format),
        st.sampled_from(["a third", "Twelve", r"$0.5\,\%$", r"$\rho=0.7$", r"\textbf{3}", "half"]),
    ),
    st.sampled_from([match.end() for match in RESULT.finditer(ARTICLE)]),
)
def test_a_number_typed_anywhere_beside_a_macro_is_found(planted: str, place: int) -> None:
    assert len(handtyped(f"{ARTICLE[:place]}{{}} {planted} {ARTICLE[place:]}", NO_RESULTS)) >= 1


def test_every_result_that_the_article_names_is_written_even_where_nothing_ran() -> None:
    written = re.findall(
        r"newcommand\{(\\attnid[A-Za-z]+)\}", render.to_latex(pd.DataFrame(columns=tables.CLAIMS.names))
    )
    assert set(RESULT.findall(ARTICLE)) <= set(written)


def said_by(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@needs_tex
@pytest.mark.slow
def test_the_pdf_has_the_numbers_of_the_run(run_from_tables: RunFromTables) -> None:
    run_from_tables.snakemake("--cores", "2", "--", "article")
    pdf = run_from_tables.root / "results" / "article.pdf"
    fonts = said_by("pdffonts", str(pdf)).splitlines()[2:]
    assert [font for font in fonts if font.split()[-5] != "yes"] == [], "not embedded"
    text = " ".join(said_by("pdftotext", str(pdf), "-").split())
    claims = tables.read(tables.CLAIMS, run_from_tables.root / "results" / "claims.parquet").set_index("id")
    paper = claims[claims["kind"] != "beyond"]
    assert f"Of {len(paper)} claims, {(paper['verdict'] == 'reproduced').sum()} are reproduced" in text
    assert f"{claims.loc['six-heads', 'measured']:.4g} (corrected)" in text
    loss = claims.loc["adamw-best-loss"]
    assert f"{abs(loss['measured']):.4g} [" in text
    assert f"] nats ({loss['verdict']})" in text


@pytest.mark.slow
def test_without_tex_one_sentence_says_what_to_install(run_from_tables: RunFromTables, tmp_path: Path) -> None:
    for program in ("which", "sh", "bash"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    output = run_from_tables.snakemake("--cores", "1", "--", "article", path=str(tmp_path), status=2)
    (said,) = [line for line in output.splitlines() if line.startswith("article:")]
    assert said.startswith("article: latexmk and pdflatex not found; expected a TeX installation")
    assert "Traceback" not in output
