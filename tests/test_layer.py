import pytest
from pydantic import ValidationError

from attnid.layer import LayerSpec

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
        ({"sinks": True}, "Extra inputs are not permitted"),
    ],
)
def test_impossible_layers_are_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        LayerSpec.model_validate(SIZES | change)


def test_multi_head_refuses_heads_that_do_not_divide_the_width() -> None:
    with pytest.raises(ValueError, match="n_heads must divide d_model = 10, not 4"):
        LayerSpec.multi_head(10, 4)
