"""The device that a job trains on: with several GPUs each job has one to itself, by locks that die with the job."""

import contextlib
import fcntl
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from attnid.cell import Device
from attnid.errors import UserError

MOST_JOBS = 64
"""Jobs on one GPU, if someone asks for that many."""


@contextlib.contextmanager
def device(wanted: Device) -> Iterator[torch.device]:
    """The device to train on, held while the context lasts.

    Of several CUDA devices it is the one with the fewest jobs of this kind. Raises UserError where CUDA is asked for
    and there is none.
    """
    count = torch.cuda.device_count() if wanted != "cpu" else 0
    if wanted == "cuda" and not count:
        raise UserError("configuration: device is 'cuda', but no CUDA device was found; allowed here: auto, cpu")
    if not count:
        yield torch.device("cpu")
        return
    names = [str(torch.cuda.get_device_properties(index).uuid) for index in range(count)]
    with hold_one(names) as index:
        torch.cuda.set_device(index)
        yield torch.device("cuda", index)


@contextlib.contextmanager
def hold_one(names: Sequence[str], directory: Path | None = None) -> Iterator[int]:
    """The index of a device that is this process's while the context lasts: one with the fewest holders.

    The kernel releases a lock when its process ends, however it ends.

    Args:
        names: what tells the machine's devices apart, for all processes.
        directory: of the lock files; without it, the machine's for temporary files.
    """
    index, lock = _first_free(names, directory or Path(tempfile.gettempdir()))
    try:
        yield index
    finally:
        os.close(lock)


def _first_free(names: Sequence[str], directory: Path) -> tuple[int, int]:
    for holders, (index, name) in itertools.product(range(MOST_JOBS), enumerate(names)):
        lock = _lock(directory / f"attnid-device-{name}-{holders}.lock")
        if lock is not None:
            return index, lock
    raise UserError(f"device: each of {len(names)} CUDA devices is held by {MOST_JOBS} jobs; expected fewer")


def _lock(path: Path) -> int | None:
    """A lock on a file, as an open descriptor; None where another process holds it. Another user's file will do."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
