"""What a layer does when its parameters are transformed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Generator, Tensor

from attnid import symmetry
from attnid.analysis_tables import INVARIANCES
from attnid.attention import Parameters, attention, random_parameters
from attnid.layer import LayerSpec, layer_name

UNCHANGED_BELOW = 1e4
CHANGED_ABOVE = 1e6
EPSILON = float(torch.finfo(torch.float64).eps)
CONDITION = 4.0
SEQUENCES, TOKENS = 4, 16

Change = Callable[[LayerSpec, Parameters, Generator], Parameters]


@dataclass(frozen=True)
class Transformation:
    """A change of a layer's parameters and what the layer's output is expected to do: stay or move."""

    name: str
    description: str
    spec: LayerSpec
    unchanged: bool
    change: Change


def invariance_table(draws: int, seed: int = 0) -> pd.DataFrame:
    """Output before and after each transformation, for `draws` draws of weights, inputs and transformation.

    A frame for `INVARIANCES`. Weights are normal with variance 1/E, inputs normal with variance 1, float64; a
    random S has condition number at most CONDITION.
    """
    rows = [_invariance_row(transformation, draw, seed) for transformation in TRANSFORMATIONS for draw in range(draws)]
    return pd.DataFrame(rows)[INVARIANCES.names]


def _invariance_row(transformation: Transformation, draw: int, seed: int) -> dict[str, Any]:
    spec = transformation.spec
    generator = torch.Generator().manual_seed(1_000_003 * seed + draw)
    parameters = random_parameters(spec, generator, scale=spec.d_model**-0.5)
    x = torch.randn(SEQUENCES, TOKENS, spec.d_model, generator=generator, dtype=torch.float64)
    before = attention(spec, parameters, x)
    after = attention(spec, transformation.change(spec, parameters, generator), x)
    error = float((after - before).norm() / before.norm()) / EPSILON
    return {
        "name": transformation.name,
        "description": transformation.description,
        "layer": layer_name(spec),
        "expected": "unchanged" if transformation.unchanged else "changed",
        "draw": draw,
        "error_epsilons": error,
        "holds": error < UNCHANGED_BELOW if transformation.unchanged else error > CHANGED_ABOVE,
    }


def random_invertible(size: int, number: int, generator: Generator) -> Tensor:
    """U diag(s) V, shape (number, size, size), with U and V orthogonal and s from CONDITION^-1/2 to CONDITION^1/2."""
    left, _ = torch.linalg.qr(torch.randn(number, size, size, generator=generator, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(number, size, size, generator=generator, dtype=torch.float64))
    exponents = torch.rand(number, 1, size, generator=generator, dtype=torch.float64) - 0.5
    S: Tensor = left * CONDITION**exponents @ right
    return S


def random_commuting(spec: LayerSpec, generator: Generator) -> Tensor:
    """What RoPE leaves of S, shape (G, D, D): scaled rotations of the rotated planes, anything on the rest."""
    G, rotary, rest = spec.n_kv_heads, spec.rotary_dim, spec.qk_head_dim - spec.rotary_dim
    exponents = torch.rand(G, rotary // 2, generator=generator, dtype=torch.float64) - 0.5
    angles = torch.rand(G, rotary // 2, generator=generator, dtype=torch.float64) * 2 * torch.pi
    S = torch.zeros(G, spec.qk_head_dim, spec.qk_head_dim, dtype=torch.float64)
    S[:, :rotary, :rotary] = symmetry.rotary_scaling(CONDITION**exponents, angles)
    S[:, rotary:, rotary:] = random_invertible(rest, G, generator)
    return S


def _general_query_key(spec: LayerSpec, parameters: Parameters, generator: Generator) -> Parameters:
    S = random_invertible(spec.qk_head_dim, spec.n_kv_heads, generator)
    return symmetry.transform_query_key(spec, parameters, S)


def _weights_without_biases(spec: LayerSpec, parameters: Parameters, generator: Generator) -> Parameters:
    moved = _general_query_key(spec, parameters, generator)
    return dict(moved) | {"b_Q": parameters["b_Q"], "b_K": parameters["b_K"]}


def _commuting_query_key(spec: LayerSpec, parameters: Parameters, generator: Generator) -> Parameters:
    return symmetry.transform_query_key(spec, parameters, random_commuting(spec, generator))


def _value_output(spec: LayerSpec, parameters: Parameters, generator: Generator) -> Parameters:
    S = random_invertible(spec.v_head_dim, spec.n_kv_heads, generator)
    return symmetry.transform_value_output(spec, parameters, S)


def _any_bias(name: str, first: int = 0, last: int | None = None) -> Change:
    """Replace the entries from `first` to `last` of each head's bias by others."""

    def change(spec: LayerSpec, parameters: Parameters, generator: Generator) -> Parameters:
        bias = parameters[name].clone()
        other = torch.randn(bias.shape, generator=generator, dtype=bias.dtype)
        bias[..., first:last] = other[..., first:last]
        return dict(parameters) | {name: bias}

    return change


def _value_bias_folded(spec: LayerSpec, parameters: Parameters, generator: Generator) -> Parameters:
    shift = torch.randn(spec.n_kv_heads, spec.v_head_dim, generator=generator, dtype=torch.float64)
    return symmetry.fold_value_bias(spec, parameters, shift)


_BIASES = dict.fromkeys(("query_bias", "key_bias", "value_bias", "output_bias"), True)
_PLAIN = LayerSpec.with_heads(24, 4, 6)
_BIASED = LayerSpec.with_heads(24, 4, 6, **_BIASES)
_GROUPED = LayerSpec.with_heads(24, 4, 6, n_kv_heads=2, **_BIASES)
_ROTARY = LayerSpec.with_heads(24, 4, 6, rotary_dim=6, **_BIASES)
_ROTARY_GROUPED = LayerSpec.with_heads(24, 4, 6, n_kv_heads=2, rotary_dim=6, **_BIASES)
_PARTLY_ROTARY = LayerSpec.with_heads(24, 4, 6, rotary_dim=4, **_BIASES)

TRANSFORMATIONS = (
    Transformation("query-key-gauge", "queries by S, keys by its inverse transpose", _PLAIN, True, _general_query_key),
    Transformation("value-output-gauge", "values by S, outputs by its inverse", _PLAIN, True, _value_output),
    Transformation(
        "query-key-gauge-with-biases", "query/key gauge, biases moved along", _BIASED, True, _general_query_key
    ),
    Transformation(
        "query-key-gauge-biases-left", "query/key gauge, biases left behind", _BIASED, False, _weights_without_biases
    ),
    Transformation("query-bias-any", "another query bias", _BIASED, False, _any_bias("b_Q")),
    Transformation("key-bias-any", "another key bias", _BIASED, True, _any_bias("b_K")),
    Transformation(
        "value-bias-folded",
        "another value bias, its effect taken out of the output bias",
        _BIASED,
        True,
        _value_bias_folded,
    ),
    Transformation(
        "value-bias-left", "another value bias, the output bias left as it is", _BIASED, False, _any_bias("b_V")
    ),
    Transformation(
        "gqa-query-key-gauge", "query/key gauge, one S a group, biases moved along", _GROUPED, True, _general_query_key
    ),
    Transformation(
        "gqa-value-output-gauge", "value/output gauge, one S a group, biases moved along", _GROUPED, True, _value_output
    ),
    Transformation("gqa-key-bias-any", "another key bias", _GROUPED, True, _any_bias("b_K")),
    Transformation(
        "gqa-value-bias-folded",
        "another value bias, its effect taken out of the output bias",
        _GROUPED,
        True,
        _value_bias_folded,
    ),
    Transformation(
        "rope-commuting", "query/key gauge, S a scaled rotation of each plane", _ROTARY, True, _commuting_query_key
    ),
    Transformation("rope-general", "query/key gauge, any S", _ROTARY, False, _general_query_key),
    Transformation("rope-key-bias", "another key bias", _ROTARY, False, _any_bias("b_K")),
    Transformation(
        "rope-gqa-commuting",
        "query/key gauge, one S a group, a scaled rotation of each plane",
        _ROTARY_GROUPED,
        True,
        _commuting_query_key,
    ),
    Transformation(
        "rope-gqa-general", "query/key gauge, one S a group, any S", _ROTARY_GROUPED, False, _general_query_key
    ),
    Transformation(
        "partial-rope-commuting",
        "query/key gauge, S a scaled rotation of each plane and anything on the rest",
        _PARTLY_ROTARY,
        True,
        _commuting_query_key,
    ),
    Transformation("partial-rope-general", "query/key gauge, any S", _PARTLY_ROTARY, False, _general_query_key),
    Transformation(
        "partial-rope-key-bias-rest",
        "another key bias where RoPE does not rotate",
        _PARTLY_ROTARY,
        True,
        _any_bias("b_K", first=_PARTLY_ROTARY.rotary_dim),
    ),
    Transformation(
        "partial-rope-key-bias-rotary",
        "another key bias where RoPE rotates",
        _PARTLY_ROTARY,
        False,
        _any_bias("b_K", last=_PARTLY_ROTARY.rotary_dim),
    ),
)
