"""Results of two machines as one: blocks of seeds side by side, and the dataset over all of them."""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from attnid import metrics, tables
from attnid.cell import Cell
from attnid.config import VARIED
from attnid.errors import UserError

OF_ONE_CASE = {*VARIED, "lr_floor", "case"}
"""Settings in which cells of one case may differ within one configuration."""
OF_ALL_CASES = [
    *("corpus", "n_layers", "d_model", "context", "dropout", "steps", "warmup_steps", "decay_steps"),
    *("batch_size", "measure_every", "evaluate_every", "eval_batches", "compile"),
]
"""Settings that all cells of one configuration share."""


@dataclass(frozen=True)
class Block:
    """One training job's directory and its record."""

    path: Path
    record: Mapping[str, Any]

    @property
    def cell(self) -> Cell:
        """The settings of the block's cell."""
        return Cell.model_validate(self.record["settings"])

    @property
    def seeds(self) -> set[int]:
        """Its runs."""
        return set(self.record["seeds"])


def merge(first: Path, second: Path, merged: Path) -> list[str]:
    """Write the results of two directories, made by the same code with the same settings, to a third one.

    Its tables are read with `snakemake figures claims --config tables=MERGED`.

    Returns:
        What was done, in sentences.

    Raises:
        UserError: a directory holds no results, the third one exists, or code, settings or a run that both hold differ.
    """
    if merged.exists():
        raise UserError(f"merge: {merged} exists; expected a directory that is yet to be made")
    sides = [list(_blocks(directory)) for directory in (first, second)]
    blocks = [block for side in sides for block in side]
    for place in ("analysis", "metrics/config.json", "metrics/groups.parquet"):
        if not (first / place).exists():
            raise UserError(f"merge: {first} lacks {place}; expected the results of a whole run in the first directory")
    _require_same_code(blocks)
    _require_same_settings(blocks)
    kept = _without_repeats(*sides)
    groups = pd.concat([_groups(directory) for directory in (first, second)], ignore_index=True).drop_duplicates()
    partial = merged.with_name(f".{merged.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _write(kept, groups, first, partial)
        partial.rename(merged)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    runs, cells = sum(len(block.seeds) for block in kept), len({block.record["cell"] for block in kept})
    repeated = sum(len(block.seeds) for block in blocks) - runs
    return [
        f"{runs} runs of {cells} cells are in {merged}" + (f"; {repeated} runs were the same in both" * bool(repeated)),
        f"figures and claims from them: snakemake --cores 1 figures claims --config tables={merged}",
    ]


def _blocks(directory: Path) -> Iterator[Block]:
    records = sorted((directory / "training").glob("*/seeds-*/run.json"))
    if not records:
        raise UserError(f"merge: {directory} holds no training/<cell>/seeds-<first>-<last>/run.json; expected results")
    for path in records:
        try:
            yield Block(path.parent, json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise UserError(f"{path}: not JSON ({error}); expected the record of a training job") from None


def _require_same_code(blocks: list[Block]) -> None:
    """The hash of the training code and lock names what is the same; commit and versions say what differs."""
    one = blocks[0]
    for other in blocks[1:]:
        for name, version in one.record["versions"].items():
            found = other.record["versions"].get(name)
            if found != version:
                raise UserError(f"merge: {one.path} was trained with {name} {version}, {other.path} with {found}")
        if other.record["code"] != one.record["code"]:
            raise UserError(
                f"merge: {one.path} was trained by other code (commit {one.record['commit']}) than {other.path} "
                f"(commit {other.record['commit']}); allowed: results of the same code"
            )


def _require_same_settings(blocks: list[Block]) -> None:
    of_case: dict[str, Block] = {}
    for block in blocks:
        _require_equal(blocks[0], block, OF_ALL_CASES)
        known = of_case.setdefault(block.record["settings"]["case"], block)
        _require_equal(known, block, [name for name in Cell.model_fields if name not in OF_ONE_CASE])


def _require_equal(one: Block, other: Block, names: list[str]) -> None:
    for name in names:
        left, right = (block.record["settings"].get(name) for block in (one, other))
        if left != right:
            raise UserError(f"merge: {name} is {left!r} in {one.path} and {right!r} in {other.path}; expected the same")


def _without_repeats(first: list[Block], second: list[Block]) -> list[Block]:
    kept = list(first)
    for block in second:
        same = [own for own in first if own.record["cell"] == block.record["cell"] and own.seeds & block.seeds]
        if not same:
            kept.append(block)
        for own in same:
            if own.seeds != block.seeds or not _equal_tables(own, block):
                shared = ", ".join(str(seed) for seed in sorted(own.seeds & block.seeds))
                raise UserError(
                    f"merge: {own.path} and {block.path} both hold seed {shared} and differ; expected each run "
                    "once, or the same bytes twice"
                )
    return kept


def _equal_tables(one: Block, other: Block) -> bool:
    files = [f"{table.name}.parquet" for table in tables.TRAINING]
    return all((one.path / name).read_bytes() == (other.path / name).read_bytes() for name in files)


def _groups(directory: Path) -> pd.DataFrame:
    return tables.read(tables.GROUPS, directory / "metrics" / "groups.parquet")


def _write(blocks: list[Block], groups: pd.DataFrame, results: Path, directory: Path) -> None:
    cells = {block.record["cell"]: block.cell for block in blocks}
    for block in blocks:
        shutil.copytree(block.path, directory / "training" / block.record["cell"] / block.path.name)
    shutil.copytree(results / "analysis", directory / "analysis")
    members = {
        str(group): [cells[name] for name in rows["cell"] if name in cells]
        for group, rows in groups.groupby("group", sort=False)
    }
    files = {table.name: [block.path / f"{table.name}.parquet" for block in blocks] for table in tables.TRAINING}
    for name, frame in metrics.collect(members, files).items():
        tables.write(tables.BY_NAME[name], frame, directory / "metrics" / f"{name}.parquet")
    records = json.dumps([block.record for block in blocks], indent=1)
    (directory / "metrics" / "runs.json").write_text(records + "\n", encoding="utf-8")
    shutil.copy(results / "metrics" / "config.json", directory / "metrics" / "config.json")
