"""Results of two machines as one: blocks of seeds side by side, and the dataset over all of them."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pandas as pd

from attnid import dataset, metrics, tables
from attnid.cell import Cell
from attnid.config import VARIED
from attnid.errors import UserError
from attnid.provenance import shared_code
from attnid.run_record import RunRecord, read_json, read_records, write_records

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
    record: RunRecord

    @property
    def settings(self) -> Cell:
        """The settings of the block's cell."""
        return self.record.settings

    @property
    def seeds(self) -> set[int]:
        """Its runs."""
        return set(self.record.seeds)


def merge(first: Path, second: Path, merged: Path) -> list[str]:
    """Write the results of two directories, made by the same code with the same settings, to a third one.

    Its tables are read with `snakemake figures claims --config tables=MERGED`.

    Returns:
        What was done, in sentences.

    Raises:
        UserError: a directory lacks results or holds damaged ones, the third one exists, lies in another or cannot be
            written, or code, settings or a run that both hold differ.
    """
    try:
        return _merge(first, second, merged)
    except OSError as error:
        raise UserError(f"merge: {merged} cannot be made ({error})") from None


def _merge(first: Path, second: Path, merged: Path) -> list[str]:
    if os.path.lexists(merged):
        raise UserError(f"merge: {merged} exists; expected a directory that is yet to be made")
    for side in (first, second):
        if not side.is_dir():
            raise UserError(f"merge: {side} is no directory; expected the results of a run")
        if merged.resolve().is_relative_to(side.resolve()):
            raise UserError(f"merge: {merged} lies in {side}; expected a directory outside the results that are merged")
    for table in tables.ANALYSIS:
        tables.read(table, first / "analysis" / f"{table.name}.parquet")
    read_json(first / "metrics" / "config.json")
    blocks = [block for side in (first, second) for block in _blocks(side)]
    _require_same_code(blocks)
    _require_same_settings(blocks)
    kept = _without_repeats(blocks)
    groups = pd.concat([_groups(directory) for directory in (first, second)], ignore_index=True).drop_duplicates()
    _require_same_cells(kept, groups)
    partial = Path(tempfile.mkdtemp(prefix=f".{merged.name[:50]}.", dir=merged.parent))
    try:
        _write(kept, groups, first, partial)
        partial.chmod(0o755)
        partial.rename(merged)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    runs, cells = sum(len(block.seeds) for block in kept), len({block.record.cell for block in kept})
    repeated = sum(len(block.seeds) for block in blocks) - runs
    twice = f"; {repeated} runs were there twice, and the same" if repeated else ""
    return [
        f"{runs} runs of {cells} cells are in {merged}{twice}",
        f"figures and claims from them: snakemake --cores 1 figures claims --config tables={merged}",
    ]


def _blocks(directory: Path) -> Iterator[Block]:
    """The training jobs behind a directory's dataset; blocks that an earlier run left are none of them."""
    listing = directory / "metrics" / "runs.json"
    if not listing.exists():
        raise UserError(f"merge: {listing} is missing; expected a directory in which `snakemake metrics` has run")
    for listed in read_records(listing):
        block = directory / "training" / listed.cell / f"seeds-{listed.seeds[0]}-{listed.seeds[-1]}"
        yield Block(block, dataset.read_block(block))


def _require_same_code(blocks: list[Block]) -> None:
    """The hashes of the training code and lock name what is the same; commit and versions say what differs."""
    one, of_optimizer = blocks[0], dict[str, Block]()
    for other in blocks:
        known = of_optimizer.setdefault(other.settings.optimizer, other)
        for name in sorted({*one.record.versions, *other.record.versions}):
            version, found = (block.record.versions.get(name, "none") for block in (one, other))
            if found != version:
                raise UserError(f"merge: {one.path} was trained with {name} {version}, {other.path} with {found}")
        if shared_code(other.record.code) != shared_code(one.record.code):
            _refuse_other_code(one, other)
        if other.record.code != known.record.code:
            _refuse_other_code(known, other)


def _refuse_other_code(one: Block, other: Block) -> NoReturn:
    raise UserError(
        f"merge: {one.path} was trained by other code (commit {one.record.commit}) than {other.path} "
        f"(commit {other.record.commit}); allowed: results of the same code"
    )


def _require_same_settings(blocks: list[Block]) -> None:
    of_case: dict[str, Block] = {}
    for block in blocks:
        _require_equal(blocks[0], block, OF_ALL_CASES)
        known = of_case.setdefault(block.settings.case, block)
        _require_equal(known, block, [name for name in Cell.model_fields if name not in OF_ONE_CASE])


def _require_same_cells(blocks: list[Block], groups: pd.DataFrame) -> None:
    """Every cell that was trained has a group, and the other way round."""
    trained, grouped = {block.record.cell for block in blocks}, set(groups["cell"])
    for name in sorted(trained ^ grouped):
        lacks = "runs" if name in grouped else "a group in metrics/groups.parquet"
        raise UserError(f"merge: the cell {name} lacks {lacks}; expected the results of whole runs")


def _require_equal(one: Block, other: Block, names: list[str]) -> None:
    for name in names:
        left, right = (getattr(block.settings, name) for block in (one, other))
        if left != right:
            raise UserError(f"merge: {name} is {left!r} in {one.path} and {right!r} in {other.path}; expected the same")


def _without_repeats(blocks: list[Block]) -> list[Block]:
    """Every run once. Raises UserError where two blocks share runs and differ in runs or bytes."""
    kept: list[Block] = []
    for block in blocks:
        same = [own for own in kept if own.record.cell == block.record.cell and own.seeds & block.seeds]
        for own in same:
            if own.seeds != block.seeds or not _equal_tables(own, block):
                shared = ", ".join(str(seed) for seed in sorted(own.seeds & block.seeds))
                raise UserError(
                    f"merge: {own.path} and {block.path} both hold seed {shared} and differ; expected each run "
                    "once, or the same bytes twice"
                )
        if not same:
            kept.append(block)
    return kept


def _equal_tables(one: Block, other: Block) -> bool:
    files = [f"{table.name}.parquet" for table in tables.TRAINING]
    return all((one.path / name).read_bytes() == (other.path / name).read_bytes() for name in files)


def _groups(directory: Path) -> pd.DataFrame:
    return tables.read(tables.GROUPS, directory / "metrics" / "groups.parquet")


def _write(blocks: list[Block], groups: pd.DataFrame, results: Path, directory: Path) -> None:
    cells = {block.record.cell: block.settings for block in blocks}
    members = {
        str(group): [cells[name] for name in rows["cell"]] for group, rows in groups.groupby("group", sort=False)
    }
    files = {table.name: [block.path / f"{table.name}.parquet" for block in blocks] for table in tables.TRAINING}
    for name, frame in metrics.collect(members, files).items():
        tables.write(tables.BY_NAME[name], frame, directory / "metrics" / f"{name}.parquet")
    for block in blocks:
        copied = directory / "training" / block.record.cell / block.path.name
        copied.mkdir(parents=True)
        for name in (*(f"{table.name}.parquet" for table in tables.TRAINING), "run.json"):
            shutil.copy(block.path / name, copied / name)
    (directory / "analysis").mkdir()
    for table in tables.ANALYSIS:
        shutil.copy(results / "analysis" / f"{table.name}.parquet", directory / "analysis")
    write_records((block.record for block in blocks), directory / "metrics" / "runs.json")
    shutil.copy(results / "metrics" / "config.json", directory / "metrics" / "config.json")
