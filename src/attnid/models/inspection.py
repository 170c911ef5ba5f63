"""What the weights of a model's attention layers look like, head by head, and whether two models are the same."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from attnid.errors import UserError
from attnid.gram import eigenvalues
from attnid.head_measures import pairs, states, weight_measures
from attnid.measures import Pair
from attnid.models.files import TensorFiles
from attnid.models.layer import PAIRS, SIDES, AttentionLayer
from attnid.models.moves import in_double
from attnid.models.products import (
    aligned,
    canonical,
    product_difference,
    product_singular_values,
    rounding_of_product,
)
from attnid.models.tables import ALIVE, DEAD, NEAR_DEAD, WEIGHTS

Arrays = dict[str, Tensor]
NEAR = 0.01
"""A head whose value/output product is smaller than this part of its layer's largest is nearly dead."""


@torch.no_grad()
def inspect_layers(layers: Iterable[AttentionLayer]) -> pd.DataFrame:
    """A row for each layer and key/value head, with the columns of `WEIGHTS`. One layer is in memory at a time."""
    frames = [_inspected(layer) for layer in layers if layer.spec.kv_latent_dim is None]
    empty: pd.DataFrame = WEIGHTS.schema.empty_table().to_pandas()
    return pd.concat(frames, ignore_index=True) if frames else empty


def _inspected(layer: AttentionLayer) -> pd.DataFrame:
    spec, own = layer.spec, in_double(layer)
    weights, measured = pairs(spec, own), weight_measures(spec, own)
    products = {pair: product_singular_values(weights[pair]) for pair in PAIRS}
    sizes = products["vo"].norm(dim=-1)
    key_bias = own["b_K"][..., layer.dead_key_rows].norm(dim=-1) if "b_K" in own else torch.zeros(spec.n_kv_heads)
    columns = {
        **{name: measured[name] for name in ("beta", "tau", "trace", "mu", "smallest_q", "smallest_k")},
        **_conditions(weights),
        **{f"effective_rank_{pair}": effective_rank(values) for pair, values in products.items()},
        "size_vo": sizes,
        "dead_key_bias": key_bias,
    }
    frame = pd.DataFrame({name: array.cpu().numpy() for name, array in columns.items()})
    frame = frame.assign(layer=layer.name, head=range(len(frame)), state=states(frame, spec.qk_head_dim))
    frame["liveliness"] = _liveliness(sizes, weights["vo"])
    if layer.fixed("qk"):
        frame[["beta", "tau", "trace", "mu"]] = torch.nan
    return frame[WEIGHTS.names]


def _conditions(weights: dict[str, Pair]) -> Arrays:
    """Condition numbers of each head's four matrices; infinite for one of deficient rank."""
    matrices = dict(zip("qkvo", (*weights["qk"], *weights["vo"]), strict=True))
    return {f"condition_{letter}": _condition(eigenvalues(W)) for letter, W in matrices.items()}


def _condition(values: Tensor) -> Tensor:
    ratio = (values[..., -1] / values[..., 0]).sqrt()
    return torch.where(values[..., 0] > 0, ratio, torch.where(values[..., 0] == 0, torch.inf, torch.nan))


def effective_rank(singular_values: Tensor) -> Tensor:
    """exp of the entropy of the singular values as shares of their sum (Roy and Vetterli 2007); 0 for a zero matrix."""
    shares = singular_values / singular_values.sum(-1, keepdim=True)
    rank: Tensor = torch.special.entr(shares).sum(-1).exp()
    return torch.where(singular_values[..., 0] == 0, torch.zeros_like(rank), rank)


def _liveliness(sizes: Tensor, weights: Pair) -> list[str]:
    """Of each head by what it adds to the output: none, next to none beside its layer's others, or something."""
    scale = weights.first.flatten(-2).norm(dim=-1) * weights.second.flatten(-2).norm(dim=-1)
    rounding = torch.finfo(torch.float64).eps * weights.first.shape[-2]
    dead = ~(sizes > rounding * scale)
    near = sizes < NEAR * sizes.max()
    return [DEAD if none else NEAR_DEAD if little else ALIVE for none, little in zip(dead, near, strict=True)]


@dataclass(frozen=True)
class Compared:
    """One layer of two models.

    Attributes:
        layer: path of the attention module.
        before, after: distance of all parameters, relative to the first model's, as they are stored and once both are
            brought to canonical form and turned as near to each other as they go.
        product: largest difference of a head's product, relative to its size.
        same: whether no product, bias or gain differs by more than rounding to the stored precision can make it.
    """

    layer: str
    before: float
    after: float
    product: float
    same: bool


@torch.no_grad()
def compare_layers(one: Sequence[AttentionLayer], other: Sequence[AttentionLayer]) -> Iterator[Compared]:
    """Compare the attention layers of two models of one architecture. Raises UserError where it is not one."""
    names, others = {layer.name for layer in one}, {layer.name: layer for layer in other}
    for name in sorted(names ^ others.keys()):
        inner = next((known for known in sorted(names | others.keys()) if known.endswith(f".{name}")), None)
        hint = f"; {inner} may be the same in a model with a head: save both with it or both without" if inner else ""
        raise UserError(f"{name} is an attention layer of one model alone; expected two of one architecture{hint}")
    for layer in one:
        if layer.spec != others[layer.name].spec:
            raise UserError(f"{layer.name} is not the same layer in both; expected two models of one architecture")
        yield _compared(layer, others[layer.name])


def _compared(one: AttentionLayer, other: AttentionLayer) -> Compared:
    raw, canonicals = [in_double(layer) for layer in (one, other)], []
    for layer, own in zip((one, other), raw, strict=True):
        canonicals.append(canonical(layer, own))
    brought = aligned(other, canonicals[1], canonicals[0])
    same, product = True, 0.0
    moved = {name for pair in PAIRS if not one.fixed(pair) for name in SIDES[pair]}
    for pair in (pair for pair in PAIRS if not one.fixed(pair)):
        difference, size = product_difference(one.spec, pair, *canonicals)
        bounds = [
            rounding_of_product(one.spec, pair, own, layer.stored(pair))
            for layer, own in zip((one, other), raw, strict=True)
        ]
        same &= bool((difference <= bounds[0] + bounds[1]).all())
        product = max(product, float((difference / size.where(size > 0, 1)).max()))
    for name in canonicals[0].keys() - moved:
        same &= _equal_to_rounding(one, other, name, canonicals, raw)
    return Compared(one.name, _distance(raw[0], raw[1]), _distance(canonicals[0], brought), product, same)


def _equal_to_rounding(
    one: AttentionLayer, other: AttentionLayer, name: str, canonicals: Sequence[Arrays], raw: Sequence[Arrays]
) -> bool:
    """Whether a parameter that no S moves is the same in both; an output bias holds the values' biases by now."""
    allowed = torch.zeros((), dtype=torch.float64)
    for layer, own in zip((one, other), raw, strict=True):
        size = own[name].norm()
        if name == "b_O" and layer.folds_value_bias:
            size = size + own["W_O"].norm() * own["b_V"].norm()
        allowed = allowed + 2 * torch.finfo(layer.tensors[layer.slots[name].tensor].dtype).eps * size
    return bool((canonicals[0][name] - canonicals[1][name]).norm() <= allowed)


def _distance(one: Arrays, other: Arrays) -> float:
    change = torch.stack([(one[name] - other[name]).norm() for name in one]).norm()
    size = torch.stack([tensor.norm() for tensor in one.values()]).norm()
    return float(change / size) if size > 0 else float(change)


@torch.no_grad()
def other_tensors_differ(one: TensorFiles, other: TensorFiles, attention: set[str]) -> list[str]:
    """Names of the tensors beside the attention layers' that are not the same up to rounding in their precision.

    Raises UserError where one model lacks a tensor or has it in another shape.
    """
    for name in sorted(one.entries.keys() ^ other.entries.keys()):
        raise UserError(f"{name} is a tensor of one model alone; expected two of the same architecture")
    differing = []
    for name in sorted(one.entries.keys() - attention):
        entries = [files.entries[name] for files in (one, other)]
        if entries[0].shape != entries[1].shape:
            raise UserError(f"{name} has shape {entries[0].shape} in one model, {entries[1].shape} in the other")
        eps = [torch.finfo(entry.dtype).eps if entry.dtype.is_floating_point else 0.0 for entry in entries]
        a, b = (files[name].double() for files in (one, other))
        if not ((a - b).abs() <= max(eps) * (a.abs() + b.abs())).all():
            differing.append(name)
    return differing
