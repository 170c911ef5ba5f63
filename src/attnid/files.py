"""Small files that a user names, read as far as such a file may go."""

from pathlib import Path

from attnid.errors import UserError

LARGEST = 1_000_000


def read_small(path: Path, expected: str) -> bytes:
    """All bytes of a file. Raises UserError where it cannot be read, or is larger than a file of its kind may be."""
    try:
        with path.open("rb") as file:
            found = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); expected {expected}") from None
    if len(found) > LARGEST:
        raise UserError(f"{path}: more than {LARGEST} bytes; expected {expected}")
    return found
