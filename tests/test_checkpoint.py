import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from settings import cell
from test_training import CPU, TEXT

from attnid.cell import Cell
from attnid.checkpoint import Checkpoint, Checkpoints
from attnid.training import Progress, train

KINDS: list[dict[str, Any]] = [
    {"optimizer": "adamw", "dropout": 0.2, "rebalance": "qk-vo", "rebalance_every": 3, "moments": "transport"},
    {"optimizer": "sgd", "momentum": 0.9, "precision": "float32"},
    {"optimizer": "sgd"},
    {"optimizer": "sign-sgd", "momentum": 0.5, "weight_decay": 0.0},
    {"optimizer": "adam", "project": "qk", "rope": True},
    {"optimizer": "muon", "momentum": 0.95, "precision": "bfloat16"},
]


class StoppedError(Exception):
    pass


def stop_at(step: int) -> Any:
    def report(progress: Progress) -> None:
        if progress.step == step:
            raise StoppedError

    return report


class Kept(Checkpoints):
    """Checkpoints that remember their warnings."""

    def __init__(self, directory: Path, settings: Cell, **changes: str) -> None:
        self.warnings: list[str] = []
        belongs = {"lineage": settings.lineage, "code": "1"} | changes
        super().__init__(directory, belongs, settings.steps, 0.0, self.warnings.append)


def assert_same(one: dict[str, pd.DataFrame], other: dict[str, pd.DataFrame]) -> None:
    assert one.keys() == other.keys()
    for name, frame in one.items():
        pd.testing.assert_frame_equal(frame, other[name], check_exact=True, obj=name)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["optimizer"])
def test_an_interrupted_run_ends_with_the_same_numbers(kind: dict[str, Any], tmp_path: Path) -> None:
    settings = cell(**kind)
    whole = train(settings, TEXT, [0, 3], CPU)
    for step in (4, 8):
        with pytest.raises(StoppedError):
            train(settings, TEXT, [0, 3], CPU, stop_at(step), Kept(tmp_path, settings))
    again = Kept(tmp_path, settings)
    newest = again.newest()
    assert newest is not None
    assert newest.step == 8
    seen: list[Progress] = []
    assert_same(whole, train(settings, TEXT, [0, 3], CPU, seen.append, again))
    assert seen[0].begun == 8
    assert [path.name for path in sorted(tmp_path.rglob("*.safetensors"))] == ["step-000000012.safetensors"]


def test_more_steps_continue_where_the_shorter_run_ended(tmp_path: Path) -> None:
    short, long = (cell(steps=steps, decay_steps=20) for steps in (8, 16))
    assert short.id != long.id
    assert short.lineage == long.lineage
    train(short, TEXT, [0], CPU, checkpoints=Kept(tmp_path, short))
    seen: list[Progress] = []
    continued = train(long, TEXT, [0], CPU, seen.append, Kept(tmp_path, long))
    assert seen[0].begun == 8
    assert_same(train(long, TEXT, [0], CPU), continued)
    assert train(short, TEXT, [0], CPU, checkpoints=Kept(tmp_path, short))["steps"].step.max() == 8


def test_a_cosine_that_ends_elsewhere_is_another_lineage() -> None:
    assert cell(steps=8).lineage != cell(steps=16).lineage
    assert cell(case="other").lineage == cell().lineage


def saved(directory: Path, steps: tuple[int, ...] = (2, 4)) -> tuple[Cell, Kept]:
    settings = cell()
    kept = Kept(directory, settings)
    for step in steps:
        weights = torch.full((3, 2), float(step))
        kept.save(Checkpoint(step, {"parameter/W": weights}, {"steps": pd.DataFrame({"step": [step]})}))
    return settings, Kept(directory, settings)


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "altered": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "altered header": lambda data: data.replace(b'"step":"4"', b'"step":"5"'),
    "foreign": lambda data: b"not a checkpoint at all",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(damage: str, tmp_path: Path) -> None:
    _, kept = saved(tmp_path)
    path = max(tmp_path.rglob("*.safetensors"))
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    found = kept.newest()
    assert found is not None
    assert found.step == 2
    assert found.tensors["parameter/W"].tolist() == [[2.0, 2.0]] * 3
    assert len(kept.warnings) == 1
    assert str(path) in kept.warnings[0]
    assert "is not used" in kept.warnings[0]


def test_a_checkpoint_of_other_code_or_settings_is_never_used(tmp_path: Path) -> None:
    settings, _ = saved(tmp_path, (4,))
    for changes in ({"code": "2"}, {"lineage": "other"}):
        other = Kept(tmp_path, settings, **changes)
        assert other.newest() is None
        assert "expected '" in other.warnings[0]


def test_two_checkpoints_are_kept_until_the_last_step_and_no_partial_file(tmp_path: Path) -> None:
    saved(tmp_path, (1, 2, 3))
    assert [path.stem for path in sorted(tmp_path.rglob("*.*"))] == ["step-000000002", "step-000000003"]


def test_what_cannot_be_used_makes_place_for_what_can(tmp_path: Path) -> None:
    settings, _ = saved(tmp_path, (6, 8))
    edited = Kept(tmp_path, settings, code="2")
    assert edited.newest() is None
    for step in (1, 2, 3):
        edited.save(Checkpoint(step, {"W": torch.zeros(1)}, {}))
        assert Kept(tmp_path, settings, code="2").newest().step == step  # type: ignore[union-attr]
    assert [path.stem for path in sorted(tmp_path.rglob("*.*"))] == ["step-000000002", "step-000000003"]


def test_a_damaged_file_that_is_written_again_is_used_again(tmp_path: Path) -> None:
    settings, kept = saved(tmp_path)
    path = max(tmp_path.rglob("*.safetensors"))
    path.write_bytes(b"")
    assert kept.newest().step == 2  # type: ignore[union-attr]
    kept.save(Checkpoint(4, {"W": torch.zeros(1)}, {}))
    assert Kept(tmp_path, settings).newest().step == 4  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "stray", ["step-abc1.safetensors", "step-1.safetensors", "step-000000002.safetensors.bak", "x"]
)
def test_files_of_other_names_are_left_alone(stray: str, tmp_path: Path) -> None:
    _, kept = saved(tmp_path, (2,))
    other = next(tmp_path.rglob("*.safetensors")).with_name(stray)
    other.write_bytes(b"mine")
    assert kept.newest().step == 2  # type: ignore[union-attr]
    kept.save(Checkpoint(12, {"W": torch.zeros(1)}, {}))
    assert sorted(path.name for path in other.parent.iterdir()) == sorted([stray, "step-000000012.safetensors"])
    assert kept.warnings == []


def test_a_directory_where_a_checkpoint_is_looked_for_is_named(tmp_path: Path) -> None:
    _, kept = saved(tmp_path, (2,))
    next(tmp_path.rglob("*.safetensors")).with_name("step-000000004.safetensors").mkdir()
    assert kept.newest().step == 2  # type: ignore[union-attr]
    assert "it is not a file" in kept.warnings[0]


def test_a_place_that_cannot_be_written_to_costs_the_checkpoint_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    settings = cell()
    kept = Kept(tmp_path / "file", settings)
    assert_same(train(settings, TEXT, [0], CPU), train(settings, TEXT, [0], CPU, checkpoints=kept))
    assert len(kept.warnings) == settings.steps
    assert f"{tmp_path / 'file'}/to-step-12/step-000000001.safetensors cannot be written" in kept.warnings[0]
    assert (tmp_path / "file").read_text() == "no directory"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize(("room", "begun"), {0.5: 0, 1.5: 1, 2.5: 8, 3.5: 8}.items())
def test_a_full_disk_costs_checkpoints_and_not_the_run(room: float, begun: int, tmp_path: Path) -> None:
    """Room for half a checkpoint, for one and a half, and so on."""
    settings = cell()
    whole = train(settings, TEXT, [0], CPU, checkpoints=Kept(tmp_path / "roomy", settings))
    size = max(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    with small_disk(tmp_path / "disk", int(room * size)) as disk:
        first, second = Kept(disk, settings), Kept(disk, settings)
        with pytest.raises(StoppedError):
            train(settings, TEXT, [0], CPU, stop_at(8), first)
        assert_same(whole, train(settings, TEXT, [0], CPU, checkpoints=second))
        assert second.begun == begun
        assert bool(first.warnings) == (room < 2)
        assert all("No space left" in warning for warning in first.warnings)
        assert not [path for path in disk.rglob(".*") if path.is_file()]


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[Path]:
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_what_killed_writes_leave_is_gone_after_the_last_step(tmp_path: Path) -> None:
    settings, kept = saved(tmp_path)
    place = next(tmp_path.rglob("*.safetensors")).parent
    for name in (".tmpAb12Cd", ".step-000000004.safetensors.7.partial"):
        (place / name).write_bytes(b"half")
    kept.save(Checkpoint(settings.steps, {"W": torch.zeros(1)}, {}))
    assert [path.name for path in place.iterdir()] == ["step-000000012.safetensors"]


def test_a_pipe_in_place_of_a_checkpoint_is_not_waited_for(tmp_path: Path) -> None:
    _, kept = saved(tmp_path, (2,))
    os.mkfifo(next(tmp_path.rglob("*.safetensors")).with_name("step-000000004.safetensors"))
    assert kept.newest().step == 2  # type: ignore[union-attr]
    assert "it is not a file" in kept.warnings[0]


def test_two_jobs_of_equal_settings_share_their_checkpoints(tmp_path: Path) -> None:
    """Two cases that differ in name alone: what one removes, the other does not miss."""
    settings = cell()
    one, other = Kept(tmp_path, settings), Kept(tmp_path, settings)
    for step in range(1, 12):
        for kept in (one, other):
            kept.save(Checkpoint(step, {"W": torch.full((1,), float(step))}, {}))
            assert Kept(tmp_path, settings).newest().tensors["W"].item() == step  # type: ignore[union-attr]
    one.save(Checkpoint(12, {"W": torch.zeros(1)}, {}))
    other.save(Checkpoint(5, {"W": torch.zeros(1)}, {}))
    assert Kept(tmp_path, settings).newest().step == 12  # type: ignore[union-attr]
    assert one.warnings == other.warnings == []


def test_every_bit_of_a_value_that_is_not_finite_is_kept(tmp_path: Path) -> None:
    settings = cell()
    frame = pd.DataFrame({"step": [1, 2, 3], "loss": [float("nan"), -float("nan"), float("inf")]})
    Kept(tmp_path, settings).save(Checkpoint(4, {"W": torch.zeros(1)}, {"steps": frame}))
    found = Kept(tmp_path, settings).newest()
    assert found is not None
    assert found.frames["steps"]["loss"].to_numpy().tobytes() == frame["loss"].to_numpy().tobytes()
