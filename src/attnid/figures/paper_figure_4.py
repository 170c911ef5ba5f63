"""Figure 4 of the paper: rho and the drift of a step over a sweep of the learning rate."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnid import style

TITLE = "Learning-rate sweep of SGD: ρ and drift (Figure 4 of the paper)"
CAPTION = (
    "SGD at several peak learning rates, means over seeds, logarithmic axes. Lines: median over layers and heads; "
    "bands: their range. Left: ρ of the query/key step, with 1/(2H) and the band of a random step. Middle and right: "
    "drift, the norm of the change of G_Q − G_K in one step, for the weights alone and for weights with biases, of "
    "which only the second is conserved by gradient flow."
)
TABLES = ("summary", "groups", "cells", "steps", "heads")

MEASURES = (
    ("rho_qk", r"$\rho$ (log scale)", "weights"),
    ("drift", "drift (log scale)", "weights"),
    ("drift_augmented", "drift (log scale)", "weights and biases"),
)


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw one panel a measure, with one line a learning rate."""
    cells = style.cells_of(tables, "learning_rates").sort_values("lr", ascending=False)
    if cells.empty:
        return style.nothing_drawn(style.DOUBLE, ["no runs of the cell group learning_rates"])
    figure, axes = style.panels(style.DOUBLE, 2.5, 1, len(MEASURES))
    for ax, (measure, label, parameters) in zip(axes[0], MEASURES, strict=True):
        _draw_measure(ax, tables, cells, measure)
        ax.set_yscale("log", nonpositive="mask")
        ax.set_xlabel("step")
        ax.set_ylabel(label)
        ax.set_title(parameters)
    style.null_band(axes[0, 0], cells.iloc[0])
    style.legend_above(figure, axes[0], columns=3)
    names = {row["cell"]: f"learning rate {row['lr']:g}" for _, row in cells.iterrows()}
    lost = style.not_finite(tables["steps"], ["train_loss"], names)
    measures = [measure for measure, *_ in MEASURES]
    style.footnotes(figure, lost + style.not_finite(style.step_rows(tables), measures, names))
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows of the table summary that the figure draws, the end of training first."""
    return style.summary_rows(
        tables, style.cells_of(tables, "learning_rates")["cell"], [measure for measure, *_ in MEASURES]
    )


def _draw_measure(ax: Axes, tables: style.Tables, cells: pd.DataFrame, measure: str) -> None:
    for index, (_, cell) in enumerate(cells.iterrows()):
        color, line = style.ORDERED[index % len(style.ORDERED)], style.LINES[index % len(style.LINES)]
        rows = style.summary_of(tables, cell["cell"], measure)
        style.envelope(ax, rows, color, label=f"learning rate {cell['lr']:g}", linestyle=line)
