"""Figures, one module each: tables in, a picture out, nothing recomputed.

A figure module has a TITLE, a CAPTION, the names of the TABLES it needs, `draw(tables)`, and `behind(tables)`: the rows
of the first of its tables that it draws. This package imports none of them, so that a change to one figure leaves the
others as they are.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, cast

import pandas as pd
from matplotlib.figure import Figure

from attnid.errors import UserError

NAMES: tuple[str, ...] = tuple(sorted(module.name for module in iter_modules(__path__)))

STUDIES = {
    "conserved_beta": "conserved",
    "key_bias": "key_bias",
    "layer_kinds": "layers",
    "overlap_causes": "causes",
    "rebalancing_interval": "intervals",
    "rebalancing_state": "rebalancing",
    "scaling_rotation": "causes",
}
"""Figures of questions beyond the paper, and the cell group that each is drawn from."""


def names(groups: Iterable[str]) -> list[str]:
    """The figures of a configuration with these cell groups."""
    configured = set(groups)
    return [name for name in NAMES if name not in STUDIES or STUDIES[name] in configured]


class FigureModule(Protocol):
    """What a module of this package offers."""

    TITLE: str
    CAPTION: str
    TABLES: tuple[str, ...]

    def draw(self, tables: Mapping[str, pd.DataFrame], fonts: Mapping[str, str] = ...) -> Figure:
        """Draw the figure; `tables` maps the names in TABLES to frames with the columns of `attnid.tables`.

        `fonts` are `style.SCREEN` or `style.PRINT`.
        """

    def behind(self, tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
        """Rows of the first table in TABLES that the figure draws, most telling first."""


def load(name: str) -> FigureModule:
    """The module of a figure. Raises UserError for a name that is not in NAMES."""
    if name not in NAMES:
        raise UserError(f"figure {name!r} is unknown; known are {', '.join(NAMES)}")
    return cast(FigureModule, import_module(f"{__name__}.{name}"))
