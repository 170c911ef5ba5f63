"""A run as it stands on disk: the training jobs of every setting, how far they are and what they measured last."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pandas as pd

from attnid import jobs, live, paths, plan, schema, statistics
from attnid.cell import Cell
from attnid.config import Config, cells
from attnid.errors import UserError
from attnid.null import Null, random_step_nulls
from attnid.run_record import RunRecord, read_record
from attnid.training_tables import EVALUATIONS, HEADS, STEPS

State = Literal["waiting", "running", "done", "failed"]
Frames = Mapping[str, pd.DataFrame]
OVERLAP = "rho_qk"


@dataclass(frozen=True)
class Job:
    """One training job: a block of seeds of a cell.

    Attributes:
        directory: of its tables, so far or in the end.
        step: its last measured step; 0 before it.
        seconds_left: as far as it says so itself.
        why: the last line of a failed job's log.
        rows: of its last measured step and last validation, by table; empty where none can be read.
        record: of one that is done.
    """

    cell: Cell
    first: int
    last: int
    state: State
    directory: Path
    step: int = 0
    seconds_left: float | None = None
    why: str = ""
    rows: Frames = field(default_factory=dict)
    record: RunRecord | None = None

    @property
    def name(self) -> str:
        return f"{self.cell.id} seeds {self.first} to {self.last}"

    def work(self, steps: int) -> float:
        """What a number of its steps cost, in operations."""
        return plan.cost(self.cell) * (self.last - self.first + 1) * steps / self.cell.steps


@dataclass(frozen=True)
class Measured:
    """A measure at a step: the median over layers and heads, its mean over seeds and the interval over them."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Setting:
    """A cell with its jobs, what those that run, else all, measured last, and the null of its rho."""

    cell: Cell
    jobs: list[Job]
    measured: Mapping[str, Measured]
    null: Null
    seconds_left: float | None

    @property
    def state(self) -> State:
        """Running if a job runs, failed if one failed and none runs, done if all are."""
        states = [job.state for job in self.jobs]
        kinds: tuple[State, ...] = ("running", "failed", "waiting")
        return next((state for state in kinds if state in states), "done")

    @property
    def step(self) -> int:
        """Steps of all its jobs that are done."""
        return sum(job.step for job in self.jobs)

    @property
    def steps(self) -> int:
        """All steps of all its jobs."""
        return self.cell.steps * len(self.jobs)

    @property
    def jobs_done(self) -> int:
        return sum(job.state == "done" for job in self.jobs)


@dataclass(frozen=True)
class Snapshot:
    """All settings of a configuration, the seconds left, and sentences on what is there beside them."""

    settings: list[Setting]
    seconds_left: float | None
    notes: list[str]

    @property
    def is_done(self) -> bool:
        return all(setting.state == "done" for setting in self.settings)


class Watcher:
    """Reads the jobs of a configuration from a results directory again and again; what has not changed, once."""

    def __init__(self, config: Config, results: Path) -> None:
        if config.tables:
            raise UserError(
                f"configuration: tables is {config.tables!r}, so nothing is trained; expected null to watch"
            )
        self.config, self.results = config, results
        self.cells = cells(config)
        self._read: dict[Path, tuple[int, Frames]] = {}
        self._notes: list[str] = []

    def snapshot(self) -> Snapshot:
        """The run as it is now."""
        self._notes = []
        found = {
            name: [self._job(cell, *block) for block in jobs.blocks(self.config, name, self.results)]
            for name, cell in self.cells.items()
        }
        together = [job for own in found.values() for job in own]
        rate, measured = seconds_per_operation(together), _measured(found.values())
        settings = [
            Setting(
                self.cells[name],
                own,
                measured.get(name, {}),
                random_step_nulls(self.cells[name].layer)["qk"],
                seconds_left(own, rate),
            )
            for name, own in found.items()
        ]
        return Snapshot(settings, seconds_left(together, rate), [*self._notes, *self._others(together)])

    def _job(self, cell: Cell, first: int, last: int) -> Job:
        end, now, log = (
            paths.below(self.results, place(cell.id, first, last)) for place in (paths.block, paths.running, paths.log)
        )
        runs = live.is_held(now)
        if not runs and jobs.is_done(end):
            return Job(cell, first, last, "done", end, cell.steps, rows=self._rows(end), record=self._record(end))
        place = live.place(now)
        step, left = (place.step, place.seconds_left) if place else (0, None)
        if runs:
            return Job(cell, first, last, "running", now, step, left, rows=self._rows(now))
        if live.was_left(now):
            return Job(cell, first, last, "failed", now, step, why=_last_words(log), rows=self._rows(now))
        return Job(cell, first, last, "waiting", end)

    def _rows(self, directory: Path) -> Frames:
        """The rows of the last measured step and validation of a job's tables; none where they cannot be read."""
        try:
            stamp = (directory / f"{HEADS.name}.parquet").stat().st_mtime_ns
            if directory not in self._read or self._read[directory][0] != stamp:
                self._read[directory] = stamp, _last_rows(directory)
        except OSError:
            return {}
        except UserError as error:
            if jobs.is_done(directory):  # else the job has ended meanwhile
                self._notes.append(str(error))
            return {}
        return self._read[directory][1]

    def _record(self, directory: Path) -> RunRecord | None:
        try:
            return read_record(directory / "run.json")
        except UserError as error:
            self._notes.append(str(error))
            return None

    def _others(self, known: Iterable[Job]) -> list[str]:
        """Sentences on jobs and settings that are there and not of this configuration."""
        names = {paths.running(job.cell.id, job.first, job.last).name for job in known}
        running = paths.below(self.results, paths.running("*", 0, 0)).parent.glob("*")
        others = sorted(path.name for path in running if path.name not in names and live.is_held(path))
        trained = {path.name for path in paths.below(self.results, paths.block("*", 0, 0)).parent.parent.glob("*")}
        notes = []
        if others:
            notes.append(
                f"{plan.counted(len(others), 'job')} running that this configuration does not have ({others[0]}); "
                "expected the files of the run: attnid watch config.yaml OVERLAY"
            )
        if left := len(trained - set(self.cells)):
            notes.append(
                f"{plan.counted(left, 'other setting')} in {self.results} that this configuration does not have"
            )
        return notes


def seconds_per_operation(known: Iterable[Job]) -> float | None:
    """What the jobs that are done took, and those that run expect to take; None before there is any."""
    seconds = work = 0.0
    for job in known:
        if job.record is not None:
            seconds += job.record.seconds
            work += job.work(job.cell.steps - job.record.continued_from)
        elif job.seconds_left:
            seconds += job.seconds_left
            work += job.work(job.cell.steps - job.step)
    return seconds / work if work else None


def seconds_left(known: Iterable[Job], rate: float | None) -> float | None:
    """Time that these jobs will take, as many at a time as now; failed ones none. None where it cannot be said.

    Args:
        rate: seconds an operation.
    """
    alive = [job for job in known if job.state in ("running", "waiting")]
    each = [_job_seconds(job, rate) for job in alive]
    expected = [seconds for seconds in each if seconds is not None]
    if len(expected) < len(each):
        return None
    at_a_time = max(1, sum(job.state == "running" for job in alive))
    return max([sum(expected) / at_a_time, *expected])


def _job_seconds(job: Job, rate: float | None) -> float | None:
    if job.seconds_left is not None or rate is None:
        return job.seconds_left
    start = plan.START_SECONDS if job.state == "waiting" else 0
    return start + job.work(job.cell.steps - job.step) * rate


def _last_words(log: Path) -> str:
    try:
        return jobs.last_words(log)
    except OSError as error:
        return f"{log}: cannot be read ({error.strerror})"


def _last_rows(directory: Path) -> Frames:
    read = {
        table.name: schema.read(table, directory / f"{table.name}.parquet") for table in (HEADS, STEPS, EVALUATIONS)
    }
    step = read[HEADS.name]["step"].max()  # a job writes this table after that of the steps
    last = {HEADS.name: step, STEPS.name: step, EVALUATIONS.name: read[EVALUATIONS.name]["step"].max()}
    return {name: frame[frame["step"] == last[name]] for name, frame in read.items()}


def _measured(settings: Iterable[list[Job]]) -> dict[str, dict[str, Measured]]:
    """By cell and measure, what the jobs that are furthest measured last."""
    shown = [job.rows for own in settings for job in _furthest(own)]
    if not shown:
        return {}
    steps, evaluations, heads = (
        pd.concat([rows[table.name] for rows in shown]) for table in (STEPS, EVALUATIONS, HEADS)
    )
    measured: dict[str, dict[str, Measured]] = {}
    for row in statistics.summarise(steps, evaluations, heads, [OVERLAP]).to_dict("records"):
        measured.setdefault(row["cell"], {})[row["measure"]] = Measured(row["median"], row["low"], row["high"])
    return measured


def _furthest(own: list[Job]) -> list[Job]:
    """Of the jobs that run, else of all, those whose tables reach the latest step."""
    known = [job for job in own if job.rows]
    chosen = [job for job in known if job.state == "running"] or known
    return [job for job in chosen if _reached(job.rows) == max(_reached(other.rows) for other in chosen)]


def _reached(rows: Frames) -> int:
    """The step of a job's last rows; 0 without any."""
    return max(rows[HEADS.name]["step"], default=0)
