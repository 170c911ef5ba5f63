"""The settings of one training cell, and the names that follow from them."""

import hashlib
import json
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

from attnid import optimisers
from attnid.errors import listed
from attnid.layer import LayerSpec


def _known_optimizer(name: str) -> str:
    if name not in optimisers.NAMES:
        allowed = listed(map(repr, optimisers.NAMES), "or")
        raise PydanticCustomError("optimizer", "input should be {allowed}", {"allowed": allowed})
    return name


Precision = Literal["float32", "float64", "bfloat16"]
Optimizer = Annotated[str, AfterValidator(_known_optimizer)]
Sides = Literal["none", "qk", "qk-vo"]
Rebalance = Literal["none", "qk", "qk-vo", "state"]
Moments = Literal["clear", "keep", "transport"]
Device = Literal["auto", "cpu", "cuda"]


class Cell(BaseModel):
    """The settings of one training cell: all that changes its numbers, except the seed.

    Its name holds a hash of what differs from the defaults here, so that a setting added later renames no cell.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    case: str
    optimizer: Optimizer
    lr: float
    lr_floor: float
    weight_decay: float
    momentum: float = 0.0
    rebalance: Rebalance
    rebalance_every: int
    moments: Moments = "clear"
    project: Sides = "none"
    precision: Precision
    compile: bool = False
    corpus: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    rope: bool = False
    context: int
    dropout: float
    steps: int
    warmup_steps: int
    decay_steps: int
    batch_size: int
    grad_clip: float
    adam_betas: tuple[float, float]
    measure_every: int
    evaluate_every: int
    eval_batches: int

    @property
    def layer(self) -> LayerSpec:
        """The attention layer of the cell's model."""
        width = self.d_model // self.n_heads
        return LayerSpec(
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            qk_head_dim=width,
            v_head_dim=width,
            rotary_dim=width if self.rope else 0,
            query_bias=True,
            key_bias=True,
            value_bias=True,
            output_bias=True,
            causal=True,
        )

    @property
    def hash(self) -> str:
        """Six digits that change with any setting but the case's name."""
        return self._digest("case")[:6]

    @property
    def lineage(self) -> str:
        """What cells share that are the same run up to the last step of the shorter one."""
        return self._digest("case", "steps")[:16]

    @property
    def id(self) -> str:
        """Readable name: case, what a group may vary, and the hash."""
        parts = [self.case, f"lr{self.lr:g}".replace("+", ""), f"h{self.n_heads}"]
        if self.n_kv_heads != self.n_heads:
            parts.append(f"kv{self.n_kv_heads}")
        if self.rope:
            parts.append("rope")
        if self.precision != "float32":
            parts.append(self.precision)
        return "_".join([*parts, self.hash])

    def _digest(self, *excluded: str) -> str:
        settings = self.model_dump(mode="json", exclude=set(excluded), exclude_defaults=True)
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
