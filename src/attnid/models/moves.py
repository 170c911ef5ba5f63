"""Move the weights of a model along directions that leave its function as it is, or keep an optimiser from doing so."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from attnid.errors import UserError
from attnid.head_measures import without_overlap
from attnid.measures import commuting
from attnid.models.layer import PAIRS, SIDES, AttentionLayer
from attnid.models.modules import as_layers
from attnid.models.products import Weights, same_product
from attnid.symmetry import MOMENTS, fold_value_bias
from attnid.symmetry import PAIRS as MOVES

Model = nn.Module | AttentionLayer | Sequence[AttentionLayer]
Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
State = Literal["transport", "clear", "keep"]
Arrays = dict[str, Tensor]


class Rebalanced(NamedTuple):
    """What was done to one pair of a layer.

    Attributes:
        layer: path of the attention module.
        pair: `qk` or `vo`.
        moved: length of the change, relative to the pair's weights and biases.
        left_alone: key/value heads whose weights are zero, rank-deficient or not finite, and were left as they are.
        reason: why the whole pair was left as it is; "" if it was not.
    """

    layer: str
    pair: str
    moved: float
    left_alone: tuple[int, ...] = ()
    reason: str = ""


@torch.no_grad()
def rebalance_(
    model: Model,
    optimizer: Optimizers | None = None,
    pairs: Iterable[str] = PAIRS,
    state: State = "transport",
) -> list[Rebalanced]:
    """Give both factors of every product equal Gram matrices, in place; the model computes what it did.

    Under RoPE, queries and keys move in the group that RoPE leaves: a length a plane. Biases move along, frozen weights
    too. Computed in float64, rounded to the weights' precision, and put back where rounding would change the product by
    more than that precision allows. Section 5.2.2 of arXiv 2609.01231.

    Args:
        model: a module, or layers of `find_attention`.
        optimizer: one or several, whose state of the moved weights is treated as `state` says.
        pairs: `qk` for queries and keys, `vo` for values and outputs.
        state: `transport` moves the moments along (of squares only approximately, see
            `attnid.symmetry.transport_query_key`), `clear` forgets the state of every tensor that holds moved weights,
            `keep` leaves it.

    Returns:
        A row for each layer and pair, in the order of the layers.

    Raises:
        UserError: `pairs` or `state` is none of these, the model has no attention layer that is recognised, or an
            optimiser keeps something that cannot be transported, or has none of the weights. The model is then as it
            was.
    """
    layers, pairs = as_layers(model), _checked(pairs)
    if state not in ("transport", "clear", "keep"):
        raise UserError(f"rebalance_: state is {state!r}; allowed: transport, clear, keep")
    optimizers = _require_optimizers(layers, optimizer)
    if state == "transport":
        for each in optimizers:
            _require_transportable(layers, pairs, each)
    rows = []
    for layer in layers:
        for pair in pairs:
            if reason := layer.fixed(pair):
                rows.append(Rebalanced(layer.name, pair, 0.0, reason=reason))
                continue
            before = in_double(layer)
            S, possible = MOVES[pair].balance(layer.spec, before)
            left_alone = tuple((~possible).nonzero().flatten().tolist())
            try:
                moved = _store(layer, pair, before, S)
            except UserError as lost:
                rows.append(Rebalanced(layer.name, pair, 0.0, left_alone, str(lost)))
                continue
            for each in optimizers:
                _treat_state(layer, pair, S, each, state)
            rows.append(Rebalanced(layer.name, pair, moved, left_alone))
    return rows


@torch.no_grad()
def transform_(layer: AttentionLayer, pair: str, S: Tensor) -> float:
    """Move queries by S and keys by S^-T (`qk`), or values by S and outputs by S^-1 (`vo`), biases along with them.

    Args:
        S: shape (G, D, D) or (G, C, C), rows in the order of `layer.parameters()`; under RoPE it has to commute with
            every rotation.

    Returns:
        Length of the change, relative to the pair's weights and biases.

    Raises:
        UserError: the layer would not compute what it did: S is singular or does not commute with RoPE, what is moved
            cannot be stored in the weights' precision, or something keeps the pair in its place. It is then as it was.
    """
    if not isinstance(layer, AttentionLayer):
        raise UserError(f"transform_: {type(layer).__name__} is no attention layer; expected one of find_attention")
    if not isinstance(S, Tensor) or S.is_complex() or not S.is_floating_point():
        found = str(S.dtype).removeprefix("torch.") if isinstance(S, Tensor) else type(S).__name__
        raise UserError(f"{layer.name}: S is {found}; expected a torch tensor of real numbers with a fraction")
    (pair,) = _checked([pair])
    if reason := layer.fixed(pair):
        raise UserError(f"{layer.name}: {pair} cannot move: {reason}")
    width = layer.spec.qk_head_dim if pair == "qk" else layer.spec.v_head_dim
    expected = (layer.spec.n_kv_heads, width, width)
    if tuple(S.shape) != expected:
        raise UserError(f"{layer.name}: S has shape {tuple(S.shape)}; expected {expected}")
    before = in_double(layer)
    S = S.to(before["W_V"])
    singular_values = torch.linalg.svdvals(S)
    if not (singular_values[..., -1] > singular_values[..., 0] * width * torch.finfo(S.dtype).eps).all():
        raise UserError(f"{layer.name}: S is singular or not finite; expected an invertible matrix for every group")
    if pair == "qk" and not torch.allclose(S, _commuting_part(S, layer.spec.rotary_dim), rtol=0, atol=1e-12):
        raise UserError(
            f"{layer.name}: S does not commute with RoPE, and the layer would compute something else; allowed: scaled "
            "rotations of its planes (attnid.symmetry.rotary_scaling)"
        )
    try:
        return _store(layer, pair, before, S)
    except UserError as lost:
        raise UserError(f"{layer.name}: {pair} cannot move: {lost}") from None


class Zeroed(NamedTuple):
    """A bias on which nothing depends: its norm before, and why it was left as it is ("" if it was not)."""

    layer: str
    bias: str
    norm: float
    reason: str = ""


@torch.no_grad()
def zero_dead_biases_(model: Model) -> list[Zeroed]:
    """Set key biases to zero where nothing depends on them, and fold value biases into output biases; in place.

    A key bias is dead where RoPE does not rotate it and the softmax sees nothing but the layer's own scores (no sinks,
    soft cap or normalised keys). A value bias is, as long as attention weights sum to one: without sinks, and without
    dropout of the weights. Sections 4.7.1 and 4.7.2 of arXiv 2609.01231.

    Returns:
        A row for each key and value bias.
    """
    rows = []
    for layer in as_layers(model):
        own = in_double(layer)
        if "b_K" in own:
            dead = layer.dead_key_rows
            norm = float(own["b_K"].norm())
            if layer.unreadable("qk") or dead.start == dead.stop:
                rows.append(Zeroed(layer.name, "b_K", norm, layer.fixed("qk") or _why_key_bias_acts(layer)))
            else:
                own["b_K"][..., dead] = 0
                layer.write({"b_K": own["b_K"]})
                left = f"the {dead.start} rotated rows act" if dead.start else ""
                rows.append(Zeroed(layer.name, "b_K", norm, left))
        if "b_V" in own:
            norm = float(own["b_V"].norm())
            if layer.unreadable("vo") or not layer.folds_value_bias:
                reason = layer.unreadable("vo") or "attention weights do not sum to one, or there is no output bias"
                rows.append(Zeroed(layer.name, "b_V", norm, reason))
            else:
                rows.append(Zeroed(layer.name, "b_V", norm, _fold(layer, own)))
    return rows


def _fold(layer: AttentionLayer, own: Arrays) -> str:
    """Fold the value bias into the output bias, or say why that cannot be stored."""
    folded = fold_value_bias(layer.spec, own, -own["b_V"])
    kind = layer.tensors[layer.slots["b_O"].tensor].dtype
    if not folded["b_O"].to(kind).isfinite().all():
        return f"{str(kind).removeprefix('torch.')} cannot hold the output bias that it would become"
    layer.write({name: folded[name] for name in ("b_V", "b_O")})
    return ""


@contextmanager
def project_step(model: Model, pairs: Iterable[str] = PAIRS) -> Iterator[None]:
    """Take the part along unidentified directions out of the step that an optimiser makes in this context.

    The directions are those at the weights before the step, biases included; a step of any optimiser will do. Layers
    and pairs that cannot move are left to the optimiser, and so are those with a weight that is frozen or that the step
    leaves as it is: within what trains of them, nothing is wasted. The part is taken out in float64, and what is left
    rounded to the weights' precision.

    Raises UserError as `rebalance_` does.
    """
    layers, pairs = as_layers(model), _checked(pairs)
    free = [[pair for pair in pairs if not layer.fixed(pair) and layer.trains(pair)] for layer in layers]
    before = [(layer, own, in_double(layer)) for layer, own in zip(layers, free, strict=True) if own]
    yield
    with torch.no_grad():
        for layer, own, old in before:
            new = in_double(layer)
            weights = {pair: [name for name in SIDES[pair] if name.startswith("W_")] for pair in own}
            moved = [pair for pair, names in weights.items() if not any(torch.equal(old[n], new[n]) for n in names)]
            if moved:
                layer.write(without_overlap(layer.spec, old, new, moved))


def in_double(layer: AttentionLayer) -> Arrays:
    """A layer's parameters in float64."""
    return {name: tensor.double() for name, tensor in layer.parameters().items()}


def _checked(pairs: Iterable[str]) -> list[str]:
    given = [pairs] if isinstance(pairs, str) else list(pairs)
    for pair in given:
        if pair not in PAIRS:
            raise UserError(f"pairs holds {pair!r}; allowed: {', '.join(PAIRS)}")
    return list(dict.fromkeys(given))


def _store(layer: AttentionLayer, pair: str, before: Arrays, S: Tensor) -> float:
    """Move a pair by S. Raises UserError, and puts it back, where what is stored does not compute the same.

    Returns:
        Length of the change, relative to the pair's weights and biases as far as they are finite.
    """
    after = MOVES[pair].transform(layer.spec, before, S)
    changed = {name: tensor for name, tensor in after.items() if tensor is not before[name]}
    layer.write(changed)
    stored = layer.stored(pair)
    kept = in_double(layer)
    if not same_product(layer.spec, pair, Weights(before, stored), Weights(kept, stored)):
        layer.write({name: before[name] for name in changed})
        raise UserError(f"{str(stored).removeprefix('torch.')} cannot hold what it would become")
    change, length = (
        torch.stack([tensor.nan_to_num(0, 0, 0).norm() for tensor in tensors]).norm()
        for tensors in ([kept[name] - before[name] for name in changed], [before[name] for name in changed])
    )
    return float(change / length) if length > 0 else 0.0


def _treat_state(
    layer: AttentionLayer,
    pair: str,
    S: Tensor,
    optimizer: torch.optim.Optimizer,
    state: State,
) -> None:
    parameters = {name: layer.tensors[name] for name in layer.tensor_names(pair)}
    if state == "clear" and isinstance(optimizer, torch.optim.LBFGS):  # its one state stands beside its first weight
        optimizer.state.clear()
    if state == "clear":
        for parameter in parameters.values():
            optimizer.state.pop(parameter, None)
    if state != "transport":
        return
    for key, power in MOMENTS.items():
        kept = {
            name: optimizer.state[parameter][key]
            for name, parameter in parameters.items()
            if parameter in optimizer.state and isinstance(optimizer.state[parameter].get(key), Tensor)
        }
        slots = {name: slot for name, slot in layer.slots.items() if slot.tensor in parameters}
        there = {name for name, slot in slots.items() if slot.tensor in kept}
        if there:
            moments = {name: torch.zeros(slot.shape).to(S) for name, slot in layer.slots.items()}
            moments |= {name: layer.slots[name].read(kept[layer.slots[name].tensor]).to(S) for name in there}
            moved = MOVES[pair].transport(layer.spec, moments, S, power)
            layer.over(kept).write({name: moved[name] for name in there})


def _require_optimizers(layers: Sequence[AttentionLayer], given: Optimizers | None) -> Sequence[torch.optim.Optimizer]:
    optimizers: Sequence[Any] = given if isinstance(given, list | tuple) else [] if given is None else [given]
    weights = {id(layer.tensors[name]) for layer in layers for name in layer.tensor_names()}
    for optimizer in optimizers:
        groups = getattr(optimizer, "param_groups", None)
        if groups is None:
            raise UserError(
                f"rebalance_: {type(optimizer).__name__} is no optimiser; expected one of torch.optim's kind"
            )
        if not any(id(parameter) in weights for group in groups for parameter in group["params"]):
            raise UserError("rebalance_: the optimiser has none of the attention weights; expected the model's own")
    return optimizers


def _require_transportable(
    layers: Sequence[AttentionLayer], pairs: Sequence[str], optimizer: torch.optim.Optimizer
) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UserError(
            "rebalance_: how the history of LBFGS moves is not known; allowed here: state 'clear' or 'keep'"
        )
    for layer in layers:
        for pair in pairs:
            for name in () if layer.fixed(pair) else layer.tensor_names(pair):
                parameter = layer.tensors[name]
                state: Mapping[str, object] = optimizer.state.get(parameter, {})
                for key, value in state.items():
                    if isinstance(value, Tensor) and value.numel() > 1 and key not in MOMENTS:
                        raise UserError(
                            f"rebalance_: the optimiser keeps {key} of {name}, and how that moves is not known; known: "
                            f"{', '.join(MOMENTS)}; allowed here: state 'clear' or 'keep'"
                        )


def _commuting_part(S: Tensor, rotary_dim: int) -> Tensor:
    """What of S commutes with all rotations of the leading rows: a scaled rotation a plane, anything below."""
    if rotary_dim == 0:
        return S
    result = commuting(S, rotary_dim)
    first = torch.arange(0, rotary_dim, 2, device=S.device)
    turn = (S[..., first + 1, first] - S[..., first, first + 1]) / 2
    result[..., first + 1, first] = turn
    result[..., first, first + 1] = -turn
    return result


def _why_key_bias_acts(layer: AttentionLayer) -> str:
    if layer.extra_token:
        return "the added token has a key without it"
    return "RoPE rotates it" if not layer.spec.key_bias_acts else "sinks, a soft cap or a norm make it act"
