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


def checkpoints(directory: Path, settings: Cell, **changes: str) -> Checkpoints:
    return Checkpoints(directory, {"lineage": settings.lineage, "code": "1"} | changes, settings.steps, every=0.0)


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
            train(settings, TEXT, [0, 3], CPU, stop_at(step), checkpoints(tmp_path, settings))
    again = checkpoints(tmp_path, settings)
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
    train(short, TEXT, [0], CPU, checkpoints=checkpoints(tmp_path, short))
    seen: list[Progress] = []
    continued = train(long, TEXT, [0], CPU, seen.append, checkpoints(tmp_path, long))
    assert seen[0].begun == 8
    assert_same(train(long, TEXT, [0], CPU), continued)
    assert train(short, TEXT, [0], CPU, checkpoints=checkpoints(tmp_path, short))["steps"].step.max() == 8


def test_a_cosine_that_ends_elsewhere_is_another_lineage() -> None:
    assert cell(steps=8).lineage != cell(steps=16).lineage
    assert cell(case="other").lineage == cell().lineage


def saved(directory: Path, steps: tuple[int, ...] = (2, 4)) -> tuple[Cell, Checkpoints]:
    settings = cell()
    kept = checkpoints(directory, settings)
    for step in steps:
        weights = torch.full((3, 2), float(step))
        kept.save(Checkpoint(step, {"parameter/W": weights}, {"steps": pd.DataFrame({"step": [step]})}))
    return settings, checkpoints(directory, settings)


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
    assert len(kept.complaints) == 1
    assert str(path) in kept.complaints[0]
    assert "is not used" in kept.complaints[0]


def test_a_checkpoint_of_other_code_or_settings_is_never_used(tmp_path: Path) -> None:
    settings, _ = saved(tmp_path, (4,))
    for changes in ({"code": "2"}, {"lineage": "other"}):
        other = checkpoints(tmp_path, settings, **changes)
        assert other.newest() is None
        assert "expected '" in other.complaints[0]


def test_two_checkpoints_are_kept_until_the_last_step_and_no_partial_file(tmp_path: Path) -> None:
    saved(tmp_path, (1, 2, 3))
    assert [path.stem for path in sorted(tmp_path.rglob("*.*"))] == ["step-000000002", "step-000000003"]


def test_every_bit_of_a_value_that_is_not_finite_is_kept(tmp_path: Path) -> None:
    settings = cell()
    frame = pd.DataFrame({"step": [1, 2, 3], "loss": [float("nan"), -float("nan"), float("inf")]})
    checkpoints(tmp_path, settings).save(Checkpoint(4, {"W": torch.zeros(1)}, {"steps": frame}))
    found = checkpoints(tmp_path, settings).newest()
    assert found is not None
    assert found.frames["steps"]["loss"].to_numpy().tobytes() == frame["loss"].to_numpy().tobytes()
