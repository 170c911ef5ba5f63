"""Parquet tables as columns with a type, a meaning and a unit; written by rename, checked when read."""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from attnid.errors import UserError

INT = pa.int64()
FLOAT = pa.float64()
BOOL = pa.bool_()
TEXT = pa.string()


@dataclass(frozen=True)
class Column:
    """One column: its Arrow type, what it holds, its unit, and whether a value may be missing."""

    name: str
    type: pa.DataType
    description: str
    unit: str = "1"
    nullable: bool = False

    @property
    def field(self) -> pa.Field:
        metadata = {"description": self.description, "unit": self.unit}
        return pa.field(self.name, self.type, nullable=self.nullable, metadata=metadata)


@dataclass(frozen=True)
class Table:
    """One table: its columns in order, those that tell its rows apart, and a version that changes with their meaning.

    Without a `key`, rows differ in any column.
    """

    name: str
    description: str
    columns: tuple[Column, ...]
    version: int = 1
    key: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def schema(self) -> pa.Schema:
        metadata = {"table": self.name, "version": str(self.version), "description": self.description}
        return pa.schema([column.field for column in self.columns], metadata=metadata)


def as_arrow(table: Table, frame: pd.DataFrame) -> pa.Table:
    """A frame as an Arrow table of the table's schema. Raises ValueError where its columns are not the table's."""
    if set(frame.columns) != set(table.names):
        missing, extra = set(table.names) - set(frame.columns), set(frame.columns) - set(table.names)
        raise ValueError(f"table {table.name}: missing columns {sorted(missing)}, unknown columns {sorted(extra)}")
    return pa.Table.from_arrays(
        [_array(table, column, frame[column.name]) for column in table.columns], schema=table.schema
    )


def write(table: Table, frame: pd.DataFrame, path: Path) -> None:
    """Write a frame as a table, by rename, so that a reader never sees half of it, with checksums.

    Raises ValueError where the frame's columns are not the table's, UserError where the file cannot be written.
    """
    arrow = as_arrow(table, frame)
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(arrow, partial, write_page_checksum=True)
        partial.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({os.strerror(error.errno) if error.errno else error})") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _array(table: Table, column: Column, values: pd.Series) -> pa.Array:
    """NaN stands for a missing value where there may be one; in other columns it is a value that is not finite."""
    array = pa.array(values if column.nullable else values.to_numpy(), column.type, from_pandas=column.nullable)
    if array.null_count and not column.nullable:
        raise ValueError(f"table {table.name}: the column {column.name} has missing values")
    return array


def read(table: Table, path: Path) -> pd.DataFrame:
    """Read a table. Raises UserError where the file is missing, damaged or of another schema."""
    if path.is_dir():
        raise UserError(f"{path}: a directory; expected the table {table.name}")
    try:
        arrow = pq.read_table(path, partitioning=None, page_checksum_verification=True)
        arrow.validate(full=True)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected the table {table.name}") from None
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]})") from None
    _check(table, arrow.schema, path)
    for column in table.columns:
        if arrow[column.name].null_count and not column.nullable:
            raise UserError(f"{path}: column {column.name} lacks a value; expected one in every row")
    result: pd.DataFrame = arrow.select(table.names).to_pandas()
    repeated = result.duplicated(list(table.key) or None)
    if repeated.any():
        first = result[repeated].iloc[0]
        row = ", ".join(f"{name} {first[name]}" for name in table.key or table.names[:1])
        raise UserError(f"{path}: the row of {row} stands there twice; expected it once")
    return result


def read_all(table: Table, paths: Iterable[Path]) -> pd.DataFrame:
    """Read several files of one table, one below the other, in the order given."""
    return pd.concat([read(table, path) for path in paths], ignore_index=True)


def _check(table: Table, found: pa.Schema, path: Path) -> None:
    metadata = found.metadata or {}
    name, version = (
        metadata[key].decode(errors="replace") if key in metadata else None for key in (b"table", b"version")
    )
    if name != table.name:
        raise UserError(f"{path}: holds the table {name!r}, expected {table.name!r}")
    if version != str(table.version):
        raise UserError(f"{path}: version {version} of the table {name}, expected version {table.version}")
    for column in table.columns:
        if column.name not in found.names:
            raise UserError(f"{path}: the table {name} lacks its column {column.name}")
        if found.field(column.name).type != column.type:
            kind = found.field(column.name).type
            raise UserError(f"{path}: column {column.name} holds {kind}, expected {column.type}")


def ints(**descriptions: str) -> tuple[Column, ...]:
    """Columns of whole numbers, by name."""
    return tuple(Column(name, INT, text) for name, text in descriptions.items())


def bools(**descriptions: str) -> tuple[Column, ...]:
    """Columns of truth values."""
    return tuple(Column(name, BOOL, text) for name, text in descriptions.items())


def texts(**descriptions: str) -> tuple[Column, ...]:
    """Columns of text."""
    return tuple(Column(name, TEXT, text) for name, text in descriptions.items())


def floats(**descriptions: str) -> tuple[Column, ...]:
    """Columns of numbers without missing values."""
    return tuple(Column(name, FLOAT, text) for name, text in descriptions.items())


def optional(**descriptions: str) -> tuple[Column, ...]:
    """Columns of numbers that may be missing."""
    return tuple(Column(name, FLOAT, text, nullable=True) for name, text in descriptions.items())
