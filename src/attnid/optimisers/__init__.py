"""Optimisers, one module each, called in configurations as their modules are, with `-` for `_`.

A module has SETTINGS, the settings of a case that it takes (`momentum`, `adam_betas`); MOMENTS_MOVE = True if all its
state of the attention weights are moments that `attnid.symmetry.MOMENTS` knows, so that rebalancing can move them
along; and `make(cell, parameters)` (`attnid.optim`). This package imports none of them, so that the configuration is
checked without torch, and a change to one retrains just the cells that use it.
"""

from pathlib import Path
from typing import Any

from attnid import discovery

NAMES = tuple(name.replace("_", "-") for name in discovery.names(__name__))


def module(name: str) -> str:
    """Dotted name of an optimiser's module."""
    return f"{__name__}.{name.replace('-', '_')}"


def taking(setting: str) -> tuple[str, ...]:
    """The optimisers that take a setting of a case."""
    return tuple(name for name in NAMES if setting in settings(name))


def settings(name: str) -> tuple[str, ...]:
    """The settings of a case that an optimiser takes: some of `momentum` and `adam_betas`."""
    return tuple(_constants(name)["SETTINGS"])


def moments_move(name: str) -> bool:
    """Whether an optimiser's state can be moved along with the weights at a rebalancing."""
    return bool(_constants(name).get("MOMENTS_MOVE"))


def _constants(name: str) -> dict[str, Any]:
    return discovery.constants(Path(__path__[0]) / f"{name.replace('-', '_')}.py")
