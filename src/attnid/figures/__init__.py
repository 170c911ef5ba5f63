"""Figures, one module each: tables in, a picture out, nothing recomputed.

A figure module has a TITLE, a CAPTION, the names of the TABLES it needs, `draw(tables)`, and `behind(tables)`: the rows
of the first of its tables that it draws. One that belongs to a question beyond the paper has a GROUP, the cell group
without which it is not drawn. This package imports none of them, so that a change to one figure leaves the others as
they are.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import pandas as pd
from matplotlib.figure import Figure

from attnid import discovery
from attnid.errors import UserError

NAMES = discovery.names(__name__)


def group(name: str) -> str | None:
    """The cell group that a figure of a question beyond the paper is drawn from, its GROUP; None for other figures."""
    found: str | None = discovery.constants(Path(__path__[0]) / f"{name}.py").get("GROUP")
    return found


def names(groups: Iterable[str]) -> list[str]:
    """The figures of a configuration with these cell groups."""
    configured = {None, *groups}
    return [name for name in NAMES if group(name) in configured]


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
