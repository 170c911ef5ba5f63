"""The training jobs of a configuration as they lie on disk: which there are, what they left, what their logs say."""

import re
from collections.abc import Iterator
from pathlib import Path

from attnid import paths
from attnid.config import Config, seed_blocks
from attnid.training_tables import TRAINING

FILES = (*(f"{table.name}.parquet" for table in TRAINING), "run.json")


def blocks(config: Config, cell: str, results: Path = paths.RESULTS) -> list[tuple[int, int]]:
    """Blocks of seeds (first, last) of a cell, one job each; those that are trained stay as they are."""
    directory = paths.below(results, paths.block(cell, 0, 0)).parent
    training = config.training
    return seed_blocks(training.all_seeds, training.seeds_per_job, _trained(directory))


def _trained(directory: Path) -> Iterator[tuple[int, int]]:
    for path in directory.glob("seeds-*-*/heads.parquet"):
        if named := re.fullmatch("seeds-([0-9]+)-([0-9]+)", path.parent.name):
            yield int(named[1]), int(named[2])


def is_done(block: Path) -> bool:
    """Whether a training job has left what it makes in its directory."""
    return all((block / name).exists() for name in FILES)


def last_words(log: Path) -> str:
    """Last line of a log; empty without one."""
    lines = log.read_text(errors="replace").split("\n") if log.is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
