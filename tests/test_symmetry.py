from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnid.attention import attention, random_parameters, rotate, scores
from attnid.layer import LayerSpec
from attnid.measures import Pair
from attnid.symmetry import (
    apart,
    balance_pair,
    balance_query_key,
    balance_value_output,
    fold_value_bias,
    rebalance,
    rotary_scaling,
    side_by_side,
    transform_query_key,
    transform_value_output,
    transport_query_key,
    transport_value_output,
)

BIASES = ("query_bias", "key_bias", "value_bias", "output_bias")
SEEDS = st.integers(0, 2**31)


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def invertible(number: int, size: int, seed: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64) + 0.4 * torch.linalg.qr(normal(number, size, size, seed=seed))[0]


def orthogonal(number: int, size: int, seed: int) -> Tensor:
    return torch.linalg.qr(normal(number, size, size, seed=seed))[0]


@st.composite
def layers(draw: st.DrawFn, **fixed: Any) -> LayerSpec:
    groups = draw(st.integers(1, 3))
    biases = {name: draw(st.booleans()) for name in BIASES}
    sizes = {
        "d_model": draw(st.integers(4, 8)),
        "n_heads": groups * draw(st.integers(1, 2)),
        "n_kv_heads": groups,
        "qk_head_dim": draw(st.integers(1, 4)),
        "v_head_dim": draw(st.integers(1, 4)),
    }
    return LayerSpec.model_validate(sizes | biases | {"causal": draw(st.booleans())} | fixed)


def assert_same_function(spec: LayerSpec, one: Any, other: Any) -> None:
    x = normal(2, 6, spec.d_model, seed=99)
    torch.testing.assert_close(attention(spec, one, x), attention(spec, other, x), rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=25)
@given(layers(), SEEDS)
def test_query_key_gauge_keeps_the_scores(spec: LayerSpec, seed: int) -> None:
    own = random_parameters(spec, torch.Generator().manual_seed(seed))
    before = {name: tensor.clone() for name, tensor in own.items()}
    moved = transform_query_key(spec, own, invertible(spec.n_kv_heads, spec.qk_head_dim, seed))
    x = normal(2, 6, spec.d_model)
    torch.testing.assert_close(scores(spec, moved, x), scores(spec, own, x), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(moved["W_Q"], own["W_Q"])
    assert all(torch.equal(own[name], before[name]) for name in own)


@settings(deadline=None, max_examples=25)
@given(layers(), SEEDS)
def test_value_output_gauge_keeps_the_function(spec: LayerSpec, seed: int) -> None:
    own = random_parameters(spec, torch.Generator().manual_seed(seed))
    moved = transform_value_output(spec, own, invertible(spec.n_kv_heads, spec.v_head_dim, seed))
    assert not torch.allclose(moved["W_V"], own["W_V"])
    assert_same_function(spec, own, moved)


@settings(deadline=None, max_examples=25)
@given(layers(value_bias=True, output_bias=True), SEEDS)
def test_value_bias_folds_into_the_output_bias(spec: LayerSpec, seed: int) -> None:
    own = random_parameters(spec, torch.Generator().manual_seed(seed))
    shift = normal(spec.n_kv_heads, spec.v_head_dim, seed=seed)
    moved = fold_value_bias(spec, own, shift)
    assert torch.equal(moved["b_V"], own["b_V"] + shift)
    assert_same_function(spec, own, moved)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 3), SEEDS)
def test_rotary_scalings_commute_with_rotations(planes: int, seed: int) -> None:
    scale, angle = normal(2, planes, seed=seed).exp(), normal(2, planes, seed=seed + 1)
    S = rotary_scaling(scale, angle)
    x = normal(2, 5, 2 * planes, seed=seed + 2)
    torch.testing.assert_close(rotate(x @ S.mT, 2 * planes), rotate(x, 2 * planes) @ S.mT)
    torch.testing.assert_close(torch.linalg.det(S), scale.square().prod(-1))


def test_rotary_scaling_written_out() -> None:
    S = rotary_scaling(torch.tensor([2.0, 3.0]), torch.tensor([0.0, torch.pi / 2]))
    expected = torch.tensor([[2.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, -3], [0, 0, 3, 0]])
    torch.testing.assert_close(S, expected, atol=1e-6, rtol=0)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.integers(0, 4), SEEDS)
def test_balanced_pairs_have_equal_gram_matrices_and_the_same_scores(D: int, more: int, seed: int) -> None:
    W_Q, W_K = normal(3, D, D + more, seed=seed), 5 * normal(3, D, D + more, seed=seed + 1)
    balanced_q, balanced_k, (S, possible) = balance_pair(W_Q, W_K)
    assert possible.all()
    torch.testing.assert_close(balanced_q @ balanced_q.mT, balanced_k @ balanced_k.mT, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(balanced_q.mT @ balanced_k, W_Q.mT @ W_K, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(S @ W_Q, balanced_q, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(S.mT @ balanced_k, W_K, rtol=1e-7, atol=1e-7)


def distance(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], Z: Tensor) -> Tensor:
    return sum(
        ((old - Z @ new).square().sum((-1, -2)) for old, new in zip(before, after, strict=True)), torch.zeros(())
    )


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), SEEDS, st.floats(1e-3, 1.0))
def test_no_other_balanced_pair_is_nearer(D: int, seed: int, reach: float) -> None:
    before = (normal(1, D, 5, seed=seed), normal(1, D, 5, seed=seed + 1))
    after = balance_pair(*before)[:2]
    near = torch.matrix_exp(reach * (lambda A: A - A.mT)(normal(100, D, D, seed=seed + 2)))
    nearest = distance(before, after, torch.eye(D, dtype=torch.float64))
    for Z in (near, -near, orthogonal(100, D, seed + 3)):
        assert (distance(before, after, Z) >= nearest - 1e-9).all()


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), SEEDS)
def test_a_balanced_pair_stays_where_it_is(D: int, seed: int) -> None:
    once = balance_pair(normal(2, D, 6, seed=seed), normal(2, D, 6, seed=seed + 1))
    twice = balance_pair(once.W_Q, once.W_K)
    torch.testing.assert_close(twice.W_Q, once.W_Q, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(twice.W_K, once.W_K, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(twice.balance.S, torch.eye(D, dtype=torch.float64).expand(2, D, D), rtol=1e-7, atol=1e-7)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.integers(1, 2), st.booleans(), st.booleans(), SEEDS)
def test_rebalancing_a_layer_keeps_its_function(
    heads: int, head_dim: int, query_bias: bool, key_bias: bool, seed: int
) -> None:
    spec = LayerSpec(
        d_model=5,
        n_heads=heads,
        n_kv_heads=heads,
        qk_head_dim=head_dim,
        v_head_dim=2,
        query_bias=query_bias,
        key_bias=key_bias,
    )
    own = random_parameters(spec, torch.Generator().manual_seed(seed))
    moved = rebalance(spec, own, "qk")
    x = normal(2, 6, 5, seed=seed)
    torch.testing.assert_close(scores(spec, moved, x), scores(spec, own, x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(moved["W_Q"] @ moved["W_Q"].mT, moved["W_K"] @ moved["W_K"].mT, rtol=1e-9, atol=1e-9)
    assert torch.equal(moved["W_V"], own["W_V"])


def test_stacked_layers_are_transformed_each_as_alone() -> None:
    spec = LayerSpec.multi_head(6, 2, biases=True)
    stacked = {name: normal(4, *shape, seed=len(shape)) for name, shape in spec.parameter_shapes.items()}
    S, shift = invertible(8, 3, 5).view(4, 2, 3, 3), normal(4, 2, 3)
    together = [
        transform_query_key(spec, stacked, S),
        transform_value_output(spec, stacked, S),
        fold_value_bias(spec, stacked, shift),
        rebalance(spec, stacked, "qk"),
    ]
    for member in range(4):
        own = {name: tensor[member] for name, tensor in stacked.items()}
        alone = [
            transform_query_key(spec, own, S[member]),
            transform_value_output(spec, own, S[member]),
            fold_value_bias(spec, own, shift[member]),
            rebalance(spec, own, "qk"),
        ]
        for many, one in zip(together, alone, strict=True):
            for name in spec.parameter_shapes:
                torch.testing.assert_close(many[name][member], one[name], rtol=1e-9, atol=1e-9)


def test_rebalancing_keeps_the_precision_of_the_weights() -> None:
    spec = LayerSpec.multi_head(8, 2, biases=True)
    own = {name: tensor.float() for name, tensor in random_parameters(spec, torch.Generator().manual_seed(1)).items()}
    moved = rebalance(spec, own, "qk")
    assert {tensor.dtype for tensor in moved.values()} == {torch.float32}
    x = normal(2, 5, 8)
    exact = [{name: tensor.double() for name, tensor in weights.items()} for weights in (own, moved)]
    torch.testing.assert_close(attention(spec, exact[0], x), attention(spec, exact[1], x), rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=25)
@given(layers(d_model=6, qk_head_dim=4), st.sampled_from((0, 2, 4)), st.sampled_from(("qk", "qk-vo")), SEEDS)
def test_rebalancing_any_layer_keeps_its_function_and_balances_what_its_gauge_reaches(
    plain: LayerSpec, rotary_dim: int, sides: str, seed: int
) -> None:
    spec = plain.model_copy(update={"rotary_dim": rotary_dim})
    own = random_parameters(spec, torch.Generator().manual_seed(seed))
    moved = rebalance(spec, own, sides)
    assert_same_function(spec, own, moved)
    pair = Pair(side_by_side(moved["W_Q"], spec.n_kv_heads), moved["W_K"])
    assert pair.imbalance(rotary_dim).abs().max() < 1e-8 * pair.squared_norm().max()
    if sides == "qk":
        assert torch.equal(moved["W_V"], own["W_V"])
    else:
        values = Pair(moved["W_V"], side_by_side(moved["W_O"].mT, spec.n_kv_heads))
        assert values.imbalance().abs().max() < 1e-8 * values.squared_norm().max()


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), SEEDS)
def test_heads_side_by_side_come_apart_again(groups: int, shared: int, width: int, seed: int) -> None:
    heads = normal(2, groups * shared, width, 5, seed=seed)
    beside = side_by_side(heads, groups)
    assert beside.shape == (2, groups, width, shared * 5)
    assert torch.equal(apart(beside, groups * shared), heads)
    grams = (heads @ heads.mT).unflatten(1, (groups, shared)).sum(2)
    torch.testing.assert_close(beside @ beside.mT, grams)


@settings(deadline=None, max_examples=25)
@given(layers(value_bias=True, query_bias=True, key_bias=True), SEEDS)
def test_moments_move_as_gradients_do(spec: LayerSpec, seed: int) -> None:
    """The gradient at the moved weights is the transported gradient at the weights before."""
    own = random_parameters(spec, torch.Generator().manual_seed(seed))
    x, target = normal(2, 6, spec.d_model, seed=seed), normal(2, 6, spec.d_model, seed=seed + 1)

    def gradient(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
        (attention(spec, leaves, x) - target).square().sum().backward()
        return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}

    S = invertible(spec.n_kv_heads, spec.qk_head_dim, seed)
    V = invertible(spec.n_kv_heads, spec.v_head_dim, seed + 1)
    moved = gradient(transform_value_output(spec, transform_query_key(spec, own, S), V))
    transported = transport_value_output(spec, transport_query_key(spec, gradient(own), S, 1), V, 1)
    for name, tensor in moved.items():
        torch.testing.assert_close(transported[name], tensor, rtol=1e-8, atol=1e-8, msg=name)


def test_squares_of_uncorrelated_gradients_move_by_the_squares_of_the_matrix() -> None:
    spec = LayerSpec.multi_head(4, 2)
    S = invertible(2, 2, 7)
    draws = {name: normal(40_000, *shape, seed=len(name)) for name, shape in spec.parameter_shapes.items()}
    of_moved = transport_query_key(spec, draws, S, 1)
    moved = transport_query_key(spec, {name: tensor.square().mean(0) for name, tensor in draws.items()}, S, 2)
    for name in ("W_Q", "W_K"):
        torch.testing.assert_close(of_moved[name].square().mean(0), moved[name], rtol=0.05, atol=0)


DEFECTS: dict[str, Callable[[Tensor], Tensor]] = {
    "zero": lambda W: W * 0,
    "a row of zero": lambda W: W.index_fill(-2, torch.tensor([1]), 0),
    "a row twice": lambda W: W[..., [0, 0, 2, 3], :],
    "infinite": lambda W: W.index_fill(-1, torch.tensor([2]), torch.inf),
    "not a number": lambda W: W.index_fill(-1, torch.tensor([2]), torch.nan),
    "beyond float64 squared": lambda W: W * 1e200,
}


@pytest.mark.parametrize("name", ["W_Q", "W_K", "W_V"])
@pytest.mark.parametrize("defect", DEFECTS)
def test_heads_that_cannot_be_rebalanced_stay_and_the_others_do_not_notice(defect: str, name: str) -> None:
    spec = LayerSpec.multi_head(12, 3)
    whole = {key: normal(*shape, seed=number) for number, (key, shape) in enumerate(spec.parameter_shapes.items())}
    broken = {key: tensor.clone() for key, tensor in whole.items()}
    broken[name][1] = DEFECTS[defect](whole[name][1])
    balance = balance_value_output if name == "W_V" else balance_query_key
    assert balance(spec, broken).possible.tolist() == [True, False, True]
    expected, found = rebalance(spec, whole, "qk-vo"), rebalance(spec, broken, "qk-vo")
    for key in ("W_Q", "W_K", "W_V"):
        torch.testing.assert_close(found[key][[0, 2]], expected[key][[0, 2]])
    if broken[name].isfinite().all():
        for key in ("W_V",) if name == "W_V" else ("W_Q", "W_K"):
            assert torch.equal(found[key][1], broken[key][1])


def test_a_rotary_head_with_an_empty_plane_stays() -> None:
    spec = LayerSpec.multi_head(12, 3).model_copy(update={"rotary_dim": 4})
    weights = {key: normal(*shape, seed=number) for number, (key, shape) in enumerate(spec.parameter_shapes.items())}
    weights["W_K"][2, :2] = 0
    assert balance_query_key(spec, weights).possible.tolist() == [True, True, False]
    found = rebalance(spec, weights, "qk")
    assert torch.equal(found["W_Q"][2], weights["W_Q"][2])
    assert torch.equal(found["W_K"][2], weights["W_K"][2])


def test_rebalancing_refuses_heads_wider_than_the_model() -> None:
    with pytest.raises(ValueError, match="a head of width 3 above the model's width 2"):
        balance_pair(normal(3, 2), normal(3, 2))
