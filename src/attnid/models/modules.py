"""Attention layers of a PyTorch model, found by its modules."""

import inspect
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnid.errors import UserError
from attnid.huggingface import ALIASES
from attnid.layer import LayerSpec
from attnid.models.layer import AttentionLayer, Slot
from attnid.models.places import PLACES, layers_by_name

JOINT, APART = {"c_attn", "c_proj"}, {"query", "key", "value", "proj"}
"""Submodules of nanoGPT's attention, and of minGPT's first one."""


KNOWN_CODE = ("torch.nn.modules.", "transformers.models.", "transformers.pytorch_utils")


class Place(NamedTuple):
    """Where a tensor lies in memory: its first byte, and the one after its last."""

    begin: int
    end: int


Places = Sequence[tuple[str, Place]]


class _Parameters(Mapping[str, Tensor]):
    """A model's parameters by name, those that it has at the time, however often they are replaced."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        named = nn.Module.named_parameters(model, remove_duplicate=False)  # wrappers give other names than they hold
        self._names = dict.fromkeys(name for name, _ in named)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        try:
            return self._model.get_parameter(name)
        except AttributeError:
            raise UserError(f"{name} is no longer a parameter of the model; expected it as it was found") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def find_attention(model: nn.Module) -> list[AttentionLayer]:
    """The attention layers of a model, each as views on the model's own weights.

    It knows torch.nn.MultiheadAttention, attention modules in the manner of nanoGPT, and the models of transformers
    whose configurations `attnid count` reads, anywhere in the model, compiled or not. In the manner of nanoGPT are
    modules with `n_head`, linear layers `c_attn` and `c_proj`, or `query`, `key`, `value` and `proj`, dropout, a causal
    mask in a buffer `bias` or `mask`, nothing else, and a forward pass of one argument; that this pass is plain
    attention cannot be seen. Layers that share weights with something else, or whose projections are not plain (a
    subclass, a hook), are found and say so (`AttentionLayer.fixed`). A subclass of torch's module is left out with a
    warning.

    Raises UserError where no such layer is found, or a model of transformers is not as its configuration says.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"find_attention: {type(model).__name__} is no torch.nn.Module; expected a whole model")
    _refuse_prompts(model)
    parameters = _Parameters(model)
    everything = _places(model)
    layers = _without_repeats([_examined(model, layer, everything) for layer in _found(model, "", parameters)])
    if not layers:
        types = sorted({str(kind) for module in model.modules() if (kind := _model_type(module))})
        found = f"; found models of type {', '.join(types)}" if types else ""
        raise UserError(
            f"{type(model).__name__}: no attention layers are recognised{found}; known: torch.nn.MultiheadAttention, "
            f"modules in the manner of nanoGPT, models of transformers of type {', '.join(PLACES)}"
        )
    return layers


def as_layers(model: nn.Module | AttentionLayer | Sequence[AttentionLayer]) -> Sequence[AttentionLayer]:
    """Layers given, or those found in a model, with weights that can be read. Raises UserError where there are none."""
    layers: Sequence[Any] = model if isinstance(model, list | tuple) else []
    if isinstance(model, nn.Module):
        layers = find_attention(model)
    elif isinstance(model, AttentionLayer):
        layers = [model]
    if not layers or not all(isinstance(layer, AttentionLayer) for layer in layers):
        raise UserError(f"a {type(model).__name__} holds no attention layers; expected a model or layers found in one")
    for layer in layers:
        if any(layer.tensors[name].is_meta for name in layer.tensor_names()):
            raise UserError(f"{layer.name}: its weights are on the meta device; expected weights with values")
    return layers


def _model_type(module: nn.Module) -> str | None:
    """The type of a model of transformers, None for anything else."""
    ours = any(kind.__module__.startswith("transformers.") for kind in type(module).__mro__)
    kind = getattr(getattr(module, "config", None), "model_type", None)
    return str(kind) if ours and kind else None


def _found(
    module: nn.Module, path: str, parameters: Mapping[str, Tensor], *, inside: bool = False
) -> Iterator[AttentionLayer]:
    """Layers of a module and those below it; `inside` a model of transformers, whose own layers are found by name."""
    model_type = _model_type(module)
    if not inside and model_type and ALIASES.get(model_type, model_type) in PLACES:
        inside = True
        config: Any = module.config
        described = json.loads(config.to_json_string(use_diff=False)) | {"architectures": [type(module).__name__]}
        shapes = {name: tuple(tensor.shape) for name, tensor in parameters.items() if name.startswith(path)}
        yield from layers_by_name(shapes, parameters, described, type(module).__name__)
    if type(module) is nn.MultiheadAttention:
        yield _of_torch(module, path, parameters)
    elif isinstance(module, nn.MultiheadAttention):
        warnings.warn(f"{path.rstrip('.')} is left out: {type(module).__name__} may do something else", stacklevel=3)
    elif _is_nano_gpt(module):
        yield _of_nano_gpt(module, path, parameters)
    for name, child in module.named_children():
        yield from _found(child, f"{path}{name}.", parameters, inside=inside)


def _refuse_prompts(model: nn.Module) -> None:
    for module in model.modules():
        if getattr(getattr(module, "active_peft_config", None), "is_prompt_learning", False):
            raise UserError(f"{type(module).__name__}: its prompts add keys and values that would not move along")


def _of_torch(module: nn.MultiheadAttention, path: str, parameters: Mapping[str, Tensor]) -> AttentionLayer:
    E, H, D = module.embed_dim, module.num_heads, module.head_dim
    biased = module.in_proj_bias is not None
    spec = LayerSpec.with_heads(
        E,
        H,
        D,
        **dict.fromkeys(("query_bias", "key_bias", "value_bias"), biased),
        output_bias=module.out_proj.bias is not None,
        causal=False,
        context_dim=None if module.kdim == E else module.kdim,
    )
    slots: dict[str, Slot] = {}
    for part, (letter, width) in enumerate({"Q": E, "K": module.kdim, "V": module.vdim}.items()):
        if module.in_proj_weight is not None:
            weight = Slot(f"{path}in_proj_weight", (H, D, E), start=part * E, stop=(part + 1) * E, width=D)
        else:
            weight = Slot(f"{path}{letter.lower()}_proj_weight", (H, D, width), width=D)
        slots[f"W_{letter}"] = weight
        if biased:
            at = {"start": part * E, "stop": (part + 1) * E}
            slots[f"b_{letter}"] = Slot(f"{path}in_proj_bias", (H, D), width=D, **at)
    slots |= _output(f"{path}out_proj", (H, E, D), biased=spec.output_bias)
    if module.bias_k is not None:
        slots |= {f"extra_{letter}": Slot(f"{path}bias_{letter.lower()}", (H, D), width=D) for letter in "KV"}
    extra_token = module.bias_k is not None or bool(module.add_zero_attn)
    return AttentionLayer(path.rstrip("."), spec, slots, parameters, extra_token)


def _is_nano_gpt(module: nn.Module) -> bool:
    children = dict(module.named_children())
    linear = {name for name, child in children.items() if type(child) is nn.Linear}
    others = {type(child) for name, child in children.items() if name not in linear}
    buffers = {name for name, _ in module.named_buffers(recurse=False)}
    return (
        linear in (JOINT, APART)
        and others <= {nn.Dropout, nn.Identity}
        and buffers <= {"bias", "mask"}
        and not list(module.parameters(recurse=False))
        and isinstance(getattr(module, "n_head", None), int)
        and len(inspect.signature(module.forward).parameters) == 1
    )


def _of_nano_gpt(module: Any, path: str, parameters: Mapping[str, Tensor]) -> AttentionLayer:
    joint = hasattr(module, "c_attn")
    first, output = (module.c_attn, module.c_proj) if joint else (module.query, module.proj)
    E, H = first.in_features, module.n_head
    shape = (H, E // H, E)
    names = ["c_attn"] * 3 if joint else ["query", "key", "value"]
    biases = {
        f"{kind}_bias": module.get_submodule(name).bias is not None
        for kind, name in zip(("query", "key", "value"), names, strict=True)
    }
    spec = LayerSpec.with_heads(E, H, E // H, output_bias=output.bias is not None, **biases)
    slots: dict[str, Slot] = {}
    for part, (letter, name) in enumerate(zip("QKV", names, strict=True)):
        start = part * E if joint else 0
        weight = Slot(f"{path}{name}.weight", shape, start=start, stop=start + E, width=E // H)
        slots[f"W_{letter}"] = weight
        if module.get_submodule(name).bias is not None:
            slots[f"b_{letter}"] = replace(weight, tensor=f"{path}{name}.bias", shape=shape[:2])
    slots |= _output(f"{path}{'c_proj' if joint else 'proj'}", (H, E, E // H), biased=spec.output_bias)
    return AttentionLayer(path.rstrip("."), spec, slots, parameters)


def _output(module: str, shape: tuple[int, int, int], *, biased: bool) -> dict[str, Slot]:
    bias = {"b_O": Slot(f"{module}.bias", shape[1:2])} if biased else {}
    return {"W_O": Slot(f"{module}.weight", shape, transposed=True, width=shape[2], outputs=True)} | bias


def _examined(model: nn.Module, layer: AttentionLayer, everything: Places) -> AttentionLayer:
    """A layer with what stands in the way of moving it. Raises UserError where a weight is no parameter of its own."""
    for name in layer.tensor_names():
        if name not in layer.tensors:
            raise UserError(f"{layer.name}: {name} is no parameter of its own, but parametrized or pruned")
    return replace(layer, obstacle=_what_is_between(model, layer) or _what_is_shared(model, layer, everything))


def _what_is_between(model: nn.Module, layer: AttentionLayer) -> str:
    """Code that may come between a layer's weights: classes of someone else, hooks, another forward pass."""
    weights = {slot.tensor.rpartition(".")[0] for name, slot in layer.slots.items() if name.startswith("W_")}
    attention = _home(model, layer)
    for path in sorted(weights):
        module = model.get_submodule(path)
        if not type(module).__module__.startswith(KNOWN_CODE):
            return f"{path} is a {type(module).__name__}, which may do more than multiply"
        if module._forward_hooks or module._forward_pre_hooks:
            return f"a hook on {path} may see or change what lies between the weights"
        if "forward" in vars(module):
            return f"the forward pass of {path} was replaced, and may do more than multiply"
    if not type(attention).__module__.startswith(KNOWN_CODE) and not _is_nano_gpt(attention):
        return f"{type(attention).__name__} is a class of its own, which may compute something else"
    if "forward" in vars(attention):
        return "its forward pass was replaced, and may compute something else"
    return ""


def _home(model: nn.Module, layer: AttentionLayer) -> nn.Module:
    """The module that holds all tensors of a layer."""
    paths = [slot.tensor.split(".") for slot in layer.slots.values()]
    shared = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))]
    return _modules_above(model, ".".join([*shared, ""]))[-1]


def _modules_above(model: nn.Module, name: str) -> list[nn.Module]:
    """The modules from the model down to the one that holds a tensor, by the tensor's name."""
    modules = [model]
    for part in name.split(".")[:-1]:
        child = modules[-1]._modules[part]
        assert child is not None
        modules.append(child)
    return modules


def _what_is_shared(model: nn.Module, layer: AttentionLayer, everything: Places) -> str:
    """Weights that stand in the layer twice, or that something beside it uses too.

    It is no obstacle that the whole attention module stands in the model twice.
    """
    own: dict[Place, str] = {}
    home = _home(model, layer)
    for name in sorted(layer.tensor_names()):
        place = _place(layer.tensors[name])
        for known, other in own.items():
            if _overlap(place, known):
                return f"{other} and {name} are one tensor"
        own[place] = name
    for name, place in everything:
        for known, mine in own.items():
            if name != mine and _overlap(place, known) and home not in _modules_above(model, name):
                return f"{name} is {mine} as well" if place == known else f"{name} shares memory with {mine}"
    return ""


def _places(model: nn.Module) -> Places:
    """Where every parameter and buffer of a model lies, under all of its names."""
    named = [
        *nn.Module.named_parameters(model, remove_duplicate=False),
        *nn.Module.named_buffers(model, remove_duplicate=False),
    ]
    return [(name, _place(tensor)) for name, tensor in named]


def _place(tensor: Tensor) -> Place:
    """First and last byte of a tensor in memory; a number of its own for one without storage."""
    begin = tensor.data_ptr() if tensor.layout == torch.strided and tensor.numel() else 0
    if not begin:
        return Place(-id(tensor), -id(tensor) + 1)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return Place(begin, begin + (last + 1) * tensor.element_size())


def _overlap(one: Place, other: Place) -> bool:
    return one.begin < other.end and other.begin < one.end


def _without_repeats(layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
    """Each layer once: of modules that hold the very same weights, the first."""
    seen: dict[tuple[LayerSpec, bool, frozenset[Place]], AttentionLayer] = {}
    for layer in layers:
        places = frozenset(_place(layer.tensors[name]) for name in layer.tensor_names())
        seen.setdefault((layer.spec, layer.extra_token, places), layer)
    return list(seen.values())
