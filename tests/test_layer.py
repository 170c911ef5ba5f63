import pytest
from pydantic import ValidationError

from attnid.layer import LayerSpec, reachable_buckets, relative_bucket

SIZES = {"d_model": 6, "n_heads": 4, "n_kv_heads": 2, "qk_head_dim": 4, "v_head_dim": 3}


def test_shapes_follow_the_sizes() -> None:
    spec = LayerSpec(**SIZES, query_bias=True, key_bias=True, value_bias=True, output_bias=True)
    assert spec.parameter_shapes == {
        "W_Q": (4, 4, 6),
        "W_K": (2, 4, 6),
        "b_Q": (4, 4),
        "b_K": (2, 4),
        "W_V": (2, 3, 6),
        "W_O": (4, 6, 3),
        "b_V": (2, 3),
        "b_O": (6,),
    }
    assert list(spec.parameter_shapes) == ["W_Q", "W_K", "b_Q", "b_K", "W_V", "W_O", "b_V", "b_O"]


def test_absent_biases_have_no_shape() -> None:
    assert list(LayerSpec(**SIZES, key_bias=True).parameter_shapes) == ["W_Q", "W_K", "b_K", "W_V", "W_O"]


def test_multi_head_splits_the_width() -> None:
    spec = LayerSpec.multi_head(12, 3, biases=True)
    assert (spec.n_kv_heads, spec.qk_head_dim, spec.v_head_dim, spec.heads_per_group) == (3, 4, 4, 1)
    assert spec.query_bias
    assert spec.key_bias
    assert spec.value_bias
    assert spec.output_bias


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"n_kv_heads": 3}, "n_kv_heads must divide n_heads = 4, not 3"),
        ({"n_kv_heads": 8}, "n_kv_heads must divide n_heads = 4, not 8"),
        ({"rotary_dim": 3}, "rotary_dim must be even, not 3"),
        ({"rotary_dim": 6}, "rotary_dim must be at most qk_head_dim = 4, not 6"),
        ({"rotary_dim": -2}, "greater than or equal to 0"),
        ({"d_model": 0}, "greater than or equal to 1"),
        ({"n_heads": 4.0}, "valid integer"),
        ({"n_heads": True}, "valid integer"),
        ({"sink": True}, "Extra inputs are not permitted"),
        ({"context_dim": 5}, "causal must be false with context_dim"),
        ({"context_dim": 0, "causal": False}, "greater than or equal to 1"),
        ({"qk_norm": "layer"}, "'none', 'head' or 'full'"),
        ({"soft_cap": 0}, "greater than 0"),
        ({"soft_cap": float("nan")}, "finite number"),
        ({"soft_cap": float("inf")}, "finite number"),
        ({"relative_buckets": 1}, "relative_buckets must be 0 or at least 2, not 1"),
        ({"relative_buckets": 5, "causal": False}, "even and at least 4 without causal mask, not 5"),
        ({"relative_buckets": 2, "causal": False}, "even and at least 4 without causal mask, not 2"),
        ({"relative_buckets": 32, "relative_distance": 16}, "relative_distance must be above 16 here, not 16"),
        ({"pre_norm_bias": True}, 'pre_norm_bias needs pre_norm "layer", not "none"'),
        ({"pre_norm": "rms", "pre_norm_bias": True}, 'pre_norm_bias needs pre_norm "layer", not "rms"'),
        ({"pre_norm": "layer", "d_model": 1}, "it leaves nothing of one number"),
        ({"q_latent_dim": 3}, "q_latent_dim needs kv_latent_dim"),
        ({"kv_latent_dim": 3}, "kv_latent_dim does not go with n_kv_heads below n_heads"),
        ({"kv_latent_dim": 3, "n_kv_heads": 4, "key_bias": True}, "does not go with a query, key or value bias"),
        ({"kv_latent_dim": 3, "n_kv_heads": 4, "qk_norm": "head"}, 'does not go with qk_norm "head"'),
        ({"kv_latent_dim": 3, "n_kv_heads": 4, "rotary_dim": 4}, "does not go with rotary_dim equal to qk_head_dim"),
        ({"kv_latent_dim": 3, "n_kv_heads": 4, "context_dim": 5, "causal": False}, "does not go with context_dim"),
    ],
)
def test_impossible_layers_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        LayerSpec.model_validate(SIZES | change)


def test_multi_head_refuses_heads_that_do_not_divide_the_width() -> None:
    with pytest.raises(ValueError, match="n_heads must divide d_model = 10, not 4"):
        LayerSpec.multi_head(10, 4)


def test_latents_replace_projections() -> None:
    """Sizes of a scaled-down DeepSeek V3: 4 heads of 2 + 2 dimensions, values of 3, latents of 5 and 7."""
    sizes = SIZES | {"n_kv_heads": 4, "rotary_dim": 2, "kv_latent_dim": 5, "q_latent_dim": 7}
    assert LayerSpec.model_validate(sizes).parameter_shapes == {
        "W_DQ": (7, 6),
        "g_DQ": (7,),
        "W_UQ": (4, 4, 7),
        "W_UK": (4, 2, 5),
        "W_KR": (2, 6),
        "W_UV": (4, 3, 5),
        "W_O": (4, 6, 3),
        "W_DKV": (5, 6),
        "g_DKV": (5,),
    }


def test_gains_sinks_and_tables_have_shapes() -> None:
    head = LayerSpec(**SIZES, qk_norm="head", sinks=True, relative_buckets=8).parameter_shapes
    assert (head["g_Q"], head["g_K"], head["sinks"], head["table"]) == ((4,), (4,), (4,), (4, 8))
    full = LayerSpec(**SIZES, qk_norm="full", pre_norm="layer", pre_norm_bias=True).parameter_shapes
    assert (full["g_Q"], full["g_K"], full["g_N"], full["b_N"]) == ((4, 4), (2, 4), (6,), (6,))
    assert "g_Q" not in LayerSpec(**SIZES, qk_norm="head", qk_norm_gain=False).parameter_shapes


def test_cross_attention_reads_keys_and_values_from_the_context() -> None:
    shapes = LayerSpec(**SIZES, context_dim=9, causal=False).parameter_shapes
    assert (shapes["W_Q"][-1], shapes["W_K"][-1], shapes["W_V"][-1]) == (6, 9, 9)


def test_buckets_of_a_bidirectional_table_leave_one_unused() -> None:
    """The later half starts at distance 0, which only a key at the query's own place has: of the earlier half."""
    spec = LayerSpec(**SIZES, causal=False, relative_buckets=32)
    assert reachable_buckets(spec) == set(range(32)) - {16}
    assert reachable_buckets(spec.model_copy(update={"causal": True})) == set(range(32))


@pytest.mark.parametrize(("offset", "bucket"), [(0, 0), (-7, 7), (-8, 8), (-128, 15), (-500, 15), (1, 17), (128, 31)])
def test_buckets_of_t5(offset: int, bucket: int) -> None:
    assert relative_bucket(LayerSpec(**SIZES, causal=False, relative_buckets=32), offset) == bucket


def test_a_layer_alone_has_no_input_norm() -> None:
    spec = LayerSpec(**SIZES, pre_norm="layer", pre_norm_gain=False, pre_norm_bias=True, sinks=True)
    assert spec.alone == LayerSpec(**SIZES, sinks=True)
