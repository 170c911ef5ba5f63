"""The null of the measures of a step: what rho is of a random one."""

from typing import NamedTuple

from scipy import stats

from attnid.layer import LayerSpec


class Null(NamedTuple):
    """Mean and central 95 % band of a measure under the null."""

    mean: float
    low: float
    high: float


def random_step_nulls(spec: LayerSpec, value_width: int | None = None) -> dict[str, Null]:
    """rho of an isotropic random step in one key/value group: of query/key (`qk`) and value/output (`vo`) weights.

    A step in n numbers of which k directions are gauge has rho distributed as Beta(k/2, (n - k)/2). With m = H/G query
    heads to a key, n = (m E + M) D and k = D_rotary + D_plain^2 for queries and keys, n = (m E + M) C and k = C^2 for
    values and outputs, M being the width that keys and values read: in plain multi-head attention both means are
    D/(2E) = 1/(2H). `qk_scaling` and `qk_rotation` are the shares along symmetric and antisymmetric S. Heads are no
    wider than what they read.

    Args:
        value_width: of what values read, where that is not what keys read.
    """
    turning, plain = spec.rotary_dim // 2, spec.qk_head_dim - spec.rotary_dim
    scalings, rotations = turning + plain * (plain + 1) // 2, turning + plain * (plain - 1) // 2
    wide = spec.heads_per_group * spec.d_model
    query_key = spec.qk_head_dim * (wide + spec.memory_dim)
    value_output = spec.v_head_dim * (wide + (value_width or spec.memory_dim))
    return {
        "qk": _beta(scalings + rotations, query_key),
        "qk_scaling": _beta(scalings, query_key),
        "qk_rotation": _beta(rotations, query_key),
        "vo": _beta(spec.v_head_dim**2, value_output),
    }


def _beta(directions: int, numbers: int) -> Null:
    if directions == 0:
        return Null(0.0, 0.0, 0.0)
    beta = stats.beta(directions / 2, (numbers - directions) / 2)
    low, high = beta.interval(0.95)
    return Null(float(beta.mean()), float(low), float(high))
