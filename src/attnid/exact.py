"""The rank of an attention layer's Jacobian, proved: a lower and an upper bound by elimination modulo a prime.

Lower bound. The Jacobian's entries are rational functions of weights, inputs and the exponentials of the scores. Divide
the exponentials of a query's row by one of them, or by the sink's. For independent tokens no integer combination of the
score differences is constant: the monomial W_Q[d, a] W_K[d, b] x_i[a] x_j[b], a != b, occurs in s_ij alone. So the
exponentials are algebraically independent (Ax 1971) and the generic rank stays the same when each becomes an
indeterminate. Random residues for all of them can only lower the rank: a minor that is not zero modulo the prime is not
zero.

- RoPE: the angles of one rational class are multiples of one angle, those of different classes have algebraically
  independent exponentials (Lindemann and Weierstrass); one random point of the circle a class stands for the real
  frequencies.
- Normalised queries, keys, latents or inputs: scores are algebraic functions, which Ax covers too. s_ij and s_ji alone
  have a mixed derivative by x_i and x_j; a head's scores change sign with its queries, so the heads stand apart; and
  s_ij is symmetric in i and j for some weights and antisymmetric for others, so no combination of the two is constant.
  A norm is one more number whose square is the squared norm; it lies in the field of prime^2 elements.
- Soft cap: the derivative of c tanh(s/c) is 4 u / (1 + u)^2 with u = e^(2 s/c), and the u are algebraically
  independent as above. The exponentials of the capped scores are so over the field of the u: were they not, a product
  of integer powers of them, e^F with F = sum n_ij c (u_ij - 1)/(u_ij + 1), would be a rational function g of the u
  (Kolchin and Ostrowski). But dF has a double pole at u_ij = -1 where n_ij != 0, for du_ij = 2 u_ij ds_ij / c does not
  vanish there, and dg/g has simple poles alone.

Upper bound. Explicit directions along which the layer does not change (`attnid.directions`); their rank modulo the
prime can only be too small, so the parameters minus it bound the rank from above. Where the bounds meet, the rank is
certified.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from attnid.arithmetic import ROPE_BASE
from attnid.counting import input_widths
from attnid.directions import directions
from attnid.layer import LayerSpec, numel
from attnid.modular import PRIME, Field, NoInverseError
from attnid.rank import MOST_NUMBERS, fewest_sequences, jacobian, tokens_that_tell
from attnid.residues import Residues

SPARE_ROWS = 32
MARGIN = 1.1
"""Room for inputs that tell less than others; where the bounds do not meet, twice as many are tried."""


@dataclass(frozen=True)
class Bounds:
    """Proved bounds on a generic rank. Raises ArithmeticError where they contradict each other."""

    lower: int
    upper: int

    def __post_init__(self) -> None:
        if self.lower > self.upper:
            raise ArithmeticError(f"a rank of at least {self.lower} and at most {self.upper}")


@dataclass(frozen=True)
class Certificate:
    """Proved bounds on the generic rank of a layer's Jacobian.

    `sides` bounds the rank of its query/key columns and that of its value/output columns; it is empty for
    a layer without `has_sides`.

    `assumed` says under which condition the lower bound is a proof, `failed` which condition does not hold ("" if
    all do): the lower bound is then 0 and the layer not certified.
    """

    layer: Bounds
    sides: tuple[Bounds, ...]
    prime: int
    seed: int
    sequences: int
    tokens: int
    assumed: str
    failed: str

    @property
    def certified(self) -> bool:
        """Whether all ranks are proved."""
        return not self.failed and all(bound.lower == bound.upper for bound in (self.layer, *self.sides))


def certify(spec: LayerSpec, seed: int = 0, prime: int = PRIME) -> Certificate:
    """Bound the generic rank of a layer from both sides.

    Args:
        seed: of all random residues.
        prime: between 2^20 and 2^23, 3 modulo 4.
    """
    field, draws = Field(prime), Generator().manual_seed(seed)
    parameters, known = _at_random(spec, field, draws)
    upper = _upper(known, slice(None), field)
    tokens = tokens_that_tell(spec)
    used = sequences = fewest_sequences(spec, tokens, rows=upper + SPARE_ROWS, margin=MARGIN)
    failed = _failed(spec)
    lower = 0
    while not failed and lower < upper and sequences * tokens * spec.d_model * known.shape[1] < MOST_NUMBERS:
        found = field.rank_(_jacobian(spec, parameters, field, draws, sequences, tokens))
        if found <= lower:
            break
        lower, used, sequences = found, sequences, 2 * sequences
    sides = _sides(known, numel(spec.query_key_shapes), lower, field) if spec.has_sides else ()
    return Certificate(Bounds(lower, upper), sides, prime, seed, used, tokens, _assumed(spec), failed)


def _at_random(spec: LayerSpec, field: Field, draws: Generator) -> tuple[dict[str, Tensor], Tensor]:
    """Parameters and the directions there, drawn again where one of those divides by zero."""
    while True:
        parameters = {name: field.random(shape, draws) for name, shape in spec.parameter_shapes.items()}
        try:
            return parameters, directions(spec, parameters, field)
        except NoInverseError:
            continue


def _jacobian(
    spec: LayerSpec, parameters: dict[str, Tensor], field: Field, draws: Generator, sequences: int, tokens: int
) -> Tensor:
    kind = torch.complex128 if _normalises_projections(spec) else torch.float64
    weights = {name: tensor.to(kind) for name, tensor in parameters.items()}
    numbers = Residues(field, draws)
    rows = tokens * spec.d_model
    result = torch.empty(sequences * rows, numel(spec.parameter_shapes), dtype=kind)
    done = 0
    while done < sequences:
        x = _inputs(spec, numbers, tokens).to(kind)
        context = None if spec.context_dim is None else field.random((1, tokens, spec.context_dim), draws).to(kind)
        try:
            result[done * rows : (done + 1) * rows] = field.reduce_(jacobian(spec, weights, x, context, numbers))
        except NoInverseError:
            continue
        done += 1
    return result


def _inputs(spec: LayerSpec, numbers: Residues, tokens: int) -> Tensor:
    """Random inputs, shape (1, L, E); where they are normalised, those whose norm is a residue itself."""
    field = numbers.field
    if spec.pre_norm == "none":
        return field.random((1, tokens, spec.d_model), numbers.generator)
    chosen = torch.empty(0, spec.d_model, dtype=torch.float64)
    while len(chosen) < tokens:
        x = field.random((4 * tokens, spec.d_model), numbers.generator)
        varying = field.reduce_(numbers.centred(x) if spec.pre_norm == "layer" else x.clone())
        squares = field.reduce_(field.times(varying, varying).sum(-1))
        chosen = torch.cat((chosen, x[field.are_squares(field.reduce_(spec.d_model * squares))]))
    return chosen[None, :tokens]


def _sides(known: Tensor, split: int, rank: int, field: Field) -> tuple[Bounds, Bounds]:
    """Bounds for the columns before and after `split`: each has at least what the other leaves of the whole rank."""
    first, second = _upper(known, slice(None, split), field), _upper(known, slice(split, None), field)
    return Bounds(max(0, rank - second), first), Bounds(max(0, rank - first), second)


def _upper(known: Tensor, columns: slice, field: Field) -> int:
    """Some parameters less the directions among them that move no other."""
    elsewhere = known.clone()
    elsewhere[:, columns] = 0
    inside = known[~elsewhere.any(1), columns]
    return inside.shape[1] - field.rank_(inside.clone())


def _normalises_projections(spec: LayerSpec) -> bool:
    """Whether a norm of something else than the input occurs, so that not all norms can be residues."""
    return spec.qk_norm != "none" or spec.kv_latent_dim is not None


def _assumed(spec: LayerSpec) -> str:
    return ", ".join(_assumptions(spec))


def _assumptions(spec: LayerSpec) -> Iterator[str]:
    yield "generic weights and independent tokens"
    if spec.rotary_dim:
        yield f"RoPE's frequencies for base {ROPE_BASE:.0f}, whatever base the model has"
    if _normalises_projections(spec) or spec.pre_norm != "none":
        yield "norms with an epsilon of 0"


def _failed(spec: LayerSpec) -> str:
    """The condition of the lower bound that does not hold; "" if all do."""
    width, memory = input_widths(spec)
    normalised = spec.pre_norm != "none" or _normalises_projections(spec)
    if min(width, memory) < 2 and (normalised or (spec.context_dim is None and not spec.causal)):
        return "inputs that vary in one dimension only"
    sizes = {
        "head": spec.qk_head_dim,
        "full": spec.n_kv_heads * spec.qk_head_dim,
        "none": min(spec.kv_latent_dim or 2, spec.q_latent_dim or 2),
    }
    return "what is normalised has one dimension only" if sizes[spec.qk_norm] < 2 else ""
