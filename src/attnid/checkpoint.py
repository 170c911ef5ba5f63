"""Checkpoints of training jobs: one safetensors file each, written by rename, checked when read, never unpickled.

A file holds tensors (weights, optimiser, generators), the rows measured so far, what they belong to (settings, seeds,
code, step) and a checksum of all of it.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FORMAT = "attnid training checkpoint 1"
ROWS = "rows/"
KEPT = 2
"""Checkpoints of a job that are kept, so that one which turns out damaged has one before it."""
NAME = re.compile(r"step-([0-9]{9,})\.safetensors")


class DamagedError(Exception):
    """A checkpoint that cannot be used, with the reason in one sentence."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training job after a step."""

    step: int
    tensors: Mapping[str, Tensor]
    frames: Mapping[str, pd.DataFrame]


@dataclass
class Checkpoints:
    """The checkpoints of one job below `directory`, which jobs that differ in their number of steps alone share.

    Attributes:
        belongs: what a checkpoint has to agree with to be used: settings, seeds, code, whatever changes numbers.
        steps: last step of the job.
        every: seconds between checkpoints.
        warn: told in a sentence why a file is not used, or not written.
        begun: step of the checkpoint that the job went on from; 0 for none.
    """

    directory: Path
    belongs: Mapping[str, str]
    steps: int
    every: float = 60.0
    warn: Callable[[str], None] = lambda sentence: None
    begun: int = 0
    _refused: list[Path] = field(default_factory=list)
    _last: float = field(default_factory=time.monotonic)

    def due(self) -> bool:
        """Whether the last checkpoint, or the start, is long enough ago."""
        return time.monotonic() - self._last >= self.every

    @property
    def _own(self) -> Path:
        return self.directory / f"to-step-{self.steps}"

    def save(self, checkpoint: Checkpoint) -> bool:
        """Write a checkpoint and remove the job's older and unusable ones; until the last step, the one before stays.

        Returns:
            Whether it is written. A place that cannot be written to is told to `warn`, and the job can go on.
        """
        self._last = time.monotonic()
        last = checkpoint.step == self.steps
        path = self._own / f"step-{checkpoint.step:09}.safetensors"
        try:
            self._write_where_there_is_room(checkpoint, path)
        except (OSError, SafetensorError) as error:
            self.warn(
                f"checkpoint {path} cannot be written ({_first_line(error)}); the one before it, if any, is the last"
            )
            return False
        self._refused = [file for file in self._refused if file != path]
        self._remove_outdated(1 if last else KEPT)
        if last:
            _remove(self._own.glob(".*"))
        return True

    def _write_where_there_is_room(self, checkpoint: Checkpoint, path: Path) -> None:
        """Write, and on a full disk once more without what is there beside the latest checkpoint."""
        try:
            self._write(checkpoint, path)
        except (OSError, SafetensorError):
            self._remove_outdated(1)
            self._write(checkpoint, path)

    def _remove_outdated(self, kept: int) -> None:
        usable = [file for _, file in _found(self._own) if file not in self._refused]
        _remove([*usable[kept:], *(file for file in self._refused if file.parent == self._own)])

    def _write(self, checkpoint: Checkpoint, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
        tensors |= {ROWS + name: _as_bytes(frame) for name, frame in checkpoint.frames.items()}
        header = self._header(checkpoint.step)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            save_file(tensors, partial, header | {"sha256": _digest(tensors, header)})
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def newest(self) -> Checkpoint | None:
        """The latest usable checkpoint up to the job's last step; what is damaged or foreign is named."""
        for step, path in _found(*self.directory.glob("to-step-*")):
            if step > self.steps:
                continue
            try:
                checkpoint = self._load(step, path)
            except DamagedError as reason:
                self.warn(f"checkpoint {path} is not used: {reason}")
                self._refused.append(path)
            else:
                self.begun = step
                return checkpoint
        return None

    def _load(self, step: int, path: Path) -> Checkpoint:
        if not path.is_file():
            raise DamagedError("it is not a file")
        try:
            with safe_open(path, framework="pt") as file:
                header = dict(file.metadata() or {})
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise DamagedError(f"it cannot be read ({_first_line(error)})") from None
        for key, value in self._header(step).items():
            if header.get(key) != value:
                raise DamagedError(f"its {key} is {header.get(key)!r}, expected {value!r}")
        if header.pop("sha256", None) != _digest(tensors, header):
            raise DamagedError("its checksum is not that of what it holds")
        frames = {
            name.removeprefix(ROWS): _as_frame(tensors.pop(name)) for name in sorted(tensors) if name.startswith(ROWS)
        }
        return Checkpoint(step, tensors, frames)

    def _header(self, step: int) -> dict[str, str]:
        return {"format": FORMAT, **self.belongs, "step": str(step)}


def _found(*directories: Path) -> Iterator[tuple[int, Path]]:
    """Step and file of every checkpoint in these directories, the latest first."""
    files = (path for directory in directories for path in directory.glob("*"))
    named = ((match, path) for path in files if (match := NAME.fullmatch(path.name)))
    yield from sorted(((int(match[1]), path) for match, path in named), reverse=True)


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink()


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _as_bytes(frame: pd.DataFrame) -> Tensor:
    """Parquet with every bit of a NaN kept, so that a run that goes on ends with the same bytes."""
    buffer = io.BytesIO()
    pq.write_table(pa.table({name: pa.array(frame[name].to_numpy()) for name in frame}), buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _as_frame(data: Tensor) -> pd.DataFrame:
    try:
        frame: pd.DataFrame = pq.read_table(io.BytesIO(data.numpy().tobytes())).to_pandas()
    except pa.ArrowException as error:
        raise DamagedError(f"its rows cannot be read ({_first_line(error)})") from None
    return frame


def _digest(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(dict(header), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
