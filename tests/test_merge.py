"""Results of two machines put together, and what is refused by name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from settings import cell
from test_training import CPU, TEXT

from attnid import cli, metrics, tables
from attnid.cell import Cell
from attnid.training import train

CASES = {"adamw": {}, "sgd": {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0}}


def results(directory: Path, seeds: list[int], cases: list[str] | None = None, **changes: Any) -> Path:
    """A results directory as the workflow leaves it, with one block a cell."""
    cells = [cell(**{"case": case, "steps": 4} | CASES[case] | changes) for case in cases or CASES]
    for own in cells:
        write_block(directory, own, seeds)
    groups = pd.DataFrame({"group": "cases", "cell": [own.id for own in cells]})
    tables.write(tables.GROUPS, groups, directory / "metrics" / "groups.parquet")
    (directory / "metrics" / "config.json").write_text("{}")
    (directory / "analysis").mkdir()
    return directory


def write_block(directory: Path, own: Cell, seeds: list[int]) -> None:
    block = directory / "training" / own.id / f"seeds-{seeds[0]}-{seeds[-1]}"
    for name, frame in train(own, TEXT, seeds, CPU).items():
        tables.write(tables.BY_NAME[name], frame, block / f"{name}.parquet")
    record = {"cell": own.id, "seeds": seeds, "code": "c", "commit": "1", "versions": {"torch": "2"}}
    (block / "run.json").write_text(json.dumps(record | {"settings": own.model_dump(mode="json")}))


def edit_records(directory: Path, **changes: Any) -> None:
    for path in directory.rglob("run.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def merged(capsys: pytest.CaptureFixture[str], *directories: Path, status: int = 0) -> str:
    assert cli.main(["merge", *map(str, directories)]) == status
    printed = capsys.readouterr()
    return printed.err if status else printed.out


def test_merged_results_are_those_of_one_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = results(tmp_path / "a", [0, 1]), results(tmp_path / "b", [2], ["adamw"])
    shown = merged(capsys, first, second, tmp_path / "c")
    assert f"5 runs of 2 cells are in {tmp_path / 'c'}" in shown
    cells = [cell(case=case, steps=4, **CASES[case]) for case in CASES]
    blocks = {
        table.name: [
            *((first / "training" / own.id / "seeds-0-1" / f"{table.name}.parquet") for own in cells),
            second / "training" / cells[0].id / "seeds-2-2" / f"{table.name}.parquet",
        ]
        for table in tables.TRAINING
    }
    for name, frame in metrics.collect({"cases": cells}, blocks).items():
        found = tables.read(tables.BY_NAME[name], tmp_path / "c" / "metrics" / f"{name}.parquet")
        keys = [key for key in ("cell", "seed", "step", "layer", "head", "measure", "phase") if key in frame]
        pd.testing.assert_frame_equal(
            found.sort_values(keys).reset_index(drop=True),
            frame[found.columns].sort_values(keys).reset_index(drop=True),
        )
    assert len(json.loads((tmp_path / "c" / "metrics" / "runs.json").read_text())) == 3
    assert len(list((tmp_path / "c" / "training").glob("*/seeds-*/run.json"))) == 3


def test_a_run_that_both_hold_and_is_the_same_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = results(tmp_path / "a", [0, 1])
    shutil.copytree(first, tmp_path / "b")
    assert "4 runs were the same in both" in merged(capsys, first, first, tmp_path / "self")
    assert "4 runs were the same in both" in merged(capsys, first, tmp_path / "b", tmp_path / "c")
    heads = next((tmp_path / "b").rglob("heads.parquet"))
    frame = tables.read(tables.HEADS, heads)
    tables.write(tables.HEADS, frame.assign(beta=0.0), heads)
    assert "both hold seed 0, 1 and differ" in merged(capsys, first, tmp_path / "b", tmp_path / "d", status=2)
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"code": "d", "commit": "2"}, "by other code (commit 1) than"),
        ({"versions": {"torch": "3"}}, "was trained with torch 2"),
        ({"versions": {}}, "was trained with torch 2"),
    ],
)
def test_other_code_is_refused_by_name(
    changes: dict[str, Any], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = results(tmp_path / "a", [0]), results(tmp_path / "b", [1])
    edit_records(second, **changes)
    assert sentence in merged(capsys, first, second, tmp_path / "c", status=2)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"context": 10}, "context is 12 in"),
        ({"weight_decay": 0.3}, "weight_decay is 0.1 in"),
        ({"steps": 5}, "steps is 4 in"),
    ],
)
def test_other_settings_are_refused_by_name(
    changes: dict[str, Any], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = results(tmp_path / "a", [0], ["adamw"]), results(tmp_path / "b", [1], ["adamw"], **changes)
    assert sentence in merged(capsys, first, second, tmp_path / "c", status=2)
    assert list(tmp_path.iterdir()) in ([first, second], [second, first])


def test_what_a_group_varies_may_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = results(tmp_path / "a", [0], ["adamw"])
    second = results(tmp_path / "b", [0], ["adamw"], n_heads=4, lr=0.2, lr_floor=0.02)
    assert "2 runs of 2 cells" in merged(capsys, first, second, tmp_path / "c")


def test_a_mistake_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = results(tmp_path / "a", [0], ["adamw"])
    assert "holds no training/" in merged(capsys, first, tmp_path / "nowhere", tmp_path / "c", status=2)
    assert f"{first} exists; expected" in merged(capsys, first, first, first, status=2)
    (next(first.rglob("run.json"))).write_text("{")
    assert "not JSON" in merged(capsys, first, first, tmp_path / "c", status=2)
