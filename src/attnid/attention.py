"""The forward pass of an attention layer.

Ranks, invariances and the GPT all use this one function, so the layer that is counted is the layer that is trained.
Parameters are the tensors named in `LayerSpec.parameter_shapes`, each with the same leading batch shape P (empty for
one layer, (M,) for M models side by side).
"""

from collections.abc import Callable, Mapping
from math import floor, log2
from typing import NamedTuple

import torch
from torch import Tensor

from attnid.arithmetic import FLOATING, Arithmetic
from attnid.layer import LayerSpec, relative_bucket

Parameters = Mapping[str, Tensor]


def random_parameters(spec: LayerSpec, generator: torch.Generator, scale: float = 1.0) -> dict[str, Tensor]:
    """Independent normal float64 parameters for one layer, standard deviation `scale`, biases included."""
    return {
        name: scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in spec.parameter_shapes.items()
    }


def attention(
    spec: LayerSpec,
    parameters: Parameters,
    x: Tensor,
    dropout: Callable[[Tensor], Tensor] | None = None,
    context: Tensor | None = None,
    numbers: Arithmetic = FLOATING,
) -> Tensor:
    """Multi-head softmax attention.

    Args:
        spec: sizes and features of the layer.
        parameters: tensors of shape P + `spec.parameter_shapes[name]`.
        x: inputs, shape P + (B, L, E): B sequences of L tokens.
        dropout: applied to the attention weights, shape P + (B, G, H/G, L, M), when given.
        context: what keys and values of a cross-attention read, shape P + (B, M, context_dim).
        numbers: what the layer is computed in.

    Returns:
        Outputs of the shape of `x`.
    """
    inputs = _inputs(spec, parameters, x, context, numbers)
    weights = _weights(spec, parameters, _scores(spec, parameters, inputs, numbers), numbers)
    if dropout is not None:
        weights = dropout(weights)
    up = parameters["W_V" if spec.kv_latent_dim is None else "W_UV"]
    values = _project(inputs.memory, up, parameters.get("b_V"), numbers)
    mixed = numbers.product(weights.flatten(-3, -2), values)
    return _merge_heads(mixed.unflatten(-2, weights.shape[-3:-1]), parameters["W_O"], parameters.get("b_O"), numbers)


def scores(spec: LayerSpec, parameters: Parameters, x: Tensor, context: Tensor | None = None) -> Tensor:
    """Scaled and masked scores before the softmax, shape P + (B, G, H/G, L queries, M keys)."""
    return _scores(spec, parameters, _inputs(spec, parameters, x, context, FLOATING), FLOATING)


def rotate(x: Tensor, rotary_dim: int, numbers: Arithmetic = FLOATING) -> Tensor:
    """Apply RoPE to the leading `rotary_dim` of the last dimension, in adjacent pairs; token positions count from 0.

    Args:
        x: queries or keys, shape (..., L, D).
        rotary_dim: dimensions to rotate, even, at most D. Pair i turns by position * 10000^(-2 i / rotary_dim).
    """
    cos, sin = numbers.turns(x.shape[-2], rotary_dim, x)
    first, second = x[..., :rotary_dim].unflatten(-1, (-1, 2)).unbind(-1)
    turned = (
        numbers.times(first, cos) - numbers.times(second, sin),
        numbers.times(first, sin) + numbers.times(second, cos),
    )
    return torch.cat((torch.stack(turned, dim=-1).flatten(-2), x[..., rotary_dim:]), dim=-1)


def alibi_slopes(n_heads: int) -> list[float]:
    """Slopes of ALiBi (Press et al. 2022): 2^(-8 i / H) for H a power of two, else filled up from the next power."""
    nearest = 2 ** floor(log2(n_heads))
    slopes = [2 ** (-8 * (head + 1) / nearest) for head in range(nearest)]
    between = [2 ** (-4 * (2 * head + 1) / nearest) for head in range(n_heads - nearest)]
    return slopes + between


class _Inputs(NamedTuple):
    """What a layer reads: x of queries and of shared rotated keys, memory of all other keys and of values."""

    x: Tensor
    memory: Tensor


def _inputs(spec: LayerSpec, parameters: Parameters, x: Tensor, context: Tensor | None, numbers: Arithmetic) -> _Inputs:
    if spec.pre_norm != "none":
        x = numbers.unit_rms(numbers.centred(x) if spec.pre_norm == "layer" else x)
        if spec.pre_norm_gain:
            x = numbers.times(x, parameters["g_N"][..., None, None, :])
        if spec.pre_norm_bias:
            x = x + parameters["b_N"][..., None, None, :]
    if spec.kv_latent_dim is not None:
        return _Inputs(x, _latent(x, parameters["W_DKV"], parameters["g_DKV"], numbers))
    return _Inputs(x, x if context is None else context)


def _latent(x: Tensor, down: Tensor, gain: Tensor, numbers: Arithmetic) -> Tensor:
    """P + (B, L, E), P + (R, E) and P + (R,) give P + (B, L, R)."""
    latent = _project(x, down.unsqueeze(-3), None, numbers).squeeze(-3)
    return numbers.times(numbers.unit_rms(latent), gain[..., None, None, :])


def _scores(spec: LayerSpec, parameters: Parameters, inputs: _Inputs, numbers: Arithmetic) -> Tensor:
    queries = _queries(spec, parameters, inputs, numbers)
    keys = _keys(spec, parameters, inputs, numbers)
    group = queries.unflatten(-3, (spec.n_kv_heads, spec.heads_per_group)).flatten(-3, -2)
    mask = _mask(spec, queries.shape[-2], keys)
    in_products = (mask if spec.soft_cap is None else torch.zeros_like(mask)).repeat(spec.heads_per_group, 1)
    products = numbers.scores(_batched(group), _batched(keys), in_products)
    result = products.view(*keys.shape[:-2], spec.heads_per_group, *mask.shape)
    if spec.soft_cap is not None:
        result = numbers.soft_cap(result, spec.soft_cap) + mask
    for bias in _position_biases(spec, parameters, mask):
        result = result + bias.unflatten(-3, (spec.n_kv_heads, spec.heads_per_group)).unsqueeze(-5)
    return result


def _queries(spec: LayerSpec, parameters: Parameters, inputs: _Inputs, numbers: Arithmetic) -> Tensor:
    """P + (B, H, L, D)."""
    if spec.q_latent_dim is None:
        queries = _project(inputs.x, parameters["W_Q"], parameters.get("b_Q"), numbers)
    else:
        latent = _latent(inputs.x, parameters["W_DQ"], parameters["g_DQ"], numbers)
        queries = _project(latent, parameters["W_UQ"], None, numbers)
    queries = _normalise(spec, queries, parameters.get("g_Q"), numbers)
    return rotate(queries, spec.rotary_dim, numbers) if spec.rotary_dim else queries


def _keys(spec: LayerSpec, parameters: Parameters, inputs: _Inputs, numbers: Arithmetic) -> Tensor:
    """P + (B, G, M, D)."""
    if spec.kv_latent_dim is None:
        keys = _project(inputs.memory, parameters["W_K"], parameters.get("b_K"), numbers)
        keys = _normalise(spec, keys, parameters.get("g_K"), numbers)
        return rotate(keys, spec.rotary_dim, numbers) if spec.rotary_dim else keys
    keys = _project(inputs.memory, parameters["W_UK"], None, numbers)
    if not spec.rotary_dim:
        return keys
    shared = _project(inputs.x, parameters["W_KR"].unsqueeze(-3), None, numbers)
    shared = rotate(shared, spec.rotary_dim, numbers).expand(*keys.shape[:-1], -1)
    return torch.cat((shared, keys), dim=-1)


def _normalise(spec: LayerSpec, heads: Tensor, gain: Tensor | None, numbers: Arithmetic) -> Tensor:
    """Query/key normalisation of P + (B, N, L, D), with gains P + (D,) or P + (N, D)."""
    if spec.qk_norm == "none":
        return heads
    if spec.qk_norm == "head":
        normalised = numbers.unit_rms(heads)
        return normalised if gain is None else numbers.times(normalised, gain[..., None, None, None, :])
    together = numbers.unit_rms(heads.transpose(-3, -2).flatten(-2))
    normalised = together.unflatten(-1, heads.shape[-3::2]).transpose(-3, -2)
    return normalised if gain is None else numbers.times(normalised, gain[..., None, :, None, :])


def _weights(spec: LayerSpec, parameters: Parameters, scores: Tensor, numbers: Arithmetic) -> Tensor:
    if not spec.sinks:
        return numbers.softmax(scores)
    sinks = parameters["sinks"].unflatten(-1, (spec.n_kv_heads, spec.heads_per_group))
    column = sinks[..., None, :, :, None, None].expand(*scores.shape[:-1], 1)
    return numbers.softmax(torch.cat((scores, column), dim=-1))[..., :-1]


def _mask(spec: LayerSpec, queries: int, keys: Tensor) -> Tensor:
    """What is added to the scores, shape (L, M): minus infinity where a query must not look, else zero."""
    mask = torch.zeros(queries, keys.shape[-2], dtype=keys.dtype, device=keys.device)
    if spec.causal:
        mask.masked_fill_(torch.ones_like(mask, dtype=torch.bool).triu(1), float("-inf"))
    return mask


def _position_biases(spec: LayerSpec, parameters: Parameters, mask: Tensor) -> list[Tensor]:
    """What positions add to the scores, shape P + (H, L, M) each; shape, kind and place of numbers as in `mask`."""
    biases = []
    rows, columns = mask.shape
    if spec.alibi:
        offsets = torch.arange(columns, device=mask.device) - torch.arange(rows, device=mask.device)[:, None]
        slopes = torch.tensor(alibi_slopes(spec.n_heads), dtype=mask.dtype, device=mask.device)
        biases.append(-slopes[:, None, None] * offsets.abs())
    if spec.relative_buckets:
        by_offset = [relative_bucket(spec, offset) for offset in range(1 - rows, columns)]
        index = torch.tensor([by_offset[rows - 1 - row : rows - 1 - row + columns] for row in range(rows)])
        biases.append(parameters["table"][..., index.to(mask.device)])
    return biases


def _batched(matrices: Tensor) -> Tensor:
    return matrices.reshape(-1, *matrices.shape[-2:])


def _project(x: Tensor, weight: Tensor, bias: Tensor | None, numbers: Arithmetic) -> Tensor:
    """Heads of a projection: P + (B, L, E) and P + (N, D, E) give P + (B, N, L, D)."""
    batch, tokens, _ = x.shape[-3:]
    heads = weight.shape[-3]
    projected = numbers.product(x.flatten(-3, -2), weight.flatten(-3, -2).mT)
    if bias is not None:
        projected = projected + bias.flatten(-2).unsqueeze(-2)
    result: Tensor = projected.unflatten(-1, (heads, -1)).unflatten(-3, (batch, tokens)).transpose(-3, -2)
    return result


def _merge_heads(mixed: Tensor, weight: Tensor, bias: Tensor | None, numbers: Arithmetic) -> Tensor:
    """Output projection: P + (B, G, H/G, L, C) and P + (H, E, C) give P + (B, L, E)."""
    batch, tokens = mixed.shape[-5], mixed.shape[-2]
    columns = mixed.flatten(-4, -3).transpose(-3, -2).flatten(-2).flatten(-3, -2)
    output = numbers.product(columns, weight.mT.flatten(-3, -2))
    if bias is not None:
        output = output + bias.unsqueeze(-2)
    result: Tensor = output.unflatten(-2, (batch, tokens))
    return result
