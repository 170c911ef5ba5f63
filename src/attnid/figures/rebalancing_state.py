"""What rebalancing does to loss and overlap, by what becomes of the optimiser's state; and projection in its place."""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attnid import style

TITLE = "Rebalancing, the optimiser's state, and projection"
CAPTION = (
    "Left: validation loss over the last tenth of training, minus plain AdamW's with the same seed, in nats a "
    "character; within the grey band losses count as the same. Right: ρ of the query/key step over what a random step "
    "has on average, second half of training, logarithmic axis; the grey band holds the middle 95 % of random steps. "
    "Small points are seeds, large points and lines the mean over seeds (right: geometric) and its 95 % t interval."
)
TABLES = ("evaluations", "heads", "groups", "cells")
GROUP = "rebalancing"
PLAIN = "adamw"


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw one line a case of the cell group `rebalancing`."""
    cells = style.cells_of(tables, GROUP)
    plain = style.cell_of(cells, case=PLAIN)
    if plain is None:
        return style.nothing_drawn(style.DOUBLE, [f"no runs of {PLAIN} in the cell group {GROUP}"])
    figure, axes = style.panels(style.DOUBLE, 0.9 + 0.19 * len(cells), 1, 2, sharey=True)
    left, right = axes[0]
    style.forest(right, [_overlap(tables, cell) for _, cell in cells.iterrows()], logarithmic=True)
    style.forest(left, [_loss(tables, cell, plain) for _, cell in cells.iterrows()])
    style.same_loss(left, "x")
    left.xaxis.set_major_locator(MaxNLocator(5))
    left.set_xlabel("loss minus plain AdamW's (nats a character)")
    style.null_span(right, plain)
    right.set_xlabel(r"$\rho$ relative to a random step (log scale)")
    names = dict(zip(cells["cell"], cells["case"].map(style.case_label), strict=True))
    notes = style.astray(tables["evaluations"], ["val_loss"], names)
    style.footnotes(figure, notes + style.astray(style.step_rows(tables), ["rho_qk"], names))
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows of the table evaluations that the figure draws, the end of training first."""
    rows = tables["evaluations"]
    rows = rows[rows["cell"].isin(style.cells_of(tables, GROUP)["cell"])]
    return rows.sort_values("step", ascending=False)


def _loss(tables: style.Tables, cell: pd.Series, plain: pd.Series) -> tuple[str, str, pd.Series]:
    difference = style.final_losses(tables, cell) - style.final_losses(tables, plain)
    return style.case_label(cell["case"]), style.case_color(cell["case"]), difference


def _overlap(tables: style.Tables, cell: pd.Series) -> tuple[str, str, pd.Series]:
    ratio = style.settled_medians(tables, cell, "rho_qk") / cell["rho_null_mean"]
    return style.case_label(cell["case"]), style.case_color(cell["case"]), ratio
