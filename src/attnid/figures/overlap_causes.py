"""Which part of a step causes the overlap: rho by optimiser."""

import pandas as pd
from matplotlib.figure import Figure

from attnid import style

TITLE = "Which part of a step causes the overlap"
CAPTION = (
    "ρ of the query/key step over what a random step has on average, second half of training. Each seed counts with "
    "its median over steps, layers and heads (small points); large points and lines are the geometric mean over seeds "
    "and its 95 % t interval. The grey band holds the middle 95 % of random steps. Logarithmic axis."
)
TABLES = ("heads", "groups", "cells")
GROUP = "causes"


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw one line a case of the cell group `causes`."""
    cells = style.cells_of(tables, GROUP)
    if cells.empty:
        return style.nothing_drawn(style.SINGLE, [f"no runs of the cell group {GROUP}"])
    figure, axes = style.panels(style.SINGLE, 0.9 + 0.19 * len(cells))
    ax = axes[0, 0]
    style.forest(ax, [_line(tables, cell) for _, cell in cells.iterrows()], logarithmic=True)
    style.null_span(ax, cells.iloc[0])
    ax.set_xlabel(r"$\rho$ relative to a random step (log scale)")
    names = dict(zip(cells["cell"], cells["case"].map(style.case_label), strict=True))
    style.footnotes(figure, style.astray(style.step_rows(tables), ["rho_qk"], names))
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows and columns of the table heads that the figure draws, the end of training first."""
    return style.head_rows(tables, GROUP, ["rho_qk"])


def _line(tables: style.Tables, cell: pd.Series) -> tuple[str, str, pd.Series]:
    ratio = style.settled_medians(tables, cell, "rho_qk") / cell["rho_null_mean"]
    return style.case_label(cell["case"]), style.case_color(cell["case"]), ratio
