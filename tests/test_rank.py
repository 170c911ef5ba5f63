from typing import Any

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from attnid.attention import attention, random_parameters
from attnid.counting import count
from attnid.layer import LayerSpec
from attnid.rank import Rank, UnclearRankError, jacobian, layer_ranks, numerical_rank


@st.composite
def layers(draw: st.DrawFn) -> LayerSpec:
    """Small layers with any features. Width 1 is left out: the heads' few effects there are too much alike."""
    groups, head_dim = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    features: dict[str, Any] = {
        name: draw(st.booleans()) for name in ("query_bias", "key_bias", "value_bias", "output_bias", "causal")
    }
    return LayerSpec(
        d_model=draw(st.integers(2, 6)),
        n_heads=groups * draw(st.integers(1, 2)),
        n_kv_heads=groups,
        qk_head_dim=head_dim,
        v_head_dim=draw(st.integers(1, 6)),
        rotary_dim=2 * draw(st.integers(0, head_dim // 2)),
        **features,
    )


@settings(deadline=None, max_examples=40)
@given(layers(), st.integers(0, 2**31))
def test_closed_form_is_the_rank_of_the_real_layer(spec: LayerSpec, seed: int) -> None:
    try:
        ranks = layer_ranks(spec, seed)
    except UnclearRankError:
        reject()
    counted = count(spec)
    assert ranks.query_key.rank == counted.identified_query_key
    assert ranks.value_output.rank == counted.identified_value_output
    assert ranks.layer.rank == counted.identified


@pytest.mark.parametrize("head_dim", [1, 2, 5])
def test_in_a_model_of_width_one_a_head_has_two_effects(head_dim: int) -> None:
    spec = LayerSpec(d_model=1, n_heads=1, n_kv_heads=1, qk_head_dim=head_dim, v_head_dim=head_dim)
    ranks = layer_ranks(spec)
    assert (ranks.layer.rank, ranks.query_key.rank, ranks.value_output.rank) == (2, 1, 1)


def test_more_inputs_show_no_more_parameters() -> None:
    spec = LayerSpec.multi_head(6, 2, biases=True)
    few, many = layer_ranks(spec), layer_ranks(spec, seed=1, sequences=30, tokens=14)
    assert (many.sequences, many.tokens) == (30, 14)
    assert few.layer.rank == many.layer.rank


def test_one_token_tells_nothing_of_queries_and_keys() -> None:
    ranks = layer_ranks(LayerSpec.multi_head(4, 2), tokens=1)
    assert ranks.query_key.rank == 0
    assert ranks.layer.rank == ranks.value_output.rank == 4 * 4


def test_the_gap_is_the_worst_of_the_three_ranks() -> None:
    ranks = layer_ranks(LayerSpec.multi_head(6, 3))
    three = (ranks.layer, ranks.query_key, ranks.value_output)
    assert ranks.smallest_kept == min(rank.smallest_kept for rank in three) > 1e-6
    assert ranks.largest_dropped == max(rank.largest_dropped for rank in three) < 1e-13


def test_jacobian_is_the_derivative_of_the_outputs() -> None:
    spec = LayerSpec(
        d_model=3, n_heads=2, n_kv_heads=1, qk_head_dim=2, v_head_dim=2, rotary_dim=2, query_bias=True, output_bias=True
    )
    generator = torch.Generator().manual_seed(3)
    parameters = random_parameters(spec, generator)
    x = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    columns = []
    for name, tensor in parameters.items():
        for entry in range(tensor.numel()):
            step = torch.zeros(tensor.numel(), dtype=torch.float64)
            step[entry] = 1e-6
            ahead, behind = ({**parameters, name: tensor + sign * step.view_as(tensor)} for sign in (1, -1))
            columns.append((attention(spec, ahead, x) - attention(spec, behind, x)).flatten() / 2e-6)
    torch.testing.assert_close(jacobian(spec, parameters, x), torch.stack(columns, dim=1), rtol=1e-6, atol=1e-8)


def test_rank_counts_what_lies_above_the_gap() -> None:
    values = torch.tensor([4.0, 2e-3, 4e-15, 0.0], dtype=torch.float64)
    assert numerical_rank(values, 4.0) == Rank(2, pytest.approx(5e-4), pytest.approx(1e-15))
    assert numerical_rank(values[:2], 4.0) == Rank(2, pytest.approx(5e-4), 0.0)
    assert numerical_rank(values[2:], 4.0) == Rank(0, 0.0, pytest.approx(1e-15))
    assert numerical_rank(torch.zeros(2, dtype=torch.float64), 0.0) == Rank(0, 0.0, 0.0)


def test_a_rank_without_a_gap_is_refused() -> None:
    with pytest.raises(UnclearRankError, match=r"5\.0e-11 of the largest"):
        numerical_rank(torch.tensor([2.0, 1e-10], dtype=torch.float64), 2.0)


def test_an_unclear_rank_names_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnid.rank.DROPPED_BELOW", 0.0)
    with pytest.raises(UnclearRankError, match="d_model=4, n_heads=1"):
        layer_ranks(LayerSpec.multi_head(4, 1))
