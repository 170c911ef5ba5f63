"""How far any optimiser moves the weights of a model along directions that mean nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pandas as pd
import torch
from torch import Tensor, nn

from attnid import schema
from attnid.errors import UserError
from attnid.head_measures import StepMeasures, states, weight_measures
from attnid.models.layer import AttentionLayer
from attnid.models.modules import as_layers
from attnid.models.tables import OVERLAPS
from attnid.null import random_step_nulls

Arrays = dict[str, Tensor]
OF_QUERIES_AND_KEYS = [
    name for name in OVERLAPS.names if name not in ("step", "layer", "head", "state") and not name.startswith("rho_vo")
]


class OverlapMeter:
    """Measures the steps of an optimiser, layer by layer and head by head.

        meter = OverlapMeter(model, every=10)
        for batch in batches:
            ...
            with meter:
                optimizer.step()
        meter.frame()

    The first step and every `every`-th are measured; around the others nothing is done but counting. A measured step
    holds one more copy of the attention weights and computes in float64. `attach` measures without the `with`.
    The null is that of a step in all weights of a pair, also where some are frozen.

    Args:
        model: a module, or layers of `attnid.find_attention`.
        every: steps between measured ones.
        callback: is given the rows of each measured step, a frame with the columns of `OVERLAPS`.

    Attributes:
        layers: what is measured.
        left_out: layers that are not, with the reason.

    Raises UserError where no attention layer is recognised or `every` is below 1.
    """

    def __init__(
        self,
        model: nn.Module | AttentionLayer | Sequence[AttentionLayer],
        every: int = 10,
        callback: Callable[[pd.DataFrame], object] | None = None,
    ) -> None:
        if type(every) is not int or every < 1:
            raise UserError(f"OverlapMeter: every is {every!r}; allowed: whole numbers from 1")
        found = as_layers(model)
        self.left_out = {layer.name: layer.fixed("vo") for layer in found if layer.fixed("vo") and layer.fixed("qk")}
        self.layers = [layer for layer in found if layer.name not in self.left_out]
        self.every, self.callback, self.step = every, callback, 0
        self._nulls = {layer.name: _nulls(layer) for layer in self.layers}
        self._before: list[Arrays] = []
        self._inside = False
        self._frames: list[pd.DataFrame] = []

    @torch.no_grad()
    def __enter__(self) -> Self:
        if not self._inside:  # else the step before, seen by a hook, has failed
            self.step += 1
        self._inside = True
        if self.step == 1 or self.step % self.every == 0:
            self._before = [_parameters(layer) for layer in self.layers]
        return self

    @torch.no_grad()
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        before, self._before, self._inside = self._before, [], False
        if error is not None:
            self.step -= 1
        elif before:
            self._measure(before)

    def attach(self, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        """Measure every `step()` of an optimiser from now on. Returns a function that ends it.

        Of an optimiser wrapped in another (accelerate, the trainer of transformers) it is the inner one. One meter is
        for one optimiser: the steps of two would be counted as one after the other.
        """
        while not hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(optimizer, "optimizer"):
            optimizer = optimizer.optimizer

        def before(*_: object) -> None:
            self.__enter__()

        def after(*_: object) -> None:
            self.__exit__(None, None, None)

        handles = [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]

        def detach() -> None:
            for handle in handles:
                handle.remove()

        return detach

    def frame(self) -> pd.DataFrame:
        """All rows so far, with the columns of `OVERLAPS`."""
        empty: pd.DataFrame = OVERLAPS.schema.empty_table().to_pandas()
        return pd.concat(self._frames, ignore_index=True) if self._frames else empty

    def write(self, path: str | Path) -> None:
        """Write all rows so far as a Parquet table, with units. Raises UserError where it cannot be written."""
        schema.write(OVERLAPS, self.frame(), Path(path))

    def _measure(self, before: Sequence[Arrays]) -> None:
        frames = []
        for layer, old in zip(self.layers, before, strict=True):
            new = {name: tensor.double() for name, tensor in _parameters(layer).items()}
            measures = StepMeasures(layer.spec, {name: tensor.double() for name, tensor in old.items()})
            frames.append(self._rows(layer, measures.of_update(new) | weight_measures(layer.spec, new)))
        rows = pd.concat(frames, ignore_index=True)
        self._frames.append(rows)
        if self.callback is not None:
            self.callback(rows)

    def _rows(self, layer: AttentionLayer, measured: Arrays) -> pd.DataFrame:
        columns: dict[str, Any] = {name: array.cpu().numpy() for name, array in measured.items()}
        frame = pd.DataFrame(columns | self._nulls[layer.name])
        frame = frame.assign(step=self.step, layer=layer.name, head=range(len(frame)))
        frame["state"] = states(frame, layer.spec.qk_head_dim)
        if layer.fixed("qk"):
            frame[OF_QUERIES_AND_KEYS] = torch.nan
        if layer.fixed("vo"):
            frame[[name for name in OVERLAPS.names if name.startswith("rho_vo")]] = torch.nan
        return frame[OVERLAPS.names]


def _nulls(layer: AttentionLayer) -> dict[str, float]:
    nulls = random_step_nulls(layer.spec, value_width=layer.slots["W_V"].shape[-1])
    prefixes = {"qk": "rho_null", "vo": "rho_vo_null"}
    return {
        f"{prefix}_{name}": value for pair, prefix in prefixes.items() for name, value in nulls[pair]._asdict().items()
    }


def _parameters(layer: AttentionLayer) -> Arrays:
    """Copies of the parameters that are measured."""
    return {name: tensor for name, tensor in layer.parameters().items() if name != "table"}
