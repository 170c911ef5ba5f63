"""Measures of a training step and of the weights it leaves: rho, beta, tau, mu, drift (section 5.1).

A pair is (first, second), shape P + (D, N) each: the query and key weights of a head, or its value weights and the
transpose of its output weights; heads that share a key stand side by side in `first`, so its N is larger. The gauge
directions of a pair are (S first, -S^T second) for every D x D matrix S that is allowed: under RoPE only those that
commute with the rotations, a complex number a plane. All functions take any leading shape P and compute in float64,
whatever they are given.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import torch
from torch import Tensor

from attnid.gram import eigh, gram


class Pair(NamedTuple):
    """The two factors of a product, or a change of them: shape P + (D, N) each; N may differ."""

    first: Tensor
    second: Tensor

    def double(self) -> Self:
        """The pair in float64."""
        return self._replace(first=self.first.double(), second=self.second.double())

    def __sub__(self, other: "Pair") -> "Pair":
        return Pair(self.first - other.first, self.second - other.second)

    def rows(self, start: int, end: int) -> "Pair":
        """The part of both factors in these rows."""
        return Pair(self.first[..., start:end, :], self.second[..., start:end, :])

    def squared_norm(self) -> Tensor:
        """Squared length of the pair, shape P."""
        return self.first.square().sum((-2, -1)) + self.second.square().sum((-2, -1))

    def imbalance(self, rotary_dim: int = 0) -> Tensor:
        """What gradient flow conserves, shape P + (D, D): the `commuting` part of the Gram matrices' difference."""
        return commuting(gram(self.first) - gram(self.second), rotary_dim)


def augment(W: Tensor, bias: Tensor) -> Tensor:
    """[W b]: the bias, shape P + (D,), as one more column of the weights, shape P + (D, E)."""
    return torch.cat((W, bias.unsqueeze(-1)), dim=-1)


class Gauge:
    """The gauge directions at a pair: a block of any S below the rows that RoPE rotates, and a number a plane there.

    A pair with a value that is not finite gets NaN throughout.
    """

    def __init__(self, pair: Pair, rotary_dim: int = 0) -> None:
        self.pair = pair.double()
        self.rotary_dim = rotary_dim
        D = pair.first.shape[-2]
        self._parts: list[tuple[slice, _Block | _Planes]] = []
        if rotary_dim:
            self._parts.append((slice(0, rotary_dim), _Planes(self.pair.rows(0, rotary_dim))))
        if rotary_dim < D:
            self._parts.append((slice(rotary_dim, D), _Block(self.pair.rows(rotary_dim, D))))

    def overlap(self, change: Pair) -> Tensor:
        """rho: the share of a change's squared length that lies along the gauge directions, shape P.

        A change of length zero gives NaN.
        """
        return self._share(change, "along")

    def overlap_scaling(self, change: Pair) -> Tensor:
        """The share along the directions of symmetric S alone: scalings, which change the imbalance."""
        return self._share(change, "along_scalings")

    def overlap_rotation(self, change: Pair) -> Tensor:
        """The share along the directions of antisymmetric S alone: rotations, which turn the imbalance.

        At a balanced pair the shares of scalings and rotations add up to rho.
        """
        return self._share(change, "along_rotations")

    def wasted(self, change: Pair) -> Pair:
        """The part of a change that lies along the gauge directions, its orthogonal projection on them."""
        change = change.double()
        parts = [part.projection(change.rows(rows.start, rows.stop)) for rows, part in self._parts]
        return Pair(*(torch.cat(factors, dim=-2) for factors in zip(*parts, strict=True)))

    def _share(self, change: Pair, squared_length: str) -> Tensor:
        change = change.double()
        along = [getattr(part, squared_length)(change.rows(rows.start, rows.stop)) for rows, part in self._parts]
        result: Tensor = torch.stack(along).sum(0) / change.squared_norm()
        return result


@dataclass(frozen=True)
class _Block:
    """Directions (S first, -S^T second) for every matrix S.

    The nearest S solves S G_first + G_second S = R with R = d_first first^T - second d_second^T (section 5.1, with the
    sign that its stationarity equation asks for): R~[i, j] / (values_second[i] + values_first[j]) in the eigenbases.
    """

    pair: Pair

    @cached_property
    def _first(self) -> tuple[Tensor, Tensor]:
        return eigh(gram(self.pair.first))

    @cached_property
    def _second(self) -> tuple[Tensor, Tensor]:
        return eigh(gram(self.pair.second))

    @cached_property
    def _sum(self) -> tuple[Tensor, Tensor]:
        return eigh(gram(self.pair.first) + gram(self.pair.second))

    def _right_side(self, change: Pair) -> Tensor:
        return change.first @ self.pair.first.mT - self.pair.second @ change.second.mT

    def _rotated(self, change: Pair) -> tuple[Tensor, Tensor]:
        (values_first, basis_first), (values_second, basis_second) = self._first, self._second
        rotated = basis_second.mT @ self._right_side(change) @ basis_first
        return rotated, values_second.unsqueeze(-1) + values_first.unsqueeze(-2)

    def along(self, change: Pair) -> Tensor:
        rotated, scale = self._rotated(change)
        return _divide(rotated.square(), scale).sum((-2, -1))

    def along_scalings(self, change: Pair) -> Tensor:
        R = self._right_side(change)
        return self._along_half((R + R.mT) / 2)

    def along_rotations(self, change: Pair) -> Tensor:
        R = self._right_side(change)
        return self._along_half((R - R.mT) / 2)

    def _along_half(self, R: Tensor) -> Tensor:
        """The nearest S of R's own symmetry solves S G + G S = 2 R with the sum G of the Gram matrices."""
        values, basis = self._sum
        rotated = basis.mT @ R @ basis
        return _divide(2 * rotated.square(), values.unsqueeze(-1) + values.unsqueeze(-2)).sum((-2, -1))

    def projection(self, change: Pair) -> Pair:
        rotated, scale = self._rotated(change)
        S = self._second[1] @ _divide(rotated, scale) @ self._first[1].mT
        return Pair(S @ self.pair.first, -S.mT @ self.pair.second)


@dataclass(frozen=True)
class _Planes:
    """Directions (s first, -conj(s) second) for a complex number s a plane, two adjacent rows being one complex row."""

    pair: Pair

    def _complex(self, pair: Pair) -> tuple[Tensor, Tensor]:
        return complex_rows(pair.first), complex_rows(pair.second)

    def _right_side(self, change: Pair) -> Tensor:
        first, second = self._complex(self.pair)
        d_first, d_second = self._complex(change)
        return (d_first * first.conj()).sum(-1) - (d_second.conj() * second).sum(-1)

    @cached_property
    def _scale(self) -> Tensor:
        first, second = self._complex(self.pair)
        return first.abs().square().sum(-1) + second.abs().square().sum(-1)

    def along(self, change: Pair) -> Tensor:
        return _divide(self._right_side(change).abs().square(), self._scale).sum(-1)

    def along_scalings(self, change: Pair) -> Tensor:
        return _divide(self._right_side(change).real.square(), self._scale).sum(-1)

    def along_rotations(self, change: Pair) -> Tensor:
        return _divide(self._right_side(change).imag.square(), self._scale).sum(-1)

    def projection(self, change: Pair) -> Pair:
        first, second = self._complex(self.pair)
        R = self._right_side(change)
        s = torch.complex(_divide(R.real, self._scale), _divide(R.imag, self._scale)).unsqueeze(-1)
        return Pair(_real_rows(s * first), _real_rows(-s.conj() * second))


def commuting(symmetric: Tensor, rotary_dim: int) -> Tensor:
    """The part of a symmetric matrix that commutes with the rotations of its leading `rotary_dim` rows, P + (D, D).

    Of a plane that turns, the mean of its two diagonal entries is left; of the rows that do not turn, everything.
    """
    if rotary_dim == 0:
        return symmetric
    turning = symmetric.diagonal(dim1=-2, dim2=-1)[..., :rotary_dim].unflatten(-1, (-1, 2)).mean(-1)
    result = torch.zeros_like(symmetric)
    result[..., rotary_dim:, rotary_dim:] = symmetric[..., rotary_dim:, rotary_dim:]
    result.diagonal(dim1=-2, dim2=-1)[..., :rotary_dim] = turning.repeat_interleave(2, dim=-1)
    return result


def drift(before: Pair, after: Pair, rotary_dim: int = 0) -> Tensor:
    """Norm of the change of the imbalance between two pairs, shape P."""
    change = after.double().imbalance(rotary_dim) - before.double().imbalance(rotary_dim)
    result: Tensor = torch.linalg.matrix_norm(change)
    return result


def imbalance_rate(pair: Pair, gradient: Pair, rotary_dim: int = 0) -> Tensor:
    """First-order rate of change of the imbalance along the gradient, relative to its two terms, shape P.

    Zero, up to rounding, exactly where gradient flow conserves the imbalance.
    """
    pair, gradient = pair.double(), gradient.double()
    first, second = (commuting(_symmetric(g @ W.mT), rotary_dim) for g, W in zip(gradient, pair, strict=True))
    norm = torch.linalg.matrix_norm
    result: Tensor = norm(first - second) / (norm(first) + norm(second))
    return result


def _symmetric(matrix: Tensor) -> Tensor:
    return matrix + matrix.mT


def _divide(numerator: Tensor, scale: Tensor) -> Tensor:
    """numerator / scale, and zero where the scale is zero: what lies along a direction that has no length."""
    return torch.where(scale == 0, torch.zeros_like(numerator), numerator / scale)


def complex_rows(W: Tensor) -> Tensor:
    """P + (2n, N) as P + (n, N) complex."""
    real, imaginary = W.unflatten(-2, (-1, 2)).unbind(-2)
    return torch.complex(real, imaginary)


def _real_rows(W: Tensor) -> Tensor:
    """P + (n, N) complex as P + (2n, N)."""
    return torch.stack((W.real, W.imag), dim=-2).flatten(-3, -2)
