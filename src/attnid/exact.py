"""The rank of an attention layer's Jacobian, proved: a lower and an upper bound by elimination modulo a prime.

Lower bound. The Jacobian's entries are rational functions of weights, inputs and the exponentials of the scores. For
independent tokens of width at least 2 no integer combination of a row's score differences is constant (the monomial
W_Q[d, a] W_K[d, b] x_i[a] x_j[b], a != b, occurs in s_ij alone), so these exponentials are algebraically independent
(Ax) and the generic rank stays the same when each becomes an indeterminate. Random residues for all of them can only
lower the rank: a minor that is not zero modulo the prime is not zero. Under RoPE the angles of one rational class are
multiples of one angle and those of different classes have algebraically independent exponentials (Lindemann and
Weierstrass), so one random point of the circle a class stands for the real frequencies.

Upper bound. Explicit directions along which the layer does not change; their rank modulo the prime can only be too
small, so the parameters minus it bound the rank from above. Where the bounds meet, the rank is certified.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import torch
from torch import Tensor

from attnid.attention import ROPE_BASE, Parameters
from attnid.layer import LayerSpec, numel
from attnid.modular import PRIME, inverse, inverses, null_space, product, random_residues, rank_, reduce_
from attnid.rank import FEWEST_TOKENS

SPARE_ROWS = 32
Complex = tuple[int, int]


@dataclass(frozen=True)
class Certificate:
    """Proved bounds on the generic rank of a layer's Jacobian.

    `assumed` says under which condition the lower bound is a proof, `failed` which condition does not hold ("" if
    all do): such a row is not certified.
    """

    lower: int
    upper: int
    prime: int
    seed: int
    sequences: int
    tokens: int
    assumed: str
    failed: str

    @property
    def certified(self) -> bool:
        """Whether the rank is proved."""
        return self.lower == self.upper and not self.failed


def certify(spec: LayerSpec, seed: int = 0) -> Certificate:
    """Bound the generic rank of a layer from both sides."""
    tokens = max(FEWEST_TOKENS, spec.d_model)
    draws = torch.Generator().manual_seed(seed)
    parameters = {name: random_residues(shape, draws) for name, shape in spec.parameter_shapes.items()}
    numbers = sum(tensor.numel() for tensor in parameters.values())
    upper = numbers - rank_(directions(spec, parameters))
    sequences = ceil((upper + SPARE_ROWS) / (tokens * spec.d_model))
    sequences = max(sequences, _telling_sequences(spec, tokens))
    jacobian = torch.cat([_sequence_jacobian(spec, parameters, tokens, draws) for _ in range(sequences)])
    return Certificate(
        lower=rank_(jacobian),
        upper=upper,
        prime=PRIME,
        seed=seed,
        sequences=sequences,
        tokens=tokens,
        assumed=_assumed(spec),
        failed="" if spec.d_model >= 2 else "the score differences need a width of at least 2",
    )


def _assumed(spec: LayerSpec) -> str:
    text = "generic weights and independent tokens of width at least 2"
    return text + f"; RoPE's frequencies for base {ROPE_BASE:.0f}" if spec.rotary_dim else text


def _telling_sequences(spec: LayerSpec, tokens: int) -> int:
    """Sequences whose score differences, seen through the values, are as many as the query/key parameters."""
    seen = min(spec.n_heads * spec.v_head_dim, spec.d_model)
    telling = sum(min(spec.n_heads * keys, seen) for keys in range(tokens))
    needed = numel(spec.query_key_shapes)
    return ceil((needed + SPARE_ROWS) / telling)


# ------------------------------------------------------------------ the Jacobian modulo the prime


def _sequence_jacobian(spec: LayerSpec, parameters: Parameters, tokens: int, draws: torch.Generator) -> Tensor:
    """Rows of one random sequence: shape (L E, parameters)."""
    x = random_residues((tokens, spec.d_model), draws)
    weights = _softmax_weights(spec, tokens, draws)
    rotation = _rotations(spec, tokens, draws)
    columns = _score_columns(spec, parameters, x, weights, rotation) | _value_columns(spec, parameters, x, weights)
    return torch.cat([columns[name].flatten(2) for name in spec.parameter_shapes], dim=2).flatten(0, 1)


def _softmax_weights(spec: LayerSpec, tokens: int, draws: torch.Generator) -> Tensor:
    """A_ij = E_ij / sum_k E_ik for indeterminates E_ij, shape (H, L, L)."""
    exponentials = random_residues((spec.n_heads, tokens, tokens), draws)
    if spec.causal:
        exponentials = exponentials.tril()
    return reduce_(exponentials * inverses(reduce_(exponentials.sum(-1, keepdim=True))))


def _rotations(spec: LayerSpec, tokens: int, draws: torch.Generator) -> Tensor:
    """Cosines and sines of every position and plane as points of the circle, shape (2, L, planes)."""
    planes = spec.rotary_dim // 2
    points: list[Complex] = []
    bases: dict[Fraction, Complex] = defaultdict(lambda: _circle_point(draws))
    for plane in range(planes):
        remainder, multiple = frequency_class(plane, spec.rotary_dim)
        points.append(_power(bases[remainder], multiple))
    turned = [[_power(point, position) for point in points] for position in range(tokens)]
    return torch.tensor(turned, dtype=torch.float64).view(tokens, planes, 2).permute(2, 0, 1)


def frequency_class(plane: int, rotary_dim: int) -> tuple[Fraction, int]:
    """The rational class of a plane's frequency, and its frequency as a multiple of the smallest possible in it.

    theta = 10000^(-2 plane / rotary_dim) = 10^(-8 plane / rotary_dim): two of them have a rational ratio exactly if
    their exponents differ by a whole number, and powers of ten to different fractions are linearly independent over
    the rationals.
    """
    exponent = Fraction(8 * plane, rotary_dim)
    whole = exponent.numerator // exponent.denominator
    return exponent - whole, int(10 ** (8 - whole))


def _circle_point(draws: torch.Generator) -> Complex:
    """A random point ((1 - t^2) / (1 + t^2), 2 t / (1 + t^2)) of the circle modulo the prime."""
    while True:
        t = int(torch.randint(1, PRIME, (), generator=draws))
        if (1 + t * t) % PRIME:
            scale = inverse(1 + t * t)
            return (1 - t * t) * scale % PRIME, 2 * t * scale % PRIME


def _power(point: Complex, exponent: int) -> Complex:
    result, square = (1, 0), point
    while exponent:
        if exponent & 1:
            result = _times(result, square)
        square = _times(square, square)
        exponent >>= 1
    return result


def _times(a: Complex, b: Complex) -> Complex:
    return (a[0] * b[0] - a[1] * b[1]) % PRIME, (a[0] * b[1] + a[1] * b[0]) % PRIME


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn the leading dimensions of x, shape (..., L, D), position by position, in adjacent pairs."""
    planes = rotation.shape[-1]
    cos, sin = rotation
    first, second = x[..., : 2 * planes].unflatten(-1, (planes, 2)).unbind(-1)
    turned = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=-1).flatten(-2)
    return torch.cat((reduce_(turned), x[..., 2 * planes :]), dim=-1)


def _turn_back(x: Tensor, rotation: Tensor) -> Tensor:
    return _rotate(x, torch.stack((rotation[0], -rotation[1])))


def _project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(L, E) and (N, D, E) give (N, L, D)."""
    projected = product(x, weight.mT)
    return projected if bias is None else reduce_(projected + bias[:, None])


def _score_columns(
    spec: LayerSpec, parameters: Parameters, x: Tensor, weights: Tensor, rotation: Tensor
) -> dict[str, Tensor]:
    """Derivatives by what enters the scores, shape (L, E, parameter) each; the factor 1/sqrt(D) is left out."""
    queries = _rotate(_project(x, parameters["W_Q"], parameters.get("b_Q")), rotation)
    keys = _rotate(_project(x, parameters["W_K"], parameters.get("b_K")), rotation)
    outputs = _head_outputs(spec, parameters, x)
    tokens, width = x.shape
    columns = {
        name: torch.zeros(tokens, width, *shape, dtype=torch.float64) for name, shape in spec.query_key_shapes.items()
    }
    for head in range(spec.n_heads):
        group = head // spec.heads_per_group
        centred = outputs[head] - product(weights[head], outputs[head])[:, None]
        by_score = reduce_(weights[head][:, :, None] * reduce_(centred)).mT
        by_query = _turn_back(product(by_score, keys[group]).transpose(0, 1), rotation).transpose(0, 1)
        columns["W_Q"][:, :, head] = reduce_(by_query[..., None] * x[:, None, None])
        seen = torch.stack([_turn_back(query.expand(tokens, -1), rotation) for query in queries[head]])
        pairs = reduce_(seen[..., None] * x[None, :, None]).flatten(2)
        by_key = product(by_score, pairs).unflatten(-1, (-1, width))
        columns["W_K"][:, :, group] = reduce_(columns["W_K"][:, :, group] + by_key)
        if spec.query_bias:
            columns["b_Q"][:, :, head] = by_query
        if spec.key_bias:
            columns["b_K"][:, :, group] = reduce_(columns["b_K"][:, :, group] + product(by_score, seen))
    return columns


def _head_outputs(spec: LayerSpec, parameters: Parameters, x: Tensor) -> Tensor:
    """What each head would write for each token alone, W_O v_j, shape (H, L, E)."""
    values = _project(x, parameters["W_V"], parameters.get("b_V"))
    return product(values.repeat_interleave(spec.heads_per_group, dim=0), parameters["W_O"].mT)


def _value_columns(spec: LayerSpec, parameters: Parameters, x: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Derivatives by what carries values to the output, shape (L, E, parameter) each."""
    tokens, width = x.shape
    values = _project(x, parameters["W_V"], parameters.get("b_V")).repeat_interleave(spec.heads_per_group, dim=0)
    mixed_inputs, mixed_values = product(weights, x), product(weights, values)
    each = torch.eye(width, dtype=torch.float64)
    by_value = reduce_(parameters["W_O"][:, None, :, :, None] * mixed_inputs[:, :, None, None, :])
    columns = {
        "W_V": reduce_(by_value.unflatten(0, (spec.n_kv_heads, -1)).sum(1)).permute(1, 2, 0, 3, 4),
        "W_O": (each[:, None, :, None] * mixed_values.transpose(0, 1)[:, None, :, None, :]),
    }
    if spec.value_bias:
        by_bias = reduce_(parameters["W_O"].unflatten(0, (spec.n_kv_heads, -1)).sum(1)).transpose(0, 1)
        columns["b_V"] = by_bias.expand(tokens, -1, -1, -1)
    if spec.output_bias:
        columns["b_O"] = each.expand(tokens, -1, -1)
    return columns


# ------------------------------------------------------------------ directions along which nothing changes


def directions(spec: LayerSpec, parameters: Parameters) -> Tensor:
    """Tangent vectors of the layer's symmetries at its parameters modulo the prime, one a row."""
    rows = [
        torch.cat([reduce_(change.get(name, torch.zeros_like(p)) + 0).flatten() for name, p in parameters.items()])
        for change in _changes(spec, parameters)
    ]
    numbers = sum(p.numel() for p in parameters.values())
    return torch.stack(rows) if rows else torch.zeros(0, numbers, dtype=torch.float64)


def _changes(spec: LayerSpec, parameters: Parameters) -> Iterator[dict[str, Tensor]]:
    for group in range(spec.n_kv_heads):
        heads = slice(group * spec.heads_per_group, (group + 1) * spec.heads_per_group)
        for S in _commuting_basis(spec):
            yield _query_key_change(spec, parameters, group, heads, S)
        for S in _matrix_units(spec.v_head_dim):
            yield _value_output_change(spec, parameters, group, heads, S)
        yield from _unseen_changes(spec, parameters, group, heads)
        if spec.key_bias:
            for dimension in range(spec.rotary_dim, spec.qk_head_dim):
                yield {"b_K": _unit(parameters["b_K"], group, dimension)}
    if spec.value_bias:
        yield from _value_bias_changes(spec, parameters)


def _matrix_units(size: int, first: int = 0) -> Iterator[Tensor]:
    """Matrices with a single one, in rows and columns from `first` on."""
    for row in range(first, size):
        for column in range(first, size):
            yield _unit(torch.zeros(size, size, dtype=torch.float64), row, column)


def _commuting_basis(spec: LayerSpec) -> Iterator[Tensor]:
    """A basis of the S that commute with every rotation: a scaling and a turn a plane, anything on the rest."""
    size = spec.qk_head_dim
    for plane in range(0, spec.rotary_dim, 2):
        for block in ([[1.0, 0.0], [0.0, 1.0]], [[0.0, -1.0], [1.0, 0.0]]):
            S = torch.zeros(size, size, dtype=torch.float64)
            S[plane : plane + 2, plane : plane + 2] = torch.tensor(block, dtype=torch.float64)
            yield S
    yield from _matrix_units(size, spec.rotary_dim)


def _query_key_change(
    spec: LayerSpec, parameters: Parameters, group: int, heads: slice, S: Tensor
) -> dict[str, Tensor]:
    """Queries by S, keys by -S^T, biases along."""
    change = {name: torch.zeros_like(parameters[name]) for name in spec.query_key_shapes}
    change["W_Q"][heads] = S @ parameters["W_Q"][heads]
    change["W_K"][group] = -S.mT @ parameters["W_K"][group]
    if spec.query_bias:
        change["b_Q"][heads] = parameters["b_Q"][heads] @ S.mT
    if spec.key_bias:
        change["b_K"][group] = -S.mT @ parameters["b_K"][group]
    return change


def _value_output_change(
    spec: LayerSpec, parameters: Parameters, group: int, heads: slice, S: Tensor
) -> dict[str, Tensor]:
    """Values by S, outputs by -S from the right, value bias along."""
    change = {name: torch.zeros_like(parameters[name]) for name in ("W_V", "W_O")}
    change["W_V"][group] = S @ parameters["W_V"][group]
    change["W_O"][heads] = -parameters["W_O"][heads] @ S
    if spec.value_bias:
        change["b_V"] = torch.zeros_like(parameters["b_V"])
        change["b_V"][group] = S @ parameters["b_V"][group]
    return change


def _unseen_changes(spec: LayerSpec, parameters: Parameters, group: int, heads: slice) -> Iterator[dict[str, Tensor]]:
    """Changes of one factor that the other does not see, where a head is wider than what it reads or writes."""
    rest = slice(spec.rotary_dim, None)
    queries = [parameters["W_Q"][heads, rest].transpose(0, 1).flatten(1)]
    if spec.query_bias:
        queries.append(parameters["b_Q"][heads, rest].mT)
    for unseen in null_space(parameters["W_K"][group, rest].mT):
        for name in {"W_Q", "b_Q"} & parameters.keys():
            yield from _along(name, parameters, heads, unseen, first=spec.rotary_dim)
    for unseen in null_space(torch.cat(queries, dim=1).mT):
        yield from _along("W_K", parameters, slice(group, group + 1), unseen, first=spec.rotary_dim)
    for unseen in null_space(parameters["W_V"][group].mT):
        for change in _along("W_O", parameters, heads, unseen):
            yield change | _taken_back(spec, parameters, change["W_O"])
    for unseen in null_space(parameters["W_O"][heads].flatten(0, 1)):
        yield from _along("W_V", parameters, slice(group, group + 1), unseen)


def _along(
    name: str, parameters: Parameters, heads: slice, unseen: Tensor, first: int = 0
) -> Iterator[dict[str, Tensor]]:
    """Every change of one parameter of these heads whose head dimensions, from `first` on, follow a vector."""
    parameter = parameters[name]
    whole = torch.cat((torch.zeros(first, dtype=torch.float64), unseen))
    for head in range(heads.start, heads.stop):
        for place in range(parameter[0].numel() // len(whole)):
            change = torch.zeros_like(parameter)
            if name == "W_O":
                change[head, place] = whole
            else:
                change[head].view(len(whole), -1)[:, place] = whole
            yield {name: change}


def _taken_back(spec: LayerSpec, parameters: Parameters, change: Tensor) -> dict[str, Tensor]:
    """The change of output or value biases that undoes what a change of W_O makes of the value biases."""
    if not spec.value_bias:
        return {}
    biases = parameters["b_V"].repeat_interleave(spec.heads_per_group, dim=0)
    shift = product(change.transpose(0, 1).flatten(1), biases.flatten()[:, None])
    if spec.output_bias:
        return {"b_O": -shift[:, 0]}
    undoing = null_space(torch.cat((_value_bias_effect(spec, parameters), shift), dim=1))[-1, :-1]
    return {"b_V": undoing.view(parameters["b_V"].shape)}


def _value_bias_effect(spec: LayerSpec, parameters: Parameters) -> Tensor:
    """What each value bias adds to the output, shape (E, G C)."""
    by_group = reduce_(parameters["W_O"].unflatten(0, (spec.n_kv_heads, -1)).sum(1))
    return by_group.transpose(0, 1).flatten(1)


def _value_bias_changes(spec: LayerSpec, parameters: Parameters) -> Iterator[dict[str, Tensor]]:
    """Value biases whose effect the output bias takes back; without one, those that have no effect together."""
    effect = _value_bias_effect(spec, parameters)
    shape = parameters["b_V"].shape
    if not spec.output_bias:
        for shift in null_space(effect):
            yield {"b_V": shift.view(shape)}
        return
    for index, shift in enumerate(torch.eye(effect.shape[1], dtype=torch.float64)):
        yield {"b_V": shift.view(shape), "b_O": -effect[:, index]}


def _unit(like: Tensor, row: int, column: int) -> Tensor:
    unit = torch.zeros_like(like)
    unit[row, column] = 1
    return unit
