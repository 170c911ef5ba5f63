"""What a training job was made with, as it stands in run.json, and in runs.json for all jobs of a dataset."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from attnid.cell import Cell
from attnid.errors import UserError, validation_sentence


class RunRecord(BaseModel):
    """One training job: what it trained, by which code, where, and what it took."""

    model_config = ConfigDict(frozen=True)

    cell: Annotated[str, Field(pattern=r"^[a-z0-9][A-Za-z0-9_.-]*$")]
    seeds: Annotated[list[int], Field(min_length=1)]
    device: str
    machine: str
    threads: int
    code: str
    commit: str
    versions: dict[str, str]
    started: str
    continued_from: int
    peak_mb: int
    seconds: float
    settings: Cell


def read_record(path: Path) -> RunRecord:
    """The record of one job. Raises UserError where it is missing or damaged."""
    return _validated(read_json(path), path)


def read_records(path: Path) -> list[RunRecord]:
    """The records of all jobs of a dataset. Raises UserError where they are missing or damaged."""
    found = read_json(path)
    if not isinstance(found, list) or not found:
        raise UserError(f"{path}: holds no list of training jobs; expected what a run wrote there")
    return [_validated(entry, path) for entry in found]


def write_records(records: Iterable[RunRecord], path: Path) -> None:
    """Write the records of all jobs of a dataset."""
    entries = [record.model_dump(mode="json") for record in records]
    path.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """What a JSON file holds. Raises UserError where it cannot be read."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); expected what a run wrote there") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); expected what a run wrote there") from None


def _validated(entry: object, path: Path) -> RunRecord:
    try:
        record = RunRecord.model_validate(entry)
    except ValidationError as error:
        raise UserError(validation_sentence(error, str(path), RunRecord)) from None
    if record.settings.id != record.cell:
        raise UserError(f"{path}: the settings are those of the cell {record.settings.id}, not of {record.cell}")
    return record
