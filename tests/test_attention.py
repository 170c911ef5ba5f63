from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from attnid.attention import attention, random_parameters, rotate, scores
from attnid.layer import LayerSpec

ALL_BIASES = {"query_bias": True, "key_bias": True, "value_bias": True, "output_bias": True}


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def inputs(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=draws(seed), dtype=torch.float64)


def layer(**changes: object) -> LayerSpec:
    sizes = {"d_model": 12, "n_heads": 4, "n_kv_heads": 2, "qk_head_dim": 6, "v_head_dim": 5}
    return LayerSpec.model_validate(sizes | ALL_BIASES | changes)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_equals_scaled_dot_product_attention(n_kv_heads: int, causal: bool) -> None:
    spec = layer(n_kv_heads=n_kv_heads, causal=causal)
    own, x = random_parameters(spec, draws()), inputs(3, 7, 12)
    queries = torch.einsum("hde,ble->bhld", own["W_Q"], x) + own["b_Q"].unsqueeze(1)
    keys = torch.einsum("gde,ble->bgld", own["W_K"], x) + own["b_K"].unsqueeze(1)
    values = torch.einsum("gce,ble->bglc", own["W_V"], x) + own["b_V"].unsqueeze(1)
    mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=causal, enable_gqa=True)
    expected = torch.einsum("hec,bhlc->ble", own["W_O"], mixed) + own["b_O"]
    torch.testing.assert_close(attention(spec, own, x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_equals_torch_multihead_attention(causal: bool) -> None:
    spec = LayerSpec.multi_head(12, 3, biases=True, causal=causal)
    own, x = random_parameters(spec, draws()), inputs(2, 5, 12)
    module = torch.nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.cat([own[name].flatten(0, 1) for name in ("W_Q", "W_K", "W_V")]))
        module.in_proj_bias.copy_(torch.cat([own[name].flatten() for name in ("b_Q", "b_K", "b_V")]))
        module.out_proj.weight.copy_(own["W_O"].transpose(0, 1).flatten(1))
        module.out_proj.bias.copy_(own["b_O"])
        mask = torch.nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64) if causal else None
        expected, _ = module(x, x, x, attn_mask=mask, need_weights=False)
    torch.testing.assert_close(attention(spec, own, x), expected, rtol=1e-12, atol=1e-12)


def test_a_causal_output_does_not_see_later_tokens() -> None:
    spec, x = layer(rotary_dim=4), inputs(2, 6, 12)
    own = random_parameters(spec, draws())
    changed = x.clone()
    changed[:, 4:] += 1.0
    before, after = attention(spec, own, x), attention(spec, own, changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.isclose(before[:, 4:], after[:, 4:]).any()


@pytest.mark.parametrize("rotary_dim", [0, 4])
@pytest.mark.parametrize("members", [(3,), (2, 3)])
def test_stacked_parameters_give_what_each_gives_alone(members: tuple[int, ...], rotary_dim: int) -> None:
    spec = layer(rotary_dim=rotary_dim)
    stacked = {name: inputs(*members, *shape, seed=7) for name, shape in spec.parameter_shapes.items()}
    x = inputs(*members, 2, 5, 12)
    together = attention(spec, stacked, x)
    assert together.shape == x.shape
    for index in product(*(range(size) for size in members)):
        own = {name: tensor[index] for name, tensor in stacked.items()}
        torch.testing.assert_close(together[index], attention(spec, own, x[index]))


def test_rotation_is_a_product_of_complex_numbers() -> None:
    x = inputs(2, 9, 6)
    pairs = torch.view_as_complex(x[..., :4].unflatten(-1, (2, 2)).contiguous())
    angles = torch.arange(9, dtype=torch.float64)[:, None] * torch.tensor([1.0, 1e-2], dtype=torch.float64)
    expected = torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
    rotated = rotate(x, 4)
    torch.testing.assert_close(rotated[..., :4], expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(rotated[..., 4:], x[..., 4:])


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 3), st.integers(0, 5), st.integers(0, 2**31))
def test_rotary_scores_depend_on_relative_position_alone(planes: int, shift: int, seed: int) -> None:
    spec = LayerSpec(
        d_model=4,
        n_heads=2,
        n_kv_heads=1,
        qk_head_dim=6,
        v_head_dim=1,
        rotary_dim=2 * planes,
        causal=False,
        **ALL_BIASES,
    )
    own, x = random_parameters(spec, draws(seed)), inputs(1, 4, 4, seed=seed + 1)
    padded = torch.cat((inputs(1, shift, 4, seed=seed + 2), x), dim=1)
    torch.testing.assert_close(scores(spec, own, padded)[..., shift:, shift:], scores(spec, own, x))


def test_without_rotation_scores_do_not_depend_on_position() -> None:
    spec = layer(causal=False)
    own, x = random_parameters(spec, draws()), inputs(1, 5, 12)
    order = torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(attention(spec, own, x[:, order]), attention(spec, own, x)[:, order])


def test_dropout_acts_on_the_attention_weights() -> None:
    spec = layer()
    own, x = random_parameters(spec, draws()), inputs(2, 5, 12)
    seen = []

    def drop_everything(weights: Tensor) -> Tensor:
        seen.append(weights)
        return torch.zeros_like(weights)

    torch.testing.assert_close(attention(spec, own, x, drop_everything), own["b_O"].expand(2, 5, 12))
    assert seen[0].shape == (2, 2, 2, 5, 5)
    torch.testing.assert_close(seen[0].sum(-1), torch.ones(2, 2, 2, 5, dtype=torch.float64))
