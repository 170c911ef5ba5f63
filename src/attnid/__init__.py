"""How many of an attention layer's parameters mean anything, and what optimisers do with the rest.

For a model of your own: `find_attention`, `OverlapMeter`, `rebalance_`, `zero_dead_biases_`, `project_step`,
`transform_`. They are loaded when they are first used, for they need PyTorch and the counts do not.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
_HOMES = {
    "AttentionLayer": "layer",
    "find_attention": "modules",
    "OverlapMeter": "meter",
    "rebalance_": "moves",
    "transform_": "moves",
    "zero_dead_biases_": "moves",
    "project_step": "moves",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"attnid.models.{_HOMES[name]}"), name)
