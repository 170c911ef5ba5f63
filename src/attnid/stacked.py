"""Stacked softmax attention layers: a float64 rank that is wrong in silence, beside a rank that is proved.

Single-head layers one on top of the other, without mask, residual and output matrix: Konda, "Identifiability and
Observability of Deep Normalized Attention". The smaller their query and key weights, the closer the layers come to
averaging their tokens, and the less of a difference is left for the scores of the next layer to weigh. Singular values
of the Jacobian that are not zero then sink below the rounding of float64, and those above it end in a gap as wide as
that of a true rank.

The rank is proved at the very same weights, which are exact binary fractions. From below: elimination in ball
arithmetic, with pivots that cannot be zero. From above: the exact rank of the directions along which nothing changes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple

import pandas as pd
import torch
from flint import arb, arb_mat, ctx, fmpq, fmpq_mat
from torch import Tensor

from attnid.analysis_tables import TRAP
from attnid.attention import attention
from attnid.layer import LayerSpec
from attnid.rank import Rank

LAYERS, WIDTH, HEAD_WIDTH = 3, 4, 2
INPUTS, TOKENS = 48, 4
SCALES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
CUTOFFS = (1e-6, 1e-8, 1e-10, 1e-12, 1e-14)
FEWEST_BITS, MOST_BITS = 128, 1024

Balls = list[list[arb]]


class Stack(NamedTuple):
    """Float64 weights of N stacked layers: query and key, shape (N, D, E), and value, (N, E, E)."""

    query: Tensor
    key: Tensor
    value: Tensor


def random_stack(scale: float, seed: int = 0) -> tuple[Stack, Tensor]:
    """Normal weights and inputs of variance 1, the query and key weights times `scale`.

    A seed draws the same numbers for every scale. Inputs have shape (INPUTS, TOKENS, E).
    """
    generator = torch.Generator().manual_seed(seed)
    layers = torch.randn(LAYERS, 2 * HEAD_WIDTH + WIDTH, WIDTH, generator=generator, dtype=torch.float64)
    query, key, value = layers.split((HEAD_WIDTH, HEAD_WIDTH, WIDTH), dim=1)
    x = torch.randn(INPUTS, TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    return Stack(scale * query, scale * key, value), x


def trap_table(seed: int = 0, report: Callable[[int, int, str], None] = lambda *_: None) -> pd.DataFrame:
    """Float64 rank at every cut-off beside the proved rank, for each scale: a frame for `TRAP`.

    Args:
        report: called after each scale with the number of scales done, their total, and the scale's name.
    """
    rows: list[dict[str, Any]] = []
    for done, scale in enumerate(SCALES, start=1):
        stack, x = random_stack(scale, seed)
        proved = proved_rank(stack, x)
        for cutoff, measured in zip(CUTOFFS, float64_ranks(stack, x, CUTOFFS), strict=True):
            rows.append(
                {
                    "scale": scale,
                    "cutoff": cutoff,
                    "rank_float64": measured.rank,
                    "smallest_kept": measured.smallest_kept,
                    "largest_dropped": measured.largest_dropped,
                    "proved_lower": proved.lower,
                    "proved_upper": proved.upper,
                    "bits": proved.bits,
                }
            )
        report(done, len(SCALES), f"query and key weights of scale {scale:g}")
    return pd.DataFrame(rows)[TRAP.names]


# ---------------------------------------------------------------- float64


def forward(stack: Stack, x: Tensor) -> Tensor:
    """Outputs of the last layer, of the shape of the inputs, (B, L, E)."""
    _, D, E = stack.query.shape
    spec = LayerSpec(d_model=E, n_heads=1, n_kv_heads=1, qk_head_dim=D, v_head_dim=E, causal=False)
    no_output_matrix = torch.eye(E, dtype=x.dtype)[None]
    for query, key, value in zip(*stack, strict=True):
        layer = {"W_Q": query[None], "W_K": key[None], "W_V": value[None], "W_O": no_output_matrix}
        x = attention(spec, layer, x)
    return x


def jacobian(stack: Stack, x: Tensor) -> Tensor:
    """Derivatives of the outputs by the weights, shape (B L E, weights), for inputs of shape (B, L, E).

    Columns are the entries of all query matrices, then of all key matrices, then of all value matrices.
    """
    parts = torch.autograd.functional.jacobian(
        lambda *weights: forward(Stack(*weights), x).flatten(), tuple(stack), vectorize=True
    )
    return torch.cat([part.flatten(1) for part in parts], dim=1)


def float64_ranks(stack: Stack, x: Tensor, cutoffs: Sequence[float]) -> list[Rank]:
    """Singular values of the Jacobian above each cut-off, relative to the largest: how many, and the two around it."""
    singular_values = torch.linalg.svdvals(jacobian(stack, x))
    return [_rank_above(cutoff, (singular_values / singular_values[0]).tolist()) for cutoff in cutoffs]


def _rank_above(cutoff: float, relative: Sequence[float]) -> Rank:
    kept, dropped = [s for s in relative if s > cutoff], [s for s in relative if s <= cutoff]
    return Rank(len(kept), kept[-1], dropped[0] if dropped else 0.0)


# ---------------------------------------------------------------- proof


@dataclass(frozen=True)
class ProvedRank:
    """Proved bounds on the rank of a Jacobian, and the bits of the ball arithmetic that gave the lower one."""

    lower: int
    upper: int
    bits: int


def proved_rank(stack: Stack, x: Tensor, fewest_bits: int = FEWEST_BITS, most_bits: int = MOST_BITS) -> ProvedRank:
    """Bounds on the rank of the Jacobian, the float64 weights and inputs taken as the exact numbers they are.

    Args:
        x: shape (B, L, E). The lower bound reads as many of the sequences as have an output for every weight, enough
            for generic weights.
        fewest_bits, most_bits: precision of the ball arithmetic, doubled until the bounds meet. Too few bits make the
            lower bound lower, never wrong.
    """
    weights = _flat(stack).numel()
    each_weight = torch.eye(weights, dtype=torch.float64)
    upper = weights - exact_rank(unchanging_directions(stack))
    few = x[: ceil(weights / x[0].numel())]
    bits = fewest_bits
    while True:
        with ctx.workprec(bits):
            lower = certain_rank(ball_derivatives(stack, few, each_weight))
        if lower == upper or 2 * bits > most_bits:
            return ProvedRank(lower, upper, bits)
        bits *= 2


def unchanging_directions(stack: Stack) -> Tensor:
    """Tangents of the stack's symmetries, along which no output changes: shape (directions, weights), exact.

    In a layer, queries may go by an invertible S and keys by its inverse transpose. Between two layers, the values of
    the lower one may go by S and everything that the upper one reads by its inverse.
    """
    layers, D, E = stack.query.shape
    changes = []
    for layer in range(layers):
        for unit in _matrix_units(D):
            changes.append(change := _no_change(stack))
            change.query[layer] = unit @ stack.query[layer]
            change.key[layer] = -unit.mT @ stack.key[layer]
    for lower, upper in pairwise(range(layers)):
        for unit in _matrix_units(E):
            changes.append(change := _no_change(stack))
            change.value[lower] = unit @ stack.value[lower]
            for changed, weights in zip(change, stack, strict=True):
                changed[upper] = -weights[upper] @ unit
    return torch.stack([_flat(change) for change in changes])


def exact_rank(matrix: Tensor) -> int:
    """Rank of a float64 matrix over the rational numbers."""
    return int(fmpq_mat([[fmpq(*number.as_integer_ratio()) for number in row] for row in matrix.tolist()]).rank())


def ball_derivatives(stack: Stack, x: Tensor, directions: Tensor) -> arb_mat:
    """Derivatives of the outputs along directions in the weights, enclosed in balls at flint's working precision.

    Args:
        x: inputs, shape (B, L, E).
        directions: shape (n, weights), columns as those of `jacobian`; the identity gives the Jacobian.

    Returns:
        Shape (B L E, n).
    """
    still = arb_mat(*x.shape[1:])
    sequences = [_Moving(arb_mat(sequence), still) for sequence in x.tolist()]
    moves = [_moving_layers(stack, direction) for direction in directions]
    columns = [
        [entry for sequence in sequences for entry in _ball_forward(layers, sequence).change.entries()]
        for layers in moves
    ]
    return arb_mat(columns).transpose()


def certain_rank(matrix: arb_mat) -> int:
    """A rank that every matrix within the balls has at least, by elimination at flint's working precision.

    The next pivot is the ball farthest from zero. Where all balls left contain zero, there is none.
    """
    rows, pivots = matrix.tolist(), 0
    while rows and rows[0]:
        distance, row, column = _farthest_from_zero(rows)
        if not distance > 0:
            break
        rows, pivots = _eliminated(rows, row, column), pivots + 1
    return pivots


def _flat(stack: Stack) -> Tensor:
    return torch.cat([weights.flatten() for weights in stack])


def _no_change(stack: Stack) -> Stack:
    return Stack(*(torch.zeros_like(weights) for weights in stack))


def _matrix_units(size: int) -> Tensor:
    """The matrices with a single one, shape (size^2, size, size)."""
    return torch.eye(size**2, dtype=torch.float64).view(-1, size, size)


def _farthest_from_zero(rows: Balls) -> tuple[arb, int, int]:
    """Distance, row and column of the ball farthest from zero."""
    best = (arb(0), 0, 0)
    for i, row in enumerate(rows):
        for j, ball in enumerate(row):
            distance = ball.abs_lower()
            if distance > best[0]:
                best = (distance, i, j)
    return best


def _eliminated(rows: Balls, row: int, column: int) -> Balls:
    """What is left of the rows without the pivot's row and column."""
    top = rows[row]
    rest = []
    for i, other in enumerate(rows):
        if i != row:
            factor = other[column] / top[column]
            left = [a - factor * b for a, b in zip(other, top, strict=True)]
            rest.append(left[:column] + left[column + 1 :])
    return rest


class _Moving(NamedTuple):
    """A matrix of balls and its derivative along one direction."""

    at: arb_mat
    change: arb_mat

    def __matmul__(self, other: "_Moving") -> "_Moving":
        return _Moving(self.at * other.at, self.at * other.change + self.change * other.at)

    def transpose(self) -> "_Moving":
        return _Moving(self.at.transpose(), self.change.transpose())


def _moving_layers(stack: Stack, direction: Tensor) -> list[list[_Moving]]:
    """Query, key and value matrix of every layer, moving along a direction."""
    parts = direction.split([weights.numel() for weights in stack])
    change = Stack(*(part.view_as(weights) for part, weights in zip(parts, stack, strict=True)))
    return [
        [
            _Moving(arb_mat(matrix[layer].tolist()), arb_mat(moved[layer].tolist()))
            for matrix, moved in zip(stack, change, strict=True)
        ]
        for layer in range(len(stack.query))
    ]


def _ball_forward(layers: Sequence[Sequence[_Moving]], x: _Moving) -> _Moving:
    """The function `forward` for one sequence, shape (L, E), and its derivative."""
    for query, key, value in layers:
        scores = x @ query.transpose() @ key @ x.transpose()
        scale = arb(query.at.nrows()).rsqrt()
        x = _softmax(_Moving(scores.at * scale, scores.change * scale)) @ x @ value.transpose()
    return x


def _softmax(scores: _Moving) -> _Moving:
    """Softmax of every row."""
    rows, changes = [], []
    for row, change in zip(scores.at.tolist(), scores.change.tolist(), strict=True):
        powers = [score.exp() for score in row]
        total = sum(powers, arb(0))
        weights = [power / total for power in powers]
        mean = sum((weight * moved for weight, moved in zip(weights, change, strict=True)), arb(0))
        rows.append(weights)
        changes.append([weight * (moved - mean) for weight, moved in zip(weights, change, strict=True)])
    return _Moving(arb_mat(rows), arb_mat(changes))
