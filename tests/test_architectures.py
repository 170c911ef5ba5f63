import subprocess
import sys

import pytest

from attnid.architectures import architectures
from attnid.counting import count
from attnid.layer import LayerSpec

MODELS = {model.model: model for model in architectures()}


def spec(name: str) -> LayerSpec:
    [layers] = MODELS[name].layers
    return layers.spec


def test_all_models_are_there_once() -> None:
    assert len(architectures()) == len(MODELS) == 55


def test_every_kind_of_layer_has_a_closed_form() -> None:
    for model in MODELS.values():
        for layers in model.layers:
            assert 0.85 < count(layers.spec).identified_fraction < 1


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("gpt2 (small)", 4 * 768 * 769),
        ("Llama-2-70B", 2 * 8192 * 8192 + 2 * 8192 * 1024),
        ("Qwen2.5-0.5B", 2 * 896 * 896 + 2 * 896 * 128 + 896 + 2 * 128),
        ("Gemma-2-9b", 2 * 3584 * 4096 + 2 * 3584 * 2048),
        ("Qwen3-8B", 2 * 4096 * 4096 + 2 * 4096 * 1024 + 2 * 128),
        ("OLMo-2-7B", 4 * 4096 * 4096 + 2 * 4096),
        ("gpt-oss-20b", 2 * 2880 * 4096 + 2 * 2880 * 512 + 4096 + 2 * 512 + 2880 + 64),
        (
            "DeepSeek-V3",
            (7168 * 1536 + 1536 + 1536 * 128 * 192)
            + (7168 * (512 + 64) + 512 + 512 * 128 * (128 + 128))
            + 128 * 128 * 7168,
        ),
    ],
)
def test_attention_parameters_of_a_layer(model: str, parameters: int) -> None:
    assert count(spec(model).alone).parameters == parameters


@pytest.mark.parametrize(
    ("model", "unidentified"),
    [
        ("Llama-2-70B", 8 * 128 + 8 * 128**2),
        ("Qwen3-8B", 32 + 8 + 64 + 8 * 128**2),
        ("OLMo-2-7B", 2 + 32 * 64 + 32 * 128**2),
        ("Gemma-3-27b", 32 + 16 + 64 + 16 * 128**2),
        ("gpt-oss-20b", 8 * 64 + 8 * 64**2),
        ("Gemma-2-2b", 4 * 256 + 4 * 256**2),
        ("DeepSeek-V3", 128 * (128**2 + 128**2) + 64 + (512 * 513 // 2 + 1) + (1536 * 1537 // 2 + 1)),
        ("DeepSeek-V2-Lite", 16 * (128**2 + 128**2) + 64 + 512 * 513 // 2 + 1),
        ("Pythia-1b", 8 * (64 + 192**2) + 8 * 256**2 + 8 * 192 + 8 * 256),
    ],
)
def test_unidentified_parameters_of_a_layer(model: str, unidentified: int) -> None:
    assert count(spec(model).alone).unidentified == unidentified


def test_partial_rope_covers_part_of_a_head() -> None:
    assert (spec("Pythia-1b").rotary_dim, spec("Pythia-1b").qk_head_dim) == (64, 256)


@pytest.mark.parametrize(("prefix", "layers"), [("T5-base", 36), ("Whisper-base", 18)])
def test_encoders_and_decoders_have_layers_of_several_kinds(prefix: str, layers: int) -> None:
    [model] = [model for name, model in MODELS.items() if name.startswith(prefix)]
    assert sum(kind.number for kind in model.layers) == layers
    assert [kind.role for kind in model.layers if kind.spec.context_dim] == ["cross"]
    for kind in model.layers:
        assert kind.spec.causal == kind.role.startswith("decoder")


def test_what_counts_does_not_load_torch() -> None:
    modules = "attnid.tables, attnid.paths, attnid.layer, attnid.counting, attnid.architectures, attnid.huggingface"
    subprocess.run([sys.executable, "-c", f"import sys, {modules}; assert 'torch' not in sys.modules"], check=True)
