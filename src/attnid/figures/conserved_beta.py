"""What plain SGD conserves: beta with and without the biases, in float32 and float64."""

import pandas as pd
from matplotlib.figure import Figure

from attnid import style

TITLE = "What SGD conserves"
CAPTION = (
    "Departure of β from its value after the first step under SGD, relative to it: of the weights alone and with the "
    "biases in, in float32 and float64. Each run counts with its median over layers and heads; line and band are mean "
    "and range over seeds. Logarithmic axis."
)
TABLES = ("heads", "groups", "cells")
GROUP = "conserved"
MEASURES = {"beta": ("weights alone", style.BLUE), "beta_augmented": ("with biases", style.VERMILION)}


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
        lines = [(label, color, _departures(own, measure)) for measure, (label, color) in MEASURES.items()]
        for _, color, departures in lines:
            style.envelope(ax, departures, color)
        style.name_pair(ax, lines)
        ax.set_yscale("log", nonpositive="mask")
        ax.set_title(f"{style.case_label(cell['case'])}, {cell['precision']}", fontweight="bold")
        ax.set_xlabel("step")
    axes[0, 0].set_ylabel("relative departure of $\\beta$\n(log scale)")
    names = dict(zip(cells["cell"], cells["precision"], strict=True))
    style.footnotes(figure, style.astray(rows, list(MEASURES), names))
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows and columns of the table heads that the figure draws, the end of training first."""
    return style.head_rows(tables, GROUP, list(MEASURES))


def _departures(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """The median departure over heads by step: its mean over seeds, drawn as an envelope's median, and its range."""
    values = rows.pivot(index="step", columns=["seed", "layer", "head"], values=measure).sort_index()
    departures = (values / values.iloc[0] - 1).abs().iloc[1:]
    runs = departures.T.groupby(level="seed").median().T
    envelope = {"minimum": runs.min(axis=1), "median": runs.mean(axis=1), "maximum": runs.max(axis=1)}
    return pd.DataFrame(envelope).reset_index()
