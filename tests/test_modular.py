import pytest
import torch
from flint import nmod, nmod_mat
from hypothesis import given, settings
from hypothesis import strategies as st

from attnid.modular import PANEL, PRIME, Field, NoInverseError

FIELD = Field()
OTHER_PRIMES = (8_388_571, 1_048_583)


def residues(rows: int, columns: int, seed: int, field: Field = FIELD) -> torch.Tensor:
    return field.random((rows, columns), torch.Generator().manual_seed(seed))


def complex_residues(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.complex(residues(rows, columns, seed), residues(rows, columns, seed + 10**7))


def flint_matrix(matrix: torch.Tensor, prime: int = PRIME) -> nmod_mat:
    return nmod_mat(*matrix.shape, [int(value) % prime for value in matrix.flatten().tolist()], prime)


def with_gaps(matrix: torch.Tensor, gap: int) -> torch.Tensor:
    """Columns and rows of zeros, so that pivots are missing anywhere."""
    matrix[:, ::gap] = 0
    matrix[gap :: 2 * gap] = 0
    return matrix


def test_panels_stay_exact() -> None:
    largest = PRIME // 2 + 2
    assert 2 * PANEL * largest**2 + largest < 2**53


@pytest.mark.parametrize("number", [2, 1_000_003, 8_388_607, 8_388_593, 8_388_617, 8_388_589])
def test_what_is_no_prime_of_the_right_kind_is_refused(number: int) -> None:
    """Too small, composite, 1 modulo 4, too large, composite."""
    with pytest.raises(ValueError, match=f"3 modulo 4, not {number}"):
        Field(number)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 70), columns=st.integers(1, 70), inner=st.integers(0, 70), seed=st.integers(0, 10**6),
    gap=st.integers(2, 9), prime=st.sampled_from((PRIME, *OTHER_PRIMES)),
)  # fmt: skip
def test_rank_is_flints(rows: int, columns: int, inner: int, seed: int, gap: int, prime: int) -> None:
    field = Field(prime)
    factors = residues(rows, inner, seed, field), residues(inner, columns, seed + 1, field)
    matrix = with_gaps(field.product(*factors), gap)
    assert field.rank_(matrix.clone()) == flint_matrix(matrix, prime).rank()


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40), columns=st.integers(1, 40), inner=st.integers(0, 40), seed=st.integers(0, 10**6),
    gap=st.integers(2, 9),
)  # fmt: skip
def test_rank_in_the_larger_field_is_half_of_flints_rank_of_the_real_form(
    rows: int, columns: int, inner: int, seed: int, gap: int
) -> None:
    factors = complex_residues(rows, inner, seed), complex_residues(inner, columns, seed + 1)
    matrix = with_gaps(FIELD.product(*factors), gap)
    real = torch.cat(
        (torch.cat((matrix.real, -matrix.imag), dim=1), torch.cat((matrix.imag, matrix.real), dim=1))
    )  # fmt: skip
    assert 2 * FIELD.rank_(matrix.clone()) == flint_matrix(real).rank()


@pytest.mark.parametrize("kind", [residues, complex_residues])
@pytest.mark.parametrize(("rows", "columns", "inner"), [(1300, 700, 650), (650, 1300, 640), (1100, 1100, 1100)])
def test_rank_over_several_panels(kind, rows: int, columns: int, inner: int) -> None:
    matrix = FIELD.product(kind(rows, inner, 1), kind(inner, columns, 2))
    assert FIELD.rank_(matrix) == inner


def test_product_is_exact_at_the_largest_residues() -> None:
    a = torch.full((3, 5000), PRIME // 2, dtype=torch.float64)
    expected = 5000 * (PRIME // 2) ** 2 % PRIME
    assert {int(value) % PRIME for value in FIELD.product(a, a.mT).flatten()} == {expected}
    both = torch.complex(a, -a)
    product = FIELD.product(both, both.mT)
    assert not product.real.any()
    assert {int(value) % PRIME for value in product.imag.flatten()} == {-2 * expected % PRIME}


@given(st.integers(-(2**52), 2**52))
def test_reduction_keeps_the_class_and_is_symmetric(value: int) -> None:
    reduced = int(FIELD.reduce_(torch.tensor([value], dtype=torch.float64))[0])
    assert (reduced - value) % PRIME == 0
    assert abs(reduced) <= PRIME // 2 + 2


def test_inverses_are_flints() -> None:
    values = residues(1, 50, 3)[0]
    found = [int(value) % PRIME for value in FIELD.inverses(values)]
    assert found == [int(1 / nmod(int(value) % PRIME, PRIME)) for value in values]


def test_zero_has_no_inverse() -> None:
    with pytest.raises(NoInverseError):
        FIELD.inverses(torch.tensor([1.0, 0.0], dtype=torch.float64))
    with pytest.raises(NoInverseError):
        FIELD.inverse(PRIME)


def test_every_residue_has_a_root_in_the_larger_field() -> None:
    values = residues(1, 200, 4)[0]
    roots = FIELD.roots(values)
    square = FIELD.reduce_(FIELD.times(roots, roots) - values)
    assert not square.any()
    real = roots.imag == 0
    assert torch.equal(real, FIELD.are_squares(values))
    assert 60 < int(real.sum()) < 140


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 8), columns=st.integers(1, 12), inner=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_null_space_is_whole_and_annihilated(rows: int, columns: int, inner: int, seed: int) -> None:
    matrix = FIELD.product(residues(rows, inner, seed), residues(inner, columns, seed + 1))
    basis = FIELD.null_space(matrix)
    assert len(basis) == columns - flint_matrix(matrix).rank()
    assert not FIELD.product(matrix, basis.mT).any()
    assert FIELD.rank_(basis.clone()) == len(basis) if len(basis) else True
