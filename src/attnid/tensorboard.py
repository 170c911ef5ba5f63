"""Training as it goes, for TensorBoard: losses and norms of each seed, and every measure over layers and heads."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnid.training import Progress
from attnid.training_tables import EVALUATIONS, HEAD_MEASURES, HEADS, PHASE_STEP, STEPS

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """Writes the rows of each measured step below `directory`, one run a seed.

    What an earlier attempt wrote of steps that are now repeated is hidden by TensorBoard.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._writers: dict[int, SummaryWriter] = {}

    def __call__(self, progress: Progress) -> None:
        """Write one measured step."""
        for table, section in ((STEPS, "step"), (EVALUATIONS, "step")):
            rows = progress.rows.get(table.name)
            if rows is not None:
                for row in rows.to_dict("records"):
                    self._write(progress, int(row.pop("seed")), section, row)
        heads = progress.rows[HEADS.name]
        heads = heads[heads["phase"] == PHASE_STEP]
        measures = [name for name in HEAD_MEASURES if name in heads]
        for layer, rows in heads.groupby("layer"):
            for seed, medians in rows.groupby("seed")[measures].median().iterrows():
                self._write(progress, int(str(seed)), f"layer {layer}, median over heads", medians.to_dict())
        if progress.step == progress.steps:
            for writer in self._writers.values():
                writer.close()

    def _write(self, progress: Progress, seed: int, section: str, values: Mapping[Any, float]) -> None:
        if seed not in self._writers:
            from torch.utils.tensorboard import SummaryWriter  # takes a second to import

            directory = self.directory / f"seed-{seed}"
            self._writers[seed] = SummaryWriter(str(directory), purge_step=progress.step)
        for name, value in values.items():
            if name != "step":
                self._writers[seed].add_scalar(f"{section}/{name}", value, progress.step)
        self._writers[seed].flush()
