"""An attention layer inside a model or a checkpoint: what it is, and where its parameters lie."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from attnid.errors import UserError
from attnid.layer import LayerSpec

SIDES = {"qk": ("W_Q", "W_K", "b_Q", "b_K", "extra_K"), "vo": ("W_V", "W_O", "b_V", "extra_V")}
PAIRS = tuple(SIDES)
"""Queries with keys, values with outputs: the parameters that move together."""
STORED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Slot:
    """Where a parameter of a layer lies in a tensor of the model.

    The rows of the tensor, of its transpose where `transposed`, are `groups` blocks of one size; the parameter is the
    rows `start` to `stop` of every block, in heads of `width` rows where that is given. `order` lists, in the order of
    `attnid.attention`, the rows of a head. `outputs` says that heads hold the transposes of what is asked for, `offset`
    is added to what is stored.
    """

    tensor: str
    shape: tuple[int, ...]
    transposed: bool = False
    groups: int = 1
    start: int = 0
    stop: int | None = None
    width: int | None = None
    order: tuple[int, ...] | None = None
    outputs: bool = False
    offset: float = 0.0

    def view(self, tensor: Tensor) -> Tensor:
        """The parameter as a view, rows of a head as the model has them.

        Its shape is `shape`, or (groups, heads of each) in place of all heads where one stride cannot say that.
        """
        rows = tensor.flatten(0, -2)[0] if tensor.ndim > 2 else tensor  # bias_k of torch, shape (1, 1, E)
        rows = rows.mT if self.transposed else rows
        parts: Tensor = rows.unflatten(0, (self.groups, -1))[:, self.start : self.stop]
        if self.width is None:
            return parts[0]
        heads: Tensor = parts.unflatten(1, (-1, self.width))
        if self.outputs:
            heads = heads.mT
        try:
            return heads.view(self.shape)
        except RuntimeError:
            return heads

    def read(self, tensor: Tensor) -> Tensor:
        """A copy of the parameter, shape `shape`, as `attnid.attention` takes it."""
        value = self.view(tensor).reshape(self.shape)
        if self.order is not None:
            value = value.index_select(self._axis, torch.tensor(self.order, device=value.device))
        return value + self.offset if self.offset else value.clone()

    def write(self, tensor: Tensor, value: Tensor) -> None:
        """Store what `read` would give, rounded to the tensor's precision."""
        if self.order is not None:
            back = torch.tensor(self.order, device=value.device).argsort()
            value = value.index_select(self._axis, back)
        view = self.view(tensor)
        view.copy_((value - self.offset).reshape(view.shape))

    @property
    def _axis(self) -> int:
        """The axis of `shape` that runs over the rows of a head."""
        return 1 if len(self.shape) == 3 else -1


@dataclass(frozen=True)
class AttentionLayer:
    """An attention layer of a model.

    Attributes:
        name: path of the attention module in the model.
        spec: sizes and features; the normalisation before the layer is no part of it, and neither is the mask, which
            moves nothing.
        slots: where each parameter of `spec.parameter_shapes` lies. `extra_K` and `extra_V`, shape (H, D) and (H, C),
            are the key and the value of a token that torch.nn.MultiheadAttention adds to every sequence.
        tensors: the model's parameters or a checkpoint's tensors, by name.
        extra_token: whether every sequence gets one token more, whose key and value do not come from the weights.
        obstacle: why no pair of the layer can move, whatever its spec: weights that something else uses as well, or
            code between them; "" where nothing is in the way.
    """

    name: str
    spec: LayerSpec
    slots: Mapping[str, Slot]
    tensors: Mapping[str, Tensor] = field(repr=False)
    extra_token: bool = False
    obstacle: str = ""

    @torch.no_grad()
    def views(self) -> dict[str, Tensor]:
        """Each parameter as a view on the model's own weights: what is written there changes the model.

        Rows of a head come in the model's order; `parameters` has them in that of `attnid.attention`.
        """
        return {name: slot.view(self.tensors[slot.tensor].detach()) for name, slot in self.slots.items()}

    @torch.no_grad()
    def parameters(self) -> dict[str, Tensor]:
        """Copies in the shapes and the order that `attnid.attention` takes: under RoPE planes are adjacent rows."""
        return {name: slot.read(self.tensors[slot.tensor].detach()) for name, slot in self.slots.items()}

    @torch.no_grad()
    def write(self, parameters: Mapping[str, Tensor]) -> None:
        """Store parameters as `parameters` gives them, rounded to the model's precision."""
        for name, value in parameters.items():
            self.slots[name].write(self.tensors[self.slots[name].tensor], value)

    def over(self, tensors: Mapping[str, Tensor]) -> Self:
        """The same layer in other tensors of the same names and shapes: gradients, or an optimiser's moments."""
        return replace(self, tensors=tensors)

    def tensor_names(self, pair: str | None = None) -> set[str]:
        """Names of the tensors that hold the layer's parameters, or those of one pair."""
        return {slot.tensor for name, slot in self.slots.items() if pair is None or name in SIDES[pair]}

    def stored(self, pair: str) -> torch.dtype:
        """The coarsest precision in which a pair is stored."""
        kinds = {self.tensors[name].dtype for name in self.tensor_names(pair)}
        return max(kinds, key=lambda kind: torch.finfo(kind).eps)

    def fixed(self, pair: str) -> str:
        """Why a pair cannot move although its product may leave directions free; "" if it can.

        Args:
            pair: `qk` or `vo`.
        """
        if pair not in PAIRS:
            raise UserError(f"{self.name}: {pair!r} is no pair; allowed: {', '.join(PAIRS)}")
        if self.spec.kv_latent_dim is not None:
            return "keys and values come from a normalised latent"
        if pair == "qk" and self.spec.qk_norm != "none":
            return "queries and keys are normalised"
        if reason := self.unreadable(pair):
            return reason
        first, second = ("W_Q", "W_K") if pair == "qk" else ("W_O", "W_V")
        wide = self.slots[first].shape[2 if pair == "qk" else 1] * self.spec.heads_per_group
        width = self.spec.qk_head_dim if pair == "qk" else self.spec.v_head_dim
        if width > min(wide, self.slots[second].shape[2]):
            return "heads are wider than the model"
        return ""

    def unreadable(self, pair: str) -> str:
        """Why what stands in a pair's tensors may not be all that the layer uses; "" where it is."""
        kinds = {self.tensors[name].dtype for name in self.tensor_names(pair)}
        if self.obstacle or kinds <= set(STORED):
            return self.obstacle
        return f"stored as {', '.join(sorted(str(kind).removeprefix('torch.') for kind in kinds))}"

    def trains(self, pair: str) -> bool:
        """Whether no tensor of a pair is frozen."""
        return all(self.tensors[name].requires_grad for name in self.tensor_names(pair))

    @property
    def dead_key_rows(self) -> slice:
        """Rows of each head's key bias on which nothing depends: those that RoPE does not rotate, or none."""
        acts = not self.spec.key_bias or self.spec.key_bias_acts or self.extra_token
        return slice(0, 0) if acts else slice(self.spec.rotary_dim, self.spec.qk_head_dim)

    @property
    def folds_value_bias(self) -> bool:
        """Whether the output bias can take over what the value bias does: all attention weights sum to one."""
        spec = self.spec
        return spec.value_bias and spec.output_bias and not spec.sinks and not self.extra_token
