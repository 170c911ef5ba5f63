import re
from base64 import b64decode
from html import escape
from html.parser import HTMLParser
from io import BytesIO
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import synthetic
from PIL import Image, ImageChops
from report_contents import claim, page, run

from attnid import explorer, pages, report, style, tables
from attnid.claims.ledger import VERDICTS

VOID = {"col", "meta", "link", "img", "br", "hr", "input"}
HOSTILE = "<script>alert('x')</script> & \"quoted\""


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    figure, _ = style.panels(style.DOUBLE, 1.0)
    path = tmp_path_factory.mktemp("figure") / "figure.png"
    style.save(figure, path)
    return path.read_bytes()


def words(html: str) -> str:
    """The text of a page, with single spaces."""
    return " ".join(Page(html).text.split()).replace(" .", ".")


class Page(HTMLParser):
    """Parses a page strictly: every element closed in order; keeps tags, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"attribute twice in {tag}"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.text += " " if tag in ("td", "th") else ""

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_page_is_well_formed_and_small(picture: bytes) -> None:
    html = page(picture)
    parsed = Page(html)
    assert html.startswith("<!DOCTYPE html>")
    assert parsed.all("html")[0]["lang"] == "en"
    assert len(html.encode()) < 5 * 2**20
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_every_claim_is_listed_with_its_verdict_numbers_and_rule(picture: bytes) -> None:
    html = page(picture)
    parsed = Page(html)
    rows = {row["id"]: row["data-verdict"] for row in parsed.all("details") if "data-verdict" in row}
    claims = synthetic.claims()
    assert rows == {f"claim-{name}": verdict for name, verdict in zip(claims["id"], claims["verdict"], strict=True)}
    for column in ("at", "statement", "scale", "evidence"):
        assert all(text in parsed.text for text in claims[column])
    assert all(f"the rule of {name}" in parsed.text for name in claims["id"])
    assert "0.04 [0.03, 0.05]" in " ".join(parsed.text.split())
    assert parsed.text.index("Claims") < parsed.text.index("A figure") < parsed.text.rindex("Errata")


def test_verdicts_are_counted(picture: bytes) -> None:
    claims = pd.concat([synthetic.claims(), synthetic.claims().assign(id=lambda frame: "again-" + frame["id"]).head(1)])
    text = words(page(picture, claims=claims))
    assert "6 claims of the paper: 2 reproduced 1 corrected 1 qualified 1 not reproduced 1 not run" in text
    assert "questions beyond the paper" not in text


def test_questions_beyond_the_paper_are_counted_apart(picture: bytes) -> None:
    claims = synthetic.claims()
    asked = claims.head(2).assign(id=["q1", "q2"], kind="beyond", verdict=["supported", "open"])
    text = words(page(picture, claims=pd.concat([claims, asked])))
    assert "5 claims of the paper: 1 reproduced 1 corrected 1 qualified 1 not reproduced 1 not run" in text
    assert "2 questions beyond the paper: 1 supported 1 open 0 not supported 0 not run" in text


def test_a_claim_opens_to_its_figure_and_its_numbers_to_the_last_digit(picture: bytes) -> None:
    html = page(picture)
    row = html[html.index('id="claim-six-heads"') : html.index('id="claim-key-bias-dead"')]
    assert 'href="#figure-a_figure">A figure</a>' in row
    assert f'<data value="{11 / 12}">0.9167</data>' in row
    assert 'data-save="six-heads.csv"' in row
    other = html[html.index('id="claim-key-bias-dead"') : html.index('id="claim-adamw-overlap"')]
    assert "figure" not in other
    assert "data-save" not in other


def test_a_claim_whose_figure_is_not_drawn_links_to_none(picture: bytes) -> None:
    parsed = Page(page(picture, figures={}))
    assert "#figure-a_figure" not in [link.get("href") for link in parsed.all("a")]
    assert parsed.all("img") == []


def test_missing_jobs_and_runs_astray_are_shown_first_and_named(picture: bytes) -> None:
    missing = [report.MissingJob("adamw_h4", "1 to 3", "MemoryError"), report.MissingJob("muon_h4", "1 to 3", "")]
    html = page(picture, missing=missing, astray=["sgd_h4: not finite in 1 of 3 runs."])
    text = words(html)
    assert "2 training jobs are missing from this page and some runs went astray: which." in text
    assert "adamw_h4 1 to 3 MemoryError muon_h4 1 to 3 not begun" in text
    assert "sgd_h4: not finite in 1 of 3 runs." in text
    assert html.index('href="#missing"') < html.index('id="claims"') < html.index('id="missing"')
    assert "#missing" not in page(picture)


def test_published_models_are_listed(picture: bytes) -> None:
    text = words(page(picture))
    assert all(model in text for model in synthetic.all_tables()["architectures"]["model"])
    none = synthetic.all_tables()["architectures"].head(0)
    assert "The table of published models has no rows." in words(page(picture, architectures=none))


def test_commands_give_snakemake_the_same_configuration() -> None:
    options = ["--configfile", "my runs.yaml", "--config", "partial=true"]
    commands = dict(report.commands(options, [run()], made_here=True))
    assert commands["everything"] == "snakemake --cores all --configfile 'my runs.yaml' --config partial=true"
    assert commands["the figures"].startswith("snakemake --cores all figures --configfile")
    job = "results/training/sgd_h4_3f2a91/seeds-1-3/run.json"
    assert f"--force {job} --configfile" in commands["one training job, as an example"]
    elsewhere = report.commands(["--config", "tables=reference"], [run()], made_here=False)
    assert [command.split()[3] for _, command in elsewhere] == ["--config", "figures", "claims", "report", "article"]


def test_runs_astray_are_found_in_every_table() -> None:
    frames = synthetic.all_tables()
    assert report.astray(frames) == []
    cell, seed = frames["steps"].loc[0, ["cell", "seed"]]
    steps = frames["steps"].copy()
    steps.loc[(steps["cell"] == cell) & (steps["seed"] == seed), "train_loss"] = np.nan
    (sentence,) = report.astray(frames | {"steps": steps})
    assert sentence.startswith(f"{cell}: not finite in 1 of ")


def test_the_errata_are_the_corrected_and_the_qualified_claims(picture: bytes) -> None:
    html = page(picture)
    errata = html[html.index('<h2 id="errata"') : html.index('<h2 id="again"')]
    assert re.findall(r'href="#claim-([\w-]+)"', errata) == ["six-heads", "key-bias-dead"]
    claims = synthetic.claims()
    assert "No claim came out as corrected or qualified." in page(
        picture, claims=claims[claims["verdict"] == "not run"]
    )


def test_text_from_outside_is_escaped(picture: bytes) -> None:
    claims = synthetic.claims()
    for column in ("id", "at", "statement", "printed", "evidence", "scale"):
        claims[column] = HOSTILE
    table = pd.DataFrame({HOSTILE: [HOSTILE]})
    html = page(
        picture,
        claims=claims,
        register={HOSTILE: claim(HOSTILE, rule=HOSTILE)},
        missing=[report.MissingJob(HOSTILE, HOSTILE, HOSTILE)],
        astray=[HOSTILE],
        commands=[(HOSTILE, HOSTILE)],
        figures={"a_figure": report.FigureEntry(HOSTILE, HOSTILE, picture, table, HOSTILE)},
        runs=[run(cell=HOSTILE, device=HOSTILE, versions={HOSTILE: HOSTILE}, settings={HOSTILE: HOSTILE})],
        config={HOSTILE: HOSTILE},
        created=HOSTILE,
        explorer=explorer.Explorer([{"cell": HOSTILE, "label": HOSTILE, "measures": {}}], 0),
    )
    assert "<script>alert" not in html
    assert f">{escape(HOSTILE, quote=False)}</option>" in html.replace("&#39;", "'").replace("&#34;", '"')
    assert [script.get("type") for script in Page(html).all("script")] == ["text/plain", "module", None]


def test_nothing_is_fetched(picture: bytes) -> None:
    html = page(picture)
    for _, attributes in Page(html).tags:
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    assert not re.search(r"https?://|@import|url\(|fetch\(", html)


def test_figures_are_inline_with_a_text_and_their_table(picture: bytes) -> None:
    parsed = Page(page(picture))
    (image,) = [image for image in parsed.all("img") if "src" in image]
    shown, saved = (Image.open(BytesIO(data)) for data in (b64decode((image["src"] or "").split(",")[1]), picture))
    assert ImageChops.difference(shown, saved.convert("RGB")).getbbox() is None
    assert image["alt"] == "A figure. What it shows."
    assert (image["width"], image["height"]) == ("960", "137")
    assert "The 3 rows behind the figure, in results/analysis/ranks.parquet" in parsed.text


def test_a_long_table_is_cut_and_says_so(picture: bytes) -> None:
    table = pd.DataFrame({"step": np.arange(1000, 2000)})
    entry = report.FigureEntry("Long", "A long table.", picture, table, "results/metrics/summary.parquet")
    text = Page(page(picture, figures={"long": entry})).text
    assert "The first 40 of 1000 rows behind the figure; all of them are in results/metrics/summary.parquet" in text
    assert "1039" in text
    assert "1040" not in text


def test_the_provenance_names_versions_devices_commits_seeds_and_time(picture: bytes) -> None:
    runs = [run(), run(cell="adamw", device="cuda (H200)", seeds=[4], seconds=3600.0, versions={"torch": "2.14.0"})]
    text = Page(page(picture, runs=runs)).text
    for fact in ("cpu, cuda (H200)", "0123abc", "1, 2, 3, 4", "in 2 jobs, 1 h 1 min of", "2.13.0, 2.14.0", "lr: 0.25"):
        assert fact in text
    assert "n_layers: 2" in text
    assert "Linux x86_64, 2 cores" in text
    assert "No training ran for this page." in Page(page(picture, runs=[])).text


def test_headers_have_a_scope_and_details_a_summary(picture: bytes) -> None:
    parsed = Page(page(picture))
    assert all(header["scope"] in ("col", "row") for header in parsed.all("th"))
    assert len(parsed.all("details")) == len(parsed.all("summary"))
    levels = [int(tag[1]) for tag, _ in parsed.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_enough_contrast(scheme: str, picture: bytes) -> None:
    html = page(picture)
    blocks = re.findall(r":root \{(.*?)\}", html, flags=re.DOTALL)
    block = blocks[0 if scheme == "light" else 1]
    colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    shown = dict(re.findall(r"\.([\w-]+) \{ color: var\(--([\w-]+)\); \}", html))
    for name in ("ink", "soft", "link", *(shown[verdict.replace(" ", "-")] for verdict in VERDICTS)):
        assert min(_contrast(colors[name], colors[ground]) for ground in ("page", "panel")) >= 4.5


def _contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours as WCAG 2 defines it."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    channels = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (float("nan"), "–"), (pd.NA, "–"), (0.0312499, "0.03125"), (4096, "4096"), (1.0, "1"),
     (2.5e-9, "2.5e-09"), (float("inf"), "inf"), (np.int64(3), "3"), (True, "yes"), (np.False_, "no"),
     ("1 - 1/(2H)", "1 - 1/(2H)")],
)  # fmt: skip
def test_numbers_are_short(value: Any, shown: str) -> None:
    assert pages.number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (59.7, "1 min 0 s"), (123, "2 min 3 s"), (7300, "2 h 1 min")]
)
def test_durations_are_readable(seconds: float, shown: str) -> None:
    assert pages.duration(seconds) == shown


def test_the_claims_of_these_tests_fit_the_table(tmp_path: Any) -> None:
    tables.write(tables.CLAIMS, synthetic.claims(), tmp_path / "claims.parquet")
    assert set(tables.read(tables.CLAIMS, tmp_path / "claims.parquet")["verdict"]) == set(report.PAPER_VERDICTS)
