"""The float64 rank of the real layer's Jacobian, and the gap that makes it a rank."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor
from torch.func import jacrev

from attnid.attention import Parameters, attention, random_parameters
from attnid.layer import LayerSpec, numel

KEPT_ABOVE = 1e-9
DROPPED_BELOW = 1e-12
ROWS_PER_PARAMETER = 1.5
FEWEST_TOKENS = 8
JACOBIAN_CHUNK = 256


class UnclearRankError(ArithmeticError):
    """Singular values leave it open which of them are zero."""


@dataclass(frozen=True)
class Rank:
    """A numerical rank with its gap: the singular values to either side of it, relative to the largest.

    `largest_dropped` is 0 where every singular value is kept.
    """

    rank: int
    smallest_kept: float
    largest_dropped: float


@dataclass(frozen=True)
class LayerRanks:
    """Ranks of a layer's Jacobian: all columns, those of queries and keys, those of values and output."""

    layer: Rank
    query_key: Rank
    value_output: Rank
    sequences: int
    tokens: int

    @property
    def smallest_kept(self) -> float:
        """Worst of the three ranks."""
        return min(self.layer.smallest_kept, self.query_key.smallest_kept, self.value_output.smallest_kept)

    @property
    def largest_dropped(self) -> float:
        """Worst of the three ranks."""
        return max(self.layer.largest_dropped, self.query_key.largest_dropped, self.value_output.largest_dropped)


def layer_ranks(spec: LayerSpec, seed: int = 0, sequences: int | None = None, tokens: int | None = None) -> LayerRanks:
    """Rank of the layer's outputs over random inputs, as functions of its parameters, at random parameters.

    Weights and biases are normal with variance 1/E, inputs normal with variance 1, all float64.

    Args:
        sequences, tokens: number and length of the input sequences; without them, enough for every identified
            parameter to show.

    Raises:
        UnclearRankError: a singular value lies between DROPPED_BELOW and KEPT_ABOVE of the largest.
    """
    tokens = tokens or max(FEWEST_TOKENS, spec.d_model)
    sequences = sequences or _enough_sequences(spec, tokens)
    generator = torch.Generator().manual_seed(seed)
    parameters = random_parameters(spec, generator, scale=spec.d_model**-0.5)
    x = torch.randn(sequences, tokens, spec.d_model, generator=generator, dtype=torch.float64)
    # The triangular factor has the singular values of the Jacobian, whichever columns are taken of both.
    triangle = torch.linalg.qr(jacobian(spec, parameters, x), mode="r")[1]
    query_key = numel(spec.query_key_shapes)
    singular_values = torch.linalg.svdvals(triangle)
    largest = float(singular_values[0])
    try:
        return LayerRanks(
            layer=numerical_rank(singular_values, largest),
            query_key=numerical_rank(torch.linalg.svdvals(triangle[:query_key, :query_key]), largest),
            value_output=numerical_rank(torch.linalg.svdvals(triangle[:, query_key:]), largest),
            sequences=sequences,
            tokens=tokens,
        )
    except UnclearRankError as error:
        raise UnclearRankError(f"{error}; layer {spec!r}") from None


def jacobian(spec: LayerSpec, parameters: Parameters, x: Tensor) -> Tensor:
    """Derivatives of the outputs for inputs of shape (B, L, E): shape (B L E, parameters of the layer).

    Columns follow `spec.parameter_shapes`: queries and keys first, then values and output.
    """

    def outputs(parameters: Parameters, sequence: Tensor) -> Tensor:
        return attention(spec, parameters, sequence.unsqueeze(0)).flatten()

    derivative = jacrev(outputs, chunk_size=JACOBIAN_CHUNK)
    return torch.cat([_columns(spec, derivative(dict(parameters), sequence)) for sequence in x])


def numerical_rank(singular_values: Tensor, largest: float) -> Rank:
    """Count the singular values above KEPT_ABOVE of `largest`.

    Raises UnclearRankError where one of the others is not below DROPPED_BELOW of it.
    """
    if largest == 0:
        return Rank(0, 0.0, 0.0)
    relative = (singular_values / largest).sort(descending=True).values
    rank = int((relative > KEPT_ABOVE).sum())
    kept, dropped = relative[:rank].tolist(), relative[rank:].tolist()
    if dropped and dropped[0] > DROPPED_BELOW:
        raise UnclearRankError(
            f"no clear rank: a singular value at {dropped[0]:.1e} of the largest, where those kept lie above "
            f"{KEPT_ABOVE:.0e} and those dropped below {DROPPED_BELOW:.0e}"
        )
    return Rank(rank, kept[-1] if kept else 0.0, dropped[0] if dropped else 0.0)


def _enough_sequences(spec: LayerSpec, tokens: int) -> int:
    """Sequences for ROWS_PER_PARAMETER outputs a parameter, and as many that tell of queries and keys.

    A query of n keys tells of n - 1 score differences a head, seen through at most C channels a head and E outputs.
    """
    E, H, C = spec.d_model, spec.n_heads, spec.v_head_dim
    keys = range(1, tokens + 1) if spec.causal else [tokens] * tokens
    telling = sum(min(H * (n - 1), H * C, E) for n in keys)
    query_key, value_output = numel(spec.query_key_shapes), numel(spec.value_output_shapes)
    needed = max((query_key + value_output) / (tokens * E), query_key / max(telling, 1))
    return ceil(ROWS_PER_PARAMETER * needed)


def _columns(spec: LayerSpec, derivative: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([derivative[name].flatten(1) for name in spec.parameter_shapes], dim=1)
