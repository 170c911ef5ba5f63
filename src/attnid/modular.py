"""Rank of a matrix modulo a prime, by blocked elimination in float64 matrix products that are exact.

Residues are kept symmetric, at most PRIME / 2 < 2^22 in size, so that a sum of 512 products stays below 2^53 and
nothing is ever rounded.
"""

import torch
from torch import Tensor

PRIME = 8_388_593
"""The largest prime below 2^23."""
PANEL = 512
"""Pivots in one matrix product: PANEL * (PRIME / 2)^2 < 2^53."""
LEAF = 16


def reduce_(x: Tensor) -> Tensor:
    """Bring integers below 2^53 to their symmetric residues, in place."""
    return x.sub_((x * (1 / PRIME)).round_(), alpha=PRIME)


def inverse(value: int) -> int:
    """Inverse of a number that the prime does not divide."""
    return pow(value, -1, PRIME)


def inverses(x: Tensor) -> Tensor:
    """Inverses of residues, none of them zero, by Fermat: x^(PRIME - 2)."""
    result, square, exponent = torch.ones_like(x), x.clone(), PRIME - 2
    while exponent:
        if exponent & 1:
            result = reduce_(result * square)
        square = reduce_(square * square)
        exponent >>= 1
    return result


def random_residues(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Independent uniform residues, as float64."""
    return torch.randint(0, PRIME, shape, generator=generator).double().sub_(PRIME // 2)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product of residues modulo the prime, for any inner size."""
    blocks = zip(a.split(PANEL, dim=-1), b.split(PANEL, dim=-2), strict=True)
    return reduce_(sum((reduce_(left @ right) for left, right in blocks), torch.zeros((), dtype=torch.float64)))


def null_space(matrix: Tensor) -> Tensor:
    """A basis of the x with matrix x = 0 modulo the prime, as rows, shape (n - rank, n); for small matrices."""
    echelon = matrix.clone()
    pivots: list[int] = []
    for column in range(matrix.shape[1]):
        row = len(pivots)
        below = echelon[row:, column].abs()
        if row == matrix.shape[0] or not below.any():
            continue
        found = row + int(below.argmax())
        echelon[[row, found]] = echelon[[found, row]]
        echelon[row] = reduce_(echelon[row] * _symmetric(inverse(int(echelon[row, column]))))
        others = echelon[:, column].clone()
        others[row] = 0
        echelon = reduce_(echelon - others[:, None] * echelon[row])
        pivots.append(column)
    free = [column for column in range(matrix.shape[1]) if column not in pivots]
    basis = torch.zeros(len(free), matrix.shape[1], dtype=torch.float64)
    for number, column in enumerate(free):
        basis[number, column] = 1
        basis[number, pivots] = -echelon[: len(pivots), column]
    return basis


def rank_(matrix: Tensor) -> int:
    """Rank modulo the prime of a matrix of residues, float64, shape (m, n). The matrix is overwritten.

    Elimination by panels of PANEL columns, each split in halves down to LEAF columns, so that nearly all work is
    matrix products. The multipliers of a pivot take the place of the zeros below it.
    """
    rank = 0
    for start in range(0, matrix.shape[1], PANEL):
        stop = min(start + PANEL, matrix.shape[1])
        pivots = _eliminate(matrix, rank, start, stop)
        _update(matrix, rank, pivots, stop, matrix.shape[1])
        rank += len(pivots)
        if rank == matrix.shape[0]:
            break
    return rank


def _eliminate(matrix: Tensor, row: int, start: int, stop: int) -> list[int]:
    """Eliminate below `row` in columns start to stop, those alone; returns the columns of the pivots, a row each."""
    if stop - start <= LEAF:
        return _eliminate_leaf(matrix, row, start, stop)
    middle = (start + stop) // 2
    left = _eliminate(matrix, row, start, middle)
    _update(matrix, row, left, middle, stop)
    return left + _eliminate(matrix, row + len(left), middle, stop)


def _eliminate_leaf(matrix: Tensor, row: int, start: int, stop: int) -> list[int]:
    pivots: list[int] = []
    for column in range(start, stop):
        if row == matrix.shape[0]:
            break
        below = matrix[row:, column]
        found = row + int(below.abs().argmax())
        pivot = int(matrix[found, column])
        if pivot == 0:
            continue
        if found != row:
            matrix[[row, found]] = matrix[[found, row]]
        multipliers = reduce_(matrix[row + 1 :, column] * _symmetric(inverse(pivot)))
        matrix[row + 1 :, column] = multipliers
        rest = matrix[row + 1 :, column + 1 : stop]
        rest.addmm_(multipliers[:, None], matrix[row : row + 1, column + 1 : stop], alpha=-1)
        reduce_(rest)
        pivots.append(column)
        row += 1
    return pivots


def _update(matrix: Tensor, row: int, pivots: list[int], start: int, stop: int) -> None:
    """Carry the elimination of these pivots, in rows from `row` on, over to columns start to stop."""
    if not pivots or start == stop:
        return
    multipliers = matrix[row:, pivots]
    count = len(pivots)
    top, rest = matrix[row : row + count, start:stop], matrix[row + count :, start:stop]
    _solve_unit_lower(multipliers[:count], top)
    rest.addmm_(multipliers[count:], top, alpha=-1)
    reduce_(rest)


def _solve_unit_lower(lower: Tensor, right: Tensor) -> None:
    """Solve L X = right modulo the prime in place, L unit lower triangular (what lies above is not read)."""
    size = lower.shape[0]
    if size <= LEAF:
        for i in range(1, size):
            right[i] -= lower[i, :i] @ right[:i]
            reduce_(right[i])
        return
    half = size // 2
    _solve_unit_lower(lower[:half, :half], right[:half])
    right[half:].addmm_(lower[half:, :half], right[:half], alpha=-1)
    reduce_(right[half:])
    _solve_unit_lower(lower[half:, half:], right[half:])


def _symmetric(residue: int) -> int:
    return residue - PRIME if residue > PRIME // 2 else residue
