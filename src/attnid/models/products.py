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


LIKELY = 4.0
"""How many times what rounding makes on average still counts as rounding."""


class Difference(NamedTuple):
    """How far what a pair of two layers computes lies apart, shape (K, G): part by part, for every key/value head.

    The first part is the product of the weights, the others those with biases in them, which would drown in it.

    Attributes:
        difference: Frobenius norm of the difference.
        size: of what the first computes.
        allowed: what rounding the weights of both to their precision can make of it: `LIKELY` times the root mean
            square over errors of up to half a unit in the last place, independent of each other.
    """

    difference: Tensor
    size: Tensor
    allowed: Tensor

    @property
    def same(self) -> Tensor:
        """Whether rounding explains all of it, shape (G,)."""
        return (self.difference <= self.allowed).all(0)


class Weights(NamedTuple):
    """The float64 parameters of a layer in the shapes of its spec, and the precision that they are rounded to."""

    parameters: Arrays
    stored: torch.dtype


def product_difference(spec: LayerSpec, pair: str, one: Weights, other: Weights) -> Difference:
    """Compare what a pair of two layers computes, biases included, whatever S lies between their weights.

    The scores of queries and keys depend on first^T second of the augmented pair, (W_Q b_Q)^T (W_K b_K), under RoPE on
    the complex product of every plane that it rotates by itself, and on that of the other rows.
    """
    return _difference(spec, pair, (one, other), rounded=(one, other))


def moved_difference(spec: LayerSpec, pair: str, before: Weights, after: Weights) -> Difference:
    """Compare what a pair computes before and after it was moved; allowed is what rounding makes where it was."""
    return _difference(spec, pair, (before, after), rounded=(before, before))


def _difference(
    spec: LayerSpec, pair: str, compared: tuple[Weights, Weights], rounded: tuple[Weights, Weights]
) -> Difference:
    rotary = spec.rotary_dim if pair == "qk" else 0
    both = zip(*(_parts(spec, pair, weights) for weights in compared), strict=True)
    difference, size = map(torch.stack, zip(*(_compared(first, second, rotary) for first, second in both), strict=True))
    errors = [
        torch.stack([_rounding(part, weights.stored) for part in _parts(spec, pair, weights)]) for weights in rounded
    ]
    own = sum((torch.finfo(weights.stored).eps / 2) ** 2 for weights in rounded) ** 0.5 * size
    return Difference(difference, size, LIKELY * torch.stack((*errors, own)).norm(dim=0))


def _parts(spec: LayerSpec, pair: str, weights: Weights) -> list[Pair]:
    """The pair of the weights, and those that make up the rest of the augmented pair's product."""
    own = weights.parameters

    def without(*names: str) -> Pair:
        zeros = {name: torch.zeros_like(own[name]) for name in names if name in own}
        return pairs(spec, own | zeros)[f"{pair}_augmented"]

    first_only_bias = without("W_Q") if pair == "qk" else without("W_V")
    second_only_bias = [without("W_K", "b_Q")] if pair == "qk" else []
    return [pairs(spec, own)[pair], first_only_bias, *second_only_bias]


def _compared(one: Pair, other: Pair, rotary: int) -> tuple[Tensor, Tensor]:
    """Norms of the difference and of the first, shape (G,) each."""
    D = one.first.shape[-2]
    squares = torch.zeros(2, *one.first.shape[:-2], dtype=torch.float64, device=one.first.device)
    if rotary:
        squares += _squared_difference(*(_planes(each.rows(0, rotary)) for each in (one, other))).sum(-1)
    if rotary < D:
        squares += _squared_difference(one.rows(rotary, D), other.rows(rotary, D))
    return squares[0].sqrt(), squares[1].sqrt()


def _rounding(pair: Pair, stored: torch.dtype) -> Tensor:
    """Root mean square of what rounding makes of a product, to first order, and what float64 loses, shape (G,)."""
    info, exact = torch.finfo(stored), torch.finfo(torch.float64)
    sizes = [W.norm(dim=-1) for W in pair]
    errors = [
        (info.eps / 2 * W.norm(dim=-1)).hypot(W.new_tensor(info.smallest_normal * info.eps / 2 * W.shape[-1] ** 0.5))
        for W in pair
    ]
    by_row = (errors[0] * sizes[1]).hypot(sizes[0] * errors[1])
    computed = 2 * pair.first.shape[-2] * exact.eps * sizes[0].norm(dim=-1) * sizes[1].norm(dim=-1)
    result: Tensor = by_row.norm(dim=-1) / 3**0.5 + computed
    return result


def same_product(spec: LayerSpec, pair: str, before: Weights, after: Weights) -> bool:
    """Whether a pair that was moved computes what it did, as well as its precision could hold it where it was.

    Heads that are not finite do not count.
    """
    found = moved_difference(spec, pair, before, after)
    return bool((found.difference <= found.allowed)[found.size.isfinite()].all())


def product_singular_values(pair: Pair) -> Tensor:
    """Singular values of first^T second, in descending order, shape P + (min(D, N),); NaN where one is not finite."""
    finite = torch.stack([W.isfinite().flatten(-2).all(-1) for W in pair]).all(0)
    first, second = (torch.linalg.qr(W.mT, mode="r").R for W in _finite(pair.double()))
    values: Tensor = torch.linalg.svdvals(first @ second.mT)
    return values.where(finite.unsqueeze(-1), torch.nan)


def _finite(pair: Pair) -> Pair:
    """A pair with zeros for what is not finite."""
    return Pair(*(W.where(W.isfinite(), 0) for W in pair))


def without_dead_biases(layer: AttentionLayer, own: Arrays) -> Arrays:
    """The same layer with what is dead of its key bias zeroed, and its value bias folded into the output bias."""
    own = dict(own)
    if "b_K" in own:
        own["b_K"] = own["b_K"].clone()
        own["b_K"][..., layer.dead_key_rows] = 0
    return fold_value_bias(layer.spec, own, -own["b_V"]) if layer.folds_value_bias else own


def canonical(layer: AttentionLayer, own: Arrays) -> Arrays:
    """The same layer without its dead biases, and with equal Gram matrices of every pair that can move."""
    spec = layer.spec
    own = without_dead_biases(layer, own)
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
    own, reference = _finite(own), _finite(reference)
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
