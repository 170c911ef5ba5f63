"""The forward pass of an attention layer.

Ranks, invariances and the GPT all use this one function, so the layer that is counted is the layer that is trained.
Parameters are the tensors named in `LayerSpec.parameter_shapes`, each with the same leading batch shape P (empty for
one layer, (M,) for M models side by side).
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from attnid.layer import LayerSpec

Parameters = Mapping[str, Tensor]
ROPE_BASE = 10_000.0


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
) -> Tensor:
    """Multi-head softmax attention.

    Args:
        spec: sizes and features of the layer.
        parameters: tensors of shape P + `spec.parameter_shapes[name]`.
        x: inputs, shape P + (B, L, E): B sequences of L tokens.
        dropout: applied to the attention weights, shape P + (B, G, H/G, L, L), when given.

    Returns:
        Outputs of the shape of `x`.
    """
    weights = torch.softmax(scores(spec, parameters, x), dim=-1)
    if dropout is not None:
        weights = dropout(weights)
    values = _project(x, parameters["W_V"], parameters.get("b_V"))
    mixed = weights.flatten(-3, -2) @ values
    return _merge_heads(mixed.unflatten(-2, weights.shape[-3:-1]), parameters["W_O"], parameters.get("b_O"))


def scores(spec: LayerSpec, parameters: Parameters, x: Tensor) -> Tensor:
    """Scaled and masked scores before the softmax, shape P + (B, G, H/G, L queries, L keys)."""
    queries = _project(x, parameters["W_Q"], parameters.get("b_Q"))
    keys = _project(x, parameters["W_K"], parameters.get("b_K"))
    if spec.rotary_dim:
        queries, keys = rotate(queries, spec.rotary_dim), rotate(keys, spec.rotary_dim)
    group = queries.unflatten(-3, (spec.n_kv_heads, spec.heads_per_group)).flatten(-3, -2)
    mask = _mask(spec, x).repeat(spec.heads_per_group, 1)
    products = torch.baddbmm(mask, _batched(group), _batched(keys).mT, alpha=spec.qk_head_dim**-0.5)
    result: Tensor = products.view(*keys.shape[:-2], spec.heads_per_group, *mask.shape[-1:] * 2)
    return result


def rotate(x: Tensor, rotary_dim: int) -> Tensor:
    """Apply RoPE to the leading `rotary_dim` of the last dimension, in adjacent pairs; token positions count from 0.

    Args:
        x: queries or keys, shape (..., L, D).
        rotary_dim: dimensions to rotate, even, at most D. Pair i turns by position * 10000^(-2 i / rotary_dim).
    """
    positions = torch.arange(x.shape[-2], device=x.device, dtype=torch.float64)
    exponents = torch.arange(0, rotary_dim, 2, device=x.device, dtype=torch.float64) / rotary_dim
    angles = positions[:, None] * ROPE_BASE**-exponents
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :rotary_dim].unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1).flatten(-2)
    return torch.cat((turned, x[..., rotary_dim:]), dim=-1)


def _mask(spec: LayerSpec, x: Tensor) -> Tensor:
    """What is added to the scores of L queries with L keys: minus infinity where a query must not look, else zero."""
    mask = torch.zeros(x.shape[-2], x.shape[-2], dtype=x.dtype, device=x.device)
    if spec.causal:
        mask.masked_fill_(torch.ones_like(mask, dtype=torch.bool).triu(1), float("-inf"))
    return mask


def _batched(matrices: Tensor) -> Tensor:
    return matrices.reshape(-1, *matrices.shape[-2:])


def _project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Heads of a projection: P + (B, L, E) and P + (N, D, E) give P + (B, N, L, D)."""
    batch, tokens, _ = x.shape[-3:]
    heads = weight.shape[-3]
    projected = x.flatten(-3, -2) @ weight.flatten(-3, -2).mT
    if bias is not None:
        projected = projected + bias.flatten(-2).unsqueeze(-2)
    result: Tensor = projected.unflatten(-1, (heads, -1)).unflatten(-3, (batch, tokens)).transpose(-3, -2)
    return result


def _merge_heads(mixed: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Output projection: P + (B, G, H/G, L, C) and P + (H, E, C) give P + (B, L, E)."""
    batch, tokens = mixed.shape[-5], mixed.shape[-2]
    columns = mixed.flatten(-4, -3).transpose(-3, -2).flatten(-2).flatten(-3, -2)
    output = columns @ weight.mT.flatten(-3, -2)
    if bias is not None:
        output = output + bias.unsqueeze(-2)
    result: Tensor = output.unflatten(-2, (batch, tokens))
    return result
