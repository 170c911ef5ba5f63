"""Attention layers of a PyTorch model, found by its modules."""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from attnid.errors import UserError
from attnid.huggingface import ALIASES
from attnid.layer import LayerSpec
from attnid.models.layer import AttentionLayer, Slot
from attnid.models.places import PLACES, layers_by_name

JOINT, APART = {"c_attn", "c_proj"}, {"query", "key", "value", "proj"}
"""Submodules of nanoGPT's attention, and of minGPT's first one."""


def find_attention(model: nn.Module) -> list[AttentionLayer]:
    """The attention layers of a model, each as views on the model's own weights.

    It knows torch.nn.MultiheadAttention, attention modules in the manner of nanoGPT (`c_attn` and `c_proj`, or `query`,
    `key`, `value` and `proj`, with `n_head`, and a forward pass of one argument), and the models of transformers whose
    configurations `attnid count` reads, anywhere in the model. What a module does beside that cannot be seen: a
    subclass that changes the forward pass is not recognised.

    Raises UserError where no such layer is found, or a model of transformers is not as its configuration says.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    layers = _marked_where_shared(list(_found(model, "", parameters)))
    if not layers:
        raise UserError(
            f"{type(model).__name__}: no attention layers are recognised; known: torch.nn.MultiheadAttention, modules "
            f"in the manner of nanoGPT, models of transformers of type {', '.join(PLACES)}"
        )
    return layers


def _found(module: nn.Module, path: str, parameters: Mapping[str, Tensor]) -> Iterator[AttentionLayer]:
    config: Any = getattr(module, "config", None)
    model_type = getattr(config, "model_type", None)
    if ALIASES.get(str(model_type), model_type) in PLACES and hasattr(config, "to_json_string"):
        own = {name: tensor for name, tensor in parameters.items() if name.startswith(path)}
        shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
        config_fields = json.loads(config.to_json_string(use_diff=False))
        yield from layers_by_name(shapes, parameters, config_fields, type(module).__name__)
        return
    if type(module) is nn.MultiheadAttention:
        yield _of_torch(module, path, parameters)
    elif _is_nano_gpt(module):
        yield _of_nano_gpt(module, path, parameters)
    for name, child in module.named_children():
        yield from _found(child, f"{path}{name}.", parameters)


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
    children = {name for name, child in module.named_children() if list(child.parameters())}
    linear = all(type(module.get_submodule(name)) is nn.Linear for name in children)
    arguments = len(inspect.signature(module.forward).parameters)
    heads = getattr(module, "n_head", None)
    own = list(module.parameters(recurse=False))
    return children in (JOINT, APART) and linear and arguments == 1 and isinstance(heads, int) and not own


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


def _marked_where_shared(layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
    """Each layer once; those that share some of their weights with another say with which."""
    seen: dict[int, str] = {}
    result: list[AttentionLayer] = []
    for layer in layers:
        own = {id(layer.tensors[name]) for name in layer.tensor_names()}
        others = [seen[tensor] for tensor in own if tensor in seen]
        if len(others) == len(own) and len(set(others)) == 1:
            continue
        if others:
            result = [replace(known, shared_with=layer.name) if known.name in others else known for known in result]
            layer = replace(layer, shared_with=others[0])
        for tensor in own:
            seen.setdefault(tensor, layer.name)
        result.append(layer)
    return result


def as_layers(model: nn.Module | Sequence[AttentionLayer]) -> Sequence[AttentionLayer]:
    """Layers given, or those found in a model."""
    return find_attention(model) if isinstance(model, nn.Module) else model
