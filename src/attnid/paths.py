"""Where a run's files lie below its results directory."""

import os
from pathlib import Path

from attnid.errors import UserError

RESULTS = Path("results")


def require_writable() -> None:
    """Raise UserError where a run could not write its results."""
    place = RESULTS if RESULTS.exists() else RESULTS.absolute().parent
    if not os.access(place, os.W_OK | os.X_OK):
        raise UserError(f"{place}: cannot be written to; expected a directory that takes the results")


def corpus(label: str) -> Path:
    """The text that is trained on."""
    return RESULTS / "corpus" / f"{label}.txt"


def analysis(name: str) -> Path:
    """A table of the parameter-space analysis."""
    return RESULTS / "analysis" / f"{name}.parquet"


def below(results: str | Path, path: Path) -> Path:
    """Where a file of a run lies in another results directory."""
    return Path(results) / path.relative_to(RESULTS)


def block(cell: str, first: int, last: int) -> Path:
    """Directory of one training job: seeds first to last of a cell."""
    return RESULTS / "training" / cell / f"seeds-{first}-{last}"


def running(cell: str, first: int, last: int) -> Path:
    """Directory of what the training job of seeds first to last of a cell leaves while it runs, see `attnid.live`."""
    return RESULTS / "running" / f"{cell}_seeds-{first}-{last}"


def log(cell: str, first: int, last: int) -> Path:
    """The log of the training job of seeds first to last of a cell."""
    return RESULTS / "logs" / "training" / f"{cell}_seeds-{first}-{last}.log"


def checkpoints(lineage: str, first: int, last: int) -> Path:
    """Directory of the checkpoints of seeds first to last of all cells that differ in their number of steps alone."""
    return RESULTS / "checkpoints" / lineage / f"seeds-{first}-{last}"


def tensorboard(cell: str) -> Path:
    """Directory of a cell's logs for TensorBoard."""
    return RESULTS / "tensorboard" / cell


def metrics(name: str) -> Path:
    """A table over all cells."""
    return RESULTS / "metrics" / f"{name}.parquet"


def made_with(name: str) -> Path:
    """What the tables over all cells were made with: `runs`, the records of jobs, or `config`, the configuration."""
    return RESULTS / "metrics" / f"{name}.json"


def figure(name: str, suffix: str) -> Path:
    """A figure, `suffix` pdf or png."""
    return RESULTS / "figures" / f"{name}.{suffix}"


def latex_table(name: str) -> Path:
    """A table of an article, in LaTeX."""
    return RESULTS / "tables" / f"{name}.tex"
