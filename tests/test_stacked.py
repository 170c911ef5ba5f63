from pathlib import Path

import pytest
import torch
from flint import arb, arb_mat, ctx, fmpz_mat
from hypothesis import given, settings
from hypothesis import strategies as st

from attnid import stacked, tables
from attnid.rank import numerical_rank
from attnid.stacked import CUTOFFS, Stack, ball_derivatives, certain_rank, float64_ranks, proved_rank, random_stack

WEIGHTS = 3 * (2 * 2 * 4 + 4 * 4)
SYMMETRIES = 3 * 2**2 + 2 * 4**2
RANK = WEIGHTS - SYMMETRIES


def ranks(scale: float, seed: int = 0) -> list[int]:
    return [found.rank for found in float64_ranks(*random_stack(scale, seed), CUTOFFS)]


def midpoints(matrix: arb_mat) -> torch.Tensor:
    return torch.tensor([[float(ball.mid()) for ball in row] for row in matrix.tolist()], dtype=torch.float64)


# ---------------------------------------------------------------- float64


def test_float64_finds_the_rank_of_weights_of_scale_1() -> None:
    assert ranks(1.0) == [RANK] * len(CUTOFFS)


def test_at_scale_a_tenth_the_rank_depends_on_the_cutoff() -> None:
    found = ranks(0.1)
    assert found[0] == 40
    assert found == sorted(found)
    assert len(set(found)) >= 3
    assert found[-1] > 44


@pytest.mark.parametrize("seed", range(4))
def test_at_a_small_scale_a_wide_gap_shows_a_wrong_rank(seed: int) -> None:
    for found in float64_ranks(*random_stack(0.03, seed), [1e-10, 1e-12, 1e-14]):
        assert found.rank == 40
        assert found.smallest_kept > 1e6 * found.largest_dropped


def test_no_cutoff_from_1e8_on_tells_and_the_rule_for_single_layers_is_deceived() -> None:
    assert ranks(0.03)[1:] == [40] * 4
    singular_values = torch.linalg.svdvals(stacked.jacobian(*random_stack(0.03)))
    assert numerical_rank(singular_values, float(singular_values[0])).rank == 40


def test_scales_share_their_draw() -> None:
    (one, x), (small, same) = random_stack(1.0, seed=3), random_stack(0.25, seed=3)
    assert torch.equal(x, same)
    assert torch.equal(one.value, small.value)
    assert torch.equal(one.query, 4 * small.query)
    assert torch.equal(one.key, 4 * small.key)


# ---------------------------------------------------------------- proof


@pytest.mark.parametrize("scale", [1.0, 0.1, 0.03])
def test_the_rank_is_proved_from_both_sides(scale: float) -> None:
    proved = proved_rank(*random_stack(scale))
    assert (proved.lower, proved.upper) == (RANK, RANK)


def test_the_ball_jacobian_is_the_float64_jacobian() -> None:
    stack, x = random_stack(1.0)
    expected = stacked.jacobian(stack, x[:2])
    with ctx.workprec(128):
        found = ball_derivatives(stack, x[:2], torch.eye(WEIGHTS, dtype=torch.float64))
    torch.testing.assert_close(midpoints(found), expected, rtol=0, atol=1e-13 * float(expected.abs().max()))


def test_nothing_changes_along_the_symmetries() -> None:
    stack, x = random_stack(0.3)
    directions = stacked.unchanging_directions(stack)
    assert stacked.exact_rank(directions) == len(directions) == SYMMETRIES
    assert (stacked.jacobian(stack, x) @ directions.mT).abs().max() < 1e-14
    with ctx.workprec(256):
        balls = ball_derivatives(stack, x[:1], directions).entries()
    assert all(ball.contains(0) and ball.rad() < 1e-60 for ball in balls)


def test_the_outputs_do_not_change_after_a_finite_step_along_a_symmetry() -> None:
    stack, x = random_stack(1.0)
    S = torch.tensor([[2.0, 1, 0, 0], [0, 1, 0, 0], [0, 3, 1, 0], [0, 0, 0, 4]], dtype=torch.float64)
    moved = Stack(*(weights.clone() for weights in stack))
    moved.value[0] = S @ moved.value[0]
    for weights in moved:
        weights[1] = weights[1] @ S.inverse()
    torch.testing.assert_close(stacked.forward(moved, x), stacked.forward(stack, x))


def without_a_value_matrix(stack: Stack) -> None:
    stack.value[1] = 0


def with_queries_of_rank_one(stack: Stack) -> None:
    stack.query[0, 1] = 2 * stack.query[0, 0]


@pytest.mark.parametrize("damage", [without_a_value_matrix, with_queries_of_rank_one])
def test_a_stack_of_lower_rank_is_not_proved_to_have_more(damage) -> None:
    stack, x = random_stack(1.0)
    damage(stack)
    proved = proved_rank(stack, x, most_bits=128)
    assert proved.lower == float64_ranks(stack, x, [1e-10])[0].rank < RANK
    assert proved.upper >= RANK


def test_too_few_bits_prove_less_and_nothing_false() -> None:
    stack, x = random_stack(0.03)
    found = [proved_rank(stack, x, bits, bits) for bits in (2, 53, 128)]
    assert [proved.upper for proved in found] == [RANK] * 3
    assert found[0].lower < found[1].lower < found[2].lower < RANK


def test_bits_are_doubled_up_to_the_most_that_are_allowed() -> None:
    stack, x = random_stack(0.03)
    assert proved_rank(stack, x, 4, 20).bits == 16


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 6), st.randoms(use_true_random=False))
def test_certain_rank_of_exact_numbers_is_their_rank(rows: int, columns: int, inner: int, random) -> None:
    def matrix(height: int, width: int) -> fmpz_mat:
        return fmpz_mat(height, width, [random.randint(-9, 9) for _ in range(height * width)])

    product = matrix(rows, inner) * matrix(inner, columns)
    with ctx.workprec(256):
        assert certain_rank(arb_mat(product)) == product.rank()


def test_balls_that_hold_a_matrix_of_lower_rank_have_its_rank() -> None:
    wide = arb(1, 0.1)
    assert certain_rank(arb_mat([[wide, wide], [wide, wide]])) == 1
    assert certain_rank(arb_mat([[wide, 2], [1, wide]])) == 2
    assert certain_rank(arb_mat([[arb(0, 1), arb("nan")]])) == 0


# ---------------------------------------------------------------- table


def test_the_table_has_a_row_a_scale_and_cutoff(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stacked, "SCALES", (1.0, 0.3))
    reports: list[tuple[int, int, str]] = []
    frame = stacked.trap_table(report=lambda *report: reports.append(report))
    assert reports == [(1, 2, "query and key weights of scale 1"), (2, 2, "query and key weights of scale 0.3")]
    tables.write(tables.TRAP, frame, tmp_path / "trap.parquet")
    assert list(frame["scale"]) == [1.0] * 5 + [0.3] * 5
    assert list(frame["cutoff"]) == [*CUTOFFS, *CUTOFFS]
    assert (frame["smallest_kept"] > frame["cutoff"]).all()
    assert (frame["largest_dropped"] <= frame["cutoff"]).all()
    assert set(frame["proved_lower"]) == set(frame["proved_upper"]) == {RANK}
    assert set(frame["bits"]) == {128}
