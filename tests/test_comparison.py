"""Two runs compared: by known intervals, by properties, and as the command attnid compare."""

import json
import re
import shutil
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from typing import Any

import browser
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic
from playwright.sync_api import Browser
from scipy import stats

from attnid import cli, tables
from attnid.comparison import ABSENT, AGREES, DIFFERS, NO_INTERVAL, ONLY_A, ONLY_B, Ledger, compare

REFERENCE = Path(__file__).parents[1] / "reference"
SAME_WIDTH = 2.7764451 * sqrt(2 / 3)
"""Reach of Welch's interval at 95 % for two samples of three with variance 1: t of 4 degrees of freedom."""


def evidence(**parts: Any) -> pd.DataFrame:
    """Numbers behind the claim adamw-overlap: a list is a mean over seeds, a number is exact."""
    rows = []
    for part, values in parts.items():
        many = isinstance(values, list)
        for run, value in enumerate(values if many else [values]):
            rows.append(
                {
                    "id": "adamw-overlap",
                    "part": part,
                    "item": f"seed {run}" if many else "layer 1",
                    "value": float(value),
                    "average": ("geometric" if part.startswith("factor") else "arithmetic") if many else None,
                }
            )
    return pd.DataFrame(rows).reindex(columns=tables.EVIDENCE.names).astype({"average": object})


def ledger(**parts: Any) -> Ledger:
    return Ledger(synthetic.claims(), evidence(**parts))


def numbers(a: Ledger, b: Ledger) -> pd.DataFrame:
    return compare(a, b).numbers.set_index("part")


def test_the_interval_of_a_difference_is_welchs_by_hand() -> None:
    found = numbers(ledger(x=[1, 2, 3]), ledger(x=[5, 6, 7])).loc["x"]
    assert found["difference"] == 4
    assert (found["low"], found["high"]) == pytest.approx((4 - SAME_WIDTH, 4 + SAME_WIDTH))
    assert (found["runs_a"], found["runs_b"], found["a"], found["b"]) == (3, 3, 2, 6)
    assert found["state"] == DIFFERS


def test_unequal_variances_and_sizes_are_as_in_scipy() -> None:
    a, b = [1, 2, 3], [5, 7, 9, 14]
    found = numbers(ledger(x=a), ledger(x=b)).loc["x"]
    other = stats.ttest_ind(b, a, equal_var=False)
    assert found["p_value"] == pytest.approx(other.pvalue)
    assert (found["low"], found["high"]) == pytest.approx(tuple(other.confidence_interval(0.95)))


def test_two_intervals_hold_together_each_at_97_5_percent() -> None:
    found = numbers(ledger(x=[1, 2, 3], y=[1, 2, 3]), ledger(x=[5, 6, 7], y=[2, 3, 4]))
    reach = 3.4954059 * sqrt(2 / 3)
    assert found["high"].to_numpy() == pytest.approx([4 + reach, 1 + reach])
    assert found["state"].tolist() == [DIFFERS, AGREES]


def test_a_mean_may_differ_alone_and_not_among_many() -> None:
    near = {"x": [1, 2, 3]}, {"x": [1 + SAME_WIDTH + 0.01, 2 + SAME_WIDTH + 0.01, 3 + SAME_WIDTH + 0.01]}
    others = {f"y{index}": [1, 2, 4] for index in range(9)}
    assert numbers(*(ledger(**each) for each in near)).loc["x", "state"] == DIFFERS
    assert numbers(*(ledger(**each, **others) for each in near)).loc["x", "state"] == AGREES


def test_of_runs_that_differ_by_chance_alone_few_differ() -> None:
    random = np.random.default_rng(0)
    draws = random.normal(size=(200, 2, 10, 5))
    differing = sum(
        compare(*(ledger(**{f"x{part}": list(values) for part, values in enumerate(side)}) for side in pair)).differs
        for pair in draws
    )
    assert differing / len(draws) <= 0.05 + 3 * sqrt(0.05 * 0.95 / len(draws))


def test_geometric_means_are_compared_by_their_factor() -> None:
    """Samples e^1, e^2, e^3 and e^5, e^6, e^7: their factor is e^4."""
    found = numbers(ledger(factor=list(np.exp([1, 2, 3]))), ledger(factor=list(np.exp([5, 6, 7])))).loc["factor"]
    ends = np.exp([4, 4 - SAME_WIDTH, 4 + SAME_WIDTH])
    assert found[["difference", "low", "high"]].tolist() == pytest.approx(list(ends))
    assert found["state"] == DIFFERS


@pytest.mark.parametrize(
    ("a", "b", "state"),
    [
        (12, 12, AGREES),
        (12, 13, DIFFERS),
        (1 / 3, 1 / 3 + 1e-15, AGREES),
        ([1], [2], NO_INTERVAL),
        ([1, np.nan], [1, 2], NO_INTERVAL),
        ([1, np.nan], [1, np.nan], AGREES),
        ([2, 2], [3, 3], DIFFERS),
    ],
)
def test_what_counts_as_a_difference(a: Any, b: Any, state: str) -> None:
    found = compare(ledger(x=a), ledger(x=b))
    assert found.numbers["state"].tolist() == [state]
    assert found.differs == (state == DIFFERS)


def test_a_number_of_one_side_is_named_and_no_difference() -> None:
    found = compare(ledger(x=1, y=2), ledger(x=1, z=3))
    assert found.numbers.set_index("part")["state"].to_dict() == {"x": AGREES, "y": ONLY_A, "z": ONLY_B}
    assert not found.differs


def test_a_claim_that_is_absent_or_not_run_in_one_differs() -> None:
    whole = ledger(x=1)
    less = whole.claims.iloc[1:].assign(
        verdict=lambda claims: claims["verdict"].mask(claims["id"] == "adamw-overlap", "not run")
    )
    found = compare(whole, Ledger(less, whole.evidence)).claims.set_index("id")
    assert found.loc["qk-fraction", ["verdict_a", "verdict_b"]].tolist() == ["reproduced", ABSENT]
    assert found.loc["adamw-overlap", ["verdict_a", "verdict_b"]].tolist() == ["not reproduced", "not run"]
    assert set(found.index[found["state"] == DIFFERS]) == {"qk-fraction", "adamw-overlap"}


def test_the_sides_may_be_swapped() -> None:
    a, b = ledger(x=[1, 2, 3], y=4, z=[1, 2, 9]), ledger(x=[5, 6, 8], y=5, w=1, z=[2, 2, 3])
    there, back = numbers(a, b), numbers(b, a).loc[lambda frame: list(numbers(a, b).index)]
    assert there["difference"].to_numpy() == pytest.approx(-back["difference"].to_numpy(), nan_ok=True)
    assert there["low"].to_numpy() == pytest.approx(-back["high"].to_numpy(), nan_ok=True)
    assert there["state"].tolist() == back["state"].replace({ONLY_A: ONLY_B, ONLY_B: ONLY_A}).tolist()


# ---------------------------------------------------------------- the command


def results(directory: Path, claims: pd.DataFrame | None = None, **parts: Any) -> Path:
    """A results directory with verdicts and the numbers behind them."""
    directory.mkdir()
    tables.write(tables.CLAIMS, synthetic.claims() if claims is None else claims, directory / "claims.parquet")
    tables.write(tables.EVIDENCE, evidence(**(parts or {"x": [1, 2, 3]})), directory / "evidence.parquet")
    return directory


def settings(directory: Path, **changes: Any) -> None:
    (directory / "metrics").mkdir()
    (directory / "metrics" / "config.json").write_text(json.dumps({"training": {"steps": 500, "seeds": 5} | changes}))


def said(capsys: pytest.CaptureFixture[str], *arguments: Path | str, status: int) -> str:
    assert cli.main(["compare", *map(str, arguments)]) == status
    captured = capsys.readouterr()
    return captured.err if status == 2 else captured.out


def test_a_copy_is_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tables in reference/ hold no verdicts: they are judged."""
    copy = shutil.copytree(REFERENCE / "smoke", tmp_path / "copy")
    found = json.loads(said(capsys, REFERENCE / "smoke", copy, "--json", status=0))
    assert found["claims"] == found["settings"] == []
    assert found["summary"]["means"] > 50
    assert found["summary"]["exact"] > 500
    assert {found["summary"][name] for name in found["summary"] if "differ" in name or "only" in name} == {0}


def test_differences_are_listed_with_their_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = results(tmp_path / "a", x=[1, 2, 3], y=12), results(tmp_path / "b", x=[5, 6, 7], y=13)
    lines = said(capsys, a, b, status=1).splitlines()
    assert "adamw-overlap: not reproduced in both" in lines
    low, high = (format(4 + reach, ".4g") for reach in (-SAME_WIDTH, SAME_WIDTH))
    assert f"  x: 2 in A, 6 in B; B - A 4 [{low}, {high}], 3 and 3 runs, differs" in lines
    assert "  y, layer 1: 12 in A, 13 in B" in lines
    assert "1 of 5 claims differ, 0 in their verdict." in lines
    assert not any(line.startswith("qk-fraction") for line in lines)
    assert "qk-fraction: reproduced in both" in said(capsys, a, b, "--all", status=1).splitlines()


def test_json_says_null_for_what_is_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = results(tmp_path / "a", x=[1, np.inf], y=1), results(tmp_path / "b", x=[1, 2], y=2)
    found = json.loads(said(capsys, a, b, "--json", status=1), parse_constant=pytest.fail)
    (claim,) = found["claims"]
    assert [(number["part"], number["a"], number["state"]) for number in claim["numbers"]] == [
        ("x", None, NO_INTERVAL),
        ("y", 1, DIFFERS),
    ]


def test_settings_that_differ_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = results(tmp_path / "a"), results(tmp_path / "b")
    assert "whether their settings differ is unknown: one has no metrics/config.json" in said(capsys, a, b, status=0)
    settings(a)
    settings(b, steps=40)
    assert "their settings differ: training.steps (500 in A, 40 in B)\n" in said(capsys, a, b, status=0)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def without_column(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns("value"), path)


def without_rows(path: Path) -> None:
    pq.write_table(pq.read_table(path).slice(length=0), path)


def not_utf8(path: Path) -> None:
    table = pq.read_table(path)
    bytes_of = pa.array([b"\xff" + name.as_py().encode() for name in table["id"]], pa.binary())
    names = pa.Array.from_buffers(pa.string(), len(bytes_of), bytes_of.buffers())
    pq.write_table(table.set_column(table.schema.get_field_index("id"), table.schema.field("id"), names), path)


@pytest.mark.parametrize(
    ("name", "damage", "sentence"),
    [
        ("claims.parquet", Path.unlink, "has neither claims.parquet nor metrics/"),
        ("evidence.parquet", Path.unlink, "evidence.parquet: is missing"),
        ("claims.parquet", cut, "claims.parquet: "),
        ("evidence.parquet", cut, "evidence.parquet: "),
        ("evidence.parquet", without_column, "the table evidence lacks its column value"),
        ("claims.parquet", without_rows, "claims.parquet: has no rows"),
        ("evidence.parquet", without_rows, "evidence.parquet: has no rows"),
        ("claims.parquet", not_utf8, "claims.parquet: not a readable Parquet file"),
        ("evidence.parquet", not_utf8, "evidence.parquet: not a readable Parquet file"),
    ],
)
def test_damaged_tables_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, damage: Callable[[Path], None], sentence: str
) -> None:
    a, b = results(tmp_path / "a"), results(tmp_path / "b")
    damage(b / name)
    found = said(capsys, a, b, "--page", tmp_path / "page.html", status=2)
    assert sentence in found
    assert str(b) in found
    assert found.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


def test_numbers_of_another_run_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = results(tmp_path / "a")
    b = results(tmp_path / "b", synthetic.claims().query("id != 'adamw-overlap'"))
    assert "has numbers behind adamw-overlap, which claims.parquet lacks" in said(capsys, a, b, status=2)


def test_directories_that_are_none_or_the_same_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = results(tmp_path / "a")
    (tmp_path / "link").symlink_to(a)
    for other in (a, tmp_path / "link"):
        assert "are the same directory; expected two" in said(capsys, a, other, status=2)
    for other in (tmp_path / "none", a / "claims.parquet", Path("x" * 300)):
        assert f"{other} is no directory" in said(capsys, a, other, status=2)


@pytest.mark.parametrize(("text", "sentence"), [("{", "not JSON"), ("[1]", "holds [1]"), ("null", "holds None")])
def test_settings_that_are_none_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    a, b = results(tmp_path / "a"), results(tmp_path / "b")
    settings(a)
    settings(b)
    (b / "metrics" / "config.json").write_text(text)
    assert f"config.json: {sentence}" in said(capsys, a, b, status=2)


def test_what_commands_a_terminal_is_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Red, a title for the window, and a change of the direction of writing."""
    evil = "\x1b[31m \x1b]0;title\x07 \u202e"
    claims = synthetic.claims()
    a = results(tmp_path / "a", claims)
    b = results(tmp_path / "b", claims.assign(verdict=evil))
    found = said(capsys, a, b, status=1)
    assert not set(evil) - set("[31m ]0;title") & set(found)
    assert r"\x1b[31m \x1b]0;title\x07 \u202e in B" in found


@pytest.mark.parametrize("value", [0.0, -1.0, 1e308, 1e-320, float("inf"), float("-inf"), float("nan")])
def test_numbers_of_any_size_are_compared_without_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: float
) -> None:
    a, b = results(tmp_path / "a", x=[1, 2, 3]), results(tmp_path / "b", x=[value] * 3)
    assert cli.main(["compare", str(a), str(b), "--json", "--all"]) in (0, 1)
    out, err = capsys.readouterr()
    assert err == ""
    json.loads(out, parse_constant=pytest.fail)


# ---------------------------------------------------------------- the page


def saved(directory: Path, capsys: pytest.CaptureFixture[str], claims: pd.DataFrame | None = None) -> Path:
    a = results(directory / "a", claims, x=[1, 2, 3])
    b = results(directory / "b", claims, x=[5, 6, 7])
    settings(a)
    settings(b, steps="<b>40</b>")
    said(capsys, a, b, "--page", directory / "page.html", status=1)
    return directory / "page.html"


def test_the_page_opens_what_differs_and_needs_nothing_else(
    chromium: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, capsys)
    assert not re.search(r"https?://|@import|url\(|<script", path.read_text())
    for width in (browser.PHONE, browser.DESK):
        with browser.opened(chromium, path, width) as page:
            assert browser.overflow(page) == 0
            assert page.locator("details.claim").count() == 5
            assert [each.get_attribute("id") for each in page.locator("details.claim[open]").all()] == [
                "claim-adamw-overlap"
            ]
            assert "1 of 1 means over runs differ" in page.inner_text("header")
            assert page.locator("#claim-adamw-overlap td:has(data)").count() == 8
            assert page.locator("section[aria-labelledby=settings] td").all_inner_texts() == ["500", "<b>40</b>"]


def test_the_page_escapes_what_it_is_given(
    chromium: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    statement = "<script>throw 1</script>"
    path = saved(tmp_path, capsys, synthetic.claims().assign(statement=statement))
    with browser.opened(chromium, path) as page:
        assert page.locator("script").count() == 0
        assert page.locator("details.claim .statement").all_inner_texts() == [statement] * 5


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("page.txt", "pages are saved as .html"),
        ("no/page.html", "cannot be written (No such file"),
        ("file/page.html", "cannot be written (Not a directory"),
        ("directory.html", "cannot be written (Is a directory"),
        (f"{'x' * 300}.html", "cannot be written (File name too long"),
    ],
)
def test_a_page_that_cannot_be_saved_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, sentence: str
) -> None:
    a, b = results(tmp_path / "a"), results(tmp_path / "b")
    (tmp_path / "file").touch()
    (tmp_path / "directory.html").mkdir()
    assert sentence in said(capsys, a, b, "--page", tmp_path / place, status=2)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "file", "directory.html"}


def test_a_page_shows_text_that_no_file_can_hold_as_python_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = results(tmp_path / "a"), results(tmp_path / "b")
    settings(a)
    settings(b, steps="\ud800")
    said(capsys, a, b, "--page", tmp_path / "page.html", status=0)
    assert r"<td>\ud800</td>" in (tmp_path / "page.html").read_text()
