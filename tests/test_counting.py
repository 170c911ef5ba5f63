"""Closed forms against numbers worked out by hand; `test_rank` holds them against the real layer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnid import tables
from attnid.counting import SOURCES, Count, NoClosedFormError, count, gauge_dimension
from attnid.layer import LayerSpec


def layer(d_model: int, n_heads: int, head_dim: int, **features: object) -> LayerSpec:
    sizes = {"d_model": d_model, "n_heads": n_heads, "n_kv_heads": n_heads}
    return LayerSpec.model_validate(sizes | {"qk_head_dim": head_dim, "v_head_dim": head_dim} | features)


def test_every_source_of_a_small_layer_with_all_biases() -> None:
    spec = LayerSpec(
        d_model=10,
        n_heads=4,
        n_kv_heads=2,
        qk_head_dim=5,
        v_head_dim=3,
        rotary_dim=2,
        query_bias=True,
        key_bias=True,
        value_bias=True,
        output_bias=True,
    )
    counted = count(spec)
    assert counted == Count(
        query_key=(4 + 2) * 5 * (10 + 1),
        value_output=(4 + 2) * 3 * 10 + 2 * 3 + 10,
        query_key_gauge=2 * (2 + 3 * 3),
        value_output_gauge=2 * 3 * 3,
        dead_key_bias=2 * 3,
        dead_value_bias=2 * 3,
    )
    assert counted.parameters == 330 + 196
    assert counted.unidentified == 22 + 18 + 6 + 6
    assert counted.identified == counted.identified_query_key + counted.identified_value_output == 526 - 52
    assert counted.identified_fraction == (526 - 52) / 526


@pytest.mark.parametrize("n_heads", [1, 2, 3, 4, 6, 8, 12, 24])
def test_multi_head_identifies_all_but_one_in_twice_the_heads(n_heads: int) -> None:
    counted = count(LayerSpec.multi_head(24, n_heads))
    assert counted.identified_fraction == 1 - 1 / (2 * n_heads)
    assert counted.identified_query_key / counted.query_key == 1 - 1 / (2 * n_heads)


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8])
def test_heads_as_wide_as_the_model_are_half_identified(n_heads: int) -> None:
    assert count(layer(8, n_heads, 8)).identified_fraction == 0.5


@pytest.mark.parametrize("head_dim", [1, 2, 5])
def test_in_a_model_of_width_one_a_head_has_one_effect(head_dim: int) -> None:
    assert count(layer(1, 1, head_dim)).query_key_gauge == 2 * head_dim - 1


def test_a_head_wider_than_the_model_has_the_effect_of_a_full_matrix() -> None:
    counted = count(layer(4, 3, 7))
    assert counted.identified_query_key == counted.identified_value_output == 3 * 4 * 4


def test_dead_biases_of_multi_head_are_twice_the_width() -> None:
    for n_heads in (1, 2, 3, 4, 6, 12):
        counted = count(LayerSpec.multi_head(12, n_heads, biases=True))
        assert counted.dead_key_bias + counted.dead_value_bias == 24


def test_rope_leaves_one_plane_of_rotation_and_scale() -> None:
    counted = count(layer(16, 2, 8, rotary_dim=8, key_bias=True))
    assert counted.query_key_gauge == 2 * 8
    assert counted.dead_key_bias == 0


@pytest.mark.parametrize(("rotary_dim", "gauge"), [(0, 8 * 128**2), (128, 8 * 128)])
def test_llama_2_70b(rotary_dim: int, gauge: int) -> None:
    spec = LayerSpec(d_model=8192, n_heads=64, n_kv_heads=8, qk_head_dim=128, v_head_dim=128, rotary_dim=rotary_dim)
    counted = count(spec)
    assert counted.query_key_gauge == gauge
    assert counted.value_output_gauge == 131_072


@pytest.mark.parametrize(
    ("output_bias", "head_dim", "dead"), [(False, 1, 0), (False, 2, 1), (False, 3, 3), (True, 1, 2), (True, 2, 4)]
)
def test_a_value_bias_without_an_output_bias_is_dead_beyond_the_width(
    output_bias: bool, head_dim: int, dead: int
) -> None:
    assert count(layer(3, 2, head_dim, value_bias=True, output_bias=output_bias)).dead_value_bias == dead


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_gauge_dimension_is_the_kernel_of_the_derivative_of_a_product(
    rows: int, columns: int, inner: int, seed: int
) -> None:
    draws = np.random.default_rng(seed)
    left, right = draws.standard_normal((rows, inner)), draws.standard_normal((inner, columns))
    derivative = np.hstack([np.kron(np.eye(rows), right.T), np.kron(left, np.eye(columns))])
    kernel = inner * (rows + columns) - np.linalg.matrix_rank(derivative, tol=1e-10)
    assert gauge_dimension(rows, columns, inner) == kernel


@pytest.mark.parametrize(
    ("biases", "norm_bias", "parameters", "identified"),
    [
        ({}, False, 150, 90),
        ({}, True, 156, 102),
        ({"query_bias": True}, True, 162, 102),
        ({"query_bias": True, "key_bias": True, "value_bias": True}, True, 174, 102),
        ({"query_bias": True, "key_bias": True, "value_bias": True, "output_bias": True}, True, 180, 102),
    ],
)
def test_a_block_with_layer_norm(biases: dict[str, bool], norm_bias: bool, parameters: int, identified: int) -> None:
    """With a norm bias as much as with all biases on inputs of 5 dimensions, whichever biases there are."""
    counted = count(layer(6, 2, 3, pre_norm="layer", pre_norm_bias=norm_bias, **biases))
    assert (counted.parameters, counted.identified) == (parameters, identified)
    assert counted.norm_gain == 6
    assert counted.norm_bias == 6 * norm_bias


def test_a_gain_before_the_layer_is_absorbed() -> None:
    alone, block = count(layer(8, 2, 4)), count(layer(8, 2, 4, pre_norm="rms"))
    assert (block.identified, block.unidentified) == (alone.identified, alone.unidentified + 8)


@pytest.mark.parametrize(
    ("features", "left"),
    [
        ({"qk_norm": "head"}, 4 + 2 + 4),
        ({"qk_norm": "head", "rotary_dim": 4}, 4 + 2 + 2),
        ({"qk_norm": "head", "rotary_dim": 2}, 4 + 2 + 1 + 2),
        ({"qk_norm": "head", "qk_norm_gain": False}, 4 + 2 + 2 * 6),
        ({"qk_norm": "full"}, 2 + 2 * 4),
        ({"qk_norm": "full", "rotary_dim": 4}, 2 + 2 * 2),
        ({"alibi": True}, 2 * 16),
        ({"soft_cap": 30.0}, 2 * 16),
        ({"sinks": True}, 2 * 16),
    ],
)
def test_what_is_left_of_the_query_key_gauge(features: dict[str, object], left: int) -> None:
    """Four heads of four dimensions in two groups."""
    assert count(layer(16, 4, 4, n_kv_heads=2, **features)).query_key_gauge == left


@pytest.mark.parametrize("feature", [{"sinks": True}, {"soft_cap": 30.0}, {"qk_norm": "head"}])
def test_what_brings_a_key_bias_to_life(feature: dict[str, object]) -> None:
    assert count(layer(16, 4, 4, key_bias=True)).dead_key_bias == 16
    assert count(layer(16, 4, 4, key_bias=True, **feature)).dead_key_bias == 0


def test_a_sink_brings_a_value_bias_to_life() -> None:
    biases = {"value_bias": True, "output_bias": True}
    assert count(layer(16, 4, 4, **biases)).dead_value_bias == 16
    assert count(layer(16, 4, 4, sinks=True, **biases)).dead_value_bias == 0


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        ({"qk_norm": "head", "d_model": 3}, "wider than their input"),
        ({"qk_norm": "full", "d_model": 7}, "wider than their input"),
        ({"qk_norm": "head", "qk_head_dim": 1}, "of one dimension"),
        ({"pre_norm": "layer", "d_model": 2}, "less than two dimensions"),
        ({"kv_latent_dim": 9}, "kv_latent_dim outside what its heads span"),
        ({"kv_latent_dim": 3}, "kv_latent_dim outside what its heads span"),
        ({"kv_latent_dim": 6, "q_latent_dim": 9}, "q_latent_dim outside what its heads span"),
    ],
)
def test_a_combination_without_closed_form_is_never_guessed(features: dict[str, object], reason: str) -> None:
    spec = LayerSpec.model_validate(layer(8, 2, 4).model_dump() | features)
    with pytest.raises(NoClosedFormError, match=reason):
        count(spec)


def test_sources_are_those_of_the_tables() -> None:
    for table in (tables.RANKS, tables.VARIANTS, tables.ARCHITECTURES):
        assert [name for name in table.names if name in SOURCES] == list(SOURCES)
