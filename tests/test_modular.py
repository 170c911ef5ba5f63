import pytest
import torch
from flint import nmod, nmod_mat
from hypothesis import given, settings
from hypothesis import strategies as st

from attnid.modular import PANEL, PRIME, inverses, null_space, product, random_residues, rank_, reduce_


def residues(rows: int, columns: int, seed: int) -> torch.Tensor:
    return random_residues((rows, columns), torch.Generator().manual_seed(seed))


def flint_matrix(matrix: torch.Tensor) -> nmod_mat:
    return nmod_mat(*matrix.shape, [int(value) % PRIME for value in matrix.flatten().tolist()], PRIME)


def test_the_prime_is_one_and_panels_stay_exact() -> None:
    assert all(PRIME % divisor for divisor in range(2, int(PRIME**0.5) + 1))
    largest = PRIME // 2 + 2
    assert PANEL * largest**2 + largest < 2**53


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 70), columns=st.integers(1, 70), inner=st.integers(0, 70), seed=st.integers(0, 10**6),
    gap=st.integers(2, 9),
)  # fmt: skip
def test_rank_is_flints(rows: int, columns: int, inner: int, seed: int, gap: int) -> None:
    """Products of thin factors with columns and rows of zeros, so that pivots are missing anywhere."""
    matrix = product(residues(rows, inner, seed), residues(inner, columns, seed + 1))
    matrix[:, ::gap] = 0
    matrix[gap :: 2 * gap] = 0
    assert rank_(matrix.clone()) == flint_matrix(matrix).rank()


@pytest.mark.parametrize(("rows", "columns", "inner"), [(1300, 700, 650), (650, 1300, 640), (1100, 1100, 1100)])
def test_rank_over_several_panels(rows: int, columns: int, inner: int) -> None:
    matrix = product(residues(rows, inner, 1), residues(inner, columns, 2))
    assert rank_(matrix) == inner


def test_product_is_exact_at_the_largest_residues() -> None:
    a = torch.full((3, 5000), PRIME // 2, dtype=torch.float64)
    expected = 5000 * (PRIME // 2) ** 2 % PRIME
    assert {int(value) % PRIME for value in product(a, a.mT).flatten()} == {expected}


@given(st.integers(-(2**52), 2**52))
def test_reduction_keeps_the_class_and_is_symmetric(value: int) -> None:
    reduced = int(reduce_(torch.tensor([value], dtype=torch.float64))[0])
    assert (reduced - value) % PRIME == 0
    assert abs(reduced) <= PRIME // 2 + 2


def test_inverses_are_flints() -> None:
    values = residues(1, 50, 3)[0]
    found = [int(value) % PRIME for value in inverses(values)]
    assert found == [int(1 / nmod(int(value) % PRIME, PRIME)) for value in values]


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 8), columns=st.integers(1, 12), inner=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_null_space_is_whole_and_annihilated(rows: int, columns: int, inner: int, seed: int) -> None:
    matrix = product(residues(rows, inner, seed), residues(inner, columns, seed + 1))
    basis = null_space(matrix)
    assert len(basis) == columns - flint_matrix(matrix).rank()
    assert not product(matrix, basis.mT).any()
    assert rank_(basis.clone()) == len(basis) if len(basis) else True
