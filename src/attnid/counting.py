"""Closed forms: how many parameters of a layer are unidentified, and why.

They hold for generic weights and enough tokens. `attnid.rank` measures the same numbers on the real layer,
`attnid.exact` proves them, and the analysis refuses a row in which they differ.
"""

from dataclasses import dataclass, fields
from math import prod

from attnid.layer import LayerSpec, numel, reachable_buckets


class NoClosedFormError(ValueError):
    """A layer whose count no closed form here gives; the message says why."""


@dataclass(frozen=True)
class Count:
    """Parameters of one layer and how many of them are unidentified, by source.

    `query_key` and `value_output` count the parameters on either side, `shared` those that both sides read.
    """

    query_key: int
    value_output: int
    shared: int = 0
    query_key_gauge: int = 0
    value_output_gauge: int = 0
    dead_key_bias: int = 0
    dead_value_bias: int = 0
    relative_table: int = 0
    latent_gauge: int = 0
    norm_gain: int = 0
    norm_bias: int = 0
    norm_centring: int = 0

    @property
    def sources(self) -> dict[str, int]:
        """Unidentified directions by source."""
        return {name: getattr(self, name) for name in SOURCES}

    @property
    def columns(self) -> dict[str, int | float]:
        """What a table of counts holds of a layer."""
        return {
            "parameters": self.parameters,
            **self.sources,
            "unidentified": self.unidentified,
            "identified": self.identified,
            "identified_fraction": self.identified_fraction,
        }

    @property
    def parameters(self) -> int:
        """All parameters of the layer."""
        return self.query_key + self.value_output + self.shared

    @property
    def unidentified(self) -> int:
        """Dimension of the parameter directions along which the layer does not change."""
        return sum(self.sources.values())

    @property
    def identified(self) -> int:
        """Parameters that mean something: the generic rank of the layer's Jacobian."""
        return self.parameters - self.unidentified

    @property
    def identified_query_key(self) -> int:
        """The part of `identified` on the side of queries and keys, in a layer with `has_sides`."""
        return self.query_key - self.query_key_gauge - self.dead_key_bias - self.relative_table

    @property
    def identified_value_output(self) -> int:
        """The part of `identified` on the side of values and output, in a layer with `has_sides`."""
        return self.value_output - self.value_output_gauge - self.dead_value_bias

    @property
    def identified_fraction(self) -> float:
        """Share of the parameters that mean something."""
        return self.identified / self.parameters


SOURCES = tuple(field.name for field in fields(Count))[3:]
"""Names of the sources of unidentified directions."""


def count(spec: LayerSpec) -> Count:
    """Count the unidentified parameters of a layer by source.

    Sections 4.2 to 4.9 of arXiv 2609.01231, corrected where its own definitions ask for it and extended to heads
    wider than the model and to the features of `LayerSpec` that the paper does not treat.

    Raises NoClosedFormError for a combination whose closed form is not known here.
    """
    reason = _without_closed_form(spec)
    if reason:
        raise NoClosedFormError(reason)
    return Count(
        query_key=numel(spec.query_key_shapes),
        value_output=numel(spec.value_output_shapes),
        shared=numel(spec.shared_shapes),
        query_key_gauge=_query_key_gauge(spec),
        value_output_gauge=_value_output_gauge(spec),
        dead_key_bias=_dead_key_bias(spec),
        dead_value_bias=_dead_value_bias(spec),
        relative_table=_relative_table(spec),
        latent_gauge=_latent_gauge(spec.kv_latent_dim) + _latent_gauge(spec.q_latent_dim),
        norm_gain=spec.d_model if "g_N" in spec.shared_shapes else 0,
        norm_bias=spec.d_model if spec.pre_norm_bias else 0,
        norm_centring=_norm_centring(spec),
    )


def gauge_dimension(rows: int, columns: int, inner: int) -> int:
    """Dimension of the fibre of a matrix product: parameters of the factors minus dimension of their products.

    The factors are (rows x inner) and (inner x columns); their products are the matrices of rank at most `inner`.
    It is inner^2 whenever `inner` is at most `rows` and `columns`.
    """
    rank = min(rows, columns, inner)
    return inner * (rows + columns) - rank * (rows + columns - rank)


def input_widths(spec: LayerSpec) -> tuple[int, int]:
    """Dimensions in which the inputs of queries and those of keys and values vary: LayerNorm takes one away."""
    own = spec.d_model - (spec.pre_norm == "layer")
    return own, own if spec.context_dim is None else spec.context_dim


def _without_closed_form(spec: LayerSpec) -> str:
    """Why a layer has no closed form here; "" if it has one."""
    width, memory = input_widths(spec)
    if spec.pre_norm != "none" and width < 2:
        return "a normalised input of less than two dimensions is one of two points"
    if spec.qk_norm != "none":
        together = spec.qk_norm == "full"
        queries = spec.qk_head_dim * (spec.n_heads if together else 1)
        keys = spec.qk_head_dim * (spec.n_kv_heads if together else 1)
        if queries > width or keys > memory:
            return "queries or keys that are normalised and wider than their input"
        if keys < 2:
            return "normalised keys of one dimension"
    return _latents_without_closed_form(spec)


def _latents_without_closed_form(spec: LayerSpec) -> str:
    if spec.kv_latent_dim is None:
        return ""
    (width, _), H, C = input_widths(spec), spec.n_heads, spec.v_head_dim
    rest = spec.qk_head_dim - spec.rotary_dim
    if not max(2, rest, C) <= spec.kv_latent_dim <= min(width, H * (rest + C)):
        return "kv_latent_dim outside what its heads span"
    if spec.d_model < C:
        return "latent attention with values wider than the model"
    query = width if spec.q_latent_dim is None else spec.q_latent_dim
    if spec.qk_head_dim > query:
        return "latent attention with heads wider than what queries read"
    if spec.q_latent_dim is not None and not 2 <= spec.q_latent_dim <= min(width, H * spec.qk_head_dim):
        return "q_latent_dim outside what its heads span"
    return ""


def _query_key_gauge(spec: LayerSpec) -> int:
    H, G, rotary = spec.n_heads, spec.n_kv_heads, spec.rotary_dim
    rest = spec.qk_head_dim - rotary
    if spec.qk_norm != "none":
        scales = H + G if spec.qk_norm == "head" else 2
        if not spec.qk_norm_gain:
            return scales + G * (rotary // 2 + rest * (rest - 1) // 2)
        return scales + (rotary // 2 + rest) * (1 if spec.qk_norm == "head" else G)
    if spec.kv_latent_dim is not None:
        return rotary + H * rest**2
    width, memory = input_widths(spec)
    query_bias, key_bias, _ = spec.biased
    queries = spec.heads_per_group * (width + query_bias)
    gauge = rotary + gauge_dimension(queries, memory + (key_bias and spec.key_bias_acts), rest)
    if spec.sinks_absorb_constants:
        gauge += _free_constants(spec.heads_per_group, width, memory, rest)
    return G * gauge


def _free_constants(heads: int, width: int, memory: int, inner: int) -> int:
    """Constants b_Q . b_K of a group's scores that the rest of the products leaves free, so that sinks undo them."""
    return heads if inner > memory else max(0, min(inner, heads * (width + 1)) - heads * width)


def _value_output_gauge(spec: LayerSpec) -> int:
    memory = input_widths(spec)[1] if spec.kv_latent_dim is None else spec.kv_latent_dim
    E, G, C = spec.d_model, spec.n_kv_heads, spec.v_head_dim
    inputs = memory + (spec.biased[2] and spec.sinks)
    gauge = G * gauge_dimension(spec.heads_per_group * E, inputs, C)
    # Outputs that no value sees act on value biases: without an output bias all constants are identified.
    held = spec.biased[2] and not spec.sinks and not spec.output_bias and memory < C
    return gauge - max(0, E - G * C) * held


def _dead_key_bias(spec: LayerSpec) -> int:
    if not spec.biased[1] or spec.key_bias_acts:
        return 0
    return spec.n_kv_heads * (spec.qk_head_dim - spec.rotary_dim)


def _dead_value_bias(spec: LayerSpec) -> int:
    if not spec.biased[2] or spec.sinks:
        return 0
    E, G, C = spec.d_model, spec.n_kv_heads, spec.v_head_dim
    return G * C if spec.output_bias else max(0, G * C - E)


def _relative_table(spec: LayerSpec) -> int:
    """The shift of each head's table, and the entries that no query and key use."""
    if not spec.relative_buckets:
        return 0
    return spec.n_heads * (1 + spec.relative_buckets - len(reachable_buckets(spec)))


def _latent_gauge(width: int | None) -> int:
    """Rotations of a normalised latent, the scales of its gains, and the scale of what it is made of."""
    return 0 if width is None else width * (width + 1) // 2 + 1


def _norm_centring(spec: LayerSpec) -> int:
    """Rows of projections that LayerNorm's centring does not see; with a bias it lets them act as biases."""
    if spec.pre_norm != "layer":
        return 0
    shapes = spec.parameter_shapes
    own = {"W_Q": spec.query_bias, "W_K": spec.key_bias, "W_V": spec.value_bias}
    rows = (prod(shapes[name][:-1]) for name in spec.input_projections if not spec.pre_norm_bias or own.get(name))
    return sum(rows)
