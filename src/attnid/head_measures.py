"""Measures of every head of attention layers: of a step's gradient, of its update, of the weights.

Parameters carry a leading shape P, (members, layers) in training; a measure has the shape P + (G,), one number a
key/value head. The query heads that share it are measured together, for one S moves them all.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnid.gram import eigenvalues, rounding, smallest_over_largest
from attnid.layer import LayerSpec
from attnid.measures import Gauge, Pair, augment, drift, imbalance_rate
from attnid.symmetry import apart, side_by_side
from attnid.training_tables import NOT_FINITE, RANK_DEFICIENT, REGULAR

Arrays = dict[str, Tensor]


def pairs(spec: LayerSpec, parameters: Arrays) -> dict[str, Pair]:
    """The two products of every head, bare and with the biases that move along; one that is not there is zero."""
    W_Q, W_K, W_V, W_O = (parameters[name].double() for name in ("W_Q", "W_K", "W_V", "W_O"))
    queries, keys, values = augment(W_Q, _bias(parameters, "b_Q", W_Q)), W_K, W_V
    for name in ("b_K", "extra_K")[: 1 + ("extra_K" in parameters)]:
        keys = augment(keys, _bias(parameters, name, W_K))
    for name in ("b_V", "extra_V")[: 1 + ("extra_V" in parameters)]:
        values = augment(values, _bias(parameters, name, W_V))
    groups = spec.n_kv_heads
    outputs = side_by_side(W_O.mT, groups)
    return {
        "qk": Pair(side_by_side(W_Q, groups), W_K),
        "qk_augmented": Pair(side_by_side(queries, groups), keys),
        "vo": Pair(W_V, outputs),
        "vo_augmented": Pair(values, outputs),
    }


def _bias(parameters: Arrays, name: str, weights: Tensor) -> Tensor:
    return parameters[name].double() if name in parameters else torch.zeros_like(weights[..., 0])


def rotary_dims(spec: LayerSpec) -> dict[str, int]:
    """Leading rows of each pair that RoPE rotates."""
    return {"qk": spec.rotary_dim, "qk_augmented": spec.rotary_dim, "vo": 0, "vo_augmented": 0}


class StepMeasures:
    """Measures of one step from the weights `before`: of its gradient, then of its update."""

    def __init__(self, spec: LayerSpec, before: Arrays) -> None:
        self.spec = spec
        self.gauges = {name: Gauge(pair, rotary_dims(spec)[name]) for name, pair in pairs(spec, before).items()}

    def of_gradient(self, gradient: Arrays) -> Arrays:
        """rho of the plain gradient, what it does to the imbalance, and the biases' gradient norms.

        `gradient_imbalance_augmented` is |g_Q g_Q^T - g_K g_K^T|: times the squared learning rate, the augmented
        drift of one plain step.
        """
        changes = pairs(self.spec, gradient)
        rates = {
            name: imbalance_rate(self.gauges[name].pair, changes[name], self.spec.rotary_dim)
            for name in ("qk", "qk_augmented")
        }
        imbalance = changes["qk_augmented"].imbalance(self.spec.rotary_dim)
        return {
            **{f"rho_{name}_gradient": self.gauges[name].overlap(change) for name, change in changes.items()},
            "imbalance_rate": rates["qk"],
            "imbalance_rate_augmented": rates["qk_augmented"],
            "gradient_imbalance_augmented": torch.linalg.matrix_norm(imbalance),
            "grad_norm_query_bias": query_bias_norm(self.spec, gradient),
            "grad_norm_key_bias": gradient["b_K"].double().norm(dim=-1),
        }

    def halves_of_update(self, after: Arrays) -> Arrays:
        """The shares of the change from the weights before to those after along scalings and rotations alone."""
        change = pairs(self.spec, after)["qk"] - self.gauges["qk"].pair
        return {
            "rho_qk_scaling": self.gauges["qk"].overlap_scaling(change),
            "rho_qk_rotation": self.gauges["qk"].overlap_rotation(change),
        }

    def of_update(self, after: Arrays) -> Arrays:
        """rho, length and drift of the change from the weights before to those after."""
        new = pairs(self.spec, after)
        changes = {name: pair - self.gauges[name].pair for name, pair in new.items()}
        rotary = self.spec.rotary_dim
        return {
            **{f"rho_{name}": self.gauges[name].overlap(change) for name, change in changes.items()},
            "update_norm": changes["qk"].squared_norm().sqrt(),
            "drift": drift(self.gauges["qk"].pair, new["qk"], rotary),
            "drift_augmented": drift(self.gauges["qk_augmented"].pair, new["qk_augmented"], rotary),
        }


def weight_measures(spec: LayerSpec, parameters: Arrays) -> Arrays:
    """beta, tau, mu and what belongs to them, of weights as they are."""
    weights = pairs(spec, parameters)
    imbalance, augmented = (weights[name].imbalance(spec.rotary_dim) for name in ("qk", "qk_augmented"))
    queries, keys = (eigenvalues(W) for W in weights["qk"])
    return {
        "beta": torch.linalg.matrix_norm(imbalance),
        "beta_augmented": torch.linalg.matrix_norm(augmented),
        "tau": _trace(imbalance),
        "tau_augmented": _trace(augmented),
        "trace": weights["qk"].squared_norm(),
        "mu": queries[..., 0] + keys[..., 0],
        "smallest_q": smallest_over_largest(queries),
        "smallest_k": smallest_over_largest(keys),
        "norm_query_bias": query_bias_norm(spec, parameters),
        "norm_key_bias": _bias(parameters, "b_K", parameters["W_K"]).norm(dim=-1),
    }


def states(heads: pd.DataFrame, width: int) -> NDArray[np.str_]:
    """What is wrong with the weights behind rows of `weight_measures`, in a word of `attnid.training_tables`.

    Args:
        width: of the query/key heads (D).
    """
    smallest = heads[["smallest_q", "smallest_k"]].to_numpy().min(axis=1)
    full = np.where(smallest > rounding(width), REGULAR, RANK_DEFICIENT)
    return np.where(np.isfinite(heads["beta"].to_numpy() + smallest), full, NOT_FINITE)


def query_bias_norm(spec: LayerSpec, parameters: Arrays) -> Tensor:
    """Norm of the query biases of each group, zero without any."""
    biases = _bias(parameters, "b_Q", parameters["W_Q"])
    norms: Tensor = biases.unflatten(-2, (spec.n_kv_heads, -1)).flatten(-2).norm(dim=-1)
    return norms


def without_overlap(spec: LayerSpec, before: Arrays, after: Arrays, moved: Iterable[str]) -> Arrays:
    """The weights after a step from which its part along unidentified directions, biases included, is taken out.

    Args:
        moved: the pairs to do that to, of `qk` and `vo`.

    Returns:
        The parameters that change, in float64.
    """
    old, new = pairs(spec, before), pairs(spec, after)
    changed: Arrays = {}
    for pair in moved:
        name = f"{pair}_augmented"
        first, second = new[name] - Gauge(old[name], rotary_dims(spec)[name]).wasted(new[name] - old[name])
        if pair == "qk":
            changed |= _columns(apart(first, spec.n_heads), "Q", after) | _columns(second, "K", after)
        else:
            changed |= _columns(first, "V", after) | {"W_O": apart(second, spec.n_heads).mT}
    return {name: tensor for name, tensor in changed.items() if name in after}


def _columns(augmented: Tensor, letter: str, parameters: Arrays) -> Arrays:
    """Weights and what was joined to them as columns, the bias first."""
    width = parameters[f"W_{letter}"].shape[-1]
    joined = dict(zip((f"b_{letter}", f"extra_{letter}"), augmented[..., width:].unbind(-1), strict=False))
    return {f"W_{letter}": augmented[..., :width]} | joined


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
