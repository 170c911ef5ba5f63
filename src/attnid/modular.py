"""Linear algebra modulo a prime, exact in float64 matrix products: residues, inverses, products, rank.

Residues are kept symmetric, at most half the prime and so below 2^22 in size; a sum of 512 products of them stays
below 2^53 and nothing is ever rounded. Real tensors hold residues modulo the prime. Complex tensors hold the field of
prime^2 elements, a + b i with i^2 = -1, in which every residue has a square root.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PRIME = 8_388_587
"""The largest prime below 2^23 that is 3 modulo 4, so that -1 has no square root among the residues."""
PANEL = 256
"""Terms of one exact sum of complex products, 2 * PANEL * (2^22)^2 = 2^53; of real ones twice as many."""
LEAF = 32
CACHED = 2**18
"""Numbers of a large tensor that are reduced at a time, so that they stay in the processor's cache."""


class NoInverseError(ArithmeticError):
    """A number that was to be inverted is zero modulo the prime."""


@dataclass(frozen=True)
class Field:
    """Arithmetic on tensors of residues; results are reduced.

    Raises ValueError for a number that is no prime between 2^20 and 2^23, or not 3 modulo 4.
    """

    prime: int = PRIME

    def __post_init__(self) -> None:
        if not 2**20 < self.prime < 2**23 or self.prime % 4 != 3 or not _is_prime(self.prime):
            raise ValueError(f"prime must be a prime between 2^20 and 2^23 that is 3 modulo 4, not {self.prime}")

    def reduce_(self, x: Tensor) -> Tensor:
        """Bring integers of size below 2^53 to their symmetric residues, in place."""
        parts = torch.view_as_real(x) if x.is_complex() else x
        for block in parts.split(max(1, CACHED * len(parts) // parts.numel())) if parts.numel() > CACHED else (parts,):
            block.sub_((block * (1 / self.prime)).round_(), alpha=self.prime)
        return x

    def reduced(self, x: Tensor) -> Tensor:
        """The same as a new tensor."""
        parts = torch.view_as_real(x) if x.is_complex() else x
        result = torch.sub(parts, (parts * (1 / self.prime)).round_(), alpha=self.prime)
        return torch.view_as_complex(result) if x.is_complex() else result

    def random(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Independent uniform residues, as float64."""
        return torch.randint(0, self.prime, shape, generator=generator).double().sub_(self.prime // 2)

    def times(self, a: Tensor, b: Tensor | complex) -> Tensor:
        """Elementwise product of a sum of at most 2^8 reduced tensors with a reduced one."""
        return self.reduce_(a * b)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Matrix product of reduced tensors, for any inner size."""
        panel = _panel(a, b)
        if a.shape[-1] <= panel:
            return self.reduce_(a @ b)
        first, *rest = zip(a.split(panel, dim=-1), b.split(panel, dim=-2), strict=True)
        total = self.reduce_(first[0] @ first[1])
        for left, right in rest:
            total = self.reduce_(total + left @ right)
        return total

    def power(self, x: Tensor, exponent: int) -> Tensor:
        """x^exponent elementwise, for a reduced x and an exponent of at least 0."""
        result, square = torch.ones_like(x), x
        while exponent:
            if exponent & 1:
                result = self.times(result, square)
            square = self.times(square, square)
            exponent >>= 1
        return result

    def inverse(self, value: int) -> int:
        """Inverse of a number; its symmetric residue. Raises NoInverseError for zero."""
        if value % self.prime == 0:
            raise NoInverseError
        return self.symmetric(pow(value, -1, self.prime))

    def inverses(self, x: Tensor) -> Tensor:
        """Inverses of real reduced residues, x^(prime - 2). Raises NoInverseError where one is zero."""
        if not x.all():
            raise NoInverseError
        return self.power(x, self.prime - 2)

    def roots(self, x: Tensor) -> Tensor:
        """A square root, complex, of each of real reduced residues.

        For a prime that is 3 modulo 4, r = x^((prime + 1)/4) has r^2 = x or r^2 = -x; then (r i)^2 = x.
        """
        root = self.power(x, (self.prime + 1) // 4)
        real = self.reduce_(root * root - x) == 0
        return torch.complex(torch.where(real, root, 0), torch.where(real, 0, root))

    def are_squares(self, x: Tensor) -> Tensor:
        """Whether real reduced residues have a real square root, by Euler's criterion."""
        return self.power(x, (self.prime - 1) // 2) == 1

    def symmetric(self, residue: int) -> int:
        """The residue of a number that is nearest to zero."""
        return (residue + self.prime // 2) % self.prime - self.prime // 2

    def null_space(self, matrix: Tensor) -> Tensor:
        """A basis of the x with matrix x = 0, as rows, shape (n - rank, n); for small real matrices."""
        echelon = matrix.clone()
        pivots: list[int] = []
        for column in range(matrix.shape[1]):
            row = len(pivots)
            below = echelon[row:, column].abs()
            if row == matrix.shape[0] or not below.any():
                continue
            found = row + int(below.argmax())
            echelon[[row, found]] = echelon[[found, row]]
            echelon[row] = self.reduce_(echelon[row] * self.inverse(int(echelon[row, column])))
            others = echelon[:, column].clone()
            others[row] = 0
            echelon = self.reduce_(echelon - others[:, None] * echelon[row])
            pivots.append(column)
        free = [column for column in range(matrix.shape[1]) if column not in pivots]
        basis = torch.zeros(len(free), matrix.shape[1], dtype=torch.float64)
        for number, column in enumerate(free):
            basis[number, column] = 1
            basis[number, pivots] = -echelon[: len(pivots), column]
        return basis

    def rank_(self, matrix: Tensor) -> int:
        """Rank of a matrix of reduced numbers, shape (m, n). The matrix is overwritten.

        Elimination by panels of columns, each split in halves down to LEAF columns, so that nearly all work is matrix
        products. The column of a pivot stays below it, the pivot's place takes its inverse. Within a panel an entry
        takes up one product a pivot at most, which is exact, and is reduced when its turn comes.
        """
        rank = 0
        panel = _panel(matrix)
        for start in range(0, matrix.shape[1], panel):
            stop = min(start + panel, matrix.shape[1])
            pivots = self._eliminate(matrix, rank, start, stop)
            self._update(matrix, rank, pivots, stop, matrix.shape[1])
            rank += len(pivots)
            self.reduce_(matrix[rank:, stop:])
            if rank == matrix.shape[0]:
                break
        return rank

    def _eliminate(self, matrix: Tensor, row: int, start: int, stop: int) -> list[int]:
        """Eliminate below `row` in columns start to stop, those alone; returns the pivots' columns, a row each."""
        if stop - start <= LEAF:
            return self._eliminate_leaf(matrix, row, start, stop)
        middle = (start + stop) // 2
        left = self._eliminate(matrix, row, start, middle)
        self._update(matrix, row, left, middle, stop)
        return left + self._eliminate(matrix, row + len(left), middle, stop)

    def _eliminate_leaf(self, matrix: Tensor, row: int, start: int, stop: int) -> list[int]:
        """The same for a few columns, as rows of a copy so that each lies in one piece."""
        columns = matrix[row:, start:stop].mT.contiguous()
        arrays = columns.numpy()
        order = np.arange(columns.shape[1])
        pivots: list[int] = []
        for place, column in enumerate(arrays):
            done = len(pivots)
            found = self._first_nonzero(self._reduced(column[done:]))
            if found is None:
                continue
            if found:
                pair = [done, done + found]
                arrays[:, pair] = arrays[:, pair[::-1]]
                order[pair] = order[pair[::-1]]
            inverse = self._inverse(column[done].item())
            scaled = self._reduced(self._reduced(arrays[place + 1 :, done].copy()) * inverse)
            columns[place + 1 :, done + 1 :].addr_(torch.from_numpy(scaled), columns[place, done + 1 :], alpha=-1)
            column[done] = inverse
            pivots.append(start + place)
        [moved] = (order != np.arange(len(order))).nonzero()
        matrix[row + torch.from_numpy(moved)] = matrix[row + torch.from_numpy(order[moved])]
        matrix[row:, start:stop] = columns.mT
        return pivots

    def _reduced(self, x: NDArray[Any]) -> NDArray[Any]:
        """Like `reduce_`: on short arrays NumPy's calls take less time."""
        parts = x.view(np.float64)
        quotient = parts * (1 / self.prime)
        np.rint(quotient, out=quotient)
        quotient *= self.prime
        parts -= quotient
        return x

    def _first_nonzero(self, column: NDArray[Any]) -> int | None:
        if not len(column) or column[0] != 0:
            return 0 if len(column) else None
        [places] = column.nonzero()
        return int(places[0]) if len(places) else None

    def _inverse(self, pivot: complex) -> complex:
        """1/(a + b i) = (a - b i)/(a^2 + b^2), real for a real pivot."""
        real, imaginary = int(pivot.real), int(pivot.imag)
        inverse = self.inverse(real * real + imaginary * imaginary)
        real, imaginary = self.symmetric(real * inverse), self.symmetric(-imaginary * inverse)
        return complex(real, imaginary) if isinstance(pivot, complex) else real

    def _update(self, matrix: Tensor, row: int, pivots: list[int], start: int, stop: int) -> None:
        """Carry the elimination of these pivots, in rows from `row` on, over to columns start to stop."""
        if not pivots or start == stop:
            return
        count = len(pivots)
        in_one_piece = pivots[-1] - pivots[0] == count - 1
        columns = matrix[row:, pivots[0] : pivots[0] + count] if in_one_piece else matrix[row:, pivots]
        inverses = columns[:count].diagonal()
        top, rest = matrix[row : row + count, start:stop], matrix[row + count :, start:stop]
        self._solve_unit_lower(self.times(columns[:count], inverses), self.reduce_(top))
        self.reduce_(top.mul_(inverses[:, None]))
        rest.addmm_(columns[count:], top, alpha=-1)

    def _solve_unit_lower(self, lower: Tensor, right: Tensor) -> None:
        """Solve L X = right in place, L unit lower triangular (what lies above is not read)."""
        size = lower.shape[0]
        if size <= LEAF:
            right.copy_(self.product(self._inverse_unit_lower(lower), right))
            return
        half = size // 2
        self._solve_unit_lower(lower[:half, :half], right[:half])
        right[half:].addmm_(lower[half:, :half], right[:half], alpha=-1)
        self.reduce_(right[half:])
        self._solve_unit_lower(lower[half:, half:], right[half:])

    def _inverse_unit_lower(self, lower: Tensor) -> Tensor:
        """(1 + N)^-1 = (1 - N) (1 + N^2) (1 + N^4) ... for what lies below the diagonal."""
        one = torch.eye(lower.shape[0], dtype=lower.dtype)
        power = -lower.tril(-1)
        inverse, exponent = one + power, 2
        while exponent < lower.shape[0]:
            power = self.product(power, power)
            inverse = self.product(inverse, one + power)
            exponent *= 2
        return inverse


def _panel(*factors: Tensor) -> int:
    """Terms of one exact sum of products of these tensors."""
    return PANEL if any(factor.is_complex() for factor in factors) else 2 * PANEL


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))
