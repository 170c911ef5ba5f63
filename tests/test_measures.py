import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg, stats

from attnid.attention import attention, random_parameters
from attnid.layer import LayerSpec
from attnid.measures import Gauge, Pair, augment, drift, imbalance_rate, random_step_null


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_pair(D: int, E: int, seed: int) -> Pair:
    return Pair(randn(D, E, seed=seed), randn(D, E, seed=seed + 1))


def least_squares_overlap(pair: Pair, change: Pair) -> float:
    """rho by projecting on the D^2 directions (S first, -S^T second), written out one by one."""
    first, second = (W.numpy() for W in pair)
    D = first.shape[0]
    columns = []
    for i in range(D):
        for j in range(D):
            S = np.zeros((D, D))
            S[i, j] = 1
            columns.append(np.concatenate([(S @ first).ravel(), (-S.T @ second).ravel()]))
    step = np.concatenate([W.numpy().ravel() for W in change])
    directions = np.array(columns).T
    solution = linalg.lstsq(directions, step)[0]
    return float(np.sum((directions @ solution) ** 2) / np.sum(step**2))


@settings(max_examples=20, deadline=None)
@given(D=st.integers(1, 5), extra=st.integers(0, 4), seed=st.integers(0, 10**6))
def test_rho_is_the_least_squares_projection_on_the_gauge_directions(D: int, extra: int, seed: int) -> None:
    pair, change = random_pair(D, D + extra, seed), random_pair(D, D + extra, seed + 2)
    rho = Gauge.at(pair).overlap(change).item()
    assert rho == pytest.approx(least_squares_overlap(pair, change), abs=1e-9)
    assert 0 <= rho <= 1 + 1e-12


def test_rho_solves_the_sylvester_equation_of_the_paper() -> None:
    pair, change = random_pair(4, 9, 1), random_pair(4, 9, 3)
    (W_Q, W_K), (dW_Q, dW_K) = ((W.numpy() for W in both) for both in (pair, change))
    S = linalg.solve_sylvester(W_K @ W_K.T, W_Q @ W_Q.T, dW_Q @ W_Q.T - W_K @ dW_K.T)
    expected = (np.sum((S @ W_Q) ** 2) + np.sum((S.T @ W_K) ** 2)) / (np.sum(dW_Q**2) + np.sum(dW_K**2))
    assert Gauge.at(pair).overlap(change).item() == pytest.approx(expected, rel=1e-10)


def test_a_pure_gauge_step_has_rho_one_and_an_orthogonal_one_zero() -> None:
    pair = random_pair(3, 7, 5)
    S = randn(3, 3, seed=9)
    assert Gauge.at(pair).overlap(Pair(S @ pair.first, -S.T @ pair.second)).item() == pytest.approx(1, abs=1e-12)
    outside = torch.linalg.qr(torch.cat(list(pair)).mT, mode="complete")[0][:, 6:].mT
    step = Pair(randn(3, 1, seed=11) @ outside, randn(3, 1, seed=12) @ outside)
    assert Gauge.at(pair).overlap(step).item() == pytest.approx(0, abs=1e-24)


def test_the_index_order_printed_in_the_paper_is_wrong() -> None:
    """With lambda_Q,d + lambda_K,d' (as printed) a pure gauge step does not get rho = 1."""
    pair = random_pair(3, 7, 5)
    S = randn(3, 3, seed=9)
    gauge = Gauge.at(pair)
    swapped = Gauge(pair, gauge.values_second, gauge.basis_first, gauge.values_first, gauge.basis_second)
    assert abs(swapped.overlap(Pair(S @ pair.first, -S.T @ pair.second)).item() - 1) > 1e-3


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
            assert (Gauge.at(pair).overlap(gradient) < 1e-24).all()
            assert (imbalance_rate(pair, gradient) < 1e-12).all()
        assert (Gauge.at(bare[0]).overlap(bare[1]) > 1e-6).all()
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
    null = random_step_null(spec)
    assert null.mean == pytest.approx(gauge / numbers)
    assert (null.low, null.high) == pytest.approx((expected.ppf(0.025), expected.ppf(0.975)))


def test_random_steps_follow_the_null() -> None:
    spec = LayerSpec.multi_head(16, 4)
    pair = random_pair(4, 16, 1)
    steps = Pair(randn(4000, 4, 16, seed=2), randn(4000, 4, 16, seed=3))
    rho = Gauge.at(pair).overlap(steps)
    null = random_step_null(spec)
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
    gauge = Gauge.at(pair)
    rho = gauge.overlap(Pair(randn(2, 3, 5, seed=2), randn(2, 3, 5, seed=3)))
    assert rho.isfinite().tolist() == [True, False]
    assert gauge.smallest[0].isfinite().tolist() == [True, False]


def test_rank_deficient_heads_have_a_finite_rho() -> None:
    pair = Pair(torch.zeros(3, 5, dtype=torch.float64), randn(3, 5))
    pair.second[2] = 0
    change = Pair(randn(3, 5, seed=2), randn(3, 5, seed=3))
    assert Gauge.at(pair).overlap(change).item() == pytest.approx(least_squares_overlap(pair, change), abs=1e-12)
