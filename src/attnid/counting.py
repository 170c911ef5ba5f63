"""Closed forms: how many parameters of a layer are unidentified, and why.

They hold for generic weights and enough tokens. `attnid.rank` measures the same numbers on the real layer, and the
analysis refuses a row in which the two differ.
"""

from dataclasses import dataclass

from attnid.layer import LayerSpec, numel


@dataclass(frozen=True)
class Count:
    """Parameters of one layer and how many of them are unidentified, by source.

    `query_key` and `value_output` count the parameters on either side; every source belongs to one side.
    """

    query_key: int
    value_output: int
    query_key_gauge: int
    value_output_gauge: int
    dead_key_bias: int
    dead_value_bias: int

    @property
    def sources(self) -> dict[str, int]:
        """Unidentified directions by source."""
        return {
            "query_key_gauge": self.query_key_gauge,
            "value_output_gauge": self.value_output_gauge,
            "dead_key_bias": self.dead_key_bias,
            "dead_value_bias": self.dead_value_bias,
        }

    @property
    def parameters(self) -> int:
        """All parameters of the layer."""
        return self.query_key + self.value_output

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
        """The part of `identified` on the side of queries and keys."""
        return self.query_key - self.query_key_gauge - self.dead_key_bias

    @property
    def identified_value_output(self) -> int:
        """The part of `identified` on the side of values and output."""
        return self.value_output - self.value_output_gauge - self.dead_value_bias

    @property
    def identified_fraction(self) -> float:
        """Share of the parameters that mean something."""
        return self.identified / self.parameters


def count(spec: LayerSpec) -> Count:
    """Count the unidentified parameters of a layer by source.

    Sections 4.2 to 4.9 of arXiv 2609.01231, corrected where its own definitions ask for it and extended to heads
    wider than the model: a key bias is dead only where RoPE does not rotate it, and a value bias without an output
    bias only as far as the heads' biases outnumber the model's width.
    """
    return Count(
        query_key=numel(spec.query_key_shapes),
        value_output=numel(spec.value_output_shapes),
        query_key_gauge=_query_key_gauge(spec),
        value_output_gauge=spec.n_kv_heads
        * gauge_dimension(spec.heads_per_group * spec.d_model, spec.d_model, spec.v_head_dim),
        dead_key_bias=spec.n_kv_heads * (spec.qk_head_dim - spec.rotary_dim) if spec.key_bias else 0,
        dead_value_bias=_dead_value_bias(spec),
    )


def gauge_dimension(rows: int, columns: int, inner: int) -> int:
    """Dimension of the fibre of a matrix product: parameters of the factors minus dimension of their products.

    The factors are (rows x inner) and (inner x columns); their products are the matrices of rank at most `inner`.
    It is inner^2 whenever `inner` is at most `rows` and `columns`.
    """
    rank = min(rows, columns, inner)
    return inner * (rows + columns) - rank * (rows + columns - rank)


def _query_key_gauge(spec: LayerSpec) -> int:
    E, G, D, rotary = spec.d_model, spec.n_kv_heads, spec.qk_head_dim, spec.rotary_dim
    query_columns = spec.heads_per_group * (E + spec.query_bias)
    return G * (rotary + gauge_dimension(query_columns, E, D - rotary))


def _dead_value_bias(spec: LayerSpec) -> int:
    if not spec.value_bias:
        return 0
    E, G, C = spec.d_model, spec.n_kv_heads, spec.v_head_dim
    if spec.output_bias:
        return G * C
    return max(0, G * C - E)
