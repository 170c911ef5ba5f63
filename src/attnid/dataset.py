"""Tables made elsewhere: are they all there, and what do they hold."""

from collections.abc import Iterable
from pathlib import Path

from attnid import tables
from attnid.errors import UserError


def require(directory: str, files: Iterable[Path]) -> None:
    """Refuse a directory that lacks one of these files. Raises UserError naming the first."""
    for path in files:
        if not path.is_file():
            raise UserError(f"configuration: tables is {directory!r}, but {path} is missing; expected a run's tables")


def groups(path: Path) -> list[str]:
    """The cell groups of a table groups. Raises UserError where it is damaged or of another schema."""
    return list(dict.fromkeys(tables.read(tables.GROUPS, path)["group"]))
