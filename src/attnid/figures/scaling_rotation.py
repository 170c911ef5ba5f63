"""Scaling against rotation: along which half of the gauge steps are wasted."""

import pandas as pd
from matplotlib.figure import Figure

from attnid import style

TITLE = "Scaling against rotation"
CAPTION = (
    "Share of the query/key step along scalings (symmetric S) and along rotations (antisymmetric S), each over what a "
    "random step has there on average (the line at 1), second half of training. Each seed counts with its median over "
    "steps, layers and heads (small points); large points and lines are the geometric mean over seeds and its 95 % t "
    "interval. Logarithmic axis."
)
TABLES = ("heads", "groups", "cells")
GROUP = "causes"
HALVES = {"scaling": style.BLUE, "rotation": style.VERMILION}


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw two lines a case of the cell group `causes`."""
    cells = style.cells_of(tables, GROUP)
    if cells.empty:
        return style.nothing_drawn(style.SINGLE, [f"no runs of the cell group {GROUP}"])
    figure, axes = style.panels(style.SINGLE, 0.9 + 0.26 * len(cells))
    ax = axes[0, 0]
    lines = [_line(tables, cell, half) for _, cell in cells.iterrows() for half in HALVES]
    style.forest(ax, lines, logarithmic=True)
    ax.axvline(1, color=style.GREY, linewidth=0.7, linestyle="--", zorder=0)
    ax.set_xlabel("share relative to a random step\n(log scale)")
    names = dict(zip(cells["cell"], cells["case"].map(style.case_label), strict=True))
    measures = [f"rho_qk_{half}" for half in HALVES]
    style.footnotes(figure, style.astray(style.step_rows(tables), measures, names))
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows and columns of the table heads that the figure draws, the end of training first."""
    return style.head_rows(tables, GROUP, [f"rho_qk_{half}" for half in HALVES])


def _line(tables: style.Tables, cell: pd.Series, half: str) -> tuple[str, str, pd.Series]:
    ratio = style.settled_medians(tables, cell, f"rho_qk_{half}") / cell[f"rho_{half}_null_mean"]
    return f"{style.case_label(cell['case'])}, {half}", HALVES[half], ratio
