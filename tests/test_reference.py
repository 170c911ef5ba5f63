"""The tables that are kept in the repository, and how they are kept."""

import json
from pathlib import Path

import pandas as pd
import pytest
import synthetic
from settings import ROOT

import reference
from attnid import claims, dataset, tables


def files(results: Path) -> tuple[dict[str, Path], dict[str, Path]]:
    """Tables and records of a run below a directory, as the workflow looks for them."""
    kept = {table.name: results / "analysis" / f"{table.name}.parquet" for table in tables.ANALYSIS}
    kept |= {table.name: results / "metrics" / f"{table.name}.parquet" for table in tables.METRICS}
    return kept, {name: results / "metrics" / f"{name}.json" for name in ("runs", "config")}


def test_the_tables_in_the_repository_are_of_this_version() -> None:
    dataset.require("reference", *files(ROOT / "reference"))


def test_kept_tables_lose_digits_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    empty = {name: table.schema.empty_table().to_pandas() for name, table in tables.BY_NAME.items()}
    frames = empty | synthetic.all_tables()
    kept, records = files(results)
    for name, path in kept.items():
        tables.write(tables.BY_NAME[name], frames[name], path)
    for name, path in records.items():
        path.write_text(json.dumps(name))
    tables.write(tables.CLAIMS, claims.judge(frames), results / "claims.parquet")
    monkeypatch.setattr(reference, "RESULTS", results)
    monkeypatch.setattr(reference, "REFERENCE", tmp_path / "reference")
    reference.main()
    for name, path in files(tmp_path / "reference")[0].items():
        table = tables.BY_NAME[name]
        pd.testing.assert_frame_equal(tables.read(table, path), tables.read(table, kept[name]), rtol=1e-6, obj=name)
    assert json.loads((tmp_path / "reference" / "metrics" / "runs.json").read_text()) == "runs"
