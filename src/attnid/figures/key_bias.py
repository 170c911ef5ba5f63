"""The dead key bias under Adam: how far it goes, beside the query bias that matters."""

import pandas as pd
from matplotlib.figure import Figure

from attnid import style

TITLE = "The dead key bias under AdamW"
CAPTION = (
    "Norm of a head's key bias, which nothing depends on, and of its query bias after each measured step, in float32 "
    "and float64: median (line) and range (band) over layers and heads, means over seeds. Both begin at zero and "
    "do not decay. Logarithmic axis."
)
TABLES = ("heads", "groups", "cells")
GROUP = "key_bias"
MEASURES = {"norm_query_bias": ("query bias", style.BLUE), "norm_key_bias": ("key bias", style.VERMILION)}


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw one panel a precision."""
    cells = style.cells_of(tables, GROUP)
    if cells.empty:
        return style.nothing_drawn(style.DOUBLE, [f"no runs of the cell group {GROUP}"])
    figure, axes = style.panels(style.DOUBLE, 2.2, 1, len(cells), sharey=True)
    rows = style.step_rows(tables)
    for ax, (_, cell) in zip(axes[0], cells.iterrows(), strict=True):
        own = rows[rows["cell"] == cell["cell"]]
        lines = [(label, color, style.over_heads(own, measure)) for measure, (label, color) in MEASURES.items()]
        for _, color, values in lines:
            style.envelope(ax, values, color)
        style.name_pair(ax, lines)
        ax.set_yscale("log", nonpositive="mask")
        ax.set_title(f"{style.case_label(cell['case'])}, {cell['precision']}", fontweight="bold")
        ax.set_xlabel("step")
    axes[0, 0].set_ylabel("norm (log scale)")
    names = dict(zip(cells["cell"], cells["precision"], strict=True))
    style.footnotes(figure, style.astray(rows, list(MEASURES), names))
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows and columns of the table heads that the figure draws, the end of training first."""
    return style.head_rows(tables, GROUP, list(MEASURES))
