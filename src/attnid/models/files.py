"""Checkpoints in the safetensors format, read and changed in place without ever being held in memory as a whole."""

import json
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from attnid.errors import UserError
from attnid.files import read_small

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
INDEX = "model.safetensors.index.json"
ONE = "model.safetensors"
LARGEST_INDEX = 100_000_000
PICKLED = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies: its file, precision, shape, and first and last byte."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


class TensorFiles(Mapping[str, Tensor]):
    """The tensors of a checkpoint by name, each mapped into memory when it is asked for.

    Attributes:
        files: the files that hold them.
        entries: where each lies.
    """

    def __init__(self, files: list[Path], *, writable: bool = False) -> None:
        """Read the headers of files. Raises UserError where one is damaged or two hold the same tensor."""
        self.files = files
        self.entries: dict[str, Entry] = {}
        self._mode = "r+" if writable else "c"
        for file in files:
            for name, entry in _entries(file):
                if name in self.entries:
                    raise UserError(f"{file}: holds {name}, and so does {self.entries[name].file}; expected it once")
                self.entries[name] = entry

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return {name: entry.shape for name, entry in self.entries.items()}

    def __getitem__(self, name: str) -> Tensor:
        entry = self.entries[name]
        if entry.begin == entry.end:
            return torch.empty(entry.shape, dtype=entry.dtype)
        data = np.memmap(entry.file, np.uint8, self._mode, entry.begin, (entry.end - entry.begin,))  # type: ignore[call-overload]
        return torch.from_numpy(data).view(entry.dtype).view(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def tensor_files(place: Path) -> list[Path]:
    """The files of a checkpoint: one, those of an index, or those of a directory that holds either.

    Raises UserError where there is none, or an index names a file that is missing or lies elsewhere.
    """
    try:
        place.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError(f"{place}: cannot be read ({error.strerror}); expected a checkpoint") from None
    if place.is_dir():
        for name in (ONE, INDEX):  # as transformers has it
            if (place / name).is_file():
                return tensor_files(place / name)
        pickled = sorted(file.name for suffix in PICKLED for file in place.glob(f"*{suffix}"))
        found = f" but {pickled[0]}" if pickled else ""
        raise UserError(f"{place}: holds neither {ONE} nor {INDEX}{found}; expected a checkpoint{_hint(pickled)}")
    if not place.exists():
        raise UserError(f"{place}: no such file; expected a checkpoint in the safetensors format")
    if place.name.endswith(PICKLED):
        raise UserError(f"{place}: not a safetensors file; expected a checkpoint in that format{_hint([place.name])}")
    if not place.name.endswith(".json"):
        return [place]
    names = sorted(set(_index(place).values()))
    files = [place.parent / name for name in names]
    for name, file in zip(names, files, strict=True):
        if Path(name).name != name:
            raise UserError(f"{place}: names the file {name!r}; expected files beside it")
        if not file.is_file():
            raise UserError(f"{place}: {name} is missing; expected it beside the index")
    return files


def _hint(pickled: list[str]) -> str:
    """What to do about files that torch.save wrote, or nothing."""
    return f" (in Python: safetensors.torch.save_model(model, {ONE!r}), or save_pretrained)" if pickled else ""


def open_checkpoint(place: Path) -> TensorFiles:
    """The tensors of a checkpoint, for reading.

    Raises UserError where it is missing or damaged, or does not hold what its index lists.
    """
    found = TensorFiles(tensor_files(place))
    index = place / INDEX if place.is_dir() and not (place / ONE).is_file() else place
    if index.name.endswith(".json") and index.is_file():
        for name, file in _index(index).items():
            if name not in found or found.entries[name].file.name != file:
                raise UserError(f"{index}: lists {name} in {file}, which does not hold it")
    return found


def config_of(place: Path, given: Path | None) -> tuple[object, Path]:
    """The parsed configuration of a checkpoint, given or beside it, and its path. Raises UserError."""
    path = given or (place if place.is_dir() else place.parent) / "config.json"
    if given is None and not path.is_file():
        raise UserError(f"{place}: no config.json beside it; expected one, or --config with the model's configuration")
    try:
        return json.loads(read_small(path, "the JSON configuration of a model")), path
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); expected the configuration of a model") from None


def copied(source: Path, target: Path) -> TensorFiles:
    """Copy a checkpoint, byte for byte, to a place that does not exist, and open the copy for writing.

    Of a directory everything is copied, of an index its files and the configuration beside it, to a directory; else
    one file. Raises OSError where the copy cannot be made.
    """
    files = tensor_files(source)
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.name.endswith(".json"):
        target.mkdir()
        beside = source.with_name("config.json")
        for file in {source, *files, *([beside] if beside.is_file() else [])}:
            shutil.copy(file, target)
    else:
        shutil.copy(source, target)
    copies = [target / file.name for file in files] if target.is_dir() else [target]
    for copy in copies:
        copy.chmod(copy.stat().st_mode | stat.S_IWUSR)
    return TensorFiles(copies, writable=True)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same to the last bit, NaN or not."""
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and torch.equal(*(tensor.detach().reshape(-1).view(torch.uint8) for tensor in (one, other)))


def why(error: OSError) -> str:
    """The reason of an error in words; of several, as copying a directory collects them, the first."""
    reasons = error.args[0] if isinstance(error, shutil.Error) else None
    return str(reasons[0][2]) if reasons else error.strerror or str(error)


def remove(place: Path) -> None:
    """Remove a file or directory, if it is there."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


def _entries(file: Path) -> Iterator[tuple[str, Entry]]:
    """What the header of a file says, once the library that made the format has checked it."""
    try:
        with safe_open(file, framework="pt"):
            pass
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header: dict[str, Any] = json.loads(opened.read(length))
    except (OSError, SafetensorError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{file}: not a readable safetensors file ({reason})") from None
    for name, described in header.items():
        if name == "__metadata__":
            continue
        if described["dtype"] not in DTYPES:
            raise UserError(f"{file}: {name} is stored as {described['dtype']}; known: {', '.join(DTYPES)}")
        begin, end = (8 + length + offset for offset in described["data_offsets"])
        yield name, Entry(file, DTYPES[described["dtype"]], tuple(described["shape"]), begin, end)


def _index(path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as opened:
            found = json.loads(opened.read(LARGEST_INDEX))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a readable index ({error}); expected JSON") from None
    names = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise UserError(f"{path}: holds no weight_map; expected the index of a checkpoint's files")
    return names
