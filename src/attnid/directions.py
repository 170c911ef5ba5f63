"""Directions in the parameters of a layer along which it does not change: the tangents of its symmetries.

They are computed modulo a prime from the parameters alone, apart from the forward pass. Their rank bounds the number
of unidentified parameters from below.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from attnid.attention import Parameters
from attnid.layer import LayerSpec, reachable_buckets
from attnid.modular import Field

Change = dict[str, Tensor]

BIAS = {"W_Q": "b_Q", "W_K": "b_K", "W_V": "b_V"}
LATENTS = (("W_DKV", "g_DKV", ("W_UK", "W_UV")), ("W_DQ", "g_DQ", ("W_UQ",)))


def directions(spec: LayerSpec, parameters: Parameters, field: Field) -> Tensor:
    """Tangent vectors of the layer's symmetries, one a row, at real reduced parameters; columns as in the Jacobian.

    Raises attnid.modular.NoInverseError where a number to divide by is zero modulo the prime.
    """
    rows = [
        torch.cat([change.get(name, torch.zeros_like(p)).flatten() for name, p in parameters.items()])
        for change in _Symmetries(spec, parameters, field).changes()
    ]
    numbers = sum(p.numel() for p in parameters.values())
    return field.reduce_(torch.stack(rows)) if rows else torch.zeros(0, numbers, dtype=torch.float64)


class _Symmetries:
    """Changes of the parameters, as sums of a few reduced numbers."""

    def __init__(self, spec: LayerSpec, parameters: Parameters, field: Field) -> None:
        self.spec, self.parameters, self.field = spec, parameters, field
        self.query = "W_Q" if "W_Q" in parameters else "W_UQ"

    def changes(self) -> Iterator[Change]:
        """All of them; some may depend on others."""
        yield from self._latent_query_key() if self.spec.kv_latent_dim is not None else self._query_key()
        yield from self._value_output()
        yield from self._key_bias()
        yield from self._value_constants()
        yield from self._relative_table()
        for down, gain, up in LATENTS:
            if down in self.parameters:
                yield from self._latent(down, gain, [name for name in up if name in self.parameters])
        yield from self._input_norm()

    # ---------------------------------------------------------------- queries and keys

    def _query_key(self) -> Iterator[Change]:
        spec = self.spec
        if spec.qk_norm != "none":
            yield from self._scales()
            yield from self._gains() if spec.qk_norm_gain else self._turns()
            return
        for group in range(spec.n_kv_heads):
            for S in _commuting_basis(spec):
                yield self._moved(group, S)
            yield from self._unseen_query_key(group)
            if spec.sinks_absorb_constants:
                yield from self._constant_scores(group)

    def _moved(self, group: int, S: Tensor) -> Change:
        """Queries of a group by S, keys by -S^T, biases along."""
        change = {}
        for names, chosen, matrix in (
            (("W_Q", "b_Q"), self._heads(group), S),
            (("W_K", "b_K"), slice(group, group + 1), -S.mT),
        ):
            for name in names:
                if name in self.parameters:
                    change[name] = self._along(name, chosen, matrix)
        return change

    def _along(self, name: str, heads: slice, matrix: Tensor) -> Tensor:
        """A matrix of small numbers times the weights or biases of some heads, zero for the others."""
        parameter = self.parameters[name]
        result = torch.zeros_like(parameter)
        moved = parameter[heads] if name.startswith("W") else parameter[heads].unsqueeze(-1)
        result[heads] = (matrix @ moved).view(parameter[heads].shape)
        return result

    def _scales(self) -> Iterator[Change]:
        """What is normalised may have any length."""
        for names in (("W_Q", "b_Q"), ("W_K", "b_K")):
            heads = len(self.parameters[names[0]])
            together = [slice(head, head + 1) for head in range(heads)]
            for chosen in together if self.spec.qk_norm == "head" else [slice(0, heads)]:
                change = {name: torch.zeros_like(self.parameters[name]) for name in names if name in self.parameters}
                for name, moved in change.items():
                    moved[chosen] = self.parameters[name][chosen]
                yield change

    def _gains(self) -> Iterator[Change]:
        """The gain of queries up, that of keys down, plane by plane where RoPE rotates."""
        spec = self.spec
        planes = [slice(first, first + 2) for first in range(0, spec.rotary_dim, 2)]
        planes += [slice(first, first + 1) for first in range(spec.rotary_dim, spec.qk_head_dim)]
        shared = spec.qk_norm == "head"
        for group in range(1 if shared else spec.n_kv_heads):
            for dims in planes:
                change = {name: torch.zeros_like(self.parameters[name]) for name in ("g_Q", "g_K")}
                queries = (..., dims) if shared else (self._heads(group), dims)
                keys = (..., dims) if shared else (group, dims)
                change["g_Q"][queries] = self.parameters["g_Q"][queries]
                change["g_K"][keys] = -self.parameters["g_K"][keys]
                yield change

    def _turns(self) -> Iterator[Change]:
        """Rotations, the same of queries and keys, that commute with RoPE."""
        size, first = self.spec.qk_head_dim, self.spec.rotary_dim
        turned = [(plane, plane + 1) for plane in range(0, first, 2)]
        turned += [(row, column) for row in range(first, size) for column in range(row + 1, size)]
        for group in range(self.spec.n_kv_heads):
            for row, column in turned:
                yield self._moved(group, _unit(size, row, column) - _unit(size, column, row))

    def _unseen_query_key(self, group: int) -> Iterator[Change]:
        """Changes of queries that no key sees, and of keys that no query sees, where a head is wider than its input."""
        heads, rest = self._heads(group), slice(self.spec.rotary_dim, None)
        acts = self.spec.key_bias_acts
        keys = self._read("W_K", slice(group, group + 1), constant=acts)[0, rest]
        for unseen in self.field.null_space(keys.mT):
            for name in ("W_Q", "b_Q"):
                yield from self._each_place(name, heads, unseen)
        queries = self._read("W_Q", heads, constant=True)[:, rest].transpose(0, 1).flatten(1)
        for unseen in self.field.null_space(queries.mT):
            for name in ("W_K", "b_K") if acts else ("W_K",):
                yield from self._each_place(name, slice(group, group + 1), unseen)

    def _constant_scores(self, group: int) -> Iterator[Change]:
        """Changes of a bias that the other side's weights do not see: all scores of a head shift, its sink along."""
        heads, rest = self._heads(group), slice(self.spec.rotary_dim, None)
        keys, queries = self._constant("W_K")[group, rest], self._constant("W_Q")[heads, rest]
        for unseen in self.field.null_space(self._read("W_K", slice(group, group + 1), constant=False)[0, rest].mT):
            effect = self.field.product(unseen[None], keys[:, None])[0, 0]
            for head in range(heads.start, heads.stop):
                yield self._bias_and_sinks("W_Q", head, unseen, slice(head, head + 1), effect)
        linear = self._read("W_Q", heads, constant=False)[:, rest].transpose(0, 1).flatten(1)
        for unseen in self.field.null_space(linear.mT):
            yield self._bias_and_sinks("W_K", group, unseen, heads, self.field.product(queries, unseen[:, None])[:, 0])

    def _bias_and_sinks(self, name: str, head: int, unseen: Tensor, heads: slice, effect: Tensor) -> Change:
        shift = torch.zeros(self.parameters[name].shape[:-1], dtype=torch.float64)
        shift[head, self.spec.rotary_dim :] = unseen
        sinks = torch.zeros_like(self.parameters["sinks"])
        sinks[heads] = effect
        return self._shift(name, shift) | {"sinks": sinks}

    def _each_place(self, name: str, heads: slice, unseen: Tensor) -> Iterator[Change]:
        """Every change of one parameter of these heads whose last head dimensions follow a vector."""
        if name not in self.parameters:
            return
        parameter = self.parameters[name]
        for head in range(heads.start, heads.stop):
            for place in range(parameter[0].numel() // parameter.shape[1]):
                change = torch.zeros_like(parameter)
                change[head].view(parameter.shape[1], -1)[-len(unseen) :, place] = unseen
                yield {name: change}

    def _latent_query_key(self) -> Iterator[Change]:
        """One S a head where RoPE does not rotate; one scaled rotation a plane, common to all heads, where it does."""
        spec, W_Q = self.spec, self.parameters[self.query]
        rest = slice(spec.rotary_dim, None)
        for head in range(spec.n_heads):
            for S in _matrix_units(spec.qk_head_dim - spec.rotary_dim):
                change = {self.query: torch.zeros_like(W_Q), "W_UK": torch.zeros_like(self.parameters["W_UK"])}
                change[self.query][head, rest] = S @ W_Q[head, rest]
                change["W_UK"][head] = -S.mT @ self.parameters["W_UK"][head]
                yield change
        for S in _commuting_basis(spec, rest=False):
            rotated = S[: spec.rotary_dim, : spec.rotary_dim]
            yield {self.query: S @ W_Q, "W_KR": -rotated.mT @ self.parameters["W_KR"]}

    def _key_bias(self) -> Iterator[Change]:
        spec = self.spec
        if not spec.biased[1] or spec.key_bias_acts:
            return
        for group in range(spec.n_kv_heads):
            for dimension in range(spec.rotary_dim, spec.qk_head_dim):
                shift = torch.zeros(spec.n_kv_heads, spec.qk_head_dim, dtype=torch.float64)
                shift[group, dimension] = 1
                yield self._shift("W_K", shift)

    def _relative_table(self) -> Iterator[Change]:
        """All entries of a head together, the sink along; and those that nothing uses."""
        spec = self.spec
        if not spec.relative_buckets:
            return
        table = torch.zeros_like(self.parameters["table"])
        unused = sorted(set(range(spec.relative_buckets)) - reachable_buckets(spec))
        for head in range(spec.n_heads):
            shifted = table.clone()
            shifted[head] = 1
            yield {"table": shifted} | ({"sinks": shifted[:, 0]} if spec.sinks else {})
            for entry in unused:
                alone = table.clone()
                alone[head, entry] = 1
                yield {"table": alone}

    # ---------------------------------------------------------------- values and output

    def _value_output(self) -> Iterator[Change]:
        """Values by S, outputs by -S from the right, value bias along."""
        spec, field = self.spec, self.field
        up = "W_V" if "W_V" in self.parameters else "W_UV"
        W_O = self.parameters["W_O"]
        for group in range(spec.n_kv_heads):
            heads = self._heads(group)
            for S in _matrix_units(spec.v_head_dim):
                change = {
                    name: self._along(name, slice(group, group + 1), S)
                    for name in (up, "b_V")
                    if name in self.parameters
                }
                change["W_O"] = torch.zeros_like(W_O)
                change["W_O"][heads] = -W_O[heads] @ S
                yield change
            for unseen in field.null_space(W_O[heads].flatten(0, 1)):
                for name in (up, "b_V"):
                    yield from self._each_place(name, slice(group, group + 1), unseen)

    def _value_constants(self) -> Iterator[Change]:
        """Changes of outputs that no value sees, and of value biases, as far as they leave no constant behind."""
        spec, field = self.spec, self.field
        changes = list(self._unseen_outputs())
        if not spec.biased[2] or spec.sinks:
            yield from changes
            return
        biases = self._constant("W_V").repeat_interleave(spec.heads_per_group, dim=0).flatten()[:, None]
        constants = [field.product(change["W_O"].transpose(0, 1).flatten(1), biases)[:, 0] for change in changes]
        by_bias = self._value_bias_effect()
        for index, shift in enumerate(torch.eye(by_bias.shape[1], dtype=torch.float64)):
            changes.append(self._shift("W_V", shift.view(spec.n_kv_heads, spec.v_head_dim)))
            constants.append(by_bias[:, index])
        if spec.output_bias:
            for change, constant in zip(changes, constants, strict=True):
                yield change | {"b_O": -constant}
            return
        for weights in field.null_space(torch.stack(constants, dim=1)):
            yield self._combined(changes, weights)

    def _unseen_outputs(self) -> Iterator[Change]:
        up = "W_V" if "W_V" in self.parameters else "W_UV"
        for group in range(self.spec.n_kv_heads):
            heads = self._heads(group)
            values = self._read(up, slice(group, group + 1), constant=self.spec.sinks)[0]
            for unseen in self.field.null_space(values.mT):
                for head in range(heads.start, heads.stop):
                    for channel in range(self.spec.d_model):
                        change = {"W_O": torch.zeros_like(self.parameters["W_O"])}
                        change["W_O"][head, channel] = unseen
                        yield change

    def _combined(self, changes: list[Change], weights: Tensor) -> Change:
        result: Change = {}
        for change, weight in zip(changes, weights, strict=True):
            for name, tensor in change.items() if weight else ():
                result[name] = self.field.reduce_(result.get(name, 0) + self.field.reduce_(tensor * weight))
        return result

    def _value_bias_effect(self) -> Tensor:
        """What each value bias adds to the output, shape (E, G C)."""
        by_group = self.field.reduce_(self.parameters["W_O"].unflatten(0, (self.spec.n_kv_heads, -1)).sum(1))
        return by_group.transpose(0, 1).flatten(1)

    # ---------------------------------------------------------------- latents

    def _latent(self, down: str, gain: str, up: list[str]) -> Iterator[Change]:
        """Rotations of a latent, the scale of each of its gains, and the scale of the latent before its norm."""
        W, g, field = self.parameters[down], self.parameters[gain], self.field
        inverse = field.inverses(g)
        yield {down: W}
        for i in range(len(g)):
            taken_out = {name: _placed(self.parameters[name], i, -self.parameters[name][..., i]) for name in up}
            yield taken_out | {gain: _placed(g, i, g[i])}
            for j in range(i):
                turned = torch.zeros_like(W)
                turned[i], turned[j] = W[j], -W[i]
                change = {down: turned}
                for name in up:
                    columns = field.times(self.parameters[name], g)
                    change[name] = _placed(columns, j, -field.times(columns[..., i], inverse[j]))
                    change[name][..., i] = field.times(columns[..., j], inverse[i])
                yield change

    # ---------------------------------------------------------------- the normalisation of the input

    def _input_norm(self) -> Iterator[Change]:
        spec, parameters = self.spec, self.parameters
        inputs = {name: parameters[name] for name in spec.input_projections}
        if "g_N" in parameters:
            for i in range(spec.d_model):
                change = {name: _placed(W, i, -W[..., i]) for name, W in inputs.items()}
                own = [name for name in ("g_N", "b_N") if name in parameters]
                yield change | {name: _placed(parameters[name], i, parameters[name][i]) for name in own}
        if spec.pre_norm != "layer":
            return
        for name, W in inputs.items():
            if not spec.pre_norm_bias or BIAS.get(name) in parameters:
                yield from self._centred_rows(name, W)
        if spec.pre_norm_bias:
            for i in range(spec.d_model):
                change = {name: -self._as_bias(W[..., i]) for name, W in inputs.items()}
                yield change | {"b_N": _placed(parameters["b_N"], i, torch.tensor(1.0))}

    def _centred_rows(self, name: str, W: Tensor) -> Iterator[Change]:
        """A row changed by what is orthogonal to all centred inputs; the bias takes back what the norm's bias makes."""
        flat = W.flatten(0, -2)
        for row in range(len(flat)):
            change = torch.zeros_like(flat)
            change[row] = self._unseen_row
            moved = {name: change.view(W.shape)}
            if self.spec.pre_norm_bias:
                bias = torch.zeros(len(flat), dtype=torch.float64)
                bias[row] = -self._unseen_effect
                moved[BIAS[name]] = bias.view(W.shape[:-1])
            yield moved

    @property
    def _unseen_row(self) -> Tensor:
        """1/g: orthogonal to g z for every centred z."""
        ones = torch.ones(self.spec.d_model, dtype=torch.float64)
        return self.field.inverses(self.parameters["g_N"]) if "g_N" in self.parameters else ones

    @property
    def _unseen_effect(self) -> Tensor:
        """What that row makes of the norm's bias."""
        return self.field.reduce_(self.field.times(self._unseen_row, self.parameters["b_N"]).sum())

    def _as_bias(self, shift: Tensor) -> Tensor:
        """The change of a projection of LayerNorm's output that adds `shift` to what it gives."""
        row = self.field.times(self._unseen_row, self.field.inverses(self._unseen_effect))
        return self.field.times(shift.unsqueeze(-1), row)

    def _shift(self, name: str, shift: Tensor) -> Change:
        """A shift of a projection's outputs, by its bias or through the bias of the norm."""
        bias = BIAS[name]
        return {bias: shift} if bias in self.parameters else {name: self._as_bias(shift)}

    def _constant(self, name: str) -> Tensor:
        """What a projection gives whatever the input, shape (heads, head width)."""
        constant = torch.zeros(self.parameters[name].shape[:-1], dtype=torch.float64)
        if BIAS[name] in self.parameters:
            constant += self.parameters[BIAS[name]]
        if self.spec.pre_norm_bias and name in self.spec.input_projections:
            constant += self.field.product(self.parameters[name], self.parameters["b_N"][:, None])[..., 0]
        return self.field.reduce_(constant)

    def _read(self, name: str, heads: slice, constant: bool) -> Tensor:
        """A projection as a matrix on inputs that may be anything, with its constant part as a last column."""
        W = self.parameters[name][heads]
        if self.spec.pre_norm == "layer" and name in self.spec.input_projections:
            W = self.field.times(W, self.parameters["g_N"]) if "g_N" in self.parameters else W
            W = self.field.reduce_(W[..., :-1] - W[..., -1:])
        if constant and name in BIAS:
            W = torch.cat((W, self._constant(name)[heads].unsqueeze(-1)), dim=-1)
        return W

    def _heads(self, group: int) -> slice:
        """Query heads of a group."""
        shared = self.spec.heads_per_group
        return slice(group * shared, (group + 1) * shared)


def _unit(size: int, row: int, column: int) -> Tensor:
    unit = torch.zeros(size, size, dtype=torch.float64)
    unit[row, column] = 1
    return unit


def _matrix_units(size: int, first: int = 0) -> Iterator[Tensor]:
    """Matrices with a single one, in rows and columns from `first` on."""
    for row in range(first, size):
        for column in range(first, size):
            yield _unit(size, row, column)


def _commuting_basis(spec: LayerSpec, rest: bool = True) -> Iterator[Tensor]:
    """A basis of the S that commute with RoPE: a scaling and a turn a plane, and on the rest anything or nothing."""
    size = spec.qk_head_dim
    for plane in range(0, spec.rotary_dim, 2):
        yield _unit(size, plane, plane) + _unit(size, plane + 1, plane + 1)
        yield _unit(size, plane + 1, plane) - _unit(size, plane, plane + 1)
    if rest:
        yield from _matrix_units(size, spec.rotary_dim)


def _placed(like: Tensor, column: int, values: Tensor) -> Tensor:
    """Zeros but for one column, in the last dimension."""
    placed = torch.zeros_like(like)
    placed[..., column] = values
    return placed
