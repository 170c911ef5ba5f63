"""Tables made elsewhere: are they all there, and what do they hold."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
        tables.read(tables.BY_NAME[name], path)
    read_records(records["runs"])
    read_json(records["config"])


def require_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a dataset made with other settings than these. Raises UserError naming the first that differs.

    Snakemake collects a dataset again when settings change, but knows of it only where its records are kept.
    """
    for key, was, now in _differences(read_json(path), dict(settings)):
        raise UserError(
            f"{path}: the tables were made with {key} {was}, the configuration has {now}, and Snakemake has no record "
            "of the run that made them; expected the same, or snakemake --forcerun collect_metrics"
        )


def _differences(was: Any, now: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Keys with other values, in their order, the innermost ones."""
    if not (isinstance(was, dict) and isinstance(now, dict)):
        if was != now:
            yield key, was, now
        return
    for name in {**was, **now}:
        inner = f"{key}.{name}" if key else str(name)
        yield from _differences(was.get(name, "unset"), now.get(name, "unset"), inner)


def groups(path: Path) -> list[str]:
    """The cell groups of a table groups. Raises UserError where it is damaged or of another schema."""
    return list(dict.fromkeys(tables.read(tables.GROUPS, path)["group"]))
