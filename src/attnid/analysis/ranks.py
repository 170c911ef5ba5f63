"""Closed form, float64 rank and certificate of many small layers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import pandas as pd

from attnid.architectures import architectures
from attnid.counting import count
from attnid.exact import certify
from attnid.layer import LayerSpec, layer_name
from attnid.rank import layer_ranks
from attnid.schema import Table

BIASES = ("query_bias", "key_bias", "value_bias", "output_bias")


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
        "head-width": [LayerSpec.with_heads(12, 2, width) for width in sorted({*head_widths, 6, 12})],
        "single-head": [
            *(LayerSpec.with_heads(1, 1, width) for width in (1, 2, 3)),
            *(LayerSpec.with_heads(8, 1, width) for width in range(1, 9)),
        ],
        "biases": [
            LayerSpec.with_heads(8, 2, 4, rotary_dim=rotary_dim, **biases)
            for rotary_dim in (0, 4)
            for biases in _bias_patterns()
        ],
        "rope": [LayerSpec.with_heads(8, 2, width, rotary_dim=width) for width in (2, 4, 6, 8, 10, 12)],
        "partial-rope": [
            LayerSpec.with_heads(8, 2, 8, rotary_dim=rotary_dim, key_bias=key_bias)
            for key_bias in (False, True)
            for rotary_dim in (0, 2, 4, 6, 8)
        ],
        "gqa": [LayerSpec.with_heads(12, 6, width, n_kv_heads=groups) for width in (2, 4) for groups in (1, 2, 3, 6)],
        "mqa": [LayerSpec.with_heads(12, heads, 12 // heads, n_kv_heads=1) for heads in (1, 2, 3, 4, 6, 12)],
        "rope-gqa": [
            LayerSpec.with_heads(12, 6, width, n_kv_heads=groups, rotary_dim=width)
            for width in (2, 4)
            for groups in (1, 2, 3, 6)
        ],
        "bidirectional": [
            LayerSpec.with_heads(8, 4, 4, n_kv_heads=groups, rotary_dim=rotary_dim, causal=False, **_all_biases(biases))
            for groups in (2, 4)
            for rotary_dim in (0, 2, 4)
            for biases in (False, True)
        ],
        "value-bias": [
            LayerSpec.with_heads(6, 3, width, value_bias=True, output_bias=output_bias)
            for output_bias in (False, True)
            for width in (1, 2, 3, 6, 8)
        ],
        "biases-all-heads": [LayerSpec.multi_head(12, heads, biases=True) for heads in (1, 2, 3, 4, 6, 12)],
        "full-width": [LayerSpec.with_heads(6, heads, 6) for heads in (1, 2, 3, 4)],
    }
    return [GridLayer(group, layer_name(spec), spec) for group, specs in families.items() for spec in specs]


_NORMS: tuple[dict[str, str | bool], ...] = (
    {"pre_norm": "rms"},
    {"pre_norm": "layer"},
    {"pre_norm": "layer", "pre_norm_gain": False},
    {"pre_norm": "layer", "pre_norm_bias": True},
)


def variant_grid() -> list[GridLayer]:
    """Layers with what the paper does not treat, by family, and one small layer for each kind that models use."""
    some_biases: tuple[dict[str, bool], ...] = ({}, {"key_bias": True}, dict.fromkeys(BIASES, True))
    families = {
        "query/key norm": [
            LayerSpec.with_heads(8, 2, 4, n_kv_heads=groups, rotary_dim=rotary_dim, qk_norm=over, qk_norm_gain=gain)
            for over, gain in product(("head", "full"), (True, False))
            for groups, rotary_dim in ((2, 0), (1, 0), (1, 2), (2, 4))
        ],
        "sinks": [
            LayerSpec.with_heads(8, 4, 3, n_kv_heads=2, rotary_dim=rotary_dim, sinks=True, **biases)
            for rotary_dim, biases in product((0, 2), some_biases)
        ],
        "soft cap": [
            LayerSpec.with_heads(8, 4, 3, n_kv_heads=2, rotary_dim=rotary_dim, soft_cap=20.0, **biases)
            for rotary_dim, biases in product((0, 2), some_biases)
        ],
        "relative positions": [
            LayerSpec.with_heads(
                6, 2, 3, relative_buckets=8, relative_distance=6, causal=causal, sinks=sinks, key_bias=sinks
            )
            for causal, sinks in product((True, False), repeat=2)
        ],
        "ALiBi": [
            LayerSpec.with_heads(8, 2, 4, alibi=True, causal=causal, **_all_biases(causal)) for causal in (True, False)
        ],
        "cross-attention": [
            LayerSpec.with_heads(8, 4, width, n_kv_heads=2, causal=False, context_dim=context, **biases)
            for width, context, biases in product((3, 7), (5, 12), some_biases)
        ],
        "latent": [
            LayerSpec.with_heads(
                8, 2, 4, rotary_dim=rotary_dim, kv_latent_dim=5, q_latent_dim=queries, output_bias=biases, sinks=biases
            )
            for rotary_dim, queries, biases in product((0, 2), (None, 6), (False, True))
        ],
        "input norm": [
            LayerSpec.with_heads(6, 2, 3, **norm, **biases)
            for norm, biases in product(
                _NORMS,
                some_biases,
            )
        ],
        "as in models": list(
            dict.fromkeys(small_twin(kind.spec) for model in architectures() for kind in model.layers)
        ),
    }
    return [GridLayer(group, layer_name(spec), spec) for group, specs in families.items() for spec in specs]


def small_twin(spec: LayerSpec) -> LayerSpec:
    """A layer small enough to rank with every feature of a layer of any size: groups, RoPE on all or a part, norms."""
    groups = 2 if spec.n_kv_heads > 1 else 1
    heads = 2 * groups if spec.heads_per_group > 1 else groups
    sizes: dict[str, Any] = {
        "d_model": 8,
        "n_heads": heads,
        "n_kv_heads": groups,
        "qk_head_dim": 4,
        "v_head_dim": 4,
        "rotary_dim": 4 if spec.rotary_dim == spec.qk_head_dim else min(spec.rotary_dim, 2),
    }
    smaller = {"context_dim": 7, "relative_buckets": 8, "kv_latent_dim": 6, "q_latent_dim": 5}
    sizes |= {name: size for name, size in smaller.items() if getattr(spec, name)}
    return LayerSpec.model_validate(
        spec.model_dump() | sizes | {"relative_distance": 6 if spec.relative_buckets else 128}
    )


def rank_table(
    table: Table,
    grid: Sequence[GridLayer],
    seed: int = 0,
    report: Callable[[int, int, str], None] = lambda *_: None,
) -> pd.DataFrame:
    """Closed form, float64 rank and certificate of every layer of a grid.

    Args:
        table: `RANKS`, which holds the ranks of both sides of a layer as well, or `VARIANTS`.
        report: called after each layer with the number of layers done, their total, and the layer's name.

    Raises attnid.rank.UnclearRankError where a rank has no clear gap.
    """
    rows = []
    for done, layer in enumerate(grid, start=1):
        rows.append(_row(layer, seed))
        report(done, len(grid), f"{layer.group}: {layer.name}")
    return pd.DataFrame(rows)[table.names]


class DisagreementError(ArithmeticError):
    """A closed form, a float64 rank and a certificate differ."""


def require_agreement(ranks: pd.DataFrame) -> None:
    """Raise DisagreementError naming every row in which closed form, rank and certificate differ."""
    wrong = ranks[~ranks["agrees"]]
    if wrong.empty:
        return
    named = "; ".join(
        f"{row.group} ({row.layer}): identified {row.identified}, rank {row.rank}, proved {row.exact_lower} to "
        f"{row.exact_upper}"
        for row in wrong.itertuples()
    )
    raise DisagreementError(f"closed form, float64 rank and certificate differ in {len(wrong)} layers: {named}")


def _row(layer: GridLayer, seed: int) -> dict[str, Any]:
    spec = layer.spec
    counted, measured, proved = count(spec), layer_ranks(spec, seed), certify(spec, seed)
    row = {
        "group": layer.group,
        "layer": layer.name,
        **spec.model_dump(),
        **counted.columns,
        "rank": measured.layer.rank,
        "smallest_kept": measured.smallest_kept,
        "largest_dropped": measured.largest_dropped,
        "sequences": measured.sequences,
        "tokens": measured.tokens,
        "exact_lower": proved.layer.lower,
        "exact_upper": proved.layer.upper,
        "prime": proved.prime,
        "seed": proved.seed,
        "certified": proved.certified,
        "assumed": proved.assumed,
        "failed": proved.failed,
    }
    agrees = counted.identified == measured.layer.rank == proved.layer.upper
    for side, parameters, identified, rank, bounds in zip(
        ("qk", "vo"),
        (counted.query_key, counted.value_output),
        (counted.identified_query_key, counted.identified_value_output),
        (measured.query_key, measured.value_output),
        proved.sides,
        strict=False,
    ):
        row |= {f"parameters_{side}": parameters, f"rank_{side}": rank.rank}
        row |= {f"exact_lower_{side}": bounds.lower, f"exact_upper_{side}": bounds.upper}
        agrees = agrees and identified == rank.rank == bounds.upper
    return row | {"agrees": agrees and (proved.certified or bool(proved.failed))}


def _paired(d_model: int, head_counts: Iterable[int]) -> Iterator[LayerSpec]:
    """Layers whose heads share keys and values two by two, D = C = E/H."""
    for heads in head_counts:
        if heads % 2 == 0:
            yield LayerSpec.with_heads(d_model, heads, d_model // heads, n_kv_heads=heads // 2)


def _rotary(specs: Iterable[LayerSpec]) -> Iterator[LayerSpec]:
    """The same layers with full RoPE, where the head width is even."""
    for spec in specs:
        if spec.qk_head_dim % 2 == 0:
            yield spec.model_copy(update={"rotary_dim": spec.qk_head_dim})


def _bias_patterns() -> Iterator[dict[str, bool]]:
    for pattern in product((False, True), repeat=len(BIASES)):
        yield dict(zip(BIASES, pattern, strict=True))


def _all_biases(present: bool) -> dict[str, bool]:
    return dict.fromkeys(BIASES, present)
