"""The forward pass of a layer, and its derivatives, modulo a prime.

Every exponential of a score, and every e^(i theta) of a rational class of RoPE's frequencies, is an indeterminate that
gets a random value. A score is therefore never more than its derivatives and whether the mask hides it.
"""

from collections import defaultdict
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from attnid.modular import Field

Complex = tuple[int, int]


class Residues:
    """`attnid.arithmetic.Arithmetic` modulo a prime, with derivatives: tensors are sums of a few reduced numbers.

    Raises attnid.modular.NoInverseError where a denominator is zero modulo the prime.
    """

    def __init__(self, field: Field, generator: torch.Generator) -> None:
        self.field = field
        self.generator = generator
        self._points: dict[Fraction, Complex] = defaultdict(self._circle_point)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return _apply(_Product, a.expand(*batch, -1, -1), b.expand(*batch, -1, -1), self.field)

    def times(self, a: Tensor, b: Tensor) -> Tensor:
        return _apply(_Times, *torch.broadcast_tensors(a, b), self.field)

    def scores(self, queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """The factor 1/sqrt(D) is absorbed in the weights."""
        return self.product(queries, keys.mT) + mask

    def softmax(self, scores: Tensor) -> Tensor:
        """A_j = E_j / sum_k E_k for indeterminates E_j, dA_j = A_j (ds_j - sum_k A_k ds_k)."""
        exponentials = self.field.random(tuple(scores.shape), self.generator)
        exponentials.masked_fill_(scores.detach().real.isneginf(), 0)
        total = self.field.reduce_(exponentials.sum(-1, keepdim=True))
        weights = self.field.times(exponentials, self.field.inverses(total)).to(scores.dtype)
        return _apply(_Softmax, scores, weights, self.field)

    def soft_cap(self, scores: Tensor, cap: float) -> Tensor:
        """d cap tanh(s / cap) = 4 u / (1 + u)^2 ds, with u = e^(2 s / cap) an indeterminate of its own."""
        u = self.field.random(tuple(scores.shape), self.generator)
        inverse = self.field.inverses(self.field.reduce_(u + 1))
        slope = self.field.times(self.field.reduce_(4 * u), self.field.times(inverse, inverse))
        return self.times(scores, slope.to(scores.dtype))

    def unit_rms(self, x: Tensor) -> Tensor:
        """r x, where r is a root of n / |x|^2 for n numbers; d(r x) = r (dx - y (y . dx) / n) with y = r x."""
        values = self.field.reduced(x.detach())
        square = self.field.reduce_(self.field.times(values, values).sum(-1, keepdim=True))
        scale = self.field.roots(self.field.reduce_(x.shape[-1] * self.field.inverses(_real(square))))
        scale = scale if x.is_complex() else _real(scale)
        return _apply(_UnitRms, x, scale, self.field)

    def centred(self, x: Tensor) -> Tensor:
        mean = torch.full_like(x[..., :1, :1], self.field.inverse(x.shape[-1]))
        return x - self.times(x.sum(-1, keepdim=True), mean)

    def turns(self, tokens: int, rotary_dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
        points = []
        for plane in range(rotary_dim // 2):
            remainder, multiple = frequency_class(plane, rotary_dim)
            points.append(self._power(self._points[remainder], multiple))
        turned = [[self._power(point, position) for point in points] for position in range(tokens)]
        residues = self.field.reduce_(torch.tensor(turned, dtype=torch.float64).view(tokens, -1, 2))
        cos, sin = residues.to(like.dtype).unbind(-1)
        return cos, sin

    def _circle_point(self) -> Complex:
        """A random point ((1 - t^2) / (1 + t^2), 2 t / (1 + t^2)) of the circle: -1 has no root, 1 + t^2 is not 0."""
        t = int(torch.randint(1, self.field.prime, (), generator=self.generator))
        scale = self.field.inverse(1 + t * t)
        return (1 - t * t) * scale % self.field.prime, 2 * t * scale % self.field.prime

    def _power(self, point: Complex, exponent: int) -> Complex:
        """The point of the circle at so many times the angle."""
        result, square, prime = (1, 0), point, self.field.prime
        while exponent:
            if exponent & 1:
                result = _turned(result, square, prime)
            square = _turned(square, square, prime)
            exponent >>= 1
        return result


def frequency_class(plane: int, rotary_dim: int) -> tuple[Fraction, int]:
    """The rational class of a plane's frequency, and its frequency as a multiple of the smallest possible in it.

    theta = 10000^(-2 plane / rotary_dim) = 10^(-8 plane / rotary_dim): two of them have a rational ratio exactly if
    their exponents differ by a whole number, and powers of ten to different fractions are linearly independent over
    the rationals.
    """
    exponent = Fraction(8 * plane, rotary_dim)
    whole = exponent.numerator // exponent.denominator
    return exponent - whole, int(10 ** (8 - whole))


def _real(x: Tensor) -> Tensor:
    """Numbers as residues. Raises ValueError where one lies in the larger field."""
    if x.is_complex() and x.imag.any():
        raise ValueError("a norm that is no residue of the prime")
    return x.real


def _turned(a: Complex, b: Complex, prime: int) -> Complex:
    return (a[0] * b[0] - a[1] * b[1]) % prime, (a[0] * b[1] + a[1] * b[0]) % prime


def _apply(function: type[Function], *arguments: Tensor | Field) -> Tensor:
    result: Tensor = function.apply(*arguments)
    return result


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, field: Field) -> Tensor:
        ctx.field, ctx.factors = field, (field.reduced(a), field.reduced(b))
        return field.product(*ctx.factors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        gradient = ctx.field.reduced(gradients[0])
        a, b = ctx.factors
        return ctx.field.product(gradient, b.mT), ctx.field.product(a.mT, gradient), None


class _Times(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, field: Field) -> Tensor:
        ctx.field, ctx.factors = field, (field.reduced(a), field.reduced(b))
        return field.times(*ctx.factors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.factors
        return ctx.field.times(gradients[0], b), ctx.field.times(gradients[0], a), None


class _Softmax(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, weights: Tensor, field: Field) -> Tensor:
        ctx.field, ctx.weights = field, weights
        return weights.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        field, weights = ctx.field, ctx.weights
        weighted = field.times(gradients[0], weights)
        total = field.reduce_(weighted.sum(-1, keepdim=True))
        return field.reduce_(weighted - weights * total), None, None


class _UnitRms(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, field: Field) -> Tensor:
        ctx.field, ctx.scale = field, scale
        result = field.times(field.reduced(x), scale)
        ctx.result = result.clone()
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        field, y = ctx.field, ctx.result
        along = field.reduce_(field.times(gradients[0], y).sum(-1, keepdim=True))
        mean = field.reduce_(along * field.inverse(y.shape[-1]))
        return field.times(field.reduce_(gradients[0] - y * mean), ctx.scale), None, None
