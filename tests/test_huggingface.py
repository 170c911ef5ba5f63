"""The reader of config.json files against transformers itself, and against published models."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from small_models import cheap_settings
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.utils import logging

from attnid.attention_layers import AttentionLayers
from attnid.errors import UserError
from attnid.huggingface import FAMILIES, attention_layers
from attnid.layer import LayerSpec, numel, relative_bucket

logging.set_verbosity_error()

Config = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """The attention layers of one role in a transformers model: patterns of parameter names.

    `names` maps parameters of LayerSpec, several where one matrix holds them all, to the end of the name within the
    attention module.
    """

    module: str
    norm: str
    names: dict[str, str]


def projections(query: str, key: str, value: str, output: str) -> dict[str, str]:
    ends = {"Q": query, "K": key, "V": value, "O": output}
    weights = {f"W_{letter}": f"{end}.weight" for letter, end in ends.items()}
    return weights | {f"b_{letter}": f"{end}.bias" for letter, end in ends.items()}


def fused(joint: str, output: str) -> dict[str, str]:
    return {
        "W_Q W_K W_V": f"{joint}.weight",
        "b_Q b_K b_V": f"{joint}.bias",
        "W_O": f"{output}.weight",
        "b_O": f"{output}.bias",
    }


APART = projections("q_proj", "k_proj", "v_proj", "o_proj")
GAINS = {"g_Q": "q_norm.weight", "g_K": "k_norm.weight"}
LATENT = {
    "W_Q": "q_proj.weight",
    "W_DQ": "q_a_proj.weight",
    "g_DQ": "q_a_layernorm.weight",
    "W_UQ": "q_b_proj.weight",
    "W_DKV W_KR": "kv_a_proj_with_mqa.weight",
    "g_DKV": "kv_a_layernorm.weight",
    "W_UK W_UV": "kv_b_proj.weight",
    "W_O": "o_proj.weight",
}
T5_NAMES = projections("q", "k", "v", "o") | {"table": "relative_attention_bias.weight"}
WHISPER_NAMES = projections("q_proj", "k_proj", "v_proj", "out_proj")
BERT_NAMES = projections(r"self\.query", r"self\.key", r"self\.value", r"output\.dense")
GPT2_CROSS = fused("c_attn", "c_proj") | {"W_Q": "q_attn.weight", "b_Q": "q_attn.bias"}
GPT2_CROSS |= {"W_K W_V": GPT2_CROSS.pop("W_Q W_K W_V"), "b_K b_V": GPT2_CROSS.pop("b_Q b_K b_V")}

PLAIN = {"self": Part(r"self_attn\.", "input_layernorm", APART)}
BERT = {
    "self": Part(r"\.attention\.(?!output\.LayerNorm)", "nowhere", BERT_NAMES),
    "cross": Part(r"\.crossattention\.(?!output\.LayerNorm)", "nowhere", BERT_NAMES),
}
PARTS: dict[str, dict[str, Part]] = {
    "bert": BERT,
    "deepseek_v2": {"self": Part(r"self_attn\.", "input_layernorm", LATENT)},
    "deepseek_v3": {"self": Part(r"self_attn\.", "input_layernorm", LATENT)},
    "falcon": {"self": Part(r"self_attention\.", "(input_layernorm|ln_attn)", fused("query_key_value", "dense"))},
    "gemma2": PLAIN,
    "gemma3": {"text self": Part(r"language_model.*self_attn\.", "language_model.*input_layernorm", APART | GAINS)},
    "gemma3_text": {"self": Part(r"self_attn\.", "input_layernorm", APART | GAINS)},
    "gpt2": {
        "self": Part(r"\.attn\.", "ln_1", fused("c_attn", "c_proj")),
        "cross": Part(r"\.crossattention\.", "ln_cross_attn", GPT2_CROSS),
    },
    "gpt_neox": {"self": Part(r"attention\.", "input_layernorm", fused("query_key_value", "dense"))},
    "gpt_oss": {"self": Part(r"self_attn\.", "input_layernorm", APART | {"sinks": "sinks"})},
    "gptj": {"self": Part(r"\.attn\.", "ln_1", projections("q_proj", "k_proj", "v_proj", "out_proj"))},
    "llama": PLAIN,
    "mistral": PLAIN,
    "mixtral": PLAIN,
    "olmo2": {"self": Part(r"self_attn\.", "input_layernorm", APART | GAINS)},
    "phi": {"self": Part(r"self_attn\.", "input_layernorm", projections("q_proj", "k_proj", "v_proj", "dense"))},
    "phi3": {"self": Part(r"self_attn\.", "input_layernorm", fused("qkv_proj", "o_proj"))},
    "qwen2": PLAIN,
    "qwen2_moe": PLAIN,
    "qwen3": {"self": Part(r"self_attn\.", "input_layernorm", APART | GAINS)},
    "qwen3_moe": {"self": Part(r"self_attn\.", "input_layernorm", APART | GAINS)},
    "roberta": BERT,
    "xlm-roberta": BERT,
    "camembert": BERT,
    "electra": BERT,
    "stablelm": PLAIN,
    "t5": {
        "encoder self": Part(r"encoder.*SelfAttention\.", r"encoder.*layer\.0\.layer_norm", T5_NAMES),
        "decoder self": Part(r"decoder.*SelfAttention\.", r"decoder.*layer\.0\.layer_norm", T5_NAMES),
        "cross": Part(r"EncDecAttention\.", r"decoder.*layer\.1\.layer_norm", T5_NAMES),
    },
    "vit": {"self": Part(r"\.attention\.", "layernorm_before", APART)},
    "whisper": {
        "encoder self": Part(r"encoder.*self_attn\.", r"encoder.*self_attn_layer_norm", WHISPER_NAMES),
        "decoder self": Part(r"decoder.*self_attn\.", r"decoder.*self_attn_layer_norm", WHISPER_NAMES),
        "cross": Part(r"encoder_attn\.", "encoder_attn_layer_norm", WHISPER_NAMES),
    },
}

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDE = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 32}
"""Heads enough for every family's own number of key/value heads."""
SMALL_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4}
SMALL_T5 = {"d_model": 24, "d_kv": 6, "num_heads": 2, "num_layers": 2, "d_ff": 8}
SMALL_WHISPER = {
    "d_model": 24,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_layers": 3,
    "decoder_attention_heads": 4,
}
LATENT_SIZES = {"qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5, "kv_lora_rank": 8, "q_lora_rank": 10}
GROUPED = SMALL | {"num_key_value_heads": 2}
OWN_HEADS = GROUPED | {"head_dim": 6}
WHOLE = {"num_key_value_heads": 4}

CASES: list[tuple[str, Config]] = [
    ("bert", SMALL),
    ("bert", SMALL | {"is_decoder": True}),
    ("bert", SMALL | {"is_decoder": True, "add_cross_attention": True}),
    ("roberta", SMALL),
    ("roberta", SMALL | {"is_decoder": True, "add_cross_attention": True}),
    ("xlm-roberta", SMALL | {"is_decoder": True, "add_cross_attention": True}),
    ("camembert", SMALL | {"is_decoder": True, "add_cross_attention": True}),
    ("electra", SMALL | {"is_decoder": True, "add_cross_attention": True}),
    ("vit", SMALL),
    ("vit", SMALL | {"qkv_bias": False}),
    ("vit", SMALL | {"head_dim": 6}),
    ("gpt2", SMALL_GPT),
    ("gpt2", SMALL_GPT | {"add_cross_attention": True}),
    ("gpt2", SMALL_GPT | {"is_causal": False}),
    ("gptj", SMALL_GPT | {"rotary_dim": 4}),
    ("gptj", {"n_embd": 256, "n_layer": 1, "n_head": 2}),
    ("t5", SMALL_T5),
    ("t5", SMALL_T5 | {"num_layers": 1, "num_decoder_layers": 3}),
    ("t5", SMALL_T5 | {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}),
    ("whisper", SMALL_WHISPER),
    ("llama", SMALL),
    ("llama", OWN_HEADS),
    ("llama", GROUPED | {"attention_bias": True}),
    ("llama", GROUPED | {"num_key_value_heads": None, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    ("llama", SMALL | {"num_key_value_heads": 1, "is_causal": False}),
    ("mistral", WIDE),
    ("mistral", OWN_HEADS),
    ("mixtral", WIDE),
    ("mixtral", OWN_HEADS),
    ("gemma2", WIDE),
    ("gemma2", OWN_HEADS | {"attention_bias": True, "attn_logit_softcapping": None}),
    ("gemma3_text", {"hidden_size": 64, "num_hidden_layers": 2}),
    ("gemma3_text", OWN_HEADS | {"attention_bias": True}),
    ("gemma3_text", OWN_HEADS | {"use_bidirectional_attention": True}),
    ("gemma3", {"text_config": OWN_HEADS | {"vocab_size": 16, "intermediate_size": 8}}),
    ("qwen2", WIDE),
    ("qwen2", OWN_HEADS),
    ("qwen2_moe", WIDE),
    ("qwen2_moe", GROUPED | {"qkv_bias": False}),
    ("qwen3", WIDE),
    ("qwen3", OWN_HEADS | {"attention_bias": True}),
    ("qwen3_moe", WIDE),
    ("qwen3_moe", OWN_HEADS | {"attention_bias": True}),
    ("phi", SMALL),
    ("phi", GROUPED | {"partial_rotary_factor": 0.25}),
    ("phi", GROUPED | {"rope_scaling": {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.25}}),
    ("phi3", GROUPED),
    ("phi3", GROUPED | {"partial_rotary_factor": 0.75}),
    ("gpt_neox", SMALL),
    ("gpt_neox", SMALL | {"rotary_pct": 0.5, "attention_bias": False}),
    ("gpt_neox", SMALL | {"rope_scaling": {"type": "linear", "factor": 2.0}, "rotary_pct": 1.0}),
    ("falcon", SMALL),
    ("falcon", SMALL | {"num_kv_heads": 2, "bias": True}),
    ("falcon", SMALL | {"num_kv_heads": 2, "new_decoder_architecture": True}),
    ("falcon", SMALL | {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}),
    ("falcon", SMALL | {"multi_query": False, "alibi": True, "parallel_attn": False, "bias": True}),
    ("stablelm", WIDE | {"hidden_size": 256}),
    ("stablelm", GROUPED | {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    ("olmo2", SMALL),
    ("olmo2", GROUPED | {"attention_bias": True}),
    ("deepseek_v2", SMALL | LATENT_SIZES),
    ("deepseek_v2", SMALL | LATENT_SIZES | {"q_lora_rank": None}),
    ("deepseek_v2", SMALL | {key: size for key, size in LATENT_SIZES.items() if key != "q_lora_rank"}),
    ("deepseek_v3", SMALL | WHOLE | LATENT_SIZES),
    ("deepseek_v3", SMALL | WHOLE | LATENT_SIZES | {"q_lora_rank": None}),
    ("gpt_oss", WIDE),
    ("gpt_oss", OWN_HEADS | {"attention_bias": False}),
]


@dataclass(frozen=True)
class Example:
    """A model that transformers built from some settings, and what was read from the same settings."""

    model_type: str
    settings: Config
    model: Any
    layers: list[AttentionLayers]


def read(model_type: str, settings: Config) -> list[AttentionLayers]:
    return attention_layers({"model_type": model_type} | settings, "config.json")


def model_of(model_type: str, settings: Config) -> Any:
    cheap = cheap_settings(model_type)
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **cheap | settings)
    return AutoModel.from_config(config, attn_implementation="eager").eval()


@cache
def example_of(case: int) -> Example:
    model_type, settings = CASES[case]
    return Example(model_type, settings, model_of(model_type, settings), read(model_type, settings))


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Example:
    return example_of(request.param)


def over_all_but(*families: str) -> pytest.MarkDecorator:
    cases = [case for case, (model_type, _) in enumerate(CASES) if model_type not in families]
    return pytest.mark.parametrize("example", cases, indirect=True, ids=lambda case: CASES[case][0])


def numbers(layers: list[AttentionLayers], role: str, names: str) -> int:
    """Numbers in some parameters, given by their LayerSpec names, of all layers of a role."""
    total = 0
    for kind in layers:
        if kind.role.split(",")[0] == role:
            shapes = kind.spec.parameter_shapes
            total += kind.number * numel({name: shapes[name] for name in names.split() if name in shapes})
    return total


def numbers_of_model(model: torch.nn.Module, pattern: str) -> int:
    return sum(weight.numel() for name, weight in model.named_parameters() if re.search(pattern, f".{name}"))


@over_all_but()
def test_parameters_are_those_of_the_model(example: Example) -> None:
    """Matrix by matrix, and nothing of the attention modules is left over."""
    layers, model = example.layers, example.model
    for role, part in PARTS[example.model_type].items():
        for names, end in part.names.items():
            assert numbers(layers, role, names) == numbers_of_model(model, rf"{part.module}{end}$"), (role, names)
        named = " ".join(part.names)
        assert numbers(layers, role, named) == numbers_of_model(model, part.module)
        specs = [kind.spec for kind in layers if kind.role.split(",")[0] == role]
        assert all(set(spec.parameter_shapes) <= {*named.split(), "g_N", "b_N"} for spec in specs)


@over_all_but()
def test_the_normalisation_in_front_is_that_of_the_model(example: Example) -> None:
    for role, part in PARTS[example.model_type].items():
        for name, end in {"g_N": "weight", "b_N": "bias"}.items():
            ours = numbers(example.layers, role, name)
            assert ours == numbers_of_model(example.model, rf"{part.norm}\.{end}$"), (role, name)


@over_all_but("whisper")
def test_heads_are_those_of_the_model(example: Example) -> None:
    heads = example.model.config.get_text_config().num_attention_heads
    assert {kind.spec.n_heads for kind in example.layers} == {heads}


def test_the_two_parts_of_whisper_have_heads_of_their_own() -> None:
    layers = read("whisper", SMALL_WHISPER)
    assert {kind.role: kind.spec.n_heads for kind in layers} == {"encoder self": 2, "decoder self": 4, "cross": 4}


def test_every_role_of_every_family_is_compared() -> None:
    assert set(PARTS) == set(FAMILIES)
    for model_type in FAMILIES:
        cases = [settings for name, settings in CASES if name == model_type]
        roles = {kind.role.split(",")[0] for settings in cases for kind in read(model_type, settings)}
        assert roles == set(PARTS[model_type])


@over_all_but()
def test_the_files_that_transformers_writes_are_read_like_the_bare_settings(example: Example) -> None:
    config = AutoConfig.for_model(example.model_type, **example.settings)
    for written in (config.to_dict(), config.to_diff_dict()):
        assert attention_layers(json.loads(json.dumps(written)), "config.json") == example.layers


def first_output_heeds_the_last_token(model: torch.nn.Module, **inputs: torch.Tensor) -> bool:
    token = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]])
    with torch.no_grad():
        first = model(input_ids=token, **inputs).last_hidden_state[:, 0]
    return not torch.equal(first[0], first[1])


@over_all_but("t5", "vit", "whisper")
def test_a_layer_is_causal_where_the_model_is(example: Example) -> None:
    assert first_output_heeds_the_last_token(example.model) != example.layers[0].spec.causal


def test_a_decoder_is_causal_and_an_encoder_is_not() -> None:
    t5 = model_of("t5", SMALL_T5)
    assert first_output_heeds_the_last_token(t5.encoder)
    assert not first_output_heeds_the_last_token(t5.decoder, encoder_hidden_states=torch.ones(2, 3, 24))
    whisper = model_of("whisper", SMALL_WHISPER)
    assert not whisper.encoder.layers[0].self_attn.is_causal
    assert whisper.decoder.layers[0].self_attn.is_causal
    assert not model_of("vit", SMALL).layers[0].attention.is_causal
    read_layers = [*read("t5", SMALL_T5), *read("whisper", SMALL_WHISPER), *read("vit", SMALL)]
    assert {kind.role for kind in read_layers if kind.spec.causal} == {"decoder self, with table", "decoder self"}


@over_all_but()
def test_rope_covers_what_the_model_rotates(example: Example) -> None:
    buffers = example.model.named_buffers()
    rotated = {2 * values.numel() for name, values in buffers if re.search(r"(?<!original_)inv_freq$", name)}
    if example.model_type == "gptj":
        rotated = {example.model.h[0].attn.rotary_dim}
    if example.layers[0].spec.alibi:
        rotated = {0}
    assert {kind.spec.rotary_dim for kind in example.layers} == (rotated or {0})


LLAMA_2_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rope_scaling": None,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "attention_bias": False,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "type": "yarn"},
    "v_head_dim": 128,
}
GEMMA_3_4B = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 2560,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "num_attention_heads": 16, "num_hidden_layers": 27},
}
T5_11B = {"model_type": "t5", "d_kv": 128, "d_model": 1024, "num_heads": 128, "num_layers": 24, "n_positions": 512}
FALCON_RW_1B = {
    "model_type": "falcon",
    "alibi": True,
    "bias": True,
    "hidden_size": 2048,
    "multi_query": False,
    "new_decoder_architecture": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 24,
    "parallel_attn": False,
}


def flat(model_type: str, width: int, layers: int, heads: int, groups: int | None = None, **others: object) -> Config:
    """A config.json in the keys that most families share."""
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {"model_type": model_type} | sizes | ({"num_key_value_heads": groups} if groups else {}) | others


PUBLISHED: dict[str, tuple[Config, int, tuple[int, int, int, int, int], int]] = {
    # layers; width, heads, groups, width of a query/key head, of it rotated; attention parameters of one layer
    "GPT-2": (
        {"model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024},
        12,
        (768, 12, 12, 64, 0),
        4 * 768 * 769,
    ),
    "BERT-base": (
        flat("bert", 768, 12, 12, position_embedding_type="absolute"),
        12,
        (768, 12, 12, 64, 0),
        4 * 768 * 769,
    ),
    "ViT-B/16": (flat("vit", 768, 12, 12), 12, (768, 12, 12, 64, 0), 4 * 768 * 769),
    "LLaMA-1-7B": (flat("llama", 4096, 32, 32), 32, (4096, 32, 32, 128, 128), 4 * 4096**2),
    "Llama-2-7B": (LLAMA_2_7B, 32, (4096, 32, 32, 128, 128), 4 * 4096**2),
    "Llama-3-8B": (flat("llama", 4096, 32, 32, 8), 32, (4096, 32, 8, 128, 128), 4096 * 2 * (4096 + 1024)),
    "Mistral-Nemo": (
        flat("mistral", 5120, 40, 32, 8, head_dim=128),
        40,
        (5120, 32, 8, 128, 128),
        5120 * 2 * (4096 + 1024),
    ),
    "Mixtral-8x7B": (flat("mixtral", 4096, 32, 32, 8), 32, (4096, 32, 8, 128, 128), 4096 * 2 * (4096 + 1024)),
    "Pythia-160m": (flat("gpt_neox", 768, 12, 12, rotary_pct=0.25), 12, (768, 12, 12, 64, 16), 4 * 768 * 769),
    "GPT-J-6B": (
        {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 28, "rotary_dim": 64},
        28,
        (4096, 16, 16, 256, 64),
        4 * 4096**2,
    ),
    "Phi-2": (flat("phi", 2560, 32, 32, partial_rotary_factor=0.4), 32, (2560, 32, 32, 80, 32), 4 * 2560 * 2561),
    "Phi-4-mini": (
        flat("phi3", 3072, 32, 24, 8, partial_rotary_factor=0.75),
        32,
        (3072, 24, 8, 128, 96),
        3072 * 2 * (3072 + 1024),
    ),
    "StableLM-3B": (
        flat("stablelm", 2560, 32, 32, 32, partial_rotary_factor=0.25),
        32,
        (2560, 32, 32, 80, 20),
        4 * 2560**2,
    ),
    "Falcon-7B": (
        flat("falcon", 4544, 32, 71, multi_query=True, num_kv_heads=71),
        32,
        (4544, 71, 1, 64, 64),
        2 * 4544 * (4544 + 64),
    ),
    "Falcon-40B": (
        flat("falcon", 8192, 60, 128, multi_query=True, new_decoder_architecture=True, num_kv_heads=8),
        60,
        (8192, 128, 8, 64, 64),
        2 * 8192 * (8192 + 512),
    ),
    "Falcon-RW-1B": (FALCON_RW_1B, 24, (2048, 32, 32, 64, 0), 4 * 2048 * 2049),
    "OLMo-2-7B": (flat("olmo2", 4096, 32, 32, 32), 32, (4096, 32, 32, 128, 128), 4 * 4096**2 + 2 * 4096),
    "Gemma-2-9b": (
        flat("gemma2", 3584, 42, 16, 8, head_dim=256, attn_logit_softcapping=50.0),
        42,
        (3584, 16, 8, 256, 256),
        3584 * 2 * (4096 + 2048),
    ),
    "Gemma-3-4b": (GEMMA_3_4B, 34, (2560, 8, 4, 256, 256), 2560 * 2 * (2048 + 1024) + 2 * 256),
    "Qwen2.5-0.5B": (
        flat("qwen2", 896, 24, 14, 2, use_sliding_window=False),
        24,
        (896, 14, 2, 64, 64),
        2 * 896 * (896 + 128) + 896 + 2 * 128,
    ),
    "Qwen3-8B": (
        flat("qwen3", 4096, 36, 32, 8, head_dim=128, attention_bias=False),
        36,
        (4096, 32, 8, 128, 128),
        4096 * 2 * (4096 + 1024) + 2 * 128,
    ),
    "Qwen3-30B-A3B": (
        flat("qwen3_moe", 2048, 48, 32, 4, head_dim=128, num_experts=128),
        48,
        (2048, 32, 4, 128, 128),
        2048 * 2 * (4096 + 512) + 2 * 128,
    ),
    "gpt-oss-20b": (
        flat("gpt_oss", 2880, 24, 64, 8, head_dim=64, attention_bias=True),
        24,
        (2880, 64, 8, 64, 64),
        2880 * 2 * (4096 + 512) + 4096 + 2 * 512 + 2880 + 64,
    ),
    "DeepSeek-V3": (DEEPSEEK_V3, 61, (7168, 128, 128, 192, 64), 187_107_328),
}


def attention_parameters(spec: LayerSpec) -> int:
    """Parameters of a layer without the normalisation in front of it."""
    shapes = spec.parameter_shapes
    return numel({name: shape for name, shape in shapes.items() if name not in {"g_N", "b_N"}})


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_is_read_from_its_own_file(name: str) -> None:
    config, number, (width, heads, groups, head, rotated), parameters = PUBLISHED[name]
    (kind,) = attention_layers(config, "config.json")
    assert kind.number == number
    assert (kind.spec.d_model, kind.spec.n_heads, kind.spec.n_kv_heads) == (width, heads, groups)
    assert (kind.spec.qk_head_dim, kind.spec.rotary_dim) == (head, rotated)
    assert kind.spec.v_head_dim == (128 if name == "DeepSeek-V3" else head)
    assert attention_parameters(kind.spec) == parameters


def test_features_that_have_no_parameters_are_read() -> None:
    specs = {name: attention_layers(PUBLISHED[name][0], "config.json")[0].spec for name in PUBLISHED}
    assert {name for name, spec in specs.items() if spec.alibi} == {"Falcon-RW-1B"}
    assert {name: spec.soft_cap for name, spec in specs.items() if spec.soft_cap} == {"Gemma-2-9b": 50.0}
    assert {name for name, spec in specs.items() if spec.pre_norm == "none"} == {"BERT-base", "OLMo-2-7B"}
    assert {name for name, spec in specs.items() if not spec.causal} == {"BERT-base", "ViT-B/16"}


@pytest.mark.parametrize(
    ("config", "inner", "numbers_of_roles"),
    [
        (
            {"model_type": "t5", "d_kv": 64, "d_model": 768, "num_heads": 12, "num_layers": 12},
            768,
            {"encoder self": 11, "decoder self": 11, "cross": 12},
        ),
        (T5_11B, 128 * 128, {"encoder self": 23, "decoder self": 23, "cross": 24}),
    ],
    ids=["T5-base", "T5-11B"],
)
def test_t5_has_one_table_a_stack(config: Config, inner: int, numbers_of_roles: dict[str, int]) -> None:
    layers = attention_layers(config, "config.json")
    tables = {"encoder self, with table": 1, "decoder self, with table": 1}
    assert {kind.role: kind.number for kind in layers} == numbers_of_roles | tables
    for kind in layers:
        table = 32 * config["num_heads"] if kind.role in tables else 0
        assert attention_parameters(kind.spec) == 4 * config["d_model"] * inner + table
        assert (kind.spec.context_dim is not None) == (kind.role == "cross")
        assert (kind.spec.pre_norm, kind.spec.relative_distance) == ("rms", 128)


def test_whisper_base_has_three_kinds_of_six_layers() -> None:
    sizes = {"encoder_layers": 6, "encoder_attention_heads": 8, "decoder_layers": 6, "decoder_attention_heads": 8}
    layers = read("whisper", {"d_model": 512, "num_hidden_layers": 6} | sizes)
    assert [(kind.role, kind.number) for kind in layers] == [("encoder self", 6), ("decoder self", 6), ("cross", 6)]
    assert [attention_parameters(kind.spec) for kind in layers] == [4 * 512**2 + 3 * 512] * 3
    assert [kind.spec.context_dim for kind in layers] == [None, None, 512]


@pytest.mark.parametrize(
    ("model_type", "settings", "architecture", "roles"),
    [
        ("t5", SMALL_T5, "T5EncoderModel", {"encoder self, with table", "encoder self"}),
        (
            "t5",
            SMALL_T5 | {"is_encoder_decoder": False},
            "T5EncoderModel",
            {"encoder self, with table", "encoder self"},
        ),
        ("whisper", SMALL_WHISPER, "WhisperForAudioClassification", {"encoder self"}),
        ("whisper", SMALL_WHISPER | {"is_encoder_decoder": False}, "WhisperForCausalLM", {"decoder self", "cross"}),
    ],
)
def test_a_part_of_an_encoder_decoder_is_read_alone(
    model_type: str, settings: Config, architecture: str, roles: set[str]
) -> None:
    layers = read(model_type, settings | {"architectures": [architecture]})
    assert {kind.role for kind in layers} == roles


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20), (16, 64)])
def test_relative_buckets_are_those_of_t5(buckets: int, distance: int, causal: bool) -> None:
    settings = {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": distance}
    role = "decoder self, with table" if causal else "encoder self, with table"
    (spec,) = [kind.spec for kind in read("t5", SMALL_T5 | settings) if kind.role == role]
    offsets = list(range(-300, 301))
    found = T5Attention._relative_position_bucket(
        torch.tensor(offsets), bidirectional=not causal, num_buckets=buckets, max_distance=distance
    )
    assert [relative_bucket(spec, offset) for offset in offsets] == found.tolist()


MISTAKES: list[tuple[object, str]] = [
    ([], "not a JSON object; expected a Hugging Face config.json"),
    (None, "not a JSON object; expected a Hugging Face config.json"),
    ({}, f"model_type is missing; known: {', '.join(FAMILIES)}"),
    ({"model_type": 12}, f"model_type is 12; known: {', '.join(FAMILIES)}"),
    ({"model_type": "lama"}, f"model_type is 'lama'; near it: llama; known: {', '.join(FAMILIES)}"),
    ({"model_type": "llama"}, "hidden_size is missing"),
    ({"model_type": "gpt2"} | SMALL_GPT | {"n_head": 0}, "n_head is 0; input should be greater than or equal to 1"),
    (flat("llama", 32, 2, 4) | {"num_attention_heads": "12"}, "num_attention_heads is '12'; input should be a valid "),
    (flat("llama", 32, 2, 4) | {"num_attention_heads": True}, "num_attention_heads is True; input should be a valid "),
    (flat("llama", 32, 2, 4) | {"num_attention_heads": 1.5}, "num_attention_heads is 1.5; input should be a valid in"),
    (flat("llama", 32, 2, 4, attention_bias="no"), "attention_bias is 'no'; input should be a valid boolean"),
    (flat("llama", 32, 2, 5), "hidden_size must be a multiple of num_attention_heads = 5, not 32"),
    (flat("bert", 32, 2, 5), "hidden_size must be a multiple of num_attention_heads = 5, not 32"),
    ({"model_type": "gpt2"} | SMALL_GPT | {"n_head": 5}, "n_embd must be a multiple of n_head = 5, not 32"),
    (
        {"model_type": "whisper"} | SMALL_WHISPER | {"decoder_attention_heads": 5},
        "d_model must be a multiple of decoder_attention_heads = 5, not 24",
    ),
    (flat("llama", 32, 2, 4, 3), "num_key_value_heads must divide num_attention_heads = 4, not 3"),
    (flat("qwen2", 32, 2, 4), "num_key_value_heads must divide num_attention_heads = 4, not 32"),
    (
        flat("falcon", 32, 2, 4, new_decoder_architecture=True, num_kv_heads=3),
        "num_kv_heads must divide num_attention_heads = 4, not 3",
    ),
    (
        flat("falcon", 32, 2, 4, multi_query=False, num_kv_heads=2),
        "num_kv_heads is 2; allowed without multi_query: num_attention_heads = 4",
    ),
    (flat("llama", 32, 2, 4, head_dim=5), "head_dim must be even, not 5"),
    (flat("phi", 32, 2, 4, partial_rotary_factor=0.4), "head_dim * partial_rotary_factor must be even, not 3"),
    (
        flat("gpt_neox", 32, 2, 4, rotary_pct=0.4),
        "hidden_size / num_attention_heads * rotary_pct must be even, not 3",
    ),
    (flat("gpt_neox", 32, 2, 4, rotary_pct=1.5), "rotary_pct is 1.5; input should be less than or equal to 1"),
    (
        {"model_type": "gptj"} | SMALL_GPT | {"rotary_dim": 10},
        "rotary_dim must be at most n_embd / n_head = 8, not 10",
    ),
    ({"model_type": "gptj"} | SMALL_GPT | {"rotary_dim": None}, "rotary_dim is None; input should be a valid integer"),
    (
        flat("llama", 32, 2, 4, partial_rotary_factor=0.5),
        "partial_rotary_factor is 0.5; allowed: 1, for RoPE over whole heads",
    ),
    (
        flat("llama", 32, 2, 4, rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5}),
        "partial_rotary_factor is 0.5; allowed: 1, for RoPE over whole heads",
    ),
    (flat("phi", 32, 2, 4, rope_parameters=[1]), "rope_parameters is [1]; input should be a valid dictionary or "),
    (flat("phi", 32, 2, 4, qk_layernorm=True), "qk_layernorm is True; input should be False"),
    (flat("stablelm", 32, 2, 4, 4, qk_layernorm=True), "qk_layernorm is True; input should be False"),
    (
        flat("bert", 32, 2, 4, position_embedding_type="relative_key"),
        "position_embedding_type is 'relative_key'; input should be 'absolute'",
    ),
    (
        flat("roberta", 32, 2, 4, add_cross_attention=True),
        "add_cross_attention is True; allowed with is_decoder true alone",
    ),
    (flat("bert", 32, 2, 4, pruned_heads={"1": [0]}), "pruned_heads is {'1': [0]}; dictionary should have at most 0 i"),
    (flat("llama", 32, 2, 4, per_layer_config={"0": {}}), "per_layer_config is {'0': {}}; input should be None"),
    (
        flat("gemma2", 32, 2, 4, attn_logit_softcapping=float("inf")),
        "attn_logit_softcapping is inf; input should be a finite number",
    ),
    (
        flat("gemma2", 32, 2, 4, use_bidirectional_attention=True),
        "use_bidirectional_attention is True; input should be False",
    ),
    (flat("gemma2", 32, 2, 4, attn_logit_softcapping=0), "attn_logit_softcapping is 0; input should be greater than 0"),
    (
        flat("gemma3_text", 32, 2, 4, attn_logit_softcapping=50.0),
        "attn_logit_softcapping is 50.0; input should be None",
    ),
    ({"model_type": "gemma3"}, "text_config is missing"),
    ({"model_type": "gemma3", "text_config": {"num_hidden_layers": 2}}, "text_config.hidden_size is missing"),
    (
        {"model_type": "gemma3", "text_config": flat("gemma3_text", 32, 2, 4, 3)},
        "num_key_value_heads must divide num_attention_heads = 4, not 3",
    ),
    (DEEPSEEK_V3 | {"attention_bias": True}, "attention_bias is True; input should be False"),
    (DEEPSEEK_V3 | {"num_key_value_heads": 8}, "num_key_value_heads is 8; allowed: num_attention_heads = 128"),
    (DEEPSEEK_V3 | {"qk_rope_head_dim": 63}, "qk_rope_head_dim must be even, not 63"),
    (
        {"model_type": "t5"} | SMALL_T5 | {"relative_attention_num_buckets": 7},
        "relative_attention_num_buckets must be 0 or even and at least 4 without causal mask, not 7",
    ),
    (
        {"model_type": "t5"} | SMALL_T5 | {"relative_attention_max_distance": 4},
        "relative_attention_max_distance must be above 8 here, not 4",
    ),
    (
        {"model_type": "t5"} | SMALL_T5 | {"is_encoder_decoder": False},
        "is_encoder_decoder is False; allowed: true, or architectures of T5EncoderModel, T5ForTokenClassification, ",
    ),
    (flat("vit", 1, 2, 1), 'pre_norm "layer" needs hidden_size of at least 2, not 1'),
]


@pytest.mark.parametrize(
    ("config", "sentence"), MISTAKES, ids=lambda value: value[:40] if isinstance(value, str) else ""
)
def test_a_mistake_is_one_sentence(config: object, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        attention_layers(config, "config.json")
    assert str(caught.value).startswith(f"config.json: {sentence}")
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


JUNK: tuple[object, ...] = (
    None,
    True,
    False,
    0,
    -1,
    3,
    1.5,
    float("nan"),
    10**30,
    "12",
    [],
    [1],
    {},
    {"partial_rotary_factor": "x"},
)


def outcome(model_type: str, settings: Config) -> list[AttentionLayers] | str:
    try:
        return read(model_type, settings)
    except UserError as error:
        return str(error)


def test_kimi_k2_is_read_as_the_deepseek_v3_that_it_is() -> None:
    assert attention_layers(DEEPSEEK_V3 | {"model_type": "kimi_k2"}, "x") == attention_layers(DEEPSEEK_V3, "x")


def test_whatever_a_key_holds_is_read_or_told_in_one_sentence() -> None:
    for model_type, settings in CASES:
        for name, field in FAMILIES[model_type].model_fields.items():
            key = str(field.validation_alias or name)
            for junk in JUNK:
                found = outcome(model_type, settings | {key: junk})
                told = isinstance(found, str) and found.startswith("config.json: ") and "\n" not in found
                assert told or all(isinstance(kind, AttentionLayers) for kind in found), (model_type, key, junk)


def test_reading_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, attnid.huggingface; sys.exit(bool({'torch', 'numpy', 'pandas', 'transformers'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_keys_that_stand_for_others_are_read_as_transformers_reads_them() -> None:
    plain = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4}
    synonymous = {"model_type": "gpt2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    assert attention_layers(synonymous, "x") == attention_layers(plain, "x")
    assert attention_layers(plain | synonymous, "x") == attention_layers(plain, "x")
    with pytest.raises(UserError, match="n_embd is 64 and hidden_size, which stands for it, 32; allowed: one of them"):
        attention_layers(plain | {"hidden_size": 32}, "x")


@pytest.mark.parametrize("model_type", [name for name in FAMILIES if FAMILIES[name].synonyms])
def test_synonyms_are_those_of_transformers(model_type: str) -> None:
    theirs = CONFIG_MAPPING[model_type].attribute_map
    ours = FAMILIES[model_type].synonyms
    assert ours == {name: theirs[name] for name in ours}
    assert not [name for name in set(theirs) - set(ours) if theirs[name] in FAMILIES[model_type].model_fields]


def test_the_older_section_of_rope_replaces_the_newer_one() -> None:
    config = {"model_type": "gpt_neox", "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    newer = config | {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}}
    assert attention_layers(newer, "x")[0].spec.rotary_dim == 24
    assert attention_layers(newer | {"rope_scaling": {"rope_type": "default"}}, "x")[0].spec.rotary_dim == 8
