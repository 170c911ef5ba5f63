"""The attention layers of a model, read from its Hugging Face config.json.

Every family of models is one class: its fields are the keys that bear on attention, with the defaults of transformers
5.24, and its features are what that library builds from them.
"""

import difflib
import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from attnid.attention_layers import AttentionLayers
from attnid.errors import UserError, validation_sentence
from attnid.layer import LayerSpec, Size

Features = dict[str, object]
"""Fields of a LayerSpec."""

QKV = ("query_bias", "key_bias", "value_bias")
QKVO = (*QKV, "output_bias")
RMS_NORM: Features = {"pre_norm": "rms"}
LAYER_NORM: Features = {"pre_norm": "layer", "pre_norm_bias": True}
ENCODER_ONLY = {"T5EncoderModel", "T5ForTokenClassification", "WhisperForAudioClassification"}
DECODER_ONLY = {"WhisperForCausalLM"}
ALIASES = {"kimi_k2": "deepseek_v3"}
"""Types of models that are built by the code of another."""


def attention_layers(config: object, where: str) -> list[AttentionLayers]:
    """The attention layers of the model that a parsed config.json describes.

    Sliding windows, frequencies and scaling of RoPE, the scale of the scores, dropout and mixtures of experts change
    no count and are ignored. Of a model that reads images beside text the text model is read alone. Raises UserError,
    in one sentence that starts with `where`, for a model that is unknown, impossible or beyond what LayerSpec says.
    """
    if not isinstance(config, dict):
        raise UserError(f"{where}: not a JSON object; expected a Hugging Face config.json")
    family = _family(config, where)
    for synonym, key in family.synonyms.items():
        if synonym in config:
            if config.get(key, config[synonym]) != config[synonym]:
                raise UserError(
                    f"{where}: {key} is {config[key]!r} and {synonym}, which stands for it, {config[synonym]!r}; "
                    "allowed: one of them"
                )
            config = config | {key: config[synonym]}
    try:
        return family.model_validate(config).layers()
    except ValidationError as error:
        raise UserError(validation_sentence(error, where, family)) from None


def _family(config: dict[str, object], where: str) -> type["Family"]:
    known = f"known: {', '.join(FAMILIES)}"
    if "model_type" not in config:
        raise UserError(f"{where}: model_type is missing; {known}")
    name = ALIASES.get(str(config["model_type"]), str(config["model_type"]))
    if name not in FAMILIES:
        near = difflib.get_close_matches(name, FAMILIES)
        hint = f"near it: {', '.join(near)}; " if near else ""
        raise UserError(f"{where}: model_type is {config['model_type']!r}; {hint}{known}")
    return FAMILIES[name]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False, defer_build=True)


class Family(_Strict):
    """What a config.json says of the attention layers of one family of models.

    A key that changes the count in a way no LayerSpec can say is a field that allows its plain value alone.
    `config_names` gives the keys that stand for fields of LayerSpec.
    """

    config_names: ClassVar[dict[str, str]] = {}
    synonyms: ClassVar[dict[str, str]] = {}
    """Keys that transformers reads in place of another."""

    pruned_heads: Annotated[dict[str, object], Field(max_length=0)] = {}
    per_layer_config: None = None

    def layers(self) -> list[AttentionLayers]:
        """All attention layers of the model."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _layers_are_possible(self) -> Self:
        try:
            self.layers()
        except ValidationError as error:
            sentence = validation_sentence(error, "", LayerSpec).removeprefix(": ")
            raise ValueError(re.sub(r"\w+", self._config_name, sentence)) from None
        return self

    def _config_name(self, word: re.Match[str]) -> str:
        return self.config_names.get(word[0], word[0])


def _multi_head(d_model: int, heads: int, width: int) -> Features:
    return {"d_model": d_model, "n_heads": heads, "n_kv_heads": heads, "qk_head_dim": width, "v_head_dim": width}


def _equal_share(width: int, heads: int, width_name: str, heads_name: str) -> int:
    if width % heads:
        raise ValueError(f"{width_name} must be a multiple of {heads_name} = {heads}, not {width}")
    return width // heads


class Stack(Family):
    """A stack of equal self-attention layers."""

    config_names = {
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_kv_heads": "num_key_value_heads",
        "rotary_dim": "head_dim",
    }

    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size

    @property
    def head_width(self) -> int:
        """Width of a query, key or value head."""
        names = self.config_names
        return _equal_share(self.hidden_size, self.num_attention_heads, names["d_model"], names["n_heads"])

    def features(self) -> Features:
        """What distinguishes these layers from plain multi-head attention with a causal mask."""
        return {}

    def spec(self, **others: object) -> LayerSpec:
        """One layer of the stack, but for `others`."""
        plain = _multi_head(self.hidden_size, self.num_attention_heads, self.head_width)
        return LayerSpec.model_validate(plain | self.features() | others)

    def layers(self) -> list[AttentionLayers]:
        return [AttentionLayers("self", self.num_hidden_layers, self.spec())]


class CrossAttending(Stack):
    """A stack in which cross-attention may follow each layer, reading an encoder of the same width."""

    add_cross_attention: bool = False

    def layers(self) -> list[AttentionLayers]:
        layers = super().layers()
        if self.add_cross_attention:
            spec = self.spec(causal=False, context_dim=self.hidden_size)
            layers.append(AttentionLayers("cross", self.num_hidden_layers, spec))
        return layers


class Decoder(Stack):
    """A stack with a causal mask, unless is_causal takes it away."""

    is_causal: bool = True

    def features(self) -> Features:
        return super().features() | {"causal": self.is_causal}


class Bert(CrossAttending):
    """BERT and RoBERTa, whose normalisation follows the residual sum."""

    is_decoder: bool = False
    position_embedding_type: Literal["absolute"] = "absolute"

    @model_validator(mode="after")
    def _cross_attention_has_a_decoder(self) -> Self:
        if self.add_cross_attention and not self.is_decoder:
            raise ValueError("add_cross_attention is True; allowed with is_decoder true alone")
        return self

    def features(self) -> Features:
        return super().features() | {"causal": self.is_decoder} | dict.fromkeys(QKVO, True)


class Vit(Stack):
    """ViT, whose output projection has a bias whatever qkv_bias says."""

    head_dim: Size | None = None
    qkv_bias: bool = True

    @property
    def head_width(self) -> int:
        return self.head_dim or super().head_width

    def features(self) -> Features:
        biases = dict.fromkeys(QKV, self.qkv_bias) | {"output_bias": True}
        return super().features() | {"causal": False} | biases | LAYER_NORM


GPT_SYNONYMS = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}


class Gpt2(CrossAttending, Decoder):
    """GPT-2."""

    config_names = {"d_model": "n_embd", "n_heads": "n_head"}
    synonyms = GPT_SYNONYMS

    hidden_size: Size = Field(validation_alias="n_embd")
    num_hidden_layers: Size = Field(validation_alias="n_layer")
    num_attention_heads: Size = Field(validation_alias="n_head")

    def features(self) -> Features:
        return super().features() | dict.fromkeys(QKVO, True) | LAYER_NORM


class GptJ(Decoder):
    """GPT-J."""

    config_names = {"d_model": "n_embd", "n_heads": "n_head", "qk_head_dim": "n_embd / n_head"}
    synonyms = GPT_SYNONYMS

    hidden_size: Size = Field(validation_alias="n_embd")
    num_hidden_layers: Size = Field(validation_alias="n_layer")
    num_attention_heads: Size = Field(validation_alias="n_head")
    rotary_dim: Size = 64

    def features(self) -> Features:
        return super().features() | {"rotary_dim": self.rotary_dim} | LAYER_NORM


class Rope(_Strict):
    """What RoPE's own section of a config.json says of its extent."""

    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] | None = None


class Rotating(Decoder):
    """A decoder with RoPE over a part of each head, or over whole heads where no `usual_part` is given.

    The part stands in rope_parameters, in the older rope_scaling, or beside them.
    """

    usual_part: ClassVar[float | None] = None

    rope_scaling: Rope | None = None
    rope_parameters: Rope | None = None
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] | None = None

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that RoPE rotates."""
        places = (self.rope_scaling or self.rope_parameters, self)
        given = [place.partial_rotary_factor for place in places if place and place.partial_rotary_factor]
        part = given[0] if given else self.usual_part or 1.0
        if self.usual_part is None and part != 1:
            raise ValueError(f"partial_rotary_factor is {part}; allowed: 1, for RoPE over whole heads")
        return int(self.head_width * part)

    def features(self) -> Features:
        return super().features() | {"rotary_dim": self.rotary_dim}


class GptNeoX(Rotating):
    """GPT-NeoX and Pythia."""

    config_names = Stack.config_names | {"rotary_dim": "hidden_size / num_attention_heads * rotary_pct"}
    usual_part = 0.25

    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, validation_alias="rotary_pct"
    )
    attention_bias: bool = True

    def features(self) -> Features:
        return super().features() | dict.fromkeys(QKVO, self.attention_bias) | LAYER_NORM


class StableLm(Rotating):
    """StableLM, whose output projection never has a bias."""

    config_names = Stack.config_names | {"rotary_dim": "hidden_size / num_attention_heads * partial_rotary_factor"}
    usual_part = 0.25

    num_key_value_heads: Size = 32
    use_qkv_bias: bool = False
    qk_layernorm: Literal[False] = False

    def features(self) -> Features:
        groups = {"n_kv_heads": self.num_key_value_heads}
        return super().features() | groups | dict.fromkeys(QKV, self.use_qkv_bias) | LAYER_NORM


class Falcon(Rotating):
    """Falcon: multi-query, or grouped with new_decoder_architecture; RoPE or ALiBi."""

    config_names = Stack.config_names | {
        "n_kv_heads": "num_kv_heads",
        "rotary_dim": "hidden_size / num_attention_heads",
    }

    num_kv_heads: Size | None = None
    multi_query: bool = True
    new_decoder_architecture: bool = False
    alibi: bool = False
    bias: bool = False

    @property
    def groups(self) -> int:
        """Key/value heads; num_kv_heads says them in the new architecture alone."""
        if self.multi_query and not self.new_decoder_architecture:
            return 1
        groups = self.num_kv_heads or self.num_attention_heads
        if groups != self.num_attention_heads and not self.new_decoder_architecture:
            heads = self.num_attention_heads
            raise ValueError(f"num_kv_heads is {groups}; allowed without multi_query: num_attention_heads = {heads}")
        return groups

    def features(self) -> Features:
        position = {"alibi": True, "rotary_dim": 0} if self.alibi else {}
        groups = {"n_kv_heads": self.groups}
        return super().features() | position | groups | dict.fromkeys(QKVO, self.bias) | LAYER_NORM


class Grouped(Rotating):
    """A decoder with RoPE whose query heads share key/value heads, all as wide as head_dim where it is given."""

    num_key_value_heads: Size | None = None
    head_dim: Size | None = None

    @property
    def head_width(self) -> int:
        return self.head_dim or super().head_width

    def features(self) -> Features:
        return super().features() | {"n_kv_heads": self.num_key_value_heads or self.num_attention_heads}


class Phi(Grouped):
    """Phi-1 to Phi-2."""

    config_names = Stack.config_names | {"rotary_dim": "head_dim * partial_rotary_factor"}
    usual_part = 0.5

    qk_layernorm: Literal[False] = False

    def features(self) -> Features:
        return super().features() | dict.fromkeys(QKVO, True) | LAYER_NORM


class Phi3(Grouped):
    """Phi-3 and Phi-4."""

    config_names = Stack.config_names | {"rotary_dim": "head_dim * partial_rotary_factor"}
    usual_part = 1.0

    def features(self) -> Features:
        return super().features() | RMS_NORM


class Mistral(Grouped):
    """Mistral and Mixtral."""

    num_key_value_heads: Size | None = 8

    def features(self) -> Features:
        return super().features() | RMS_NORM


class Qwen2(Grouped):
    """Qwen2, whose biases no key of the configuration takes away."""

    num_key_value_heads: Size | None = 32

    def features(self) -> Features:
        return super().features() | dict.fromkeys(QKV, True) | RMS_NORM


class Qwen2Moe(Grouped):
    """Qwen2 with experts."""

    num_key_value_heads: Size | None = 16
    qkv_bias: bool = True

    def features(self) -> Features:
        return super().features() | dict.fromkeys(QKV, self.qkv_bias) | RMS_NORM


class Llama(Grouped):
    """Llama, and the plan of many later families: RMSNorm in front, one key for all four biases."""

    attention_bias: bool = False

    def features(self) -> Features:
        return super().features() | dict.fromkeys(QKVO, self.attention_bias) | RMS_NORM


class Qwen3(Llama):
    """Qwen3."""

    num_key_value_heads: Size | None = 32
    head_dim: Size | None = 128

    def features(self) -> Features:
        return super().features() | {"qk_norm": "head"}


class Qwen3Moe(Qwen3):
    """Qwen3 with experts."""

    num_key_value_heads: Size | None = 4
    head_dim: Size | None = None


class Olmo2(Llama):
    """OLMo 2, whose normalisation follows the layer."""

    def features(self) -> Features:
        return super().features() | {"qk_norm": "full", "pre_norm": "none"}


class GptOss(Llama):
    """gpt-oss."""

    num_key_value_heads: Size | None = 8
    head_dim: Size | None = 64
    attention_bias: bool = True

    def features(self) -> Features:
        return super().features() | {"sinks": True}


class Gemma2(Llama):
    """Gemma 2."""

    num_key_value_heads: Size | None = 4
    head_dim: Size | None = 256
    attn_logit_softcapping: Annotated[float, Field(gt=0)] | None = 50.0
    use_bidirectional_attention: Literal[False] | None = None

    def features(self) -> Features:
        return super().features() | {"soft_cap": self.attn_logit_softcapping}


class Gemma3Text(Llama):
    """Gemma 3 without images; transformers reads attn_logit_softcapping and does not apply it."""

    num_attention_heads: Size = 8
    num_key_value_heads: Size | None = 4
    head_dim: Size | None = 256
    attn_logit_softcapping: None = None
    use_bidirectional_attention: bool | None = False

    def features(self) -> Features:
        causal = self.is_causal and not self.use_bidirectional_attention
        return super().features() | {"causal": causal, "qk_norm": "head"}


class Gemma3(Family):
    """Gemma 3 with images, of which the text model is read alone."""

    text_config: Gemma3Text

    def layers(self) -> list[AttentionLayers]:
        return [AttentionLayers("text self", text.number, text.spec) for text in self.text_config.layers()]


class DeepSeek(Decoder):
    """DeepSeek V2 and V3, with latent attention; the layers of multi-token prediction are left out."""

    config_names = Stack.config_names | {"rotary_dim": "qk_rope_head_dim"}

    num_key_value_heads: Size | None = None
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    kv_lora_rank: Size
    q_lora_rank: Size | None = 1536
    attention_bias: Literal[False] = False

    @model_validator(mode="after")
    def _every_head_has_its_keys(self) -> Self:
        if self.num_key_value_heads not in (None, self.num_attention_heads):
            allowed = f"allowed: num_attention_heads = {self.num_attention_heads}"
            raise ValueError(f"num_key_value_heads is {self.num_key_value_heads}; {allowed}")
        return self

    @property
    def head_width(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def features(self) -> Features:
        latents = {"kv_latent_dim": self.kv_lora_rank, "q_latent_dim": self.q_lora_rank}
        widths = {"rotary_dim": self.qk_rope_head_dim, "v_head_dim": self.v_head_dim}
        return super().features() | latents | widths | RMS_NORM


class EncoderDecoder(Family):
    """An encoder and a decoder, or one of them where `architectures` names a model with that part alone."""

    architectures: list[str] | None = None
    is_encoder_decoder: bool = True

    def encoder(self) -> list[AttentionLayers]:
        """Attention layers of the encoder."""
        raise NotImplementedError

    def decoder(self) -> list[AttentionLayers]:
        """Attention layers of the decoder."""
        raise NotImplementedError

    def layers(self) -> list[AttentionLayers]:
        models = set(self.architectures or ())
        if models & ENCODER_ONLY:
            return self.encoder()
        if models & DECODER_ONLY:
            return self.decoder()
        if not self.is_encoder_decoder:
            parts = ", ".join(sorted(ENCODER_ONLY | DECODER_ONLY))
            raise ValueError(f"is_encoder_decoder is False; allowed: true, or architectures of {parts}")
        return self.encoder() + self.decoder()


class T5(EncoderDecoder):
    """T5; the table of relative positions is a parameter of the first layer of either stack, which the others read."""

    config_names = {
        "relative_buckets": "relative_attention_num_buckets",
        "relative_distance": "relative_attention_max_distance",
    }
    synonyms = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
    }

    d_model: Size
    d_kv: Size
    num_heads: Size
    num_layers: Size
    num_decoder_layers: Size | None = None
    relative_attention_num_buckets: Size = 32
    relative_attention_max_distance: Size = 128

    def encoder(self) -> list[AttentionLayers]:
        return self._stack("encoder self", self.num_layers, causal=False)

    def decoder(self) -> list[AttentionLayers]:
        number = self.num_decoder_layers or self.num_layers
        cross = self._spec(causal=False, context_dim=self.d_model)
        return [*self._stack("decoder self", number, causal=True), AttentionLayers("cross", number, cross)]

    def _stack(self, role: str, number: int, *, causal: bool) -> list[AttentionLayers]:
        with_table = self._spec(
            causal=causal,
            relative_buckets=self.relative_attention_num_buckets,
            relative_distance=self.relative_attention_max_distance,
        )
        first = AttentionLayers(f"{role}, with table", 1, with_table)
        others = AttentionLayers(role, number - 1, self._spec(causal=causal))
        return [first, others] if number > 1 else [first]

    def _spec(self, **features: object) -> LayerSpec:
        return LayerSpec.model_validate(_multi_head(self.d_model, self.num_heads, self.d_kv) | RMS_NORM | features)


class Whisper(EncoderDecoder):
    """Whisper, whose keys have no bias."""

    synonyms = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_key_value_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }

    d_model: Size
    encoder_layers: Size
    encoder_attention_heads: Size
    decoder_layers: Size
    decoder_attention_heads: Size

    def encoder(self) -> list[AttentionLayers]:
        return [AttentionLayers("encoder self", self.encoder_layers, self._spec("encoder", causal=False))]

    def decoder(self) -> list[AttentionLayers]:
        own = self._spec("decoder")
        cross = self._spec("decoder", causal=False, context_dim=self.d_model)
        return [
            AttentionLayers("decoder self", self.decoder_layers, own),
            AttentionLayers("cross", self.decoder_layers, cross),
        ]

    def _spec(self, part: Literal["encoder", "decoder"], **features: object) -> LayerSpec:
        heads = self.encoder_attention_heads if part == "encoder" else self.decoder_attention_heads
        width = _equal_share(self.d_model, heads, "d_model", f"{part}_attention_heads")
        biases = dict.fromkeys(QKVO, True) | {"key_bias": False}
        return LayerSpec.model_validate(_multi_head(self.d_model, heads, width) | biases | LAYER_NORM | features)


FAMILIES: dict[str, type[Family]] = {
    "bert": Bert,
    "deepseek_v2": DeepSeek,
    "deepseek_v3": DeepSeek,
    "falcon": Falcon,
    "gemma2": Gemma2,
    "gemma3": Gemma3,
    "gemma3_text": Gemma3Text,
    "gpt2": Gpt2,
    "gpt_neox": GptNeoX,
    "gpt_oss": GptOss,
    "gptj": GptJ,
    "llama": Llama,
    "mistral": Mistral,
    "mixtral": Mistral,
    "olmo2": Olmo2,
    "phi": Phi,
    "phi3": Phi3,
    "qwen2": Qwen2,
    "qwen2_moe": Qwen2Moe,
    "qwen3": Qwen3,
    "qwen3_moe": Qwen3Moe,
    "roberta": Bert,
    "xlm-roberta": Bert,
    "camembert": Bert,
    "electra": Bert,
    "stablelm": StableLm,
    "t5": T5,
    "vit": Vit,
    "whisper": Whisper,
}
"""The class that reads each model_type."""
