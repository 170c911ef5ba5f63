"""What a pair of weights computes: its product, compared and taken apart without forming it, and canonical forms."""

from typing import NamedTuple

import torch
from torch import Tensor

from attnid.head_measures import pairs, rotary_dims
from attnid.layer import LayerSpec
from attnid.measures import Pair, complex_rows
from attnid.models.layer import AttentionLayer
from attnid.symmetry import PAIRS, fold_value_bias, rotary_scaling

Arrays = dict[str, Tensor]


class Difference(NamedTuple):
    """How far the products of two layers lie apart, one number a key/value head, shape (G,) each.

    Attributes:
        difference: Frobenius norm of the difference of what the pairs compute.
        size: of what the first computes.
    """

    difference: Tensor
    size: Tensor


def product_difference(spec: LayerSpec, pair: str, one: Arrays, other: Arrays) -> Difference:
    """Compare what a pair of two layers computes, biases included, whatever S lies between their weights.

    The scores of queries and keys depend on first^T second of the augmented pair, (W_Q b_Q)^T (W_K b_K), under RoPE on
    the complex product of every plane that it rotates by itself, and on that of the other rows.

    Args:
        one, other: float64 parameters in the shapes of `spec`.
    """
    name = f"{pair}_augmented"
    first, second = pairs(spec, one)[name], pairs(spec, other)[name]
    rotary = rotary_dims(spec)[name]
    D = first.first.shape[-2]
    squares = torch.zeros(2, *first.first.shape[:-2], dtype=torch.float64, device=first.first.device)
    if rotary:
        planes = [_planes(each.rows(0, rotary)) for each in (first, second)]
        squares += _squared_difference(*planes).sum(-1)
    if rotary < D:
        squares += _squared_difference(first.rows(rotary, D), second.rows(rotary, D))
    return Difference(squares[0].sqrt(), squares[1].sqrt())


def rounding_of_product(spec: LayerSpec, pair: str, own: Arrays, stored: torch.dtype) -> Tensor:
    """What rounding every weight to its stored precision can change of a pair's product, to first order, shape (G,).

    Twice the bound |e_first| |second| + |first| |e_second| for entries off by half a unit in the last place, and by
    what sums over the D rows of a head lose in float64.
    """
    info = torch.finfo(stored)

    def norm_and_error(W: Tensor) -> tuple[Tensor, Tensor]:
        norm, computed = W.flatten(-2).norm(dim=-1), 2 * W.shape[-2] * torch.finfo(torch.float64).eps
        return norm, (info.eps / 2 + computed) * norm + info.smallest_normal * info.eps / 2 * W[0].numel() ** 0.5

    (first, first_error), (second, second_error) = map(norm_and_error, pairs(spec, own)[f"{pair}_augmented"])
    bound: Tensor = 2 * (first_error * second + first * second_error)
    return bound


def same_product(spec: LayerSpec, pair: str, before: Arrays, after: Arrays, stored: torch.dtype) -> bool:
    """Whether a pair that was moved computes what it did, but for rounding; heads that are not finite do not count."""
    difference, size = product_difference(spec, pair, before, after)
    allowed = rounding_of_product(spec, pair, before, stored) + rounding_of_product(spec, pair, after, stored)
    return bool((difference <= allowed)[size.isfinite()].all())


def product_singular_values(pair: Pair) -> Tensor:
    """Singular values of first^T second, in descending order, shape P + (min(D, N),)."""
    first, second = (torch.linalg.qr(W.mT, mode="r").R for W in pair.double())
    values: Tensor = torch.linalg.svdvals(first @ second.mT)
    return values


def canonical(layer: AttentionLayer, own: Arrays) -> Arrays:
    """The same layer without its dead biases, and with equal Gram matrices of every pair that can move."""
    spec = layer.spec
    own = dict(own)
    if "b_K" in own:
        own["b_K"] = own["b_K"].clone()
        own["b_K"][..., layer.dead_key_rows] = 0
    if layer.folds_value_bias:
        own = fold_value_bias(spec, own, -own["b_V"])
    for pair, moves in PAIRS.items():
        if not layer.fixed(pair):
            own = moves.transform(spec, own, moves.balance(spec, own).S)
    return own


def aligned(layer: AttentionLayer, own: Arrays, reference: Arrays) -> Arrays:
    """A canonical layer turned by the rotations that are left, as near to another canonical one as they bring it."""
    spec = layer.spec
    for pair, moves in PAIRS.items():
        if not layer.fixed(pair):
            mine, its = (pairs(spec, each)[f"{pair}_augmented"] for each in (own, reference))
            own = moves.transform(spec, own, _rotation(mine, its, rotary_dims(spec)[pair]))
    return own


def _rotation(own: Pair, reference: Pair, rotary: int) -> Tensor:
    """The rotation Z, shape P + (D, D), that brings Z own nearest to a reference (Procrustes); a turn a plane."""
    D = own.first.shape[-2]
    Z = torch.zeros(*own.first.shape[:-1], D, dtype=torch.float64, device=own.first.device)
    if rotary:
        mine, its = (_planes(pair.rows(0, rotary)) for pair in (own, reference))
        overlap = sum((b * a.conj()).sum((-2, -1)) for a, b in zip(mine, its, strict=True))
        angle = torch.as_tensor(overlap).angle()
        Z[..., :rotary, :rotary] = rotary_scaling(torch.ones_like(angle), angle)
    if rotary < D:
        mine, its = own.rows(rotary, D), reference.rows(rotary, D)
        U, _, Vh = torch.linalg.svd(its.first @ mine.first.mT + its.second @ mine.second.mT)
        Z[..., rotary:, rotary:] = U @ Vh
    return Z


def _planes(pair: Pair) -> Pair:
    """Adjacent rows as one complex row of a pair of its own: P + (2n, N) gives P + (n, 1, N)."""
    return Pair(complex_rows(pair.first).unsqueeze(-2), complex_rows(pair.second).unsqueeze(-2))


def _squared_difference(one: Pair, other: Pair) -> Tensor:
    """Squared norms of first^H second of one pair less that of another, and of the first's alone: (2,) + P."""
    both = Pair(torch.cat((one.first, other.first), dim=-2), torch.cat((one.second, -other.second), dim=-2))
    return torch.stack([_squared_norm(both), _squared_norm(one)])


def _squared_norm(pair: Pair) -> Tensor:
    first, second = (torch.linalg.qr(W.mT, mode="r").R for W in pair)
    result: Tensor = (first.conj() @ second.mT).abs().square().sum((-2, -1))
    return result
