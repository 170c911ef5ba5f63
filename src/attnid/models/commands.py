"""What attnid inspect, rebalance and diff do with checkpoints."""

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import torch
from rich.console import Console
from rich.progress import track

from attnid import schema
from attnid.counting import NoClosedFormError, count
from attnid.errors import UserError
from attnid.layer import layer_name
from attnid.models.files import TensorFiles, config_of, copied, open_checkpoint, remove, same_bytes, why
from attnid.models.inspection import compare_layers, inspect_layers, other_tensors_differ
from attnid.models.layer import PAIRS, AttentionLayer
from attnid.models.moves import in_double, rebalance_
from attnid.models.places import layers_by_name
from attnid.models.products import Weights, moved_difference
from attnid.models.tables import DEAD, NEAR_DEAD, WEIGHTS
from attnid.training_tables import REGULAR

Item = TypeVar("Item")


def layers_of(tensors: TensorFiles, place: Path, config: Path | None) -> list[AttentionLayer]:
    """The attention layers of a checkpoint. Raises UserError where it is not what its configuration says."""
    described, path = config_of(place, config)
    return layers_by_name(tensors.shapes, tensors, described, str(path))


# ---------------------------------------------------------------- inspect


@dataclass(frozen=True)
class Inspected:
    """The weights of a checkpoint's attention layers, and how many of its parameters mean something."""

    layers: Sequence[AttentionLayer]
    heads: pd.DataFrame

    def as_json(self) -> dict[str, Any]:
        """Everything, for `--json`; numbers that are not finite are null, as JSON has none."""
        rows = json.loads(self.heads.to_json(orient="records", double_precision=15))
        layers = [
            {"layer": layer.name, "spec": layer_name(layer.spec)}
            | _counted(layer)
            | {"fixed": {pair: layer.fixed(pair) for pair in PAIRS if layer.fixed(pair)}}
            | {"heads": [row for row in rows if row["layer"] == layer.name]}
            for layer in self.layers
        ]
        return {"layers": layers, "model": self._totals()}

    def lines(self) -> list[str]:
        """A table for a reader, a line a layer: medians over heads, and what is out of the ordinary."""
        named: dict[str, str] = {}
        for layer in self.layers:
            named[layer.name] = layer_name(layer.spec)
        groups = {str(name): heads for name, heads in self.heads.groupby("layer", sort=False)}
        rows = [_summary(layer, groups.get(layer.name)) for layer in self.layers]
        table = pd.DataFrame(rows).to_string(index=False, na_rep="-")
        kinds = [f"{list(named.values()).count(kind)} x {kind}" for kind in dict.fromkeys(named.values())]
        totals = self._totals()
        notes = []
        if "identified" in totals:
            share = totals["unidentified"] / totals["parameters"]
            counts = f"{totals['unidentified']:,} of {totals['parameters']:,}"
            notes.append(f"{counts} attention parameters mean nothing ({share:.2%})")
        reasons = {f"{pair}: {layer.fixed(pair)}" for layer in self.layers for pair in PAIRS if layer.fixed(pair)}
        return [*kinds, "", *table.splitlines(), "", *notes, *sorted(reasons), LEGEND]

    def _totals(self) -> dict[str, Any]:
        counts = [_counted(layer) for layer in self.layers]
        if not all(counts):
            return {}
        return {name: sum(own[name] for own in counts) for name in ("parameters", "identified", "unidentified")}


INERT = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"}
"""Keys of a configuration that change nothing of what a model computes with its weights."""
LEGEND = (
    "medians over key/value heads; beta = |G_Q - G_K| and tau = tr(G_Q - G_K), relative to tr(G_Q + G_K); condition: "
    "largest of W_Q, W_K, W_V, W_O of any head; erank: effective rank of W_Q^T W_K and W_O W_V; key bias: norm of what "
    "nothing depends on; dead, near: heads whose W_O W_V is zero, or below 1 % of the layer's largest"
)


def inspect(place: Path, config: Path | None, table: Path | None = None, figure: Path | None = None) -> Inspected:
    """Measure the attention weights of a checkpoint, a layer at a time; write them as a table or figure if asked.

    Raises UserError where the checkpoint cannot be read or is not what its configuration says.
    """
    if table is not None and table.suffix != ".parquet":
        raise UserError(f"{table}: tables are saved as .parquet")
    layers = layers_of(open_checkpoint(place), place, config)
    heads = inspect_layers(_followed(layers, "layers"))
    if table is not None:
        schema.write(WEIGHTS, heads, table)
    if figure is not None:
        from attnid.models.figure import draw_weights

        draw_weights(heads, figure)
    return Inspected(layers, heads)


def _counted(layer: AttentionLayer) -> dict[str, int]:
    try:
        counted = count(layer.spec)
    except NoClosedFormError:
        return {}
    return {
        "parameters": counted.parameters,
        "identified": counted.identified,
        "unidentified": counted.unidentified,
    }


def _summary(layer: AttentionLayer, heads: pd.DataFrame | None) -> dict[str, Any]:
    if heads is None:
        return {"layer": layer.name, "heads": layer.spec.n_heads}
    conditions = heads[[f"condition_{letter}" for letter in "qkvo"]]
    return {
        "layer": layer.name,
        "heads": f"{layer.spec.n_heads:d}/{layer.spec.n_kv_heads:d}",
        "beta": _shown((heads["beta"] / heads["trace"]).median(), ".3g"),
        "tau": _shown((heads["tau"] / heads["trace"]).median(), "+.3f"),
        "mu": _shown(heads["mu"].median(), ".2g"),
        "condition": _shown(conditions.to_numpy().max(), ".3g"),
        "erank qk": _shown(heads["effective_rank_qk"].median(), ".1f"),
        "erank vo": _shown(heads["effective_rank_vo"].median(), ".1f"),
        "key bias": _shown(heads["dead_key_bias"].pow(2).sum() ** 0.5, ".3g"),
        "dead": int((heads["liveliness"] == DEAD).sum()),
        "near": int((heads["liveliness"] == NEAR_DEAD).sum()),
        "weights": ", ".join(sorted(set(heads["state"]) - {REGULAR})) or REGULAR,
    }


def _shown(value: float, style: str) -> str:
    return "-" if math.isnan(value) else format(value, style)


# ---------------------------------------------------------------- rebalance


@torch.no_grad()
def rebalance(source: Path, target: Path, config: Path | None) -> list[str]:
    """Write a checkpoint with balanced attention weights that computes the same, and verify it as it is stored.

    All other tensors, names, metadata and files stay byte for byte. Returns sentences that say what was done.

    Raises:
        UserError: the checkpoint cannot be read, the target exists, or what is stored does not compute the same up to
            rounding; nothing is left at the target then.
    """
    tensors = open_checkpoint(source)
    layers = layers_of(tensors, source, config)
    if os.path.lexists(target):
        raise UserError(f"{target}: exists; expected a place that is yet to be made")
    if not target.parent.is_dir():
        raise UserError(f"{target}: cannot be made, as {target.parent} is no directory that exists")
    if source.is_dir() and target.resolve().is_relative_to(source.resolve()):
        raise UserError(f"{target}: lies in {source}; expected a place outside of it")
    partial = target.with_name(f".attnid-{sha256(os.fsencode(target.name)).hexdigest()[:16]}.partial")
    try:
        remove(partial)
        written = copied(source, partial)
        moved = layers_of(written, source, config)
        rows = [row for layer in _followed(moved, "layers") for row in rebalance_([layer])]
        worst = _verified(layers, moved)
        _require_rest_untouched(tensors, written, {name for layer in layers for name in layer.tensor_names()})
        partial.rename(target)
    except OSError as error:
        raise UserError(f"{target}: cannot be made ({why(error)})") from None
    finally:
        remove(partial)
    done = [row for row in rows if not row.reason]
    lines = [f"{target}: {len(done)} of {len(rows)} products of {len(layers)} layers are balanced"]
    if done:
        lines.append(
            f"weights moved by {min(r.moved for r in done):.2g} to {max(r.moved for r in done):.2g} of their length"
        )
    lines += [f"QK and VO products: {sentence}" for sentence in worst]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.reason:
            reasons.setdefault(row.reason, []).append(f"{row.layer} {row.pair}")
        if row.left_alone:
            heads = ", ".join(map(str, row.left_alone))
            reasons.setdefault("weights without full rank", []).append(f"{row.layer} {row.pair} heads {heads}")
    return lines + [f"left as they are, {reason}: {_few(places)}" for reason, places in reasons.items()]


def _verified(layers: Sequence[AttentionLayer], moved: Sequence[AttentionLayer]) -> list[str]:
    """How far the stored products lie apart. Raises UserError where that is more than rounding."""
    worst: dict[str, tuple[float, float]] = {}
    for before, after in zip(layers, moved, strict=True):
        own, new = in_double(before), in_double(after)
        for pair in (pair for pair in PAIRS if not before.fixed(pair)):
            stored = before.stored(pair)
            difference, size, allowed = moved_difference(before.spec, pair, Weights(own, stored), Weights(new, stored))
            finite = torch.isfinite(size)
            share = float((difference / allowed.where(allowed > 0, 1))[finite].max()) if finite.any() else 0.0
            if not share <= 1:
                raise UserError(
                    f"{before.name}: the stored {pair} product differs by {share:.2g} times what rounding can explain; "
                    "nothing is written"
                )
            weights = (difference / size.where(size > 0, 1))[0]
            relative = float(weights[finite[0]].max()) if finite[0].any() else 0.0
            kind = str(stored).removeprefix("torch.")
            known = worst.get(kind, (0.0, 0.0))
            worst[kind] = (max(known[0], relative), max(known[1], share))
    return [
        f"unchanged to {relative:.2g} of their size in {kind}, {share:.0%} of what rounding can make"
        for kind, (relative, share) in worst.items()
    ]


def _require_rest_untouched(before: TensorFiles, after: TensorFiles, attention: set[str]) -> None:
    for name in before:
        if name not in attention and not same_bytes(before[name], after[name]):
            raise UserError(f"{name}: changed while it was copied; nothing is written")


def _few(places: Sequence[str], most: int = 4) -> str:
    more = f" and {len(places) - most} more" if len(places) > most else ""
    return ", ".join(places[:most]) + more


# ---------------------------------------------------------------- diff


@dataclass(frozen=True)
class Diff:
    """Two checkpoints compared: each attention layer, and names of other tensors and of settings that differ."""

    layers: list[dict[str, Any]]
    others: list[str]
    settings: list[str]

    @property
    def same(self) -> bool:
        """Whether both compute the same up to these symmetries and rounding."""
        return not self.others and not self.settings and all(layer["same"] for layer in self.layers)

    def as_json(self) -> dict[str, Any]:
        """Everything, for `--json`; numbers that are not finite are null, as JSON has none."""
        layers = [{name: _finite(value) for name, value in layer.items()} for layer in self.layers]
        return {"same": self.same, "layers": layers, "other_tensors": self.others, "settings": self.settings}

    def lines(self) -> list[str]:
        """A table for a reader, and the verdict."""
        rows = [
            {
                "layer": layer["layer"],
                "distance": _shown(layer["before"], ".3g"),
                "canonical": _shown(layer["after"], ".3g"),
                "product": _shown(layer["product"], ".3g"),
                "": "same" if layer["same"] else "another function",
            }
            for layer in self.layers
        ]
        verdict = (
            "the same function up to the symmetries of attention and rounding"
            if self.same
            else "not the same function up to the symmetries of attention"
        )
        others = f"other tensors that differ: {_few(self.others)}" if self.others else "all other tensors are the same"
        legend = (
            "distance: of all parameters, relative, as they are stored; canonical: the same without dead biases, with "
            "balanced weights, turned as near as they go; product: largest difference of a head's product"
        )
        settings = [f"settings that differ: {_few(self.settings)}"] if self.settings else []
        return [*pd.DataFrame(rows).to_string(index=False).splitlines(), "", others, *settings, verdict, legend]


def diff(first: Path, second: Path, config: Path | None) -> Diff:
    """Compare two checkpoints of one architecture. Raises UserError where they are not that, or cannot be read."""
    tensors = [open_checkpoint(place) for place in (first, second)]
    configs = [config, config or _config_beside(second, first)]
    one, other = (
        layers_of(own, place, given) for own, place, given in zip(tensors, (first, second), configs, strict=True)
    )
    described = [config_of(place, given)[0] for place, given in zip((first, second), configs, strict=True)]
    layers = [asdict(compared) for compared in _followed(compare_layers(one, other), "layers", len(one))]
    attention = {name for layer in one for name in layer.tensor_names()}
    return Diff(layers, other_tensors_differ(tensors[0], tensors[1], attention), _settings_that_differ(*described))


def _settings_that_differ(one: object, other: object) -> list[str]:
    """Keys of two configurations with other values, but for those that say nothing of what a model computes."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return []
    return sorted(key for key in {*one, *other} - INERT if one.get(key) != other.get(key))


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _config_beside(place: Path, instead: Path) -> Path | None:
    """No configuration of its own where there is one beside the checkpoint; else the one beside another."""
    own, others = ((path if path.is_dir() else path.parent) / "config.json" for path in (place, instead))
    return others if others.is_file() and not own.is_file() else None


def _followed(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """The items, with a bar on a terminal that says how far they are."""
    length = total if total is not None else len(list(items)) if isinstance(items, Sequence) else None
    console = Console(stderr=True)
    hidden = not sys.stderr.isatty()
    yield from track(items, what, total=length, console=console, transient=True, disable=hidden)
