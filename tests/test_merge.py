"""Results of two machines put together, and what is refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from settings import cell
from test_training import CPU, TEXT

from attnid import cli, metrics, tables
from attnid.cell import Cell
from attnid.training import train

RECORD = {
    "device": "cpu", "machine": "m", "threads": 1, "code": "c", "commit": "1", "versions": {"torch": "2"},
    "started": "2026-01-01T00:00:00+00:00", "continued_from": 0, "peak_mb": 1, "seconds": 1.0,
}  # fmt: skip
CASES = {"adamw": {}, "sgd": {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0}}


def results(directory: Path, seeds: list[int], cases: list[str] | None = None, **changes: Any) -> Path:
    """A results directory as the workflow leaves it, with one block a cell."""
    cells = [cell(**{"case": case, "steps": 4} | CASES[case] | changes) for case in cases or CASES]
    records = [write_block(directory, own, seeds) for own in cells]
    groups = pd.DataFrame({"group": "cases", "cell": [own.id for own in cells]})
    tables.write(tables.GROUPS, groups, directory / "metrics" / "groups.parquet")
    for name, content in (("runs", records), ("config", {})):
        (directory / "metrics" / f"{name}.json").write_text(json.dumps(content))
    for table in tables.ANALYSIS:
        tables.write(table, empty(table), directory / "analysis" / f"{table.name}.parquet")
    return directory


def empty(table: tables.Table) -> pd.DataFrame:
    return table.schema.empty_table().to_pandas()


def write_block(directory: Path, own: Cell, seeds: list[int]) -> dict[str, Any]:
    block = directory / "training" / own.id / f"seeds-{seeds[0]}-{seeds[-1]}"
    for name, frame in train(own, TEXT, seeds, CPU).items():
        tables.write(tables.BY_NAME[name], frame, block / f"{name}.parquet")
    record = RECORD | {"cell": own.id, "seeds": seeds, "settings": own.model_dump(mode="json")}
    (block / "run.json").write_text(json.dumps(record))
    return record


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
    assert "4 runs were there twice, and the same" in merged(capsys, first, first, tmp_path / "self")
    assert "4 runs were there twice, and the same" in merged(capsys, first, tmp_path / "b", tmp_path / "c")
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


def edit_codes(directory: Path, shared: str, **of_optimizers: str) -> None:
    for path in directory.rglob("run.json"):
        record = json.loads(path.read_text())
        code = f"{shared}+{of_optimizers[record['settings']['optimizer']]}"
        path.write_text(json.dumps(record | {"code": code}))


def test_each_optimiser_has_code_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, only_sgd = results(tmp_path / "a", [0]), results(tmp_path / "b", [1]), tmp_path / "d"
    results(only_sgd, [1], ["sgd"])
    for directory in (first, second, only_sgd):
        edit_codes(directory, "shared", adamw="1", sgd="2")
    assert "4 runs of 2 cells" in merged(capsys, first, second, tmp_path / "c")
    edit_codes(second, "shared", adamw="1", sgd="3")
    assert "by other code" in merged(capsys, first, second, tmp_path / "e", status=2)
    edit_codes(only_sgd, "changed", sgd="2")
    assert "by other code" in merged(
        capsys, results(tmp_path / "f", [0], ["adamw"]), only_sgd, tmp_path / "g", status=2
    )


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


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def make_directory(path: Path) -> None:
    remove(path)
    path.mkdir()


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def settings_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())["settings"]
    return found


BLOCK = "training/*/seeds-0-0"
RUN = f"{BLOCK}/run.json"
DAMAGE: list[tuple[str, Callable[[Path], Any], str]] = [
    (f"{BLOCK}/heads.parquet", remove, "heads.parquet: no such file"),
    (f"{BLOCK}/steps.parquet", lambda path: path.write_bytes(path.read_bytes()[:99]), "not a readable Parquet file"),
    (f"{BLOCK}/steps.parquet", make_directory, "steps.parquet: a directory"),
    (RUN, remove, "cannot be read (No such file"),
    (RUN, make_directory, "cannot be read (Is a directory)"),
    (RUN, lambda path: path.write_text("{"), "not JSON"),
    (RUN, lambda path: path.write_text("[" * 100_000), "not JSON"),
    (RUN, lambda path: path.write_bytes(b"\xff\xfe"), "not JSON"),
    (RUN, lambda path: path.write_text("{}"), "run.json: cell is missing"),
    (RUN, lambda path: path.write_text("[]"), "run.json: it is []"),
    (RUN, lambda path: path.write_text("null"), "run.json: it is None"),
    (RUN, lambda path: edit(path, settings=None), "run.json: settings is None"),
    (RUN, lambda path: edit(path, settings=settings_of(path) | {"tempo": 3}), "settings.tempo is not a key"),
    (RUN, lambda path: edit(path, settings={"case": "adamw"}), "settings.optimizer is missing"),
    (RUN, lambda path: edit(path, settings=settings_of(path) | {"lr": 3.0}), "the settings are those of the cell"),
    (RUN, lambda path: edit(path, seeds=[1]), "is of another job"),
    (RUN, lambda path: edit(path, seeds=[]), "run.json: seeds is []"),
    (RUN, lambda path: edit(path, cell="../../evil"), "run.json: cell is '../../evil'"),
    (RUN, lambda path: edit(path, versions=3), "run.json: versions is 3"),
    ("metrics/runs.json", remove, "runs.json is missing"),
    ("metrics/runs.json", lambda path: path.write_text("[]"), "holds no list of training jobs"),
    ("metrics/runs.json", lambda path: path.write_text('["x"]'), "runs.json: it is 'x'"),
    ("metrics/config.json", lambda path: path.write_text("{"), "config.json: not JSON"),
    ("metrics/groups.parquet", remove, "groups.parquet: no such file"),
    ("analysis", remove, "ranks.parquet: no such file"),
    ("analysis", lambda path: (remove(path), path.write_text("")), "ranks.parquet: no such file"),
    ("analysis/squad.parquet", remove, "squad.parquet: no such file"),
    ("training", remove, "cannot be read"),
]


@pytest.mark.parametrize(("place", "damage", "sentence"), DAMAGE, ids=[f"{d[0]}: {d[2]}" for d in DAMAGE])
def test_damaged_results_are_named_and_nothing_is_written(
    place: str, damage: Callable[[Path], Any], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = results(tmp_path / "a", [0], ["adamw"]), results(tmp_path / "b", [1], ["adamw"])
    damage(next(first.glob(place)))
    said = merged(capsys, first, second, tmp_path / "c", status=2)
    assert sentence in said
    assert said.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == [first, second]


def test_other_directories_beside_the_merged_one_are_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = results(tmp_path / ".c.partial", [0], ["adamw"])
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    merged(capsys, first, first, tmp_path / "c")
    assert "lies in" in merged(capsys, first, first, first / "c", status=2)
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before
    assert sorted(tmp_path.iterdir()) == [first, tmp_path / "c"]


@pytest.mark.parametrize("name", [table.name for table in tables.TRAINING if table is not tables.REBALANCES])
def test_tables_of_other_runs_than_the_record_names_are_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = results(tmp_path / "a", [0], ["adamw"]), results(tmp_path / "b", [1], ["adamw"])
    table, path = tables.BY_NAME[name], next(second.rglob(f"seeds-1-1/{name}.parquet"))
    frame = tables.read(table, path)
    for changed, found in (
        (frame.assign(seed=0), "holds seed 0 of"),
        (frame.assign(cell="x"), "holds seed 1 of x"),
        (frame.head(0), "lacks seed 1 of"),
    ):
        tables.write(table, changed, path)
        assert found in merged(capsys, first, second, tmp_path / "c", status=2)


def test_cells_without_a_group_and_groups_without_runs_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = results(tmp_path / "a", [0])
    path = first / "metrics" / "groups.parquet"
    groups = tables.read(tables.GROUPS, path)
    tables.write(tables.GROUPS, groups.head(1), path)
    assert "lacks a group in" in merged(capsys, first, first, tmp_path / "c", status=2)
    tables.write(tables.GROUPS, pd.concat([groups, groups.head(1).assign(cell="x")]), path)
    assert "the cell x lacks runs" in merged(capsys, first, first, tmp_path / "c", status=2)


def test_a_path_that_is_not_utf_8_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = results(tmp_path / "a", [0], ["adamw"])
    assert "not UTF-8" in merged(capsys, first, first, tmp_path / "c\udcff", status=2)


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = results(tmp_path / "a", [0], ["adamw"])
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place, sentence in {
        first: "exists; expected",
        first / "both": "lies in",
        first / "analysis" / "both": "lies in",
        tmp_path / "a" / ".." / "a" / "both": "lies in",
        tmp_path / "file" / "both": "cannot be made",
        tmp_path / "link": "exists; expected",
        tmp_path / ("x" * 300): "cannot be made",
        Path("/proc/both"): "cannot be made",
    }.items():
        said = merged(capsys, first, first, place, status=2)
        assert sentence in said
        assert said.count("\n") == 1
    assert "nowhere is no directory" in merged(capsys, first, tmp_path / "nowhere", tmp_path / "c", status=2)
    assert "file is no directory" in merged(capsys, tmp_path / "file", first, tmp_path / "c", status=2)


def test_blocks_that_an_earlier_run_left_are_no_part_of_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = results(tmp_path / "a", [0, 1], ["adamw"]), results(tmp_path / "b", [2], ["adamw"])
    stale = cell(case="adamw", steps=4)
    write_block(first, stale, [0])
    write_block(first, stale, [2])
    assert "3 runs of 1 cells" in merged(capsys, first, second, tmp_path / "c")
    heads = tables.read(tables.HEADS, tmp_path / "c" / "metrics" / "heads.parquet")
    assert not heads.duplicated(["cell", "seed", "step", "phase", "layer", "head"]).any()


def test_a_run_that_one_directory_holds_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = results(tmp_path / "a", [0, 1], ["adamw"])
    records = [json.loads(next(first.rglob("run.json")).read_text())]
    records.append(write_block(first, cell(case="adamw", steps=4), [0]))
    (first / "metrics" / "runs.json").write_text(json.dumps(records))
    assert "both hold seed 0 and differ" in merged(capsys, first, first, tmp_path / "c", status=2)
