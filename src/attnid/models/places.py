"""Where the models of `transformers` keep their attention layers, by names of tensors.

The names are those of its modules and of its files. What a layer is comes from the model's configuration
(`attnid.huggingface`), and every tensor is held against it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from torch import Tensor

from attnid.attention_layers import AttentionLayers
from attnid.errors import UserError
from attnid.huggingface import ALIASES, attention_layers
from attnid.layer import LayerSpec
from attnid.models.layer import AttentionLayer, Slot

Shapes = Mapping[str, tuple[int, ...]]
MOST_LAYERS = 100_000
WRAPPERS = re.compile(r"\b_(?:orig_mod|checkpoint_wrapped_module|fsdp_wrapped_module)\.")
"""What torch.compile, checkpointing and sharding put into the names of what they wrap."""


@dataclass(frozen=True)
class Place:
    """The attention modules of one role.

    Attributes:
        path: pattern of their paths in the model, with the layer's number; any prefix may stand before it.
        weights: names of weights, several where one matrix holds them all, to submodules, which hold the biases too.
        others: other parameters by name.
        role: as in `attnid.huggingface`.
        by_group: a joint matrix holds all rows of one group after another, not all rows of one weight after another.
        paired: RoPE turns adjacent rows of a head, not one of the first half with one of the second.
        transposed: weights are stored as (in, out).
        gain_offset: is added to the stored gains.
    """

    path: str
    weights: Mapping[str, str]
    others: Mapping[str, str] = field(default_factory=dict)
    role: str = "self"
    by_group: bool = False
    paired: bool = False
    transposed: bool = False
    gain_offset: float = 0.0


def _separate(q: str, k: str, v: str, o: str) -> dict[str, str]:
    return {"W_Q": q, "W_K": k, "W_V": v, "W_O": o}


def _joint(qkv: str, o: str) -> dict[str, str]:
    return {"W_Q W_K W_V": qkv, "W_O": o}


_QKVO = _separate("q_proj", "k_proj", "v_proj", "o_proj")
_OUT = _separate("q_proj", "k_proj", "v_proj", "out_proj")
_GAINS = {"g_Q": "q_norm.weight", "g_K": "k_norm.weight"}
_LLAMA = r"layers\.(\d+)\.self_attn"
_USUAL = (Place(_LLAMA, _QKVO),)
_NORMED = (Place(_LLAMA, _QKVO, _GAINS),)
_BERT_NAMES = _separate("self.query", "self.key", "self.value", "output.dense")
_BERT = (
    Place(r"encoder\.layer\.(\d+)\.attention", _BERT_NAMES),
    Place(r"encoder\.layer\.(\d+)\.crossattention", _BERT_NAMES, role="cross"),
)
_GPT2_CROSS = {"W_Q": "q_attn", "W_K W_V": "c_attn", "W_O": "c_proj"}
_T5_NAMES = _separate("q", "k", "v", "o")
_T5_TABLE = {"table": "relative_attention_bias.weight"}
_DEEPSEEK = {"W_DKV W_KR": "kv_a_proj_with_mqa", "W_UK W_UV": "kv_b_proj", "W_O": "o_proj", "W_Q": "q_proj"}
_DEEPSEEK |= {"W_DQ": "q_a_proj", "W_UQ": "q_b_proj"}
_DEEPSEEK_GAINS = {"g_DKV": "kv_a_layernorm.weight", "g_DQ": "q_a_layernorm.weight"}
_LATENT = (Place(_LLAMA, _DEEPSEEK, _DEEPSEEK_GAINS, by_group=True, paired=True),)

PLACES: dict[str, tuple[Place, ...]] = {
    "bert": _BERT,
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "falcon": (Place(r"h\.(\d+)\.self_attention", _joint("query_key_value", "dense"), by_group=True),),
    "gemma2": _USUAL,
    "gemma3": (Place(rf"language_model\.(?:model\.)?{_LLAMA}", _QKVO, _GAINS, role="text self", gain_offset=1.0),),
    "gemma3_text": (Place(_LLAMA, _QKVO, _GAINS, gain_offset=1.0),),
    "gpt2": (
        Place(r"h\.(\d+)\.attn", _joint("c_attn", "c_proj"), transposed=True),
        Place(r"h\.(\d+)\.attn", _joint("c_attn", "c_proj")),  # nanoGPT
        Place(r"h\.(\d+)\.crossattention", _GPT2_CROSS, role="cross", transposed=True),
    ),
    "gpt_neox": (Place(r"layers\.(\d+)\.attention", _joint("query_key_value", "dense"), by_group=True),),
    "gpt_oss": (Place(_LLAMA, _QKVO, {"sinks": "sinks"}),),
    "gptj": (Place(r"h\.(\d+)\.attn", _OUT, paired=True),),
    "llama": _USUAL,
    "mistral": _USUAL,
    "mixtral": _USUAL,
    "olmo2": _NORMED,
    "phi": (Place(_LLAMA, _separate("q_proj", "k_proj", "v_proj", "dense")),),
    "phi3": (Place(_LLAMA, _joint("qkv_proj", "o_proj")),),
    "qwen2": _USUAL,
    "qwen2_moe": _USUAL,
    "qwen3": _NORMED,
    "qwen3_moe": _NORMED,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "electra": _BERT,
    "stablelm": _USUAL,
    "t5": (
        Place(r"encoder\.block\.(\d+)\.layer\.0\.SelfAttention", _T5_NAMES, _T5_TABLE, role="encoder self"),
        Place(r"decoder\.block\.(\d+)\.layer\.0\.SelfAttention", _T5_NAMES, _T5_TABLE, role="decoder self"),
        Place(r"decoder\.block\.(\d+)\.layer\.1\.EncDecAttention", _T5_NAMES, role="cross"),
    ),
    "vit": (
        Place(r"layers\.(\d+)\.attention", _QKVO),
        Place(
            r"layer\.(\d+)\.attention",
            _separate("attention.query", "attention.key", "attention.value", "output.dense"),
        ),
    ),
    "whisper": (
        Place(r"encoder\.layers\.(\d+)\.self_attn", _OUT, role="encoder self"),
        Place(r"decoder\.layers\.(\d+)\.self_attn", _OUT, role="decoder self"),
        Place(r"decoder\.layers\.(\d+)\.encoder_attn", _OUT, role="cross"),
    ),
}
"""Places of each model_type, all that `attnid.huggingface` reads; of two for one role, the one that fits holds."""


def layers_by_name(shapes: Shapes, tensors: Mapping[str, Tensor], config: object, where: str) -> list[AttentionLayer]:
    """The attention layers among named tensors, as a configuration describes them, in the order of their names.

    Args:
        shapes: of all tensors, by name.
        tensors: the tensors themselves, which are not read here.
        config: a parsed config.json.
        where: what complaints start with.

    Raises UserError where the configuration is unknown, no layer is found, or a tensor is not as the configuration
    says.
    """
    kinds = attention_layers(config, where)
    model_type = str(config["model_type"]) if isinstance(config, dict) else ""
    places = PLACES[ALIASES.get(model_type, model_type)]
    real_names = {WRAPPERS.sub("", name): name for name in shapes}
    plain_shapes = {plain: shapes[name] for plain, name in real_names.items()}
    found: dict[str, AttentionLayer] = {}
    failed: dict[str, UserError] = {}
    numbers: dict[str, set[int]] = {place.role: set() for place in places}
    for place in places:
        for path, number in _paths(place, plain_shapes):
            try:
                spec = _spec_of(kinds, place.role, number, path, where)
                layer = layer_at(place, path, spec, plain_shapes, tensors, where)
            except UserError as error:
                failed.setdefault(path, error)
            else:
                slots = {name: replace(slot, tensor=real_names[slot.tensor]) for name, slot in layer.slots.items()}
                found[path] = replace(layer, slots=slots)
                numbers[place.role].add(number)
    for path, reason in failed.items():
        if path not in found:
            raise reason
    _require_all(kinds, places, numbers, plain_shapes, f"{where}: a model of type {model_type}")
    return [found[path] for path in sorted(found, key=_natural)]


def _require_all(
    kinds: Sequence[AttentionLayers],
    places: Sequence[Place],
    numbers: Mapping[str, set[int]],
    shapes: Shapes,
    what: str,
) -> None:
    """Raise UserError where a layer that the configuration describes is not there."""
    for role, there in numbers.items():
        expected = len(_specs(kinds, role))
        for number in range(expected):
            if number not in there:
                at = " or ".join(dict.fromkeys(_readable(place.path, number) for place in places if place.role == role))
                raise UserError(
                    f"{what} has {expected} layers of {role} attention by its configuration, and {at} is not among "
                    f"its tensors{_wrapped(shapes)}"
                )


def _wrapped(shapes: Shapes) -> str:
    """Why weights may be missing under their usual names."""
    if any(".base_layer." in name for name in shapes):
        return "; adapters wrap its projections: merge them first (PEFT: merge_and_unload)"
    if any(".parametrizations." in name or name.endswith(("weight_g", "weight_orig")) for name in shapes):
        return "; some weights are parametrized or pruned: make that permanent first"
    return "; expected the whole model"


def _readable(path: str, number: int) -> str:
    return re.sub(r"\(\?:(.*?)\)\?", "", path).replace(r"(\d+)", str(number)).replace("\\", "")


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in path.split(".")]


def _paths(place: Place, shapes: Shapes) -> Iterator[tuple[str, int]]:
    """Modules in a place, with their numbers: those that hold its output weights."""
    output = re.compile(rf"((?:.*\.)?{place.path})\.{re.escape(place.weights['W_O'])}\.weight")
    for name in shapes:
        match = output.fullmatch(name)
        if match:
            yield match[1], int(match[2])


def _spec_of(kinds: Sequence[AttentionLayers], role: str, number: int, path: str, where: str) -> LayerSpec:
    specs = _specs(kinds, role)
    if number >= len(specs):
        raise UserError(f"{where}: {len(specs)} layers for {role} by the configuration, found {path}")
    return specs[number]


def _specs(kinds: Sequence[AttentionLayers], role: str) -> list[LayerSpec]:
    """What the layers of a role are, in their order."""
    own = [kind for kind in kinds if kind.role.partition(",")[0] == role]
    return [kind.spec.alone for kind in own for _ in range(min(kind.number, MOST_LAYERS))]


def layer_at(
    place: Place, path: str, spec: LayerSpec, shapes: Shapes, tensors: Mapping[str, Tensor], where: str
) -> AttentionLayer:
    """The layer of a module in a place. Raises UserError where a tensor is not what `spec` says."""
    slots: dict[str, Slot] = {}
    wanted = spec.parameter_shapes
    for joined, module in place.weights.items():
        names = joined.split()
        if names[0] in wanted:
            slots |= _projection(place, spec, names, f"{path}.{module}", shapes, where)
    for name, module in place.others.items():
        if name in wanted:
            slots[name] = _other(place, spec, name, f"{path}.{module}", shapes, where)
    return AttentionLayer(path, spec, slots, tensors)


def _projection(
    place: Place, spec: LayerSpec, names: Sequence[str], module: str, shapes: Shapes, where: str
) -> dict[str, Slot]:
    """The weights, and biases, of a module that may hold several."""
    wanted = spec.parameter_shapes
    if names[0] == "W_O":
        H, E, C = wanted["W_O"]
        _require(f"{module}.weight", (H * C, E) if place.transposed else (E, H * C), shapes, where)
        weight = Slot(f"{module}.weight", (H, E, C), transposed=not place.transposed, width=C, outputs=True)
        return {"W_O": weight} | _bias(spec, "b_O", Slot(f"{module}.bias", (E,)), E, shapes, where)
    rows = [prod(wanted[name][:-1]) for name in names]
    stored = (sum(rows), wanted[names[0]][-1])
    _require(f"{module}.weight", stored[::-1] if place.transposed else stored, shapes, where)
    grouped = place.by_group and len(names) > 1 and all(len(wanted[name]) == 3 for name in names)
    groups = spec.n_kv_heads if grouped else 1
    slots: dict[str, Slot] = {}
    start = 0
    for name, count in zip(names, rows, strict=True):
        stop = start + count // groups
        shape = wanted[name]
        width = shape[1] if len(shape) == 3 else None
        order = _order(place, spec, name)
        weight = Slot(f"{module}.weight", shape, place.transposed, groups, start, stop, width, order)
        bias = replace(weight, tensor=f"{module}.bias", shape=shape[:-1], transposed=False)
        slots |= {name: weight} | _bias(spec, name.replace("W_", "b_"), bias, sum(rows), shapes, where)
        start = stop
    return slots


def _bias(spec: LayerSpec, name: str, slot: Slot, rows: int, shapes: Shapes, where: str) -> dict[str, Slot]:
    if name not in spec.parameter_shapes:
        if slot.tensor in shapes:
            raise UserError(f"{where}: {slot.tensor} is there; by the configuration the layer has no such bias")
        return {}
    _require(slot.tensor, (rows,), shapes, where)
    return {name: slot}


def _other(place: Place, spec: LayerSpec, name: str, tensor: str, shapes: Shapes, where: str) -> Slot:
    shape = spec.parameter_shapes[name]
    if name == "table":
        _require(tensor, shape[::-1], shapes, where)
        return Slot(tensor, shape, transposed=True)
    _require(tensor, (prod(shape),), shapes, where)
    width = shape[1] if len(shape) == 2 else None
    offset = place.gain_offset if name.startswith("g_") else 0.0
    order = _order(place, spec, name) if name in ("g_Q", "g_K") else None
    return Slot(tensor, shape, width=width, order=order, offset=offset)


def _require(tensor: str, expected: tuple[int, ...], shapes: Shapes, where: str) -> None:
    found = shapes.get(tensor)
    if found is None:
        raise UserError(f"{where}: the tensor {tensor} is missing{_wrapped(shapes)}")
    if tuple(found) != expected:
        raise UserError(f"{where}: {tensor} has shape {tuple(found)}; by the configuration it is {expected}")


def _order(place: Place, spec: LayerSpec, name: str) -> tuple[int, ...] | None:
    """Rows of a head with those that RoPE rotates in front, in adjacent pairs; None where they lie so."""
    if name not in ("W_Q", "W_K", "W_UQ", "g_Q", "g_K") or not spec.rotary_dim:
        return None
    rows = list(range(spec.qk_head_dim))
    if spec.kv_latent_dim is not None:
        rows = rows[-spec.rotary_dim :] + rows[: -spec.rotary_dim]
    elif place.paired:
        return None
    if not place.paired:
        half = spec.rotary_dim // 2
        rows[: spec.rotary_dim] = [
            row for pair in zip(rows[:half], rows[half : spec.rotary_dim], strict=True) for row in pair
        ]
    return tuple(rows)
