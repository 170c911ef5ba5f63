"""The operations that the forward pass of a layer is made of, in floating point.

`attnid.attention` is written on these alone, so that the same forward pass also runs modulo a prime
(`attnid.residues`).
"""

from typing import Protocol

import torch
from torch import Tensor

ROPE_BASE = 10_000.0


class Arithmetic(Protocol):
    """Numbers that a layer can be computed in."""

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Matrix product over the last two dimensions, the others broadcast."""

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        """Elementwise product, broadcast."""

    def scores(self, queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """queries keys^T / sqrt(D) + mask, for shapes (N, L, D), (N, M, D) and (L, M)."""

    def softmax(self, scores: Tensor) -> Tensor:
        """Softmax over the last dimension."""

    def soft_cap(self, scores: Tensor, cap: float) -> Tensor:
        """cap tanh(scores / cap)."""

    def unit_rms(self, x: Tensor) -> Tensor:
        """x over its root mean square in the last dimension."""

    def centred(self, x: Tensor) -> Tensor:
        """x minus its mean in the last dimension."""

    def turns(self, tokens: int, rotary_dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of RoPE's angle for every position and plane, shape (L, rotary_dim / 2) each."""


class Floating:
    """Floating-point numbers of the tensors' own precision."""

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def scores(self, queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        return torch.baddbmm(mask, queries, keys.mT, alpha=queries.shape[-1] ** -0.5)

    def softmax(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, dim=-1)

    def soft_cap(self, scores: Tensor, cap: float) -> Tensor:
        return cap * torch.tanh(scores / cap)

    def unit_rms(self, x: Tensor) -> Tensor:
        return x * x.square().mean(-1, keepdim=True).rsqrt()

    def centred(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)

    def turns(self, tokens: int, rotary_dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(tokens, device=like.device, dtype=torch.float64)
        exponents = torch.arange(0, rotary_dim, 2, device=like.device, dtype=torch.float64) / rotary_dim
        angles = positions[:, None] * ROPE_BASE**-exponents
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


FLOATING = Floating()
