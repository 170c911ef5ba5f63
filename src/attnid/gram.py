"""Gram matrices of a head's weights: their eigenvalues, and whether the weights have full rank, all in float64."""

import torch
from torch import Tensor


def gram(W: Tensor) -> Tensor:
    """W W^T."""
    return W @ W.mT


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues in ascending order, none below zero, and eigenvectors; NaN where a value is not finite."""
    finite = matrix.isfinite().all(-1).all(-1)
    values, vectors = torch.linalg.eigh(matrix.where(finite[..., None, None], torch.zeros_like(matrix)))
    return values.clamp(min=0).where(finite[..., None], torch.nan), vectors


def eigenvalues(W: Tensor) -> Tensor:
    """Eigenvalues of the Gram matrix of W, shape P + (D, N), in ascending order, shape P + (D,)."""
    return eigh(gram(W.double()))[0]


def smallest_over_largest(values: Tensor) -> Tensor:
    """lambda_min / lambda_max of `eigenvalues`, shape P; 0 where all are, NaN where they are not finite."""
    largest = values[..., -1]
    return values[..., 0] / largest.where(largest != 0, 1)


def rounding(width: int) -> float:
    """Relative size of an eigenvalue of a Gram matrix of this width that rounding alone can make."""
    return width * torch.finfo(torch.float64).eps


def full_rank(W: Tensor) -> Tensor:
    """Whether W is finite and of full rank as far as its float64 Gram matrix can tell, shape P."""
    values = eigenvalues(W)
    return smallest_over_largest(values) > rounding(values.shape[-1])
