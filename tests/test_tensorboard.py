from pathlib import Path

import pytest
from settings import cell
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_training import CPU, TEXT, heads_at

from attnid.tensorboard import TensorBoard
from attnid.training import train


def test_what_tensorboard_shows_is_what_the_tables_hold(tmp_path: Path) -> None:
    settings = cell(rebalance="qk", rebalance_every=5, evaluate_every=8)
    frames = train(settings, TEXT, [0, 3], CPU, TensorBoard(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seed-0", "seed-3"]
    shown = EventAccumulator(str(tmp_path / "seed-3"))
    shown.Reload()

    def scalars(tag: str) -> dict[int, float]:
        return {event.step: event.value for event in shown.Scalars(tag)}

    for table, measure in (("steps", "train_loss"), ("evaluations", "val_loss")):
        rows = frames[table][frames[table].seed == 3].set_index("step")[measure]
        assert scalars(f"step/{measure}") == pytest.approx(rows.to_dict(), rel=1e-6)
    rho = heads_at(frames, 5).query("seed == 3 and layer == 1").rho_qk.median()
    assert scalars("layer 1, median over heads/rho_qk")[5] == pytest.approx(rho, rel=1e-6)
