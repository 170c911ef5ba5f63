"""What a softmax attention layer is: its sizes and features, and the shapes of its parameters."""

from collections.abc import Mapping
from math import prod
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Size = Annotated[int, Field(ge=1, strict=True)]


def numel(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Numbers in all parameters of these shapes."""
    return sum(prod(shape) for shape in shapes.values())


class LayerSpec(BaseModel):
    """One softmax attention layer, without normalisation or residual connection.

    Symbols in brackets are those of arXiv 2609.01231: width E, query heads H, key/value groups G, query/key head
    width D, value head width C. Head widths are free: they need not be E/H.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    d_model: Size = Field(description="width of the layer's input and output (E)")
    n_heads: Size = Field(description="query heads (H)")
    n_kv_heads: Size = Field(description="key/value groups (G); equal to n_heads for multi-head, 1 for multi-query")
    qk_head_dim: Size = Field(description="width of a query/key head (D)")
    v_head_dim: Size = Field(description="width of a value head (C)")
    query_bias: bool = Field(default=False, description="bias of the query projection")
    key_bias: bool = Field(default=False, description="bias of the key projection")
    value_bias: bool = Field(default=False, description="bias of the value projection")
    output_bias: bool = Field(default=False, description="bias of the output projection")
    rotary_dim: Annotated[int, Field(ge=0, strict=True)] = Field(
        default=0, description="leading dimensions of each query/key head that RoPE rotates; 0 without RoPE"
    )
    causal: bool = Field(default=True, description="a token attends only to itself and those before it")

    @classmethod
    def multi_head(cls, d_model: int, n_heads: int, *, biases: bool = False, causal: bool = True) -> Self:
        """Plain multi-head attention, D = C = E/H, with all four biases or none."""
        if d_model % n_heads:
            raise ValueError(f"n_heads must divide d_model = {d_model}, not {n_heads}")
        width = d_model // n_heads
        return cls(
            d_model=d_model,
            n_heads=n_heads,
            n_kv_heads=n_heads,
            qk_head_dim=width,
            v_head_dim=width,
            query_bias=biases,
            key_bias=biases,
            value_bias=biases,
            output_bias=biases,
            causal=causal,
        )

    @model_validator(mode="after")
    def _sizes_fit_together(self) -> Self:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_kv_heads must divide n_heads = {self.n_heads}, not {self.n_kv_heads}")
        if self.rotary_dim % 2:
            raise ValueError(f"rotary_dim must be even, not {self.rotary_dim}")
        if self.rotary_dim > self.qk_head_dim:
            raise ValueError(f"rotary_dim must be at most qk_head_dim = {self.qk_head_dim}, not {self.rotary_dim}")
        return self

    @property
    def heads_per_group(self) -> int:
        """Query heads that share one key/value head (H/G)."""
        return self.n_heads // self.n_kv_heads

    @property
    def query_key_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters that enter the scores."""
        shapes: dict[str, tuple[int, ...]] = {
            "W_Q": (self.n_heads, self.qk_head_dim, self.d_model),
            "W_K": (self.n_kv_heads, self.qk_head_dim, self.d_model),
        }
        if self.query_bias:
            shapes["b_Q"] = (self.n_heads, self.qk_head_dim)
        if self.key_bias:
            shapes["b_K"] = (self.n_kv_heads, self.qk_head_dim)
        return shapes

    @property
    def value_output_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters that carry values to the output."""
        shapes: dict[str, tuple[int, ...]] = {
            "W_V": (self.n_kv_heads, self.v_head_dim, self.d_model),
            "W_O": (self.n_heads, self.d_model, self.v_head_dim),
        }
        if self.value_bias:
            shapes["b_V"] = (self.n_kv_heads, self.v_head_dim)
        if self.output_bias:
            shapes["b_O"] = (self.d_model,)
        return shapes

    @property
    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters, in the order of the paper: W_Q, W_K, b_Q, b_K, W_V, W_O, b_V, b_O."""
        return self.query_key_shapes | self.value_output_shapes
