"""One training job: a cell's block of seeds trained with checkpoints and a log, and what it was made with."""

import logging
import resource
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import torch

from attnid import corpus, paths, provenance
from attnid.cell import Cell, Device
from attnid.checkpoint import Checkpoints
from attnid.tensorboard import TensorBoard
from attnid.training import Progress, choose_device, train

REPORT_EVERY = 5.0


def run(
    cell: Cell,
    first: int,
    last: int,
    text: Path,
    device: Device,
    code: str,
    log: logging.Logger,
    tensorboard: bool = False,
) -> tuple[dict[str, pd.DataFrame], dict[str, object]]:
    """Train seeds first to last of a cell, from the job's newest checkpoint where there is one.

    Args:
        text: the corpus.
        code: a hash of the code that trains; a checkpoint of other code is not used.
        tensorboard: whether the run is written for TensorBoard as well.

    Returns:
        The frames of `attnid.training.TABLES`, and the record of the run.
    """
    started, begin = datetime.now(UTC), time.monotonic()
    chosen = choose_device(device)
    belongs = {
        "lineage": cell.lineage,
        "seeds": f"{first} to {last}",
        "device": chosen.type,
        "corpus": provenance.digest([text]),
        "code": code,
        "torch": torch.__version__,
    }
    checkpoints = Checkpoints(paths.checkpoints(cell.lineage, first, last), belongs, cell.steps)
    reporter = _Reporter(log, f"{cell.id} seeds {first} to {last} on {chosen}")
    listeners: list[Callable[[Progress], None]] = [reporter]
    if tensorboard:
        listeners.append(TensorBoard(paths.tensorboard(cell.id)))

    def report(progress: Progress) -> None:
        for listener in listeners:
            listener(progress)

    frames = train(cell, corpus.load(text, cell.context), range(first, last + 1), chosen, report, checkpoints)
    for complaint in checkpoints.complaints:
        log.warning(complaint)
    return frames, {
        "cell": cell.id,
        "seeds": list(range(first, last + 1)),
        "device": torch.cuda.get_device_name() if chosen.type == "cuda" else "cpu",
        "machine": provenance.machine(),
        "threads": torch.get_num_threads(),
        "code": code,
        "commit": provenance.commit(),
        "versions": provenance.versions(),
        "started": started.isoformat(timespec="seconds"),
        "continued_from": reporter.begun,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "seconds": round(time.monotonic() - begin, 1),
        "settings": cell.model_dump(mode="json"),
    }


class _Reporter:
    """Logs where a job is, now and then and at its end."""

    def __init__(self, log: logging.Logger, name: str) -> None:
        self.log, self.name = log, name
        self.begin, self.last = time.monotonic(), 0.0
        self.begun = 0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        self.begun = progress.begun
        if progress.step < progress.steps and now - self.last < REPORT_EVERY:
            return
        self.last = now
        left = (now - self.begin) / (progress.step - progress.begun) * (progress.steps - progress.step)
        self.log.info(
            f"{self.name}: step {progress.step} of {progress.steps}, loss {progress.loss:.3f}"
            + (f", {left:.0f} s left" if progress.step > 1 else "")
        )
