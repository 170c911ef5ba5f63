"""What a softmax attention layer is: its sizes and features, and the shapes of its parameters."""

from collections.abc import Iterator, Mapping
from math import log, prod
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Size = Annotated[int, Field(ge=1, le=10**9, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Shapes = dict[str, tuple[int, ...]]


def numel(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Numbers in all parameters of these shapes."""
    return sum(prod(shape) for shape in shapes.values())


class LayerSpec(BaseModel):
    """One softmax attention layer, with the normalisation of its input where it is given, without the residual.

    Symbols in brackets are those of arXiv 2609.01231: width E, query heads H, key/value groups G, query/key head
    width D, value head width C. Head widths are free: they need not be E/H. Every normalisation has an epsilon of 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    d_model: Size = Field(description="width of the layer's input and output (E)")
    n_heads: Size = Field(description="query heads (H)")
    n_kv_heads: Size = Field(description="key/value groups (G), 1 for multi-query; must divide n_heads")
    qk_head_dim: Size = Field(description="width of a query/key head (D)")
    v_head_dim: Size = Field(description="width of a value head (C)")
    query_bias: Flag = Field(default=False, description="bias of the query projection")
    key_bias: Flag = Field(default=False, description="bias of the key projection")
    value_bias: Flag = Field(default=False, description="bias of the value projection")
    output_bias: Flag = Field(default=False, description="bias of the output projection")
    rotary_dim: Annotated[int, Field(ge=0, strict=True)] = Field(
        default=0, description="leading dimensions of each query/key head that RoPE rotates, even; 0 without RoPE"
    )
    causal: Flag = Field(default=True, description="a token attends only to itself and those before it")
    context_dim: Size | None = Field(
        default=None,
        description="width of the second input that keys and values read (cross-attention); needs causal false",
    )
    qk_norm: Literal["none", "head", "full"] = Field(
        default="none",
        description="RMS normalisation of queries and keys: of each head, or of all heads of a token together",
    )
    qk_norm_gain: Flag = Field(
        default=True,
        description="learned gains of that normalisation: one set shared by the heads (head), one for each (full)",
    )
    sinks: Flag = Field(default=False, description="a learned logit a head in the softmax's denominator")
    soft_cap: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] | None = Field(
        default=None, description="scores s become soft_cap tanh(s / soft_cap)"
    )
    relative_buckets: Annotated[int, Field(ge=0, le=100_000, strict=True)] = Field(
        default=0, description="entries a head of a learned table of relative positions, as in T5; 0 without one"
    )
    relative_distance: Annotated[int, Field(ge=1, le=100_000, strict=True)] = Field(
        default=128, description="distance from which on all positions share a bucket"
    )
    alibi: Flag = Field(default=False, description="a fixed slope a head over the distance of query and key (ALiBi)")
    kv_latent_dim: Size | None = Field(
        default=None,
        description="width of the normalised latent that keys and values are made of (MLA); the rotated dimensions of "
        "the keys are then one head, shared by all",
    )
    q_latent_dim: Size | None = Field(
        default=None, description="width of the normalised latent that queries are made of (MLA)"
    )
    pre_norm: Literal["none", "rms", "layer"] = Field(
        default="none", description="normalisation of the layer's input that counts as part of it"
    )
    pre_norm_gain: Flag = Field(default=True, description="learned gain of that normalisation")
    pre_norm_bias: Flag = Field(default=False, description="learned bias of that normalisation (LayerNorm)")

    @classmethod
    def from_fields(cls, fields: object) -> Self:
        """A layer from the fields that differ from a plain one. Raises pydantic.ValidationError.

        Not given, n_kv_heads is n_heads, qk_head_dim is d_model / n_heads if that is whole, v_head_dim is qk_head_dim.
        """
        if not isinstance(fields, dict):
            return cls.model_validate(fields)
        plain: dict[str, Any] = {}
        heads, width = fields.get("n_heads"), fields.get("d_model")
        if heads is not None:
            plain["n_kv_heads"] = heads
        if type(heads) is int and type(width) is int and heads > 0 and width % heads == 0:
            plain["qk_head_dim"] = width // heads
        filled = plain | fields
        if "qk_head_dim" in filled:
            filled.setdefault("v_head_dim", filled["qk_head_dim"])
        return cls.model_validate(filled)

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

    @classmethod
    def with_heads(cls, d_model: int, n_heads: int, head_dim: int, **features: Any) -> Self:
        """A layer with heads of one width for queries, keys and values, D = C, and other fields as given."""
        sizes = {"d_model": d_model, "n_heads": n_heads, "n_kv_heads": n_heads}
        return cls.model_validate(sizes | {"qk_head_dim": head_dim, "v_head_dim": head_dim} | features)

    @model_validator(mode="after")
    def _sizes_fit_together(self) -> Self:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_kv_heads must divide n_heads = {self.n_heads}, not {self.n_kv_heads}")
        if self.rotary_dim % 2:
            raise ValueError(f"rotary_dim must be even, not {self.rotary_dim}")
        if self.rotary_dim > self.qk_head_dim:
            raise ValueError(f"rotary_dim must be at most qk_head_dim = {self.qk_head_dim}, not {self.rotary_dim}")
        return self

    @model_validator(mode="after")
    def _features_fit_together(self) -> Self:
        if self.context_dim is not None and self.causal:
            raise ValueError("causal must be false with context_dim: cross-attention has no causal mask")
        if self.pre_norm == "layer" and self.d_model == 1:
            raise ValueError('pre_norm "layer" needs d_model of at least 2, not 1: it leaves nothing of one number')
        if self.pre_norm_bias and self.pre_norm != "layer":
            raise ValueError(f'pre_norm_bias needs pre_norm "layer", not "{self.pre_norm}"')
        return self

    @model_validator(mode="after")
    def _table_is_large_enough(self) -> Self:
        if not self.relative_buckets:
            return self
        fewest = 2 if self.causal else 4
        if self.relative_buckets < fewest or (self.relative_buckets % 2 and not self.causal):
            wanted = "at least 2" if self.causal else "even and at least 4 without causal mask"
            raise ValueError(f"relative_buckets must be 0 or {wanted}, not {self.relative_buckets}")
        near = self.relative_buckets // fewest
        if self.relative_distance <= near:
            raise ValueError(f"relative_distance must be above {near} here, not {self.relative_distance}")
        return self

    @model_validator(mode="after")
    def _latents_stand_alone(self) -> Self:
        if self.kv_latent_dim is None:
            if self.q_latent_dim is not None:
                raise ValueError("q_latent_dim needs kv_latent_dim")
            return self
        excluded = {
            "n_kv_heads below n_heads": self.n_kv_heads < self.n_heads,
            "a query, key or value bias": self.query_bias or self.key_bias or self.value_bias,
            f'qk_norm "{self.qk_norm}"': self.qk_norm != "none",
            "context_dim": self.context_dim is not None,
            "rotary_dim equal to qk_head_dim": self.rotary_dim == self.qk_head_dim,
        }
        for feature, there in excluded.items():
            if there:
                raise ValueError(f"kv_latent_dim does not go with {feature}")
        return self

    @property
    def alone(self) -> Self:
        """The same layer without the normalisation of its input."""
        return self.model_copy(update={"pre_norm": "none", "pre_norm_gain": True, "pre_norm_bias": False})

    @property
    def heads_per_group(self) -> int:
        """Query heads that share one key/value head (H/G)."""
        return self.n_heads // self.n_kv_heads

    @property
    def memory_dim(self) -> int:
        """Width of what keys and values read."""
        return self.d_model if self.context_dim is None else self.context_dim

    @property
    def key_bias_acts(self) -> bool:
        """Whether a constant in all keys of a head changes its weights also where RoPE does not rotate."""
        return self.sinks or self.soft_cap is not None or self.qk_norm != "none"

    @property
    def biased(self) -> tuple[bool, bool, bool]:
        """Whether queries, keys and values have a bias, of their own or through the bias of the norm before them."""
        of_queries = self.pre_norm_bias and self.q_latent_dim is None
        of_memory = self.pre_norm_bias and self.kv_latent_dim is None and self.context_dim is None
        return self.query_bias or of_queries, self.key_bias or of_memory, self.value_bias or of_memory

    @property
    def sinks_absorb_constants(self) -> bool:
        """Whether a constant b_Q . b_K in all scores of a head acts like its sink."""
        return self.sinks and self.soft_cap is None and self.qk_norm == "none" and all(self.biased[:2])

    @property
    def has_qk_gain(self) -> bool:
        """Whether normalised queries and keys have learned gains."""
        return self.qk_norm != "none" and self.qk_norm_gain

    @property
    def query_key_shapes(self) -> Shapes:
        """Shapes of the parameters that enter the scores alone."""
        H, G, D, E = self.n_heads, self.n_kv_heads, self.qk_head_dim, self.d_model
        shapes: Shapes = {}
        if self.q_latent_dim is None:
            shapes["W_Q"] = (H, D, E)
        else:
            shapes |= {"W_DQ": (self.q_latent_dim, E), "g_DQ": (self.q_latent_dim,), "W_UQ": (H, D, self.q_latent_dim)}
        if self.kv_latent_dim is None:
            shapes["W_K"] = (G, D, self.memory_dim)
        else:
            shapes["W_UK"] = (H, D - self.rotary_dim, self.kv_latent_dim)
            if self.rotary_dim:
                shapes["W_KR"] = (self.rotary_dim, E)
        if self.query_bias:
            shapes["b_Q"] = (H, D)
        if self.key_bias:
            shapes["b_K"] = (G, D)
        if self.has_qk_gain:
            shapes |= {"g_Q": (D,), "g_K": (D,)} if self.qk_norm == "head" else {"g_Q": (H, D), "g_K": (G, D)}
        if self.relative_buckets:
            shapes["table"] = (H, self.relative_buckets)
        if self.sinks:
            shapes["sinks"] = (H,)
        return shapes

    @property
    def value_output_shapes(self) -> Shapes:
        """Shapes of the parameters that carry values to the output alone."""
        G, C = self.n_kv_heads, self.v_head_dim
        shapes: Shapes = {}
        if self.kv_latent_dim is None:
            shapes["W_V"] = (G, C, self.memory_dim)
        else:
            shapes["W_UV"] = (G, C, self.kv_latent_dim)
        shapes["W_O"] = (self.n_heads, self.d_model, C)
        if self.value_bias:
            shapes["b_V"] = (G, C)
        if self.output_bias:
            shapes["b_O"] = (self.d_model,)
        return shapes

    @property
    def shared_shapes(self) -> Shapes:
        """Shapes of the parameters that both read: the latent of keys and values, the normalisation of the input."""
        shapes: Shapes = {}
        if self.kv_latent_dim is not None:
            shapes |= {"W_DKV": (self.kv_latent_dim, self.d_model), "g_DKV": (self.kv_latent_dim,)}
        if self.pre_norm != "none" and self.pre_norm_gain:
            shapes["g_N"] = (self.d_model,)
        if self.pre_norm_bias:
            shapes["b_N"] = (self.d_model,)
        return shapes

    @property
    def has_sides(self) -> bool:
        """Whether each parameter and each source of redundancy belongs to queries and keys or to values and output."""
        return self.kv_latent_dim is None and self.pre_norm == "none"

    @property
    def parameter_shapes(self) -> Shapes:
        """Shapes of all parameters: of queries and keys, of values and output, and those shared by both.

        W are weights, b biases, g gains; D and U stand for the way down to a latent and up from it, R for what RoPE
        rotates, N for the normalisation of the input. Heads come first.
        """
        return self.query_key_shapes | self.value_output_shapes | self.shared_shapes

    @property
    def input_projections(self) -> tuple[str, ...]:
        """Names of the weights that read the layer's input, normalised where it is."""
        names = ("W_DQ", "W_Q") if self.context_dim is not None else ("W_DQ", "W_Q", "W_K", "W_KR", "W_V", "W_DKV")
        return tuple(name for name in names if name in self.parameter_shapes)


def layer_name(spec: LayerSpec) -> str:
    """A layer in one short line, in the paper's symbols."""
    return ", ".join([*_size_parts(spec), *_feature_parts(spec)])


def _size_parts(spec: LayerSpec) -> Iterator[str]:
    yield f"E {spec.d_model}"
    yield f"H {spec.n_heads}"
    if spec.n_kv_heads != spec.n_heads:
        yield f"G {spec.n_kv_heads}"
    yield f"D {spec.qk_head_dim}"
    if spec.v_head_dim != spec.qk_head_dim:
        yield f"C {spec.v_head_dim}"


def _feature_parts(spec: LayerSpec) -> Iterator[str]:
    if spec.kv_latent_dim is not None:
        queries = "" if spec.q_latent_dim is None else f" and {spec.q_latent_dim}"
        yield f"latent {spec.kv_latent_dim}{queries}"
    if spec.context_dim is not None:
        yield f"context {spec.context_dim}"
    if spec.rotary_dim:
        yield "RoPE" if spec.rotary_dim == spec.qk_head_dim else f"RoPE on {spec.rotary_dim}"
    if spec.qk_norm != "none":
        gains = "" if spec.qk_norm_gain else " without gains"
        yield f"query/key norm ({spec.qk_norm}){gains}"
    biases = (spec.query_bias, spec.key_bias, spec.value_bias, spec.output_bias)
    present = [letter for letter, there in zip("QKVO", biases, strict=True) if there]
    if present:
        yield f"biases {''.join(present)}"
    if spec.sinks:
        yield "sinks"
    if spec.soft_cap is not None:
        yield f"soft cap {spec.soft_cap:g}"
    if spec.relative_buckets:
        yield f"table of {spec.relative_buckets} relative positions"
    if spec.alibi:
        yield "ALiBi"
    if spec.pre_norm != "none":
        yield _norm_part(spec)
    if not spec.causal and spec.context_dim is None:
        yield "no mask"


def _norm_part(spec: LayerSpec) -> str:
    learned = [name for name, there in (("gain", spec.pre_norm_gain), ("bias", spec.pre_norm_bias)) if there]
    name = {"rms": "RMSNorm", "layer": "LayerNorm"}[spec.pre_norm]
    return f"{name} with {' and '.join(learned)}" if learned else name


def reachable_buckets(spec: LayerSpec) -> set[int]:
    """Entries of the table of relative positions that some query and key use."""
    farthest = 0 if spec.causal else spec.relative_distance
    return {relative_bucket(spec, offset) for offset in range(-spec.relative_distance, farthest + 1)}


def relative_bucket(spec: LayerSpec, offset: int) -> int:
    """The entry of the table of relative positions for a key `offset` places after the query.

    Half of the buckets hold one distance each, the others grow like its logarithm up to relative_distance; without a
    causal mask keys after the query have a half of the table to themselves (Raffel et al. 2020, section 2.1).
    """
    buckets, first = spec.relative_buckets, 0
    if spec.causal:
        distance = max(-offset, 0)
    else:
        buckets //= 2
        first = buckets if offset > 0 else 0
        distance = abs(offset)
    near = buckets // 2
    if distance < near:
        return first + distance
    growth = log(distance / near) / log(spec.relative_distance / near)
    return first + min(near + int(growth * (buckets - near)), buckets - 1)
