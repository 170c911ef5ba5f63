from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnid import tables
from attnid.errors import UserError

GROUPS = pd.DataFrame({"group": ["a", "b"], "cell": ["x", "y"]})


def test_a_table_comes_back_as_it_was_with_its_units(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "groups.parquet"
    tables.write(tables.GROUPS, GROUPS[["cell", "group"]], path)
    assert tables.read(tables.GROUPS, path).to_dict("list") == GROUPS.to_dict("list")
    assert [file.name for file in path.parent.iterdir()] == ["groups.parquet"]
    errors = tables.INVARIANCES.schema.field("error_epsilons")
    assert errors.metadata[b"unit"] == b"float64 machine epsilon"


def test_every_column_is_described_and_no_name_stands_twice() -> None:
    for table in tables.ALL:
        assert len(set(table.names)) == len(table.names)
        assert all(column.description and column.unit for column in table.columns)
    assert len(tables.BY_NAME) == len(tables.ALL)


def test_writing_refuses_other_columns_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing columns \['cell'\], unknown columns \['sell'\]"):
        tables.write(tables.GROUPS, GROUPS.rename(columns={"cell": "sell"}), tmp_path / "t.parquet")
    with pytest.raises((pa.ArrowException, ValueError)):
        tables.write(tables.GROUPS, GROUPS.assign(cell=[None, 3]), tmp_path / "t.parquet")
    assert not list(tmp_path.iterdir())


def test_a_missing_value_is_refused_where_none_may_be(tmp_path: Path) -> None:
    with pytest.raises((pa.ArrowException, ValueError)):
        tables.write(tables.GROUPS, GROUPS.assign(cell=["x", None]), tmp_path / "t.parquet")


def test_no_altered_byte_changes_a_value_in_silence(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    frame = pd.DataFrame({name: draws.normal(size=300) for name in tables.SUMMARY.names})
    for column in tables.SUMMARY.columns:
        if column.type == tables.TEXT:
            frame[column.name] = "word"
        elif column.type == tables.INT:
            frame[column.name] = draws.integers(0, 9, size=300)
    path = tmp_path / "summary.parquet"
    tables.write(tables.SUMMARY, frame, path)
    whole, refused = path.read_bytes(), 0
    for place in draws.integers(0, len(whole), size=200):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            pd.testing.assert_frame_equal(tables.read(tables.SUMMARY, path), frame)
        except UserError:
            refused += 1
    assert refused > 100


def test_a_place_that_takes_no_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"groups\.parquet: cannot be written"):
        tables.write(tables.GROUPS, GROUPS, tmp_path / "file" / "groups.parquet")


def test_a_row_twice_or_without_a_value_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "groups.parquet"
    for frame, complaint in (
        (pd.concat([GROUPS, GROUPS.tail(1)]), "the row of group b stands there twice"),
        (GROUPS.assign(cell=["x", None]), "column cell lacks a value"),
    ):
        schema = pa.schema(
            [field.with_nullable(True) for field in tables.GROUPS.schema], metadata=tables.GROUPS.schema.metadata
        )
        pq.write_table(pa.Table.from_pandas(frame, schema=schema, preserve_index=False), path)
        with pytest.raises(UserError, match=complaint):
            tables.read(tables.GROUPS, path)


def altered(path: Path, change: str) -> None:
    table = pq.read_table(path)
    if change == "truncated":
        path.write_bytes(path.read_bytes()[:-20])
    elif change == "empty":
        path.write_bytes(b"")
    elif change == "column":
        pq.write_table(table.drop_columns(["cell"]), path)
    elif change == "type":
        pq.write_table(table.set_column(1, "cell", pa.array([1, 2])), path)
    elif change == "version":
        metadata = {**table.schema.metadata, b"version": b"99"}
        pq.write_table(table.replace_schema_metadata(metadata), path)
    elif change == "another":
        pq.write_table(pa.table({"x": [1]}), path)
    elif change == "missing":
        path.unlink()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("truncated", "not a readable Parquet file"),
        ("empty", "not a readable Parquet file"),
        ("column", "lacks its column cell"),
        ("type", "column cell holds int64, expected string"),
        ("version", "version 99 of the table groups, expected version 1"),
        ("another", "holds the table None, expected 'groups'"),
        ("missing", "no such file"),
    ],
)
def test_a_damaged_table_is_one_sentence_with_its_path(tmp_path: Path, change: str, complaint: str) -> None:
    path = tmp_path / "groups.parquet"
    tables.write(tables.GROUPS, GROUPS, path)
    altered(path, change)
    with pytest.raises(UserError) as caught:
        tables.read(tables.GROUPS, path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
