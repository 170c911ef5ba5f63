"""Tables made elsewhere: are they all there, and what do they hold."""

from collections.abc import Mapping
from pathlib import Path

from attnid import tables
from attnid.errors import UserError
from attnid.run_record import read_json, read_records


def require(directory: str, files: Mapping[str, Path], records: Mapping[str, Path]) -> None:
    """Refuse a directory that lacks a file of a run, or holds a damaged one. Raises UserError naming the first.

    Args:
        files: of tables, by the table's name.
        records: of `runs` and `config`, see `attnid.paths.made_with`.
    """
    for path in (*files.values(), *records.values()):
        if not path.is_file():
            raise UserError(f"configuration: tables is {directory!r}, but {path} is missing; expected a run's tables")
    for name, path in files.items():
        tables.check(tables.BY_NAME[name], path)
    read_records(records["runs"])
    read_json(records["config"])


def groups(path: Path) -> list[str]:
    """The cell groups of a table groups. Raises UserError where it is damaged or of another schema."""
    return list(dict.fromkeys(tables.read(tables.GROUPS, path)["group"]))
