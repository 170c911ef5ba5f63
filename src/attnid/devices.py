"""The device that a job trains on: with several GPUs each job has one to itself, by locks that die with the job."""

import contextlib
import fcntl
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from attnid.cell import Device
from attnid.errors import UserError

SHARED = (Path("/dev/shm"), Path("/tmp"), Path())
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
        directory: of the lock files; without it one that all processes of a machine share, whatever their TMPDIR.
    """
    index, lock = _first_free(names, directory or next(place for place in SHARED if place.is_dir()))
    try:
        yield index
    finally:
        os.close(lock)


def _first_free(names: Sequence[str], directory: Path) -> tuple[int, int]:
    for holders, (index, name) in itertools.product(range(MOST_JOBS), enumerate(names)):
        lock = _lock(directory / f"attnid-device-{name}-{holders}.lock")
        if lock is not None:
            return index, lock
    raise UserError(
        f"device: no lock file in {directory} can be had for any of {len(names)} CUDA devices; expected at most "
        f"{MOST_JOBS} jobs on each, and a directory that can be written to"
    )


def _lock(path: Path) -> int | None:
    """A lock on a file, as an open descriptor; None where another process holds it, or it cannot be opened."""
    try:
        lock = _open(path)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _open(path: Path) -> int:
    """Another user's file will do, and is not written to; a link or a pipe is neither followed nor waited for."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        lock = os.open(path, flags | os.O_CREAT, 0o644)
        os.fchmod(lock, 0o644)
        return lock
