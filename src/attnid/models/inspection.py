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
from attnid.models.files import TensorFiles, same_bytes
from attnid.models.layer import PAIRS, SIDES, AttentionLayer
from attnid.models.moves import in_double
from attnid.models.products import (
    LIKELY,
    Weights,
    aligned,
    canonical,
    product_difference,
    product_singular_values,
    without_dead_biases,
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
    if all(same_bytes(one.tensors[name], other.tensors[name]) for name in sorted(one.tensor_names())):
        return Compared(one.name, 0.0, 0.0, 0.0, True)
    raw = [in_double(layer) for layer in (one, other)]
    living = [without_dead_biases(layer, own) for layer, own in zip((one, other), raw, strict=True)]
    canonicals = [canonical(layer, own) for layer, own in zip((one, other), raw, strict=True)]
    free = [pair for pair in PAIRS if not (one.fixed(pair) or other.fixed(pair))]
    same, products = True, [0.0]
    for pair in free:
        both = [Weights(own, layer.stored(pair)) for layer, own in zip((one, other), living, strict=True)]
        found = product_difference(one.spec, pair, *both)
        same &= bool(found.same.all())
        products += (found.difference / found.size.where(found.size > 0, 1))[0].tolist()
    for name in living[0].keys() - {name for pair in free for name in SIDES[pair]}:
        same &= _same_parameter(one, other, name, living, raw)
    brought = aligned(other, canonicals[1], canonicals[0])
    product = float(torch.tensor(products).max())  # NaN where one is
    return Compared(one.name, _distance(raw[0], raw[1]), _distance(canonicals[0], brought), product, same)


def _same_parameter(
    one: AttentionLayer, other: AttentionLayer, name: str, living: Sequence[Arrays], raw: Sequence[Arrays]
) -> bool:
    """Whether a parameter that no S moves is the same in both; an output bias holds the values' biases by now."""
    tensors = [layer.slots[name].read(layer.tensors[layer.slots[name].tensor]) for layer in (one, other)]
    folded = one.folds_value_bias and not (one.unreadable("vo") or other.unreadable("vo"))
    if not folded or name not in ("b_V", "b_O"):
        return bool(same_numbers(*tensors).all())
    if name == "b_V":
        return True
    rounding = [
        torch.finfo(max(layer.stored("vo"), tensor.dtype, key=_coarseness)).eps / 2 * _folded_size(layer, own)
        for layer, tensor, own in zip((one, other), tensors, raw, strict=True)
    ]
    return bool((living[0][name] - living[1][name]).norm() <= LIKELY / 3**0.5 * torch.stack(rounding).norm())


def _folded_size(layer: AttentionLayer, own: Arrays) -> Tensor:
    """Root of the summed squares of what rounding enters when the values' biases go into the output bias."""
    terms = own["W_O"] * own["b_V"].repeat_interleave(layer.spec.heads_per_group, 0).unsqueeze(1)
    size: Tensor = torch.stack((own["b_O"].norm(), terms.norm(), terms.norm())).norm()
    return size


def same_numbers(one: Tensor, other: Tensor) -> Tensor:
    """Where two tensors hold the same numbers, as far as the coarser of their precisions can tell."""
    if one.dtype != other.dtype:
        coarse = max(one.dtype, other.dtype, key=_coarseness)
        one, other = one.to(coarse), other.to(coarse)
    wide = torch.float64 if one.is_floating_point() else one.dtype
    equal: Tensor = one.to(wide) == other.to(wide)
    return equal | (one.to(wide).isnan() & other.to(wide).isnan()) if one.is_floating_point() else equal


def _coarseness(kind: torch.dtype) -> float:
    return torch.finfo(kind).eps if kind.is_floating_point else 0.0


def _distance(one: Arrays, other: Arrays) -> float:
    change = torch.stack([(one[name] - other[name]).norm() for name in one]).norm()
    size = torch.stack([tensor.norm() for tensor in one.values()]).norm()
    return float(change / size) if size > 0 else float(change)


@torch.no_grad()
def other_tensors_differ(one: TensorFiles, other: TensorFiles, attention: set[str]) -> list[str]:
    """Names of the tensors beside the attention layers' that do not hold the same numbers, see `same_numbers`.

    Raises UserError where one model lacks a tensor or has it in another shape.
    """
    for name in sorted(one.entries.keys() ^ other.entries.keys()):
        raise UserError(f"{name} is a tensor of one model alone; expected two of the same architecture")
    differing = []
    for name in sorted(one.entries.keys() - attention):
        entries = [files.entries[name] for files in (one, other)]
        if entries[0].shape != entries[1].shape:
            raise UserError(f"{name} has shape {entries[0].shape} in one model, {entries[1].shape} in the other")
        if not same_numbers(one[name], other[name]).all():
            differing.append(name)
    return differing
