import subprocess
import sys

import pytest
import torch
from torch.func import jacrev

from attnid.architectures import Architecture, architectures, layer_spec, unexpressed_features
from attnid.attention import random_parameters, scores
from attnid.counting import count
from attnid.layer import LayerSpec

MODELS = {model.model: model for model in architectures()}
PLAIN_ROW = {
    "d_model": "8",
    "n_heads": "2",
    "n_kv_heads": "2",
    "qk_head_dim": "4",
    "v_head_dim": "4",
    "rotary_dim": "4",
    "query_bias": "0",
    "key_bias": "1",
    "value_bias": "0",
    "output_bias": "0",
    "position": "RoPE",
    "soft_cap": "0",
    "qk_norm": "none",
    "sinks": "0",
    "kv_latent": "",
}


def spec(name: str) -> LayerSpec:
    found = MODELS[name].spec
    assert found is not None
    return found


def test_all_models_are_there_once() -> None:
    assert len(architectures()) == len(MODELS) == 55


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("gpt2 (small)", 4 * 768 * 769),
        ("Llama-2-70B", 2 * 8192 * 8192 + 2 * 8192 * 1024),
        ("Qwen2.5-0.5B", 2 * 896 * 896 + 2 * 896 * 128 + 896 + 2 * 128),
        ("Whisper-base (6 enc + 6 dec self + 6 cross)", 4 * 512 * 512 + 3 * 512),
        ("Gemma-2-9b", 2 * 3584 * 4096 + 2 * 3584 * 2048),
    ],
)
def test_attention_parameters_of_a_layer(model: str, parameters: int) -> None:
    assert count(spec(model)).parameters == parameters


def test_partial_rope_covers_part_of_a_head() -> None:
    assert (spec("Pythia-1b").rotary_dim, spec("Pythia-1b").qk_head_dim) == (64, 256)


@pytest.mark.parametrize(
    ("model", "feature"),
    [
        ("T5-base (12 enc self + 12 dec self + 12 cross)", "relative bias"),
        ("Qwen3-8B", "query/key normalisation"),
        ("OLMo-2-7B", "query/key normalisation"),
        ("gpt-oss-20b", "attention sinks"),
        ("DeepSeek-V3", "latent attention"),
    ],
)
def test_models_that_no_layer_spec_expresses_say_why(model: str, feature: str) -> None:
    assert MODELS[model].spec is None
    assert MODELS[model].unexpressed == (feature,)


def test_a_model_has_a_spec_or_a_reason() -> None:
    def expressed(model: Architecture) -> bool:
        return model.spec is not None

    assert all(expressed(model) != bool(model.unexpressed) for model in MODELS.values())
    assert sum(map(expressed, MODELS.values())) == 38


@pytest.mark.parametrize(
    "change",
    [
        {"position": "relative bias"},
        {"qk_norm": "head"},
        {"sinks": "1"},
        {"kv_latent": "512"},
        {"soft_cap": "1", "key_bias": "1"},
    ],
)
def test_a_row_with_a_feature_beyond_the_spec_has_none(change: dict[str, str]) -> None:
    assert layer_spec(PLAIN_ROW) is not None
    assert layer_spec(PLAIN_ROW | change) is None
    assert len(unexpressed_features(PLAIN_ROW | change)) == 1


@pytest.mark.parametrize("key_bias", [False, True])
@pytest.mark.parametrize("rotary_dim", [0, 2])
def test_a_soft_cap_leaves_the_gauge_and_brings_a_key_bias_to_life(rotary_dim: int, key_bias: bool) -> None:
    capped = LayerSpec(
        d_model=4,
        n_heads=2,
        n_kv_heads=2,
        qk_head_dim=3,
        v_head_dim=2,
        rotary_dim=rotary_dim,
        key_bias=key_bias,
        causal=False,
    )
    generator = torch.Generator().manual_seed(1)
    parameters = random_parameters(capped, generator, scale=0.5)
    x = torch.randn(10, 6, 4, generator=generator, dtype=torch.float64)
    shapes = capped.query_key_shapes

    def weights(query_key: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.softmax(2 * torch.tanh(scores(capped, query_key, x) / 2), dim=-1).flatten()

    derivative = jacrev(weights)({name: parameters[name] for name in shapes})
    rank = torch.linalg.matrix_rank(torch.cat([derivative[name].flatten(1) for name in shapes], dim=1), rtol=1e-9)
    counted = count(capped)
    assert rank == counted.query_key - counted.query_key_gauge
    assert (rank == counted.identified_query_key) == (not key_bias)


def test_what_counts_does_not_load_torch() -> None:
    modules = "attnid.tables, attnid.paths, attnid.layer, attnid.counting, attnid.architectures"
    subprocess.run([sys.executable, "-c", f"import sys, {modules}; assert 'torch' not in sys.modules"], check=True)
