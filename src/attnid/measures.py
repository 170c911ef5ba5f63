"""Measures of a training step and of the weights it leaves: rho, beta, tau, mu, drift (section 5.1), and their null.

A pair is (first, second), shape P + (D, E) each: the query and key weights of a head, or its value weights and the
transpose of its output weights. Its gauge directions are (S first, -S^T second) for every D x D matrix S. All
functions take any leading shape P and compute in float64, whatever they are given.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from scipy import stats
from torch import Tensor

from attnid.layer import LayerSpec


class Pair(NamedTuple):
    """The two factors of a product, or a change of them: shape P + (D, E) each."""

    first: Tensor
    second: Tensor

    def double(self) -> Self:
        """The pair in float64."""
        return self._replace(first=self.first.double(), second=self.second.double())

    def __sub__(self, other: "Pair") -> "Pair":
        return Pair(self.first - other.first, self.second - other.second)

    def squared_norm(self) -> Tensor:
        """Squared length of the pair, shape P."""
        return self.first.square().sum((-2, -1)) + self.second.square().sum((-2, -1))

    def imbalance(self) -> Tensor:
        """The difference of the Gram matrices, shape P + (D, D): what gradient flow conserves."""
        return gram(self.first) - gram(self.second)


def gram(W: Tensor) -> Tensor:
    """W W^T."""
    return W @ W.mT


def augment(W: Tensor, bias: Tensor) -> Tensor:
    """[W b]: the bias, shape P + (D,), as one more column of the weights, shape P + (D, E)."""
    return torch.cat((W, bias.unsqueeze(-1)), dim=-1)


@dataclass(frozen=True)
class Gauge:
    """The gauge directions at a pair, through the eigenbases of its Gram matrices."""

    pair: Pair
    values_first: Tensor
    basis_first: Tensor
    values_second: Tensor
    basis_second: Tensor

    @classmethod
    def at(cls, pair: Pair) -> Self:
        """Diagonalise both Gram matrices; a head with a value that is not finite gets NaN throughout."""
        pair = pair.double()
        return cls(pair, *_eigh(gram(pair.first)), *_eigh(gram(pair.second)))

    def overlap(self, change: Pair) -> Tensor:
        """rho: the share of a change's squared length that lies along the gauge directions, shape P.

        The nearest direction S solves S G_first + G_second S = R with R = d_first first^T - second d_second^T
        (section 5.1, with the sign its stationarity equation asks for); in the eigenbases its squared length is the
        sum of R~[i, j]^2 / (values_second[i] + values_first[j]). A change of length zero gives NaN.
        """
        change = change.double()
        R = change.first @ self.pair.first.mT - self.pair.second @ change.second.mT
        rotated = self.basis_second.mT @ R @ self.basis_first
        scale = self.values_second.unsqueeze(-1) + self.values_first.unsqueeze(-2)
        along = torch.where(scale > 0, rotated.square() / scale, torch.zeros_like(scale)).sum((-2, -1))
        return along.where(scale.isfinite().all(-1).all(-1), torch.nan) / change.squared_norm()

    @property
    def smallest(self) -> tuple[Tensor, Tensor]:
        """Smallest eigenvalue of both Gram matrices, shape P each."""
        return self.values_first[..., 0], self.values_second[..., 0]

    @property
    def largest(self) -> tuple[Tensor, Tensor]:
        """Largest eigenvalue of both Gram matrices, shape P each."""
        return self.values_first[..., -1], self.values_second[..., -1]


def drift(before: Pair, after: Pair) -> Tensor:
    """Norm of the change of the imbalance between two pairs, shape P."""
    result: Tensor = torch.linalg.matrix_norm(after.double().imbalance() - before.double().imbalance())
    return result


def imbalance_rate(pair: Pair, gradient: Pair) -> Tensor:
    """First-order rate of change of the imbalance along the gradient, relative to its two terms, shape P.

    Zero, up to rounding, exactly where gradient flow conserves the imbalance.
    """
    pair, gradient = pair.double(), gradient.double()
    first, second = (_symmetric(g @ W.mT) for g, W in zip(gradient, pair, strict=True))
    norm = torch.linalg.matrix_norm
    result: Tensor = norm(first - second) / (norm(first) + norm(second))
    return result


class Null(NamedTuple):
    """Mean and central 95 % band of a measure under the null."""

    mean: float
    low: float
    high: float


def random_step_null(spec: LayerSpec) -> Null:
    """rho of an isotropic random step in the query/key weights of one key/value group.

    The pair holds m = H/G + 1 matrices of D E numbers, its gauge k = D_rotary + D_plain^2 directions, so rho is
    Beta(k/2, (m D E - k)/2): for plain multi-head attention its mean is D/(2E) = 1/(2H).
    """
    plain = spec.qk_head_dim - spec.rotary_dim
    gauge = spec.rotary_dim + plain**2
    numbers = (spec.heads_per_group + 1) * spec.qk_head_dim * spec.d_model
    beta = stats.beta(gauge / 2, (numbers - gauge) / 2)
    low, high = beta.interval(0.95)
    return Null(float(beta.mean()), float(low), float(high))


def _symmetric(matrix: Tensor) -> Tensor:
    return matrix + matrix.mT


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    finite = matrix.isfinite().all(-1).all(-1)
    values, vectors = torch.linalg.eigh(matrix.where(finite[..., None, None], torch.zeros_like(matrix)))
    return values.clamp(min=0).where(finite[..., None], torch.nan), vectors
