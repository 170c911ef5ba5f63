"""The tables of the parameter-space analysis: ranks, invariances, equivalent single heads and published models."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import isqrt
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Generator, Tensor

from attnid import symmetry, tables
from attnid.architectures import Architecture, architectures
from attnid.attention import Parameters, attention, random_parameters
from attnid.counting import Count, count, gauge_dimension
from attnid.layer import LayerSpec
from attnid.rank import layer_ranks

# ---------------------------------------------------------------- ranks


class GridLayer(NamedTuple):
    """A layer of the grid: its family, a readable name, and what it is."""

    group: str
    name: str
    spec: LayerSpec


def rank_grid(d_model: int, head_counts: Sequence[int], head_widths: Sequence[int]) -> list[GridLayer]:
    """Layers whose ranks are measured, by family.

    Args:
        d_model: width of the layers that are compared over `head_counts`, each of which divides it. All other
            families keep to small widths of their own.
        head_widths: free widths D = C of two heads in a model of width 12; 6 (D = E/H) and 12 (D = E) are added.
    """
    families = {
        "heads": [LayerSpec.multi_head(d_model, heads) for heads in head_counts],
        "heads-rope": list(_rotary(LayerSpec.multi_head(d_model, heads) for heads in head_counts)),
        "heads-gqa": list(_paired(d_model, head_counts)),
        "heads-rope-gqa": list(_rotary(_paired(d_model, head_counts))),
        "head-width": [_layer(12, 2, width) for width in sorted({*head_widths, 6, 12})],
        "single-head": [*(_layer(1, 1, width) for width in (1, 2, 3)), *(_layer(8, 1, width) for width in range(1, 9))],
        "biases": [
            _layer(8, 2, 4, rotary_dim=rotary_dim, **biases) for rotary_dim in (0, 4) for biases in _bias_patterns()
        ],
        "rope": [_layer(8, 2, width, rotary_dim=width) for width in (2, 4, 6, 8, 10, 12)],
        "partial-rope": [
            _layer(8, 2, 8, rotary_dim=rotary_dim, key_bias=key_bias)
            for key_bias in (False, True)
            for rotary_dim in (0, 2, 4, 6, 8)
        ],
        "gqa": [_layer(12, 6, width, n_kv_heads=groups) for width in (2, 4) for groups in (1, 2, 3, 6)],
        "mqa": [_layer(12, heads, 12 // heads, n_kv_heads=1) for heads in (1, 2, 3, 4, 6, 12)],
        "rope-gqa": [
            _layer(12, 6, width, n_kv_heads=groups, rotary_dim=width) for width in (2, 4) for groups in (1, 2, 3, 6)
        ],
        "bidirectional": [
            _layer(8, 4, 4, n_kv_heads=groups, rotary_dim=rotary_dim, causal=False, **_all_biases(biases))
            for groups in (2, 4)
            for rotary_dim in (0, 2, 4)
            for biases in (False, True)
        ],
        "value-bias": [
            _layer(6, 3, width, value_bias=True, output_bias=output_bias)
            for output_bias in (False, True)
            for width in (1, 2, 3, 6, 8)
        ],
        "biases-all-heads": [LayerSpec.multi_head(12, heads, biases=True) for heads in (1, 2, 3, 4, 6, 12)],
        "full-width": [_layer(6, heads, 6) for heads in (1, 2, 3, 4)],
    }
    return [GridLayer(group, layer_name(spec), spec) for group, specs in families.items() for spec in specs]


def layer_name(spec: LayerSpec) -> str:
    """A layer in one short line, in the paper's symbols."""
    parts = [f"E {spec.d_model}", f"H {spec.n_heads}"]
    if spec.n_kv_heads != spec.n_heads:
        parts.append(f"G {spec.n_kv_heads}")
    parts.append(f"D {spec.qk_head_dim}")
    if spec.v_head_dim != spec.qk_head_dim:
        parts.append(f"C {spec.v_head_dim}")
    if spec.rotary_dim:
        parts.append("RoPE" if spec.rotary_dim == spec.qk_head_dim else f"RoPE on {spec.rotary_dim}")
    present = [letter for letter, there in zip("QKVO", _biases(spec), strict=True) if there]
    if present:
        parts.append(f"biases {''.join(present)}")
    if not spec.causal:
        parts.append("no mask")
    return ", ".join(parts)


def rank_table(
    grid: Sequence[GridLayer], seed: int = 0, report: Callable[[int, int, str], None] = lambda *_: None
) -> pd.DataFrame:
    """Closed form beside float64 rank for every layer of a grid: a frame for `tables.RANKS`.

    Args:
        report: called after each layer with the number of layers done, their total, and the layer's name.

    Raises attnid.rank.UnclearRankError where a rank has no clear gap.
    """
    rows = []
    for done, layer in enumerate(grid, start=1):
        rows.append(_rank_row(layer, seed))
        report(done, len(grid), f"{layer.group}: {layer.name}")
    return pd.DataFrame(rows)[tables.RANKS.names]


class DisagreementError(ArithmeticError):
    """A closed form and a float64 rank differ."""


def require_agreement(ranks: pd.DataFrame) -> None:
    """Raise DisagreementError naming every row in which closed form and rank differ."""
    wrong = ranks[~ranks["agrees"]]
    if wrong.empty:
        return
    named = "; ".join(
        f"{row.group} ({row.layer}): identified {row.identified}, rank {row.rank} "
        f"(query/key {row.rank_qk}, value/output {row.rank_vo})"
        for row in wrong.itertuples()
    )
    raise DisagreementError(f"closed form and float64 rank differ in {len(wrong)} of {len(ranks)} layers: {named}")


def _rank_row(layer: GridLayer, seed: int) -> dict[str, Any]:
    counted, ranks = count(layer.spec), layer_ranks(layer.spec, seed)
    measured = (ranks.layer.rank, ranks.query_key.rank, ranks.value_output.rank)
    return {
        "group": layer.group,
        "layer": layer.name,
        **layer.spec.model_dump(),
        **_counted(counted),
        "parameters_qk": counted.query_key,
        "parameters_vo": counted.value_output,
        "identified": counted.identified,
        "rank": ranks.layer.rank,
        "rank_qk": ranks.query_key.rank,
        "rank_vo": ranks.value_output.rank,
        "smallest_kept": ranks.smallest_kept,
        "largest_dropped": ranks.largest_dropped,
        "sequences": ranks.sequences,
        "tokens": ranks.tokens,
        "agrees": measured == (counted.identified, counted.identified_query_key, counted.identified_value_output),
    }


def _counted(counted: Count) -> dict[str, Any]:
    return {
        "parameters": counted.parameters,
        **counted.sources,
        "unidentified": counted.unidentified,
        "identified_fraction": counted.identified_fraction,
    }


def _layer(d_model: int, n_heads: int, head_dim: int, **features: Any) -> LayerSpec:
    sizes = {"d_model": d_model, "n_heads": n_heads, "n_kv_heads": n_heads}
    return LayerSpec.model_validate(sizes | {"qk_head_dim": head_dim, "v_head_dim": head_dim} | features)


def _paired(d_model: int, head_counts: Iterable[int]) -> Iterator[LayerSpec]:
    """Layers whose heads share keys and values two by two, D = C = E/H."""
    for heads in head_counts:
        if heads % 2 == 0:
            yield _layer(d_model, heads, d_model // heads, n_kv_heads=heads // 2)


def _rotary(specs: Iterable[LayerSpec]) -> Iterator[LayerSpec]:
    """The same layers with full RoPE, where the head width is even."""
    for spec in specs:
        if spec.qk_head_dim % 2 == 0:
            yield spec.model_copy(update={"rotary_dim": spec.qk_head_dim})


_BIAS_NAMES = ("query_bias", "key_bias", "value_bias", "output_bias")


def _bias_patterns() -> Iterator[dict[str, bool]]:
    for pattern in product((False, True), repeat=len(_BIAS_NAMES)):
        yield dict(zip(_BIAS_NAMES, pattern, strict=True))


def _all_biases(present: bool) -> dict[str, bool]:
    return dict.fromkeys(_BIAS_NAMES, present)


def _biases(spec: LayerSpec) -> list[bool]:
    return [getattr(spec, name) for name in _BIAS_NAMES]


# ---------------------------------------------------------------- invariances

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

    A frame for `tables.INVARIANCES`. Weights are normal with variance 1/E, inputs normal with variance 1, float64; a
    random S has condition number at most CONDITION.
    """
    rows = [_invariance_row(transformation, draw, seed) for transformation in TRANSFORMATIONS for draw in range(draws)]
    return pd.DataFrame(rows)[tables.INVARIANCES.names]


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


_PLAIN = _layer(24, 4, 6)
_BIASED = _layer(24, 4, 6, **_all_biases(True))
_GROUPED = _layer(24, 4, 6, n_kv_heads=2, **_all_biases(True))
_ROTARY = _layer(24, 4, 6, rotary_dim=6, **_all_biases(True))
_ROTARY_GROUPED = _layer(24, 4, 6, n_kv_heads=2, rotary_dim=6, **_all_biases(True))
_PARTLY_ROTARY = _layer(24, 4, 6, rotary_dim=4, **_all_biases(True))

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

# ---------------------------------------------------------------- equivalent single head

# Rows of the token and of the position embedding.
EMBEDDINGS = {
    "nanoGPT shakespeare_char": 65 + 256,
    "gpt2 (small)": 50_257 + 1_024,
    "gpt2-medium": 50_257 + 1_024,
    "gpt2-large": 50_257 + 1_024,
    "gpt2-xl": 50_257 + 1_024,
}
HEAD_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def equivalent_table() -> pd.DataFrame:
    """The single head with as many identified parameters as a multi-head layer (section 4.10): `tables.EQUIVALENTS`.

    For each GPT model, its own number of heads and those of HEAD_COUNTS that divide its width.
    """
    rows = [
        _equivalent_row(model, model.spec.d_model, heads)
        for model in architectures()
        if model.spec is not None and model.model in EMBEDDINGS
        for heads in _possible_heads(model.spec)
    ]
    return pd.DataFrame(rows)[tables.EQUIVALENTS.names]


def single_head_identified(width: int, head_width: int) -> int:
    """Identified parameters of the paper's single-head layer: W_Q and W_K (D0 x E0), one square W_V, no W_O."""
    return 2 * head_width * width - gauge_dimension(width, width, head_width) + width**2


def square_single_head_width(identified: int) -> int:
    """Smallest E0 = D0 whose single-head layer has at least `identified` identified parameters, by bisection."""
    low, high = 0, identified
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if single_head_identified(middle, middle) >= identified else (middle, high)
    return high


def formula_width(width: int, heads: int) -> int:
    """ceil(E sqrt(2 - 1/H)) in integers."""
    return isqrt((width**2 * (2 * heads - 1) - 1) // heads) + 1


def gpt_parameters(embeddings: int, blocks: int, width: int, single_head: bool) -> int:
    """Parameters of a GPT-2-like model.

    Tied token and position embeddings (`embeddings` rows), blocks of attention and an MLP of width 4 E, all with
    biases, two LayerNorms a block and one at the end. Multi-head attention has four square matrices, the paper's
    single head three.
    """
    matrices = 3 if single_head else 4
    attention_parameters = matrices * (width**2 + width)
    mlp = 8 * width**2 + 5 * width
    norms = 2 * 2 * width
    return embeddings * width + blocks * (attention_parameters + mlp + norms) + 2 * width


def _possible_heads(spec: LayerSpec) -> list[int]:
    return sorted({spec.n_heads, *(heads for heads in HEAD_COUNTS if spec.d_model % heads == 0)})


def _equivalent_row(model: Architecture, E: int, heads: int) -> dict[str, Any]:
    blocks, embeddings = model.attention_blocks, EMBEDDINGS[model.model]
    identified = count(LayerSpec.multi_head(E, heads)).identified
    E0 = square_single_head_width(identified)
    growth = gpt_parameters(embeddings, blocks, E0, True) / gpt_parameters(embeddings, blocks, E, False)
    return {
        "model": model.model,
        "d_model": E,
        "n_heads": heads,
        "width_formula": formula_width(E, heads),
        "width_search": E0,
        "width_growth": E0 / E,
        "attention_growth": 3 * E0**2 / (4 * E**2),
        "block_growth": 11 * E0**2 / (12 * E**2),
        "model_growth": growth,
        "same_width_left": max(single_head_identified(E, width) for width in range(1, E + 1)) / E**2,
        "same_width_right": identified / E**2,
    }


# ---------------------------------------------------------------- printed tables and published models

SQUAD_PRINTED = pd.DataFrame(
    {
        "head_dim": [32, 64, 128, 256],
        "printed_total": [130.0, 142.0, 168.0, 218.0],
        "printed_attention": [12.6, 25.2, 50.4, 100.9],
        "printed_unidentified": [0.26, 1.05, 4.20, 16.82],
        "printed_share_percent": [0.20, 0.74, 2.50, 7.71],
        "gain_f1": [None, 0.98, 0.09, 0.73],
        "gain_em": [None, 1.22, 0.32, 0.63],
    }
)
SQUAD_WIDTH, SQUAD_HEADS, SQUAD_LAYERS = 512, 8, 24


def squad_table() -> pd.DataFrame:
    """Figure 1 of the paper, printed and recomputed from the ablated model's sizes: a frame for `tables.SQUAD`.

    Counts are of attention weights without biases, as in the printed table; shares are of the printed totals.
    """
    frame = SQUAD_PRINTED.assign(d_model=SQUAD_WIDTH, n_heads=SQUAD_HEADS, n_layers=SQUAD_LAYERS)
    counts = [count(_layer(SQUAD_WIDTH, SQUAD_HEADS, width)) for width in frame["head_dim"]]
    frame["attention"] = [SQUAD_LAYERS * counted.parameters for counted in counts]
    frame["unidentified"] = [SQUAD_LAYERS * counted.unidentified for counted in counts]
    frame["share_percent"] = 100 * frame["unidentified"] / (1e6 * frame["printed_total"])
    frame["printed_implied_width"] = (
        frame["printed_attention"] * frame["head_dim"] / (2 * frame["printed_unidentified"])
    )
    return frame[tables.SQUAD.names]


def architecture_table() -> pd.DataFrame:
    """Closed-form counts of the published models that `LayerSpec` can express: a frame for `tables.ARCHITECTURES`."""
    rows = [_architecture_row(model, model.spec) for model in architectures() if model.spec is not None]
    return pd.DataFrame(rows)[tables.ARCHITECTURES.names]


def _architecture_row(model: Architecture, spec: LayerSpec) -> dict[str, Any]:
    counted = count(spec)
    unidentified = model.attention_blocks * counted.unidentified
    return {
        "model": model.model,
        "position": model.position,
        "attention_blocks": model.attention_blocks,
        **spec.model_dump(include=set(tables.ARCHITECTURES.names)),
        **_counted(counted),
        "unidentified_model": unidentified,
        "paper_fraction": 1 - 1 / (2 * spec.n_heads),
        "model_parameters": model.model_parameters,
        "share_of_model": unidentified / (1e6 * model.model_parameters),
    }
