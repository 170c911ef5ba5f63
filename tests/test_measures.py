import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg, stats

from attnid.attention import attention, random_parameters
from attnid.gram import eigenvalues
from attnid.layer import LayerSpec
from attnid.measures import Gauge, Pair, augment, drift, imbalance_rate
from attnid.null import random_step_nulls
from attnid.symmetry import balance_pair


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_pair(D: int, E: int, seed: int) -> Pair:
    return Pair(randn(D, E, seed=seed), randn(D, E, seed=seed + 1))


def directions(pair: Pair, matrices: list[np.ndarray]) -> np.ndarray:
    """The directions (S first, -S^T second) written out, one a column."""
    first, second = (W.numpy() for W in pair)
    return np.array([np.concatenate([(S @ first).ravel(), (-S.T @ second).ravel()]) for S in matrices]).T


def least_squares_overlap(pair: Pair, change: Pair, matrices: list[np.ndarray] | None = None) -> float:
    """rho by projecting on the directions of these matrices, of all where none are given."""
    D = pair.first.shape[-2]
    columns = directions(pair, unit_matrices(D) if matrices is None else matrices)
    step = np.concatenate([W.numpy().ravel() for W in change])
    solution = linalg.lstsq(columns, step, cond=1e-9)[0]
    return float(np.sum((columns @ solution) ** 2) / np.sum(step**2))


def unit_matrices(D: int) -> list[np.ndarray]:
    return [np.outer(row, column) for row in np.eye(D) for column in np.eye(D)]


def turning(D: int, rotary_dim: int) -> list[np.ndarray]:
    """A basis of the matrices that commute with the rotations of the leading planes."""
    found = []
    for plane in range(rotary_dim // 2):
        for block in (np.eye(2), np.array([[0.0, -1.0], [1.0, 0.0]])):
            S = np.zeros((D, D))
            S[2 * plane : 2 * plane + 2, 2 * plane : 2 * plane + 2] = block
            found.append(S)
    return found + [S for S in unit_matrices(D) if not S[:rotary_dim].any() and not S[:, :rotary_dim].any()]


def halves(matrices: list[np.ndarray], sign: int) -> list[np.ndarray]:
    return [S + sign * S.T for S in matrices]


@settings(max_examples=30, deadline=None)
@given(D=st.integers(1, 6), planes=st.integers(0, 3), shared=st.integers(1, 3), seed=st.integers(0, 10**6))
def test_rho_under_rope_and_grouping_projects_on_what_is_left_of_the_gauge(
    D: int, planes: int, shared: int, seed: int
) -> None:
    rotary_dim = 2 * min(planes, D // 2)
    pair = Pair(randn(D, 7 * shared, seed=seed), randn(D, 7, seed=seed + 1))
    change = Pair(randn(D, 7 * shared, seed=seed + 2), randn(D, 7, seed=seed + 3))
    gauge, left = Gauge(pair, rotary_dim), turning(D, rotary_dim)
    assert gauge.overlap(change).item() == pytest.approx(least_squares_overlap(pair, change, left), abs=1e-9)
    scalings, rotations = (least_squares_overlap(pair, change, halves(left, sign)) for sign in (1, -1))
    assert gauge.overlap_scaling(change).item() == pytest.approx(scalings, abs=1e-9)
    assert gauge.overlap_rotation(change).item() == pytest.approx(rotations, abs=1e-9)
    wasted = gauge.wasted(change)
    assert gauge.overlap(wasted).item() == pytest.approx(1, abs=1e-9)
    rest = change - wasted
    assert gauge.overlap(rest).item() < 1e-18
    assert (wasted.squared_norm() + rest.squared_norm()).item() == pytest.approx(change.squared_norm().item())


@settings(max_examples=20, deadline=None)
@given(D=st.integers(1, 6), planes=st.integers(0, 3), seed=st.integers(0, 10**6))
def test_what_flow_conserves_has_a_value_for_every_direction_of_the_gauge(D: int, planes: int, seed: int) -> None:
    """<S, imbalance> / 2 changes along a step by the step's component along the direction of symmetric S."""
    rotary_dim = 2 * min(planes, D // 2)
    pair, step = random_pair(D, 8, seed), random_pair(D, 8, seed + 2)
    after = Pair(*(W + 1e-6 * dW for W, dW in zip(pair, step, strict=True)))
    change = (after.imbalance(rotary_dim) - pair.imbalance(rotary_dim)).numpy() / 2e-6
    flat = np.concatenate([W.numpy().ravel() for W in step])
    for S in halves(turning(D, rotary_dim), 1):
        assert np.sum(S * change) == pytest.approx(float(directions(pair, [S])[:, 0] @ flat), abs=1e-3)


def test_scalings_and_rotations_add_up_where_the_pair_is_balanced() -> None:
    pair, change = random_pair(4, 9, 1), random_pair(4, 9, 3)
    balanced = Pair(*balance_pair(*pair)[:2])
    gauge = Gauge(balanced)
    parts = gauge.overlap_scaling(change) + gauge.overlap_rotation(change)
    assert parts.item() == pytest.approx(gauge.overlap(change).item(), rel=1e-10)


@settings(max_examples=20, deadline=None)
@given(D=st.integers(1, 5), extra=st.integers(0, 4), seed=st.integers(0, 10**6))
def test_rho_is_the_least_squares_projection_on_the_gauge_directions(D: int, extra: int, seed: int) -> None:
    pair, change = random_pair(D, D + extra, seed), random_pair(D, D + extra, seed + 2)
    rho = Gauge(pair).overlap(change).item()
    assert rho == pytest.approx(least_squares_overlap(pair, change), abs=1e-9)
    assert 0 <= rho <= 1 + 1e-12


def test_rho_solves_the_sylvester_equation_of_the_paper() -> None:
    pair, change = random_pair(4, 9, 1), random_pair(4, 9, 3)
    (W_Q, W_K), (dW_Q, dW_K) = ((W.numpy() for W in both) for both in (pair, change))
    S = linalg.solve_sylvester(W_K @ W_K.T, W_Q @ W_Q.T, dW_Q @ W_Q.T - W_K @ dW_K.T)
    expected = (np.sum((S @ W_Q) ** 2) + np.sum((S.T @ W_K) ** 2)) / (np.sum(dW_Q**2) + np.sum(dW_K**2))
    assert Gauge(pair).overlap(change).item() == pytest.approx(expected, rel=1e-10)


def test_a_pure_gauge_step_has_rho_one_and_an_orthogonal_one_zero() -> None:
    pair = random_pair(3, 7, 5)
    S = randn(3, 3, seed=9)
    assert Gauge(pair).overlap(Pair(S @ pair.first, -S.T @ pair.second)).item() == pytest.approx(1, abs=1e-12)
    outside = torch.linalg.qr(torch.cat(list(pair)).mT, mode="complete")[0][:, 6:].mT
    step = Pair(randn(3, 1, seed=11) @ outside, randn(3, 1, seed=12) @ outside)
    assert Gauge(pair).overlap(step).item() == pytest.approx(0, abs=1e-24)


def test_the_index_order_printed_in_the_paper_is_wrong() -> None:
    """With lambda_Q,d + lambda_K,d' (as printed) a pure gauge step does not get rho = 1."""
    pair = random_pair(3, 7, 5)
    S = randn(3, 3, seed=9)
    (lambda_q, U_Q), (lambda_k, U_K) = (torch.linalg.eigh(W @ W.T) for W in pair)
    step = Pair(S @ pair.first, -S.T @ pair.second)
    rotated = U_K.T @ (step.first @ pair.first.T - pair.second @ step.second.T) @ U_Q
    for printed, scale in ((True, lambda_q[:, None] + lambda_k), (False, lambda_k[:, None] + lambda_q)):
        solved = U_K @ (rotated / scale) @ U_Q.T
        found = Pair(solved @ pair.first, -solved.T @ pair.second).squared_norm() / step.squared_norm()
        assert (abs(found.item() - 1) > 1e-3) == printed


@pytest.mark.parametrize("causal", [True, False])
def test_rho_of_an_exact_gradient_is_zero_for_the_augmented_pair_only(causal: bool) -> None:
    spec = LayerSpec.multi_head(8, 2, biases=True, causal=causal)
    draws = torch.Generator().manual_seed(3)
    p = {name: tensor.requires_grad_() for name, tensor in random_parameters(spec, draws).items()}
    x = torch.randn(3, 6, 8, generator=draws, dtype=torch.float64)
    (attention(spec, p, x) ** 3).sum().backward()
    q, k, v, o = p["W_Q"], p["W_K"], p["W_V"], p["W_O"]
    with torch.no_grad():
        bare = Pair(q, k), Pair(q.grad, k.grad)
        augmented = (
            Pair(augment(q, p["b_Q"]), augment(k, p["b_K"])),
            Pair(augment(q.grad, p["b_Q"].grad), augment(k.grad, p["b_K"].grad)),
        )
        values = Pair(augment(v, p["b_V"]), o.mT), Pair(augment(v.grad, p["b_V"].grad), o.grad.mT)
        for pair, gradient in (augmented, values):
            assert (Gauge(pair).overlap(gradient) < 1e-24).all()
            assert (imbalance_rate(pair, gradient) < 1e-12).all()
        assert (Gauge(bare[0]).overlap(bare[1]) > 1e-6).all()
        assert (imbalance_rate(*bare) > 1e-4).all()


@pytest.mark.parametrize(
    ("spec", "gauge", "numbers"),
    [
        (LayerSpec.multi_head(16, 4), 16, 128),
        (LayerSpec(d_model=12, n_heads=4, n_kv_heads=2, qk_head_dim=4, v_head_dim=4), 16, 144),
        (LayerSpec(d_model=12, n_heads=2, n_kv_heads=2, qk_head_dim=6, v_head_dim=6, rotary_dim=4), 4 + 4, 144),
    ],
)
def test_the_null_is_the_beta_distribution_of_counting_md(spec: LayerSpec, gauge: int, numbers: int) -> None:
    expected = stats.beta(gauge / 2, (numbers - gauge) / 2)
    null = random_step_nulls(spec)["qk"]
    assert null.mean == pytest.approx(gauge / numbers)
    assert (null.low, null.high) == pytest.approx((expected.ppf(0.025), expected.ppf(0.975)))


def test_random_steps_follow_the_null() -> None:
    spec = LayerSpec.multi_head(16, 4)
    pair = random_pair(4, 16, 1)
    steps = Pair(randn(4000, 4, 16, seed=2), randn(4000, 4, 16, seed=3))
    rho = Gauge(pair).overlap(steps)
    null = random_step_nulls(spec)["qk"]
    assert rho.mean().item() == pytest.approx(null.mean, abs=4 * rho.std().item() / 4000**0.5)
    inside = ((rho > null.low) & (rho < null.high)).double().mean().item()
    assert inside == pytest.approx(0.95, abs=0.015)


def test_drift_of_one_gradient_step_is_the_square_of_the_learning_rate() -> None:
    """Augmented drift = lr^2 |g_Q g_Q^T - g_K g_K^T| for a step along an exact gradient."""
    pair = random_pair(3, 8, 1)
    core = randn(8, 8, seed=7)
    gradient = Pair(pair.second @ core.mT, pair.first @ core)
    quadratic = torch.linalg.matrix_norm(gradient.imbalance())
    for lr in (1e-1, 1e-2, 1e-3):
        after = Pair(pair.first - lr * gradient.first, pair.second - lr * gradient.second)
        assert drift(pair, after).item() == pytest.approx(lr**2 * quadratic.item(), rel=1e-6)


def test_values_that_are_not_finite_stay_with_their_own_head() -> None:
    pair = Pair(randn(2, 3, 5), randn(2, 3, 5, seed=1))
    pair.first[1, 0, 0] = torch.inf
    gauge = Gauge(pair)
    rho = gauge.overlap(Pair(randn(2, 3, 5, seed=2), randn(2, 3, 5, seed=3)))
    assert rho.isfinite().tolist() == [True, False]
    assert eigenvalues(pair.first).isfinite().all(-1).tolist() == [True, False]


def test_rank_deficient_heads_have_a_finite_rho() -> None:
    pair = Pair(torch.zeros(3, 5, dtype=torch.float64), randn(3, 5))
    pair.second[2] = 0
    change = Pair(randn(3, 5, seed=2), randn(3, 5, seed=3))
    assert Gauge(pair).overlap(change).item() == pytest.approx(least_squares_overlap(pair, change), abs=1e-12)
