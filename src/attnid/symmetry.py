"""Transformations of a layer's parameters that leave its function as it is, rebalancing among them.

Parameters carry a leading batch shape P as in `attnid.attention`; every function returns new parameters and leaves
its arguments alone.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from attnid.attention import Parameters
from attnid.layer import LayerSpec


def transform_query_key(spec: LayerSpec, parameters: Parameters, S: Tensor) -> dict[str, Tensor]:
    """Move queries by S and keys by S^-T, biases along with the weights (sections 4.2, 4.6, 4.9).

    Args:
        S: invertible, shape P + (G, D, D), one for each key/value group. Under RoPE the function is unchanged only
            if every S commutes with the rotations.
    """
    inverse_transpose = torch.linalg.inv(S).mT
    S_heads = S.repeat_interleave(spec.heads_per_group, dim=-3)
    moved = dict(parameters)
    moved["W_Q"] = S_heads @ parameters["W_Q"]
    moved["W_K"] = inverse_transpose @ parameters["W_K"]
    if spec.query_bias:
        moved["b_Q"] = _times(S_heads, parameters["b_Q"])
    if spec.key_bias:
        moved["b_K"] = _times(inverse_transpose, parameters["b_K"])
    return moved


def transform_value_output(spec: LayerSpec, parameters: Parameters, S: Tensor) -> dict[str, Tensor]:
    """Move values by S, shape P + (G, C, C), and outputs by its inverse (section 4.5)."""
    moved = dict(parameters)
    moved["W_V"] = S @ parameters["W_V"]
    moved["W_O"] = parameters["W_O"] @ torch.linalg.inv(S).repeat_interleave(spec.heads_per_group, dim=-3)
    if spec.value_bias:
        moved["b_V"] = _times(S, parameters["b_V"])
    return moved


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


class Balanced(NamedTuple):
    """A rebalanced query/key pair and the transformation that led there, shape P + (D, D)."""

    W_Q: Tensor
    W_K: Tensor
    S: Tensor


def balance_pair(W_Q: Tensor, W_K: Tensor) -> Balanced:
    """The equivalent pair with equal Gram matrices that is nearest to the pair given (section 5.2.2).

    Thin QR of both transposes, SVD of R_K R_Q^T, the root of the singular values to either side; then the orthogonal
    matrix common to both that brings the result closest to the weights before (Procrustes).

    Args:
        W_Q, W_K: shape P + (D, E), D <= E, of full rank.

    Returns:
        S W_Q, S^-T W_K and S: the same scores, and (S W_Q)(S W_Q)^T = (S^-T W_K)(S^-T W_K)^T.
    """
    if W_Q.shape[-2] > W_Q.shape[-1]:
        raise ValueError(
            f"a head of width {W_Q.shape[-2]} above the model's width {W_Q.shape[-1]} is of deficient rank"
        )
    basis_q, R_Q = torch.linalg.qr(W_Q.mT)
    basis_k, R_K = torch.linalg.qr(W_K.mT)
    U, sigma, Vh = torch.linalg.svd(R_K @ R_Q.mT)
    root = sigma.sqrt().unsqueeze(-1)
    root_V = root * Vh
    balanced_q, balanced_k = root_V @ basis_q.mT, (root * U.mT) @ basis_k.mT
    left, _, right = torch.linalg.svd(W_Q @ balanced_q.mT + W_K @ balanced_k.mT)
    Z = left @ right
    S = Z @ torch.linalg.solve_triangular(R_Q, root_V.mT, upper=True).mT
    return Balanced(Z @ balanced_q, Z @ balanced_k, S)


def rebalance_query_key(spec: LayerSpec, parameters: Parameters) -> dict[str, Tensor]:
    """Rebalance every head of a plain multi-head layer, biases moved along: the function stays as it is.

    Computed in float64 and returned in the parameters' own precision.
    Raises ValueError for RoPE and for grouped heads, whose gauge is smaller.
    """
    if spec.rotary_dim or spec.heads_per_group > 1:
        raise ValueError("rebalancing needs a plain multi-head layer: no RoPE, as many key heads as query heads")
    W_Q, W_K, S = balance_pair(parameters["W_Q"].double(), parameters["W_K"].double())
    moved = dict(parameters) | {"W_Q": W_Q, "W_K": W_K}
    if spec.query_bias:
        moved["b_Q"] = _times(S, parameters["b_Q"].double())
    if spec.key_bias:
        moved["b_K"] = torch.linalg.solve(S.mT, parameters["b_K"].double())
    return {name: tensor.to(parameters[name].dtype) for name, tensor in moved.items()}


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)
