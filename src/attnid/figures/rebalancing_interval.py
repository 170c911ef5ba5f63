"""How often to rebalance: the loss against the steps between rebalancings."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from attnid import style

TITLE = "How often to rebalance"
CAPTION = (
    "Validation loss over the last tenth of training, minus plain AdamW's with the same seed, against the steps "
    "between rebalancings (logarithmic axis). Small points are seeds, large points and bars the mean over seeds and "
    "its 95 % t interval; within the grey band losses count as the same."
)
TABLES = ("evaluations", "heads", "groups", "cells")
GROUP = "intervals"
MARKERS = ("o", "s", "^", "D")
DODGE = 1.08


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw a line of points for each case of the cell group `intervals`."""
    cells = style.cells_of(tables, GROUP)
    plain = style.cell_of(style.cells_of(tables, "cases"), case="adamw")
    if cells.empty or plain is None:
        return style.nothing_drawn(style.SINGLE, [f"no runs of the cell group {GROUP}, or none of plain AdamW"])
    figure, axes = style.panels(style.SINGLE, 2.6)
    ax = axes[0, 0]
    for index, (case, runs) in enumerate(cells.groupby("case", sort=False)):
        color, marker = style.case_color(str(case)), MARKERS[index % len(MARKERS)]
        for place, (_, cell) in enumerate(runs.sort_values("rebalance_every").iterrows()):
            values = style.final_losses(tables, cell) - style.final_losses(tables, plain)
            at = cell["rebalance_every"] * DODGE ** (index - 0.5)
            ax.plot([at] * len(values), values, ".", color=color, markersize=2.5, alpha=0.4)
            mean, reach = style.interval(values)
            label = style.case_label(str(case)) if place == 0 else "_"
            ax.errorbar(
                [at], [mean], yerr=[reach], color=color, marker=marker, capsize=1.5, elinewidth=0.9, label=label
            )
    style.same_loss(ax, "y")
    steps = sorted(cells["rebalance_every"].unique())
    ax.set_xscale("log")
    ax.set_xticks(steps, [str(step) for step in steps])
    ax.minorticks_off()
    ax.set_xlabel("steps between rebalancings (log scale)")
    ax.set_ylabel("loss minus plain AdamW's (nats a character)")
    ax.legend(loc="best")
    names = {
        cell["cell"]: f"{style.case_label(cell['case'])}, every {cell['rebalance_every']}"
        for _, cell in cells.iterrows()
    }
    style.footnotes(figure, style.astray(tables["evaluations"], ["val_loss"], names))
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows of the table evaluations that the figure draws, the end of training first."""
    rows = tables["evaluations"]
    rows = rows[np.isin(rows["cell"], style.cells_of(tables, GROUP)["cell"])]
    return rows.sort_values("step", ascending=False)
