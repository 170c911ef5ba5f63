"""The float64 rank of the real layer's Jacobian, and the gap that makes it a rank."""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from attnid.arithmetic import FLOATING, Arithmetic
from attnid.attention import Parameters, attention, random_parameters
from attnid.counting import NoClosedFormError, count
from attnid.layer import LayerSpec, numel

KEPT_ABOVE = 1e-9
DROPPED_BELOW = 1e-12
ROWS_PER_PARAMETER = 1.5
FEWEST_TOKENS = 8
JACOBIAN_CHUNK = 64
MOST_NUMBERS = 650_000_000
"""Numbers that still fit in memory at a time, 8 bytes each."""


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
            parameter to show, and then twice as many until the rank is what the closed form says or grows no more.

    Raises:
        UnclearRankError: a singular value lies between DROPPED_BELOW and KEPT_ABOVE of the largest.
    """
    tokens = tokens or tokens_that_tell(spec)
    rows = ceil(ROWS_PER_PARAMETER * numel(spec.parameter_shapes))
    used = sequences or fewest_sequences(spec, tokens, rows=rows, margin=ROWS_PER_PARAMETER)
    generator = torch.Generator().manual_seed(seed)
    parameters = random_parameters(spec, generator, scale=spec.d_model**-0.5)
    try:
        triangle = _triangle(spec, parameters, generator, used, tokens)
        ranks = _ranks(spec, triangle, used, tokens)
        while sequences is None and ranks.layer.rank < _most(spec):
            triangle = _triangle(spec, parameters, generator, used, tokens, above=triangle)
            used *= 2
            fewer, ranks = ranks, _ranks(spec, triangle, used, tokens)
            if ranks.layer.rank == fewer.layer.rank:
                break
        return ranks
    except UnclearRankError as error:
        raise UnclearRankError(f"{error}; layer {spec!r}") from None


def _most(spec: LayerSpec) -> int:
    """The rank from which on more inputs need not be tried: the closed form, all parameters where there is none."""
    try:
        return count(spec).identified
    except NoClosedFormError:
        return numel(spec.parameter_shapes)


def _triangle(
    spec: LayerSpec,
    parameters: Parameters,
    generator: torch.Generator,
    sequences: int,
    tokens: int,
    above: Tensor | None = None,
) -> Tensor:
    """The triangular factor of the Jacobian at random inputs, with that of others above it.

    It has the singular values of the Jacobian, whichever columns are taken of both.
    """
    x = torch.randn(sequences, tokens, spec.d_model, generator=generator, dtype=torch.float64)
    context = None
    if spec.context_dim is not None:
        context = torch.randn(sequences, tokens, spec.context_dim, generator=generator, dtype=torch.float64)
    rows = jacobian(spec, parameters, x, context)
    triangle: Tensor = torch.linalg.qr(rows if above is None else torch.cat((above, rows)), mode="r")[1]
    return triangle


def _ranks(spec: LayerSpec, triangle: Tensor, sequences: int, tokens: int) -> LayerRanks:
    query_key = numel(spec.query_key_shapes)
    singular_values = torch.linalg.svdvals(triangle)
    largest = float(singular_values[0])
    return LayerRanks(
        layer=numerical_rank(singular_values, largest),
        query_key=numerical_rank(torch.linalg.svdvals(triangle[:query_key, :query_key]), largest),
        value_output=numerical_rank(torch.linalg.svdvals(triangle[:, query_key:]), largest),
        sequences=sequences,
        tokens=tokens,
    )


def jacobian(
    spec: LayerSpec, parameters: Parameters, x: Tensor, context: Tensor | None = None, numbers: Arithmetic = FLOATING
) -> Tensor:
    """Derivatives of a layer's outputs by its parameters.

    Args:
        x, context: input sequences, shape (B, L, E), and what keys and values of a cross-attention read,
            (B, M, context_dim).
        numbers: what the layer is computed in.

    Returns:
        Shape (B L E, parameters). Columns follow `spec.parameter_shapes`: queries and keys first, then values and
        output, then what both share.
    """
    leaves = {name: parameters[name].detach().requires_grad_() for name in spec.parameter_shapes}
    rows = x.shape[1] * x.shape[2]
    result = x.new_empty(len(x), rows, numel(spec.parameter_shapes))
    one = torch.eye(rows, dtype=x.dtype)
    for sequence in range(len(x)):
        second = None if context is None else context[sequence : sequence + 1]
        outputs = attention(spec, leaves, x[sequence : sequence + 1], context=second, numbers=numbers).flatten()

        def pulled_back(cotangent: Tensor, outputs: Tensor = outputs) -> tuple[Tensor, ...]:
            return torch.autograd.grad(outputs, list(leaves.values()), cotangent, retain_graph=True)

        for first in range(0, rows, JACOBIAN_CHUNK):
            chosen = slice(first, first + JACOBIAN_CHUNK)
            derivatives = torch.func.vmap(pulled_back)(one[chosen])
            torch.cat([derivative.flatten(1) for derivative in derivatives], dim=1, out=result[sequence, chosen])
    return result.flatten(0, 1)


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


def tokens_that_tell(spec: LayerSpec) -> int:
    """Tokens of a sequence that is neither long nor tells little: most queries fill all channels they are seen through.

    A query of n keys has H (n - 1) score differences. A table of relative positions needs all its distances.
    """
    filling = ceil(_channels(spec) / spec.n_heads)
    farthest = spec.relative_distance + 1 if spec.relative_buckets else 0
    return max(FEWEST_TOKENS, min(2 * filling, spec.d_model), farthest)


def numbers_held(spec: LayerSpec) -> int:
    """Numbers that a rank of the layer holds at a time: its Jacobian, a batch of attention weights, its directions."""
    numbers, tokens = numel(spec.parameter_shapes), tokens_that_tell(spec)
    rows = max(ceil(ROWS_PER_PARAMETER * numbers), tokens * spec.d_model)
    directions = spec.n_kv_heads * (spec.qk_head_dim**2 + spec.v_head_dim**2) + (spec.kv_latent_dim or 0) ** 2
    return max(rows * numbers, JACOBIAN_CHUNK * spec.n_heads * tokens**2, 6 * directions * numbers)


def _channels(spec: LayerSpec) -> int:
    """Dimensions of a layer's output in which scores show: as many a head as its values vary in, E at most."""
    values = min(spec.v_head_dim, spec.kv_latent_dim or spec.memory_dim)
    return min(spec.n_heads * values, spec.d_model)


def fewest_sequences(spec: LayerSpec, tokens: int, rows: int, margin: float) -> int:
    """Sequences for so many outputs, and `margin` times as many telling ones as there are parameters to tell of.

    All but what leads out of the layer's channels is seen through these; of what enters the scores a query of n keys
    tells n - 1 differences a head, n with a sink.
    """
    E, H, channels = spec.d_model, spec.n_heads, _channels(spec)
    keys = range(1, tokens + 1) if spec.causal else [tokens] * tokens
    differences = sum(min(H * (n - (not spec.sinks)), channels) for n in keys)
    in_scores = numel(spec.query_key_shapes | spec.shared_shapes)
    values = spec.n_kv_heads * spec.v_head_dim * (spec.kv_latent_dim or spec.memory_dim)
    within = channels * H * spec.v_head_dim
    return ceil(
        max(
            rows / (tokens * E),
            margin * (in_scores + values + within) / (tokens * channels),
            margin * in_scores / max(differences, 1),
        )
    )
