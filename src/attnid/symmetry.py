"""Transformations of a layer's parameters that leave its function as it is, rebalancing among them.

Parameters carry a leading batch shape P as in `attnid.attention`; every function returns new parameters and leaves
its arguments alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from attnid.attention import Parameters
from attnid.gram import full_rank
from attnid.layer import LayerSpec


def transform_query_key(spec: LayerSpec, parameters: Parameters, S: Tensor) -> dict[str, Tensor]:
    """Move queries by S and keys by S^-T, biases along with the weights (sections 4.2, 4.6, 4.9).

    A key and value that a layer has beside its weights, `extra_K` (G, D) and `extra_V` (G, C), move along too.

    Args:
        S: invertible, shape P + (G, D, D), one for each key/value group. Under RoPE the function is unchanged only
            if every S commutes with the rotations.
    """
    return _move_query_key(spec, parameters, S, torch.linalg.inv(S).mT)


def transform_value_output(spec: LayerSpec, parameters: Parameters, S: Tensor) -> dict[str, Tensor]:
    """Move values by S, shape P + (G, C, C), and outputs by its inverse (section 4.5)."""
    return _move_value_output(spec, parameters, S, torch.linalg.inv(S).mT)


def transport_query_key(spec: LayerSpec, moments: Parameters, S: Tensor, power: int) -> dict[str, Tensor]:
    """Move an optimiser's moments of a layer's gradient along with `transform_query_key`.

    A gradient moves by the inverse transpose of what moves its weights, and so does a mean of gradients (power 1). A
    mean of squares (power 2) moves by the squares of the matrix's entries: exact where the entries of the gradient
    that are mixed do not correlate, for no rule in the squares alone is exact.
    """
    inverse_transpose = torch.linalg.inv(S).mT
    return _move_query_key(spec, moments, inverse_transpose**power, S**power)


def transport_value_output(spec: LayerSpec, moments: Parameters, S: Tensor, power: int) -> dict[str, Tensor]:
    """The same along with `transform_value_output`."""
    inverse_transpose = torch.linalg.inv(S).mT
    return _move_value_output(spec, moments, inverse_transpose**power, S**power)


def fold_value_bias(spec: LayerSpec, parameters: Parameters, shift: Tensor) -> dict[str, Tensor]:
    """Add `shift`, shape P + (G, C), to the value bias and take its effect out of the output bias (section 4.7.2)."""
    effect = _times(parameters["W_O"], shift.repeat_interleave(spec.heads_per_group, dim=-2)).sum(dim=-2)
    return dict(parameters) | {"b_V": parameters["b_V"] + shift, "b_O": parameters["b_O"] - effect}


def rotary_scaling(scale: Tensor, angle: Tensor) -> Tensor:
    """The S that RoPE leaves: one scaled 2 x 2 rotation a plane (section 4.8.2).

    Args:
        scale, angle: shape P + (G, D/2).

    Returns:
        Block-diagonal matrices, shape P + (G, D, D).
    """
    cos, sin = scale * angle.cos(), scale * angle.sin()
    blocks = torch.stack((torch.stack((cos, -sin), dim=-1), torch.stack((sin, cos), dim=-1)), dim=-2)
    planes = scale.shape[-1]
    S = torch.zeros(*scale.shape[:-1], planes, 2, planes, 2, dtype=scale.dtype, device=scale.device)
    index = torch.arange(planes, device=scale.device)
    S[..., index, :, index, :] = blocks.movedim(-3, 0)
    return S.flatten(-4, -3).flatten(-2)


class Balance(NamedTuple):
    """A transformation that rebalances, shape P + (D, D), and where it does, shape P; the identity elsewhere."""

    S: Tensor
    possible: Tensor


class Balanced(NamedTuple):
    """A rebalanced query/key pair and the transformation that led there."""

    W_Q: Tensor
    W_K: Tensor
    balance: Balance


def balance_pair(W_Q: Tensor, W_K: Tensor) -> Balanced:
    """The equivalent pair with equal Gram matrices that is nearest to the pair given (section 5.2.2).

    Thin QR of both transposes, SVD of R_K R_Q^T, the root of the singular values to either side; then the orthogonal
    matrix common to both that brings the result closest to the weights before (Procrustes).

    Args:
        W_Q, W_K: shape P + (D, N), D <= N; N may differ.

    Returns:
        S W_Q, S^-T W_K and S: the same scores, and (S W_Q)(S W_Q)^T = (S^-T W_K)(S^-T W_K)^T. No S does that to weights
        that are not of full rank, and these are left as they are.
    """
    narrower = min(W_Q.shape[-1], W_K.shape[-1])
    if W_Q.shape[-2] > narrower:
        raise ValueError(f"a head of width {W_Q.shape[-2]} above the model's width {narrower} is of deficient rank")
    possible = full_rank(W_Q) & full_rank(W_K)
    each = possible[..., None, None]
    balanced_q, balanced_k, S = _balance_full_rank(*(W.where(each, torch.eye(*W.shape[-2:]).to(W)) for W in (W_Q, W_K)))
    balance = Balance(S.where(each, torch.eye(S.shape[-1]).to(S)), possible)
    return Balanced(balanced_q.where(each, W_Q), balanced_k.where(each, W_K), balance)


def _balance_full_rank(W_Q: Tensor, W_K: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    basis_q, R_Q = torch.linalg.qr(W_Q.mT)
    basis_k, R_K = torch.linalg.qr(W_K.mT)
    U, sigma, Vh = torch.linalg.svd(R_K @ R_Q.mT)
    root = sigma.sqrt().unsqueeze(-1)
    root_V = root * Vh
    balanced_q, balanced_k = root_V @ basis_q.mT, (root * U.mT) @ basis_k.mT
    left, _, right = torch.linalg.svd(W_Q @ balanced_q.mT + W_K @ balanced_k.mT)
    Z = left @ right
    S = Z @ torch.linalg.solve_triangular(R_Q, root_V.mT, upper=True).mT
    return Z @ balanced_q, Z @ balanced_k, S


def balance_query_key(spec: LayerSpec, parameters: Parameters) -> Balance:
    """The S of `transform_query_key` that rebalances every head, float64, shape P + (G, D, D).

    After it the Gram matrices of a group's queries, added up, and of its keys are equal; of dimensions that RoPE
    rotates, where S is a number a plane, the lengths of both in every plane.
    """
    groups, rotary = spec.n_kv_heads, spec.rotary_dim
    W_Q = side_by_side(parameters["W_Q"].double(), groups)
    W_K = parameters["W_K"].double()
    if rotary == 0:
        return balance_pair(W_Q, W_K).balance
    S = torch.zeros(*W_K.shape[:-1], spec.qk_head_dim, dtype=W_K.dtype, device=W_K.device)
    lengths = (W[..., :rotary, :].unflatten(-2, (-1, 2)).flatten(-2).norm(dim=-1) for W in (W_K, W_Q))
    scale = torch.div(*lengths).sqrt()
    S[..., :rotary, :rotary] = rotary_scaling(scale, torch.zeros_like(scale))
    possible = (scale.isfinite() & (scale > 0)).all(-1)
    if rotary < spec.qk_head_dim:
        rest = balance_pair(W_Q[..., rotary:, :], W_K[..., rotary:, :]).balance
        S[..., rotary:, rotary:] = rest.S
        possible &= rest.possible
    return Balance(S.where(possible[..., None, None], torch.eye(S.shape[-1]).to(S)), possible)


def balance_value_output(spec: LayerSpec, parameters: Parameters) -> Balance:
    """The S of `transform_value_output` that makes both Gram matrices of every group equal, shape P + (G, C, C)."""
    W_O = side_by_side(parameters["W_O"].double().mT, spec.n_kv_heads)
    return balance_pair(parameters["W_V"].double(), W_O).balance


def rebalance(spec: LayerSpec, parameters: Parameters, sides: str) -> dict[str, Tensor]:
    """Rebalance every head of a layer of which it is possible, biases moved along: the function stays as it is.

    Computed in float64 and returned in the parameters' own precision.

    Args:
        sides: `qk` for queries and keys, `qk-vo` for values and outputs as well.
    """
    moved = {name: tensor.double() for name, tensor in parameters.items()}
    moved = transform_query_key(spec, moved, balance_query_key(spec, moved).S)
    if sides == "qk-vo":
        moved = transform_value_output(spec, moved, balance_value_output(spec, moved).S)
    return {name: tensor.to(parameters[name].dtype) for name, tensor in moved.items()}


class PairMoves(NamedTuple):
    """What can be done to queries and keys, or to values and outputs."""

    balance: Callable[[LayerSpec, Parameters], Balance]
    transform: Callable[[LayerSpec, Parameters, Tensor], dict[str, Tensor]]
    transport: Callable[[LayerSpec, Parameters, Tensor, int], dict[str, Tensor]]


PAIRS = {
    "qk": PairMoves(balance_query_key, transform_query_key, transport_query_key),
    "vo": PairMoves(balance_value_output, transform_value_output, transport_value_output),
}
MOMENTS = {"exp_avg": 1, "momentum_buffer": 1, "exp_avg_sq": 2}
"""Entries of an optimiser's state that belong to the weights, and the power of the gradient that they average."""


def side_by_side(heads: Tensor, groups: int) -> Tensor:
    """The heads of each group beside each other: P + (H, D, N) gives P + (G, D, H/G N)."""
    beside: Tensor = heads.unflatten(-3, (groups, -1)).transpose(-3, -2).flatten(-2)
    return beside


def apart(groups: Tensor, heads: int) -> Tensor:
    """The inverse of `side_by_side`: P + (G, D, H/G N) gives P + (H, D, N)."""
    single: Tensor = groups.unflatten(-1, (heads // groups.shape[-3], -1)).transpose(-3, -2).flatten(-4, -3)
    return single


def _move_query_key(spec: LayerSpec, parameters: Parameters, query: Tensor, key: Tensor) -> dict[str, Tensor]:
    query_heads = query.repeat_interleave(spec.heads_per_group, dim=-3)
    moved = dict(parameters)
    moved["W_Q"] = query_heads @ parameters["W_Q"]
    moved["W_K"] = key @ parameters["W_K"]
    moved |= {name: _times(query_heads, parameters[name]) for name in ("b_Q",) if name in parameters}
    return moved | {name: _times(key, parameters[name]) for name in ("b_K", "extra_K") if name in parameters}


def _move_value_output(spec: LayerSpec, parameters: Parameters, value: Tensor, output: Tensor) -> dict[str, Tensor]:
    """Values move by `value`, the transposes of the output weights by `output`."""
    moved = dict(parameters)
    moved["W_V"] = value @ parameters["W_V"]
    moved["W_O"] = parameters["W_O"] @ output.repeat_interleave(spec.heads_per_group, dim=-3).mT
    return moved | {name: _times(value, parameters[name]) for name in ("b_V", "extra_V") if name in parameters}


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)
