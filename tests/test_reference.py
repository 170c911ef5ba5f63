"""The tables that are kept in the repository, and how they are kept."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import synthetic
import verify
from settings import ROOT

import reference
from attnid import claims, dataset, tables


def files(results: Path) -> tuple[dict[str, Path], dict[str, Path]]:
    """Tables and records of a run below a directory, as the workflow looks for them."""
    kept = {table.name: results / "analysis" / f"{table.name}.parquet" for table in tables.ANALYSIS}
    kept |= {table.name: results / "metrics" / f"{table.name}.parquet" for table in tables.METRICS}
    return kept, {name: results / "metrics" / f"{name}.json" for name in ("runs", "config")}


@pytest.mark.parametrize("place", ["reference", "reference/smoke"])
def test_the_tables_in_the_repository_are_of_this_version(place: str) -> None:
    dataset.require(place, *files(ROOT / place))


def test_tables_that_differ_are_found_and_rounding_is_not(tmp_path: Path) -> None:
    place = tmp_path / "smoke"
    shutil.copytree(ROOT / "reference" / "smoke", place)
    assert not [each for each in verify.compare(verify.REFERENCE, place) if each.size]
    path = place / "metrics" / "heads.parquet"
    heads = tables.read(tables.HEADS, path)
    for changed, differing in (
        (heads.assign(beta=heads["beta"] * 1.001, norm_key_bias=heads["norm_key_bias"] * 3), set()),
        (heads.assign(beta=heads["beta"] * 1.02), {"beta"}),
        (heads.assign(norm_key_bias=1.0), {"norm_key_bias"}),
        (heads.assign(mu=heads["mu"].where(heads["step"] < 40)), {"mu"}),
        (heads.assign(state="not finite"), {"state"}),
        (heads.head(-1), {", ".join(sorted(set(heads) - set(heads.select_dtypes("float"))))}),
    ):
        tables.write(tables.HEADS, changed, path)
        found = list(verify.compare(verify.REFERENCE, place))
        assert {each.column for each in found if each.too_large} == differing
        assert ("differ by more" in verify.verdict(found)[0]) == bool(differing)


def test_kept_tables_lose_digits_and_nothing_else(tmp_path: Path) -> None:
    results = tmp_path / "results"
    empty = {name: table.schema.empty_table().to_pandas() for name, table in tables.BY_NAME.items()}
    frames = empty | synthetic.all_tables()
    kept, records = files(results)
    for name, path in kept.items():
        tables.write(tables.BY_NAME[name], frames[name], path)
    for name, path in records.items():
        path.write_text(json.dumps(name))
    tables.write(tables.CLAIMS, claims.judge(frames), results / "claims.parquet")
    reference.main(results, tmp_path / "reference")
    for name, path in files(tmp_path / "reference")[0].items():
        table = tables.BY_NAME[name]
        pd.testing.assert_frame_equal(tables.read(table, path), tables.read(table, kept[name]), rtol=1e-6, obj=name)
    assert json.loads((tmp_path / "reference" / "metrics" / "runs.json").read_text()) == "runs"
