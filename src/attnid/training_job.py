"""One training job: a cell's block of seeds trained with checkpoints and a log, and what it was made with."""

import logging
import math
import resource
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import torch

from attnid import corpus, paths, provenance
from attnid.cell import Cell
from attnid.checkpoint import Checkpoints
from attnid.job import signals
from attnid.live import Live, Pace
from attnid.run_record import RunRecord
from attnid.tensorboard import TensorBoard
from attnid.training import Progress, StoppedError, train

REPORT_EVERY = 5.0


def run(
    cell: Cell,
    first: int,
    last: int,
    text: Path,
    device: torch.device,
    code: str,
    log: logging.Logger,
    tensorboard: bool = False,
    checkpoint_every: float = 60.0,
    live: Live | None = None,
) -> tuple[dict[str, pd.DataFrame], RunRecord]:
    """Train seeds first to last of a cell, from the job's newest checkpoint where there is one.

    Args:
        text: the corpus.
        code: a hash of the code that trains; a checkpoint of other code is not used.
        tensorboard: whether the run is written for TensorBoard as well.
        checkpoint_every: seconds between checkpoints.
        live: what leaves the tables so far for those who watch.

    SIGTERM and SIGINT leave a checkpoint after the step at hand and end the process with 128 + the signal's number.

    Returns:
        The frames of `attnid.training_tables.TRAINING`, and the record of the run.
    """
    started, begin = datetime.now(UTC), time.monotonic()
    belongs = {
        "lineage": cell.lineage,
        "seeds": f"{first} to {last}",
        "device": device.type,
        "corpus": provenance.digest([text]),
        "code": code,
        "torch": torch.__version__,
    }
    directory = paths.checkpoints(cell.lineage, first, last)
    checkpoints = Checkpoints(directory, belongs, cell.steps, checkpoint_every, log.warning)
    reporter = _Reporter(log, f"{cell.id} seeds {first} to {last} on {device}")
    listeners: list[Callable[[Progress], None]] = [reporter]
    if live is not None:
        listeners.append(live)
    if tensorboard:
        listeners.append(TensorBoard(paths.tensorboard(cell.id)))

    def report(progress: Progress) -> None:
        for listener in listeners:
            listener(progress)

    loaded, seeds = corpus.load(text, cell.context), range(first, last + 1)
    with signals() as received:
        try:
            frames = train(cell, loaded, seeds, device, report, checkpoints, lambda: bool(received))
        except StoppedError as stopped:
            place = "there" if stopped.written else "the checkpoint before it, if there is one"
            done = f"stopped after step {stopped.step} of {cell.steps}"
            log.warning(f"{reporter.name}: {done}; the next start goes on from {place}")
            sys.exit(128 + received[0])
    record = RunRecord(
        cell=cell.id,
        seeds=list(range(first, last + 1)),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        machine=provenance.machine(),
        threads=torch.get_num_threads(),
        code=code,
        commit=provenance.commit(),
        versions=provenance.versions(),
        started=started.isoformat(timespec="seconds"),
        continued_from=checkpoints.begun,
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        seconds=round(time.monotonic() - begin, 1),
        settings=cell,
    )
    return frames, record


class _Reporter:
    """Logs where a job is, now and then and at its end."""

    def __init__(self, log: logging.Logger, name: str) -> None:
        self.log, self.name = log, name
        self.pace = Pace()
        self.last = 0.0
        self.astray = False

    def __call__(self, progress: Progress) -> None:
        now, left = time.monotonic(), self.pace.seconds_left(progress)
        if not self.astray and not math.isfinite(progress.loss):
            self.astray = True
            self.log.warning(
                f"{self.name}: the training loss at step {progress.step} is not finite; the run goes on, and tables, "
                "verdicts and figures name it"
            )
        if progress.step < progress.steps and now - self.last < REPORT_EVERY:
            return
        self.last = now
        self.log.info(
            f"{self.name}: step {progress.step} of {progress.steps}, loss {progress.loss:.3f}"
            + (f", {left:.0f} s left" if left is not None else "")
        )
