"""The forward pass of a layer against what others wrote, in float64, for every variant that LayerSpec names.

Small transformers models with random weights run whole; hooks keep what one of their layers reads and gives. Its
weights, put into the order and scale of `attnid.attention`, give the same outputs for the same inputs.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from small_models import cheap_settings
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModel
from transformers.utils import logging

from attnid.attention import attention, random_parameters
from attnid.huggingface import FAMILIES, attention_layers
from attnid.layer import LayerSpec, relative_bucket
from attnid.models.layer import AttentionLayer
from attnid.models.places import Place, layer_at, layers_by_name

logging.set_verbosity_error()

Config = dict[str, Any]
TOKENS = 7


class DoublePrecision(TorchFunctionMode):
    """Takes float64 wherever code asks for fewer bits by name, as norms, softmax and RoPE of transformers do."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in {torch.Tensor.float, torch.Tensor.bfloat16}:
            return args[0].double()
        args = tuple(map(self._widened, args))
        return func(*args, **{name: self._widened(value) for name, value in (kwargs or {}).items()})

    @staticmethod
    def _widened(value: Any) -> Any:
        return torch.float64 if value is torch.float32 else value


@dataclass(frozen=True)
class Case:
    """One attention layer of a small transformers model: where in the model it stands, and the norm before it."""

    model_type: str
    settings: Config
    attention: str = "self_attn"
    layer: str = "layers.0"
    norm: str = "input_layernorm"
    role: str = "self"
    factor: float = 1.0
    """By how much the model's scores exceed q . k / sqrt(D)."""
    implementation: str = "eager"
    """Of attention, in transformers."""
    unread: tuple[LayerSpec, Place] | None = None
    """The layer and its place, for families that `attnid.huggingface` does not read."""

    @property
    def spec(self) -> LayerSpec:
        if self.unread is not None:
            return self.unread[0]
        kinds = attention_layers({"model_type": self.model_type} | self.settings, "config.json")
        (spec,) = [kind.spec for kind in kinds if kind.role == self.role]
        return spec


SMALL = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
BIASED = SMALL | {"attention_bias": True}
WHOLE = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3}
"""For families in which the heads share the width of the model."""
GROUPED = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL_GPT = {"n_embd": 24, "n_layer": 1, "n_head": 3}
CROSS = {"add_cross_attention": True}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
SMALL_T5 = {"d_model": 12, "d_kv": 5, "num_heads": 3, "num_layers": 1, "d_ff": 8}
SMALL_T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
SMALL_WHISPER = {
    "d_model": 12,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_layers": 1,
    "decoder_attention_heads": 3,
    "num_mel_bins": 4,
    "max_source_positions": 5,
}
LATENT = {
    "hidden_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 3,
    "kv_lora_rank": 6,
}
GEMMA3 = SMALL | {
    "query_pre_attn_scalar": 10,
    "rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE},
}


def usual(model_type: str, settings: Config, **more: Any) -> Case:
    return Case(model_type, settings, **more)


def gemma(model_type: str, settings: Config, query_pre_attn_scalar: float, **more: Any) -> Case:
    return usual(model_type, settings, factor=(SMALL["head_dim"] / query_pre_attn_scalar) ** 0.5, **more)


def phi3(**settings: Any) -> Case:
    return Case("phi3", GROUPED | settings)


def falcon(norm: str = "input_layernorm", implementation: str = "eager", **settings: Any) -> Case:
    return Case(
        "falcon",
        WHOLE | settings,
        "self_attention",
        layer="h.0",
        norm=norm,
        implementation=implementation,
    )


def bloom(heads: int) -> Case:
    biases = dict.fromkeys(("query_bias", "key_bias", "value_bias", "output_bias"), True)
    norm = {"pre_norm": "layer", "pre_norm_bias": True}
    spec = LayerSpec.with_heads(8 * heads, heads, 8, alibi=True, **biases, **norm)
    place = Place("h.0.self_attention", {"W_Q W_K W_V": "query_key_value", "W_O": "dense"}, by_group=True)
    settings = {"hidden_size": 8 * heads, "n_layer": 1, "n_head": heads}
    return Case("bloom", settings, "self_attention", layer="h.0", unread=(spec, place))


def mpt(heads: int) -> Case:
    spec = LayerSpec.with_heads(6 * heads, heads, 6, alibi=True, pre_norm="layer")
    place = Place("blocks.0.attn", {"W_Q W_K W_V": "Wqkv", "W_O": "out_proj"})
    settings = {"d_model": 6 * heads, "n_layers": 1, "n_heads": heads, "max_seq_len": 16}
    return Case("mpt", settings, "attn", layer="blocks.0", norm="norm_1", unread=(spec, place))


def bert(model_type: str, place: str = "attention", role: str = "self", **settings: Any) -> Case:
    return Case(model_type, WHOLE | settings, place, layer="encoder.layer.0", role=role)


def t5(layer: str, place: str, role: str) -> Case:
    factor = SMALL_T5["d_kv"] ** 0.5
    return Case("t5", SMALL_T5, place, layer=layer, norm="layer_norm", role=role, factor=factor)


def whisper(part: str, place: str, role: str) -> Case:
    return Case("whisper", SMALL_WHISPER, place, layer=f"{part}.layers.0", norm=f"{place}_layer_norm", role=role)


def deepseek(model_type: str, q_lora_rank: int | None) -> Case:
    return Case(model_type, LATENT | {"q_lora_rank": q_lora_rank})


CASES = {
    "Llama": usual("llama", SMALL),
    "Llama, biases": usual("llama", BIASED),
    "Llama, one group, no mask": usual("llama", SMALL | {"num_key_value_heads": 1, "is_causal": False}),
    "Mistral": usual("mistral", SMALL),
    "Mixtral": usual("mixtral", SMALL | {"rope_parameters": ROPE}),
    "Qwen2": usual("qwen2", SMALL),
    "Qwen2 MoE": usual("qwen2_moe", GROUPED),
    "Qwen3": usual("qwen3", SMALL),
    "Qwen3, biases": usual("qwen3", BIASED),
    "Qwen3 MoE": usual("qwen3_moe", SMALL),
    "OLMo 2": usual("olmo2", GROUPED),
    "OLMo 2, biases": usual("olmo2", GROUPED | {"attention_bias": True}),
    "gpt-oss": usual("gpt_oss", SMALL | {"rope_parameters": ROPE}),
    "Gemma 2": gemma("gemma2", SMALL | {"query_pre_attn_scalar": 9, "attn_logit_softcapping": 2.0}, 9),
    "Gemma 2, biases": gemma("gemma2", BIASED | {"attn_logit_softcapping": 0.1}, 256),
    "Gemma 3": gemma("gemma3_text", GEMMA3, 10),
    "Gemma 3, no mask": gemma("gemma3_text", GEMMA3 | {"use_bidirectional_attention": True}, 10),
    "Gemma 3 with images": gemma(
        "gemma3",
        {"text_config": GEMMA3 | {"vocab_size": 16, "intermediate_size": 8}},
        10,
        layer="language_model.layers.0",
        role="text self",
    ),
    "Phi": Case("phi", GROUPED),
    "Phi-3": phi3(),
    "Phi-3, partial RoPE": phi3(partial_rotary_factor=0.75),
    "StableLM": usual("stablelm", GROUPED | {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "GPT-NeoX": Case("gpt_neox", WHOLE | {"rotary_pct": 0.5}, "attention"),
    "GPT-J": Case("gptj", SMALL_GPT | {"rotary_dim": 4}, "attn", layer="h.0", norm="ln_1"),
    "Falcon, one group": falcon(),
    "Falcon, groups": falcon("ln_attn", num_attention_heads=4, num_kv_heads=2, new_decoder_architecture=True),
    "Falcon, biases": falcon(multi_query=False, bias=True),
    # Falcon divides ALiBi by sqrt(D) too, which is nothing for heads of width 1; eager, it adds it twice.
    "Falcon, ALiBi": falcon(implementation="sdpa", hidden_size=3, multi_query=False, alibi=True, bias=True),
    "BLOOM, 3 heads": bloom(3),
    "BLOOM, 4 heads": bloom(4),
    "MPT, 4 heads": mpt(4),
    "MPT, 6 heads": mpt(6),
    "GPT-2": Case("gpt2", SMALL_GPT, "attn", layer="h.0", norm="ln_1"),
    "GPT-2, cross": Case(
        "gpt2",
        SMALL_GPT | CROSS,
        "crossattention",
        layer="h.0",
        norm="ln_cross_attn",
        role="cross",
    ),
    "BERT": bert("bert"),
    "BERT, decoder": bert("bert", is_decoder=True),
    "BERT, cross": bert("bert", "crossattention", "cross", is_decoder=True, **CROSS),
    "RoBERTa": bert("roberta"),
    "XLM-RoBERTa": bert("xlm-roberta"),
    "CamemBERT": bert("camembert"),
    "ELECTRA": bert("electra"),
    "ViT": Case("vit", WHOLE, "attention", norm="layernorm_before"),
    "T5, encoder": t5("encoder.block.0.layer.0", "SelfAttention", "encoder self, with table"),
    "T5, decoder": t5("decoder.block.0.layer.0", "SelfAttention", "decoder self, with table"),
    "T5, cross": t5("decoder.block.0.layer.1", "EncDecAttention", "cross"),
    "Whisper, encoder": whisper("encoder", "self_attn", "encoder self"),
    "Whisper, decoder": whisper("decoder", "self_attn", "decoder self"),
    "Whisper, cross": whisper("decoder", "encoder_attn", "cross"),
    "DeepSeek V2": deepseek("deepseek_v2", 7),
    "DeepSeek V2, no query latent": deepseek("deepseek_v2", None),
    "DeepSeek V3": deepseek("deepseek_v3", 7),
    "DeepSeek V3, no query latent": deepseek("deepseek_v3", None),
}


def model_of(case: Case) -> Any:
    """A model with independent normal parameters, gains and biases among them, and norms without epsilon."""
    cheap = cheap_settings(case.model_type)
    config = AutoConfig.for_model(case.model_type, **cheap | case.settings)
    eager = {"attn_implementation": case.implementation, "experts_implementation": "eager"}
    model = AutoModel.from_config(config, dtype=torch.float64, **eager).eval()
    draws = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.normal_(0, 0.5, generator=draws)
    for module in model.modules():
        for name in {"eps", "variance_epsilon"} & set(vars(module)):
            setattr(module, name, 0.0)
    return model


def inputs_of(case: Case) -> dict[str, Tensor]:
    """Two sequences of random tokens, and what the model reads beside or instead of them."""
    draws = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 16, (2, TOKENS), generator=draws)
    longer = torch.randint(1, 16, (2, TOKENS + 1), generator=draws)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(2, *shape, generator=draws, dtype=torch.float64)

    if case.model_type == "vit":
        return {"pixel_values": numbers(3, 12, 12)}
    if case.model_type == "whisper":
        return {"input_features": numbers(4, 10), "decoder_input_ids": tokens}
    if case.model_type == "t5":
        return {"input_ids": tokens, "decoder_input_ids": longer}
    return {"input_ids": tokens} | ({"encoder_hidden_states": numbers(5, 24)} if case.role == "cross" else {})


def parameters_of(case: Case, model: nn.Module, found: AttentionLayer) -> dict[str, Tensor]:
    """Parameters of a layer as `attnid.attention` takes them, for scores q . k / sqrt(D)."""
    spec, own = case.spec, found.parameters()
    if spec.pre_norm != "none":
        norm = model.get_submodule(case.layer).get_submodule(case.norm)
        own["g_N"] = norm.weight.detach() + (1 if case.model_type.startswith("gemma") else 0)
        own |= {} if getattr(norm, "bias", None) is None else {"b_N": norm.bias.detach()}
    scaled = ("g_Q",) if spec.has_qk_gain else ("W_Q", "W_UQ", "b_Q")
    return own | {name: case.factor * own[name] for name in scaled if name in own}


@dataclass(frozen=True)
class Example:
    """What a layer of a transformers model reads and gives, and its parameters as `attnid.attention` takes them."""

    spec: LayerSpec
    parameters: dict[str, Tensor]
    x: Tensor
    context: Tensor | None
    output: Tensor

    def differs(self, spec: LayerSpec | None = None, **parameters: Tensor) -> bool:
        """Whether the output is visibly another one with another spec or with some parameters replaced."""
        ours = attention(spec or self.spec, self.parameters | parameters, self.x, context=self.context)
        return not torch.allclose(ours, self.output, rtol=1e-6, atol=1e-6)


def found_in(case: Case, model: nn.Module) -> AttentionLayer:
    """The layer of a case, found by names and configuration."""
    tensors = dict(model.named_parameters())
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    path = f"{case.layer}.{case.attention}"
    if case.unread is not None:
        spec, place = case.unread
        return layer_at(place, path, spec.alone, shapes, tensors, "model")
    (layer,) = [
        layer
        for layer in layers_by_name(shapes, tensors, {"model_type": case.model_type} | case.settings, "model")
        if layer.name == path
    ]
    return layer


@cache
def example_of(name: str) -> Example:
    case = CASES[name]
    spec, seen = case.spec, {}

    def keep(place: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen[place] = inputs[0], output

        return hook

    with DoublePrecision(), torch.no_grad():
        model = model_of(case)
        found = found_in(case, model)
        homes = {name: slot.tensor.removesuffix(".weight") for name, slot in found.slots.items()}
        queries = homes.get("W_Q", homes.get("W_DQ", ""))
        reader = f"{case.layer}.{case.norm}" if spec.pre_norm != "none" else queries
        for place in {reader, homes.get("W_K", reader), homes["W_O"]}:
            model.get_submodule(place).register_forward_hook(keep(place))
        model(**inputs_of(case))
        own = parameters_of(case, model, found)
    context = seen[homes["W_K"]][0] if spec.context_dim is not None else None
    return Example(spec, own, seen[reader][0], context, seen[homes["W_O"]][1])


@pytest.fixture(params=CASES)
def example(request: pytest.FixtureRequest) -> Example:
    return example_of(request.param)


def test_output_is_that_of_transformers(example: Example) -> None:
    shapes = {name: tuple(parameter.shape) for name, parameter in example.parameters.items()}
    assert shapes == example.spec.parameter_shapes
    ours = attention(example.spec, example.parameters, example.x, context=example.context)
    assert ours.shape == example.x.shape
    assert example.output.std() > 0.01
    torch.testing.assert_close(ours, example.output, rtol=1e-11, atol=1e-12)


def test_with_any_parameter_changed_it_is_another_output(example: Example) -> None:
    """Which the comparison would see; the softmax takes no notice of a bias of keys where nothing makes it act."""
    for name, parameter in example.parameters.items():
        draws = torch.Generator().manual_seed(2)
        changed = parameter + 0.1 * torch.randn(parameter.shape, generator=draws, dtype=torch.float64)
        acts = name != "b_K" or example.spec.rotary_dim > 0 or example.spec.key_bias_acts
        assert example.differs(**{name: changed}) == acts, name


def test_without_any_feature_it_is_another_output(example: Example) -> None:
    """Of the features that come without parameters of their own."""
    plain: dict[str, Any] = {"causal": False, "rotary_dim": 0, "soft_cap": None, "alibi": False, "qk_norm": "none"}
    plain |= {"pre_norm": "none", "relative_distance": 128}
    for name, value in plain.items():
        needless = name == "relative_distance" and not example.spec.relative_buckets
        needless |= name == "rotary_dim" and example.spec.kv_latent_dim is not None
        if not needless and getattr(example.spec, name) != value:
            assert example.differs(example.spec.model_copy(update={name: value})), name


@pytest.mark.parametrize("name", ["T5, encoder", "T5, decoder"])
def test_most_entries_of_the_table_are_read(name: str) -> None:
    example = example_of(name)
    tokens = example.x.shape[1]
    entries = {relative_bucket(example.spec, offset) for offset in range(1 - tokens, tokens)}
    assert example.spec.relative_buckets == 8
    assert len(entries) >= 7


def test_what_keys_read_may_be_longer_or_shorter_than_what_queries_read() -> None:
    for name, (queries, keys) in {"T5, cross": (8, 7), "GPT-2, cross": (7, 5), "Whisper, cross": (7, 5)}.items():
        example = example_of(name)
        assert example.context is not None
        assert (example.x.shape[1], example.context.shape[1]) == (queries, keys)


@pytest.mark.parametrize("biases", [True, False])
def test_cross_attention_is_that_of_torch(biases: bool) -> None:
    spec = LayerSpec.multi_head(12, 3, biases=biases, causal=False).model_copy(update={"context_dim": 5})
    draws = torch.Generator().manual_seed(0)
    own = random_parameters(spec, draws)
    x, context = (torch.randn(2, *shape, generator=draws, dtype=torch.float64) for shape in ((7, 12), (6, 5)))
    module = nn.MultiheadAttention(12, 3, bias=biases, kdim=5, vdim=5, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for letter in "QKV":
            module.get_parameter(f"{letter.lower()}_proj_weight").copy_(own[f"W_{letter}"].flatten(0, 1))
        module.out_proj.weight.copy_(own["W_O"].transpose(0, 1).flatten(1))
        if biases:
            module.in_proj_bias.copy_(torch.cat([own[f"b_{letter}"].flatten() for letter in "QKV"]))
            module.out_proj.bias.copy_(own["b_O"])
        expected, _ = module(x, context, context, need_weights=False)
    torch.testing.assert_close(attention(spec, own, x, context=context), expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(attention(spec, own, x, context=context.flip(-1)), expected)


SIZES: dict[str, Any] = {"d_model": 10, "n_heads": 4, "n_kv_heads": 2, "qk_head_dim": 6, "v_head_dim": 3}
BY_HAND: dict[str, dict[str, Any]] = {
    "norm of heads without gain": {"qk_norm": "head", "qk_norm_gain": False},
    "norm of all heads without gain": {"qk_norm": "full", "qk_norm_gain": False},
    "RMSNorm without gain": {"pre_norm": "rms", "pre_norm_gain": False},
    "LayerNorm without gain": {"pre_norm": "layer", "pre_norm_gain": False},
    "LayerNorm with bias, without gain": {"pre_norm": "layer", "pre_norm_gain": False, "pre_norm_bias": True},
    "latent without RoPE": {"kv_latent_dim": 5, "n_kv_heads": 4},
    "ALiBi without mask": {"alibi": True, "causal": False},
}


def by_hand(spec: LayerSpec, own: dict[str, Tensor], x: Tensor) -> Tensor:
    """A layer without RoPE by the functions of torch."""
    if spec.pre_norm == "rms":
        x = F.rms_norm(x, x.shape[-1:], eps=0.0)
    if spec.pre_norm == "layer":
        x = F.layer_norm(x, x.shape[-1:], bias=own.get("b_N"), eps=0.0)
    latent = x
    if spec.kv_latent_dim is not None:
        latent = F.rms_norm(x @ own["W_DKV"].T, own["g_DKV"].shape, weight=own["g_DKV"], eps=0.0)
    queries = torch.einsum("hde,ble->blhd", own["W_Q"], x)
    keys = torch.einsum("gde,ble->blgd", own["W_K" if latent is x else "W_UK"], latent)
    values = torch.einsum("gce,ble->blgc", own["W_V" if latent is x else "W_UV"], latent)
    if spec.qk_norm != "none":
        together = 1 if spec.qk_norm == "head" else 2
        queries, keys = (F.rms_norm(heads, heads.shape[-together:], eps=0.0) for heads in (queries, keys))
    distances = (torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])).abs()
    slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256], dtype=torch.float64)[:, None, None]
    bias = -slopes * distances if spec.alibi else None
    heads = (of.transpose(1, 2) for of in (queries, keys, values))
    mixed = F.scaled_dot_product_attention(*heads, attn_mask=bias, is_causal=spec.causal, enable_gqa=True)
    return torch.einsum("hec,bhlc->ble", own["W_O"], mixed)


@pytest.mark.parametrize("name", BY_HAND)
def test_output_is_that_by_hand(name: str) -> None:
    spec = LayerSpec.model_validate(SIZES | BY_HAND[name])
    draws = torch.Generator().manual_seed(0)
    own = random_parameters(spec, draws)
    x = torch.randn(2, TOKENS, 10, generator=draws, dtype=torch.float64)
    expected = by_hand(spec, own, x)
    torch.testing.assert_close(attention(spec, own, x), expected, rtol=1e-11, atol=1e-11)
    plain = LayerSpec.model_validate(SIZES)
    assert not torch.allclose(attention(plain, random_parameters(plain, draws) | own, x), expected)


def test_every_field_of_a_layer_is_compared() -> None:
    specs = [case.spec for case in CASES.values()]
    specs += [LayerSpec.model_validate(SIZES | features) for features in BY_HAND.values()]
    for name, entry in LayerSpec.model_fields.items():
        values = {getattr(spec, name) for spec in specs}
        assert len(values) > 1, name
        assert entry.is_required() or entry.default in values, name


def test_every_family_is_compared() -> None:
    assert {case.model_type for case in CASES.values()} >= set(FAMILIES)
