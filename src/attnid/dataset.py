"""Tables made elsewhere: are they all there, and what do they hold."""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from attnid import tables
from attnid.cell import Cell
from attnid.errors import UserError
from attnid.run_record import RunRecord, read_json, read_record, read_records
from attnid.schema import Table
from attnid.training_tables import REBALANCES, TRAINING


def require(directory: str, files: Mapping[str, Path], records: Mapping[str, Path]) -> None:
    """Refuse a directory that lacks a file of a run, or holds a damaged one. Raises UserError naming the first.

    Args:
        files: of tables, by the table's name.
        records: of `runs` and `config`, see `attnid.paths.made_with`.
    """
    for path in (*files.values(), *records.values()):
        if not path.is_file():
            raise UserError(f"configuration: tables is {directory!r}, but {path} is missing; expected a run's tables")
    runs = read_records(records["runs"])
    for name, path in files.items():
        frame = tables.read(tables.BY_NAME[name], path)
        if tables.BY_NAME[name] in TRAINING:
            require_runs(frame, tables.BY_NAME[name], runs, path)
        if name == tables.CELLS.name:
            _require_cells(frame, {record.cell: record.settings for record in runs}, path)
    read_json(records["config"])


def _require_cells(frame: pd.DataFrame, cells: Mapping[str, Cell], path: Path) -> None:
    """Refuse a table of cells that does not say of each what its record says, to the digits that are kept of it."""
    for name in sorted(set(frame["cell"]) ^ set(cells)):
        raise UserError(f"{path}: {name} stands there or in the jobs' records alone; expected the same cells in both")
    for _, row in frame.iterrows():
        for key, wanted in cells[row["cell"]]:
            found: Any = row.get(key, wanted)
            same = math.isclose(found, wanted, rel_tol=1e-6) if isinstance(wanted, float) else found == wanted
            if not same:
                raise UserError(f"{path}: {key} of {row['cell']} is {found}, by the jobs' records {wanted}")


def read_block(directory: Path) -> RunRecord:
    """The record of a training job, held against its directory `<cell>/seeds-<first>-<last>` and its tables.

    Raises UserError where something is missing, damaged, or of another job.
    """
    record = read_record(directory / "run.json")
    cell, seeds = directory.parent.name, f"seeds-{record.seeds[0]}-{record.seeds[-1]}"
    if (record.cell, seeds) != (cell, directory.name):
        raise UserError(f"{directory / 'run.json'}: is of another job; expected that of its directory")
    for table in TRAINING:
        path = directory / f"{table.name}.parquet"
        require_runs(tables.read(table, path), table, [record], path)
    return record


def require_runs(frame: pd.DataFrame, table: Table, records: Iterable[RunRecord], path: Path) -> None:
    """Refuse a table of training that does not hold the runs of these jobs. Raises UserError."""
    expected = {(record.cell, seed) for record in records for seed in record.seeds}
    runs = set(zip(frame["cell"], frame["seed"], strict=True))
    if table is REBALANCES:
        expected &= runs
    for found, others in (("holds", runs - expected), ("lacks", expected - runs)):
        for cell, seed in sorted(others):
            raise UserError(f"{path}: {found} seed {seed} of {cell}; expected the runs that its record lists")


def require_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a dataset made with other settings than these. Raises UserError naming the first that differs.

    Snakemake collects a dataset again when settings change, but knows of it only where its records are kept.
    """
    for key, was, now in differences(read_json(path), dict(settings)):
        raise UserError(
            f"{path}: the tables were made with {key} {was}, the configuration has {now}, and Snakemake has no record "
            f"of the run that made them; expected the same, or none: without {path.parent} and the analysis beside it, "
            "they are made again"
        )


def differences(was: Any, now: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Keys of two configurations with other values, in their order, the innermost ones; `unset` where one lacks it."""
    if not (isinstance(was, dict) and isinstance(now, dict)):
        if was != now:
            yield key, was, now
        return
    for name in {**was, **now}:
        inner = f"{key}.{name}" if key else str(name)
        yield from differences(was.get(name, "unset"), now.get(name, "unset"), inner)


def groups(path: Path) -> list[str]:
    """The cell groups of a table groups. Raises UserError where it is damaged or of another schema."""
    return list(dict.fromkeys(tables.read(tables.GROUPS, path)["group"]))
