"""What a training job leaves for those who watch it: its tables so far, where it is, and a lock that dies with it."""

import contextlib
import fcntl
import math
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from attnid import schema
from attnid.errors import UserError
from attnid.training_tables import TRAINING

if TYPE_CHECKING:
    from attnid.training import Progress

EVERY = 2.0
"""Seconds between two places that a job writes down, and at least between two states of its tables."""
SHARE = 0.01
"""Largest share of a job's time that goes into writing the tables."""
LOCK, PLACE = "lock", "place.json"


class Place(BaseModel):
    """Where a running job is: its last measured step, and what it expects to take, unknown at first."""

    step: int
    seconds_left: float | None


class Pace:
    """How long a job will take, by its pace since its first measured step."""

    def __init__(self) -> None:
        self._begin: tuple[float, int] | None = None

    def seconds_left(self, progress: "Progress") -> float | None:
        """Seconds to the last step; unknown at the first measured one."""
        now = time.monotonic()
        begin, first = self._begin = self._begin or (now, progress.step)
        if progress.step == first:
            return None
        return (now - begin) / (progress.step - first) * (progress.steps - progress.step)


class Live:
    """Writes where a job is below `directory`, now and then, and more seldom the tables so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._pace = Pace()
        self._next = self._next_tables = -math.inf

    def __call__(self, progress: "Progress") -> None:
        """Take in one measured step."""
        now, left = time.monotonic(), self._pace.seconds_left(progress)
        if now < self._next:
            return
        self._next = now + EVERY
        with contextlib.suppress(UserError, OSError):  # of a full disk, what has to be kept will tell
            if now >= self._next_tables:
                self._write_tables(progress)
                self._next_tables = now + (time.monotonic() - now) / SHARE
            self._write_place(Place(step=progress.step, seconds_left=left))

    def _write_tables(self, progress: "Progress") -> None:
        frames = progress.so_far()
        for table in TRAINING:
            schema.write(table, frames[table.name], self.directory / f"{table.name}.parquet")

    def _write_place(self, place: Place) -> None:
        partial = self.directory / f".{PLACE}.partial"
        partial.write_text(place.model_dump_json() + "\n")
        partial.replace(self.directory / PLACE)


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Live]:
    """Hold a job's directory locked while the context lasts, and remove it at its end.

    What a job leaves that fails or is killed stays, without the lock, until the job starts again.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield Live(directory)
        except (SystemExit, KeyboardInterrupt):  # it was asked to stop
            shutil.rmtree(directory, ignore_errors=True)
            raise
        shutil.rmtree(directory, ignore_errors=True)


def is_held(directory: Path) -> bool:
    """Whether a job runs that has this directory; where a file system has no locks, whether one has not ended well."""
    try:
        with (directory / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def was_left(directory: Path) -> bool:
    """Whether a job without its lock left this directory, as one does that failed or was killed."""
    return (directory / LOCK).exists()


def place(directory: Path) -> Place | None:
    """Where a job is; None before its first measured step."""
    try:
        return Place.model_validate_json((directory / PLACE).read_bytes())
    except (OSError, ValidationError):
        return None
