"""Where tau ends, layer by layer."""

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from attnid import style

TITLE = "Trace imbalance by layer at the end of training"
CAPTION = (
    "Trace imbalance τ = tr(G_Q − G_K) relative to tr(G_Q + G_K) after the last step, by layer, for the paper's four "
    "cases: a point for every head of every run."
)
TABLES = ("heads", "groups", "cells")


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw one strip of points for each layer and case."""
    cells, rows = style.cells_of(tables, "cases"), behind(tables)
    if rows.empty:
        return style.nothing_drawn(style.SINGLE, ["no runs of the cell group cases"])
    rows = rows.merge(cells[["cell", "case"]], on="cell")
    rows["relative"] = rows["tau"] / rows["trace"]
    cases = list(cells["case"])
    figure, axes = style.panels(style.SINGLE, 2.6)
    ax = axes[0, 0]
    sns.stripplot(
        rows,
        x="layer",
        y="relative",
        hue="case",
        hue_order=cases,
        palette=[style.case_color(case) for case in cases],
        dodge=True,
        jitter=False,
        size=2.5,
        alpha=0.6,
        legend=False,
        ax=ax,
    )
    ax.axhline(0, color=style.GREY, linewidth=0.8, zorder=0)
    for case in cases:
        ax.plot([], [], "o", markersize=3, color=style.case_color(case), label=style.case_label(case))
    style.legend_above(figure, [ax], columns=2)
    ax.set_xlabel("layer")
    ax.set_ylabel(r"$\tau$ / trace($G_Q + G_K$), last step")
    names = {cell["cell"]: style.case_label(cell["case"]) for _, cell in cells.iterrows()}
    style.footnotes(figure, style.astray(style.step_rows(tables), ["tau", "trace"], names))
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows and columns of the table heads that the figure draws."""
    rows = style.step_rows(tables)
    rows = rows[rows["cell"].isin(style.cells_of(tables, "cases")["cell"])]
    last = rows[rows["step"] == rows.groupby("cell")["step"].transform("max")]
    return last[["cell", "seed", "step", "layer", "head", "tau", "trace"]]
