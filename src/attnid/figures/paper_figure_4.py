"""Figure 4 of the paper: rho and the drift of a step over a sweep of the learning rate."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from attnid import style

TITLE = "Learning-rate sweep of SGD: ρ and drift (Figure 4 of the paper)"
CAPTION = (
    "SGD at several peak learning rates, means over seeds, logarithmic axes; one row a precision of the training. "
    "Lines: median over layers and heads; bands: their range. Left: ρ of the query/key step, with 1/(2H) and the band "
    "of a random step. Middle and right: drift, the norm of the change of G_Q − G_K in one step, for the weights alone "
    "and for weights with biases, of which only the second is conserved by gradient flow. What float32 shows and "
    "float64 does not is rounding of the stored weights."
)
TABLES = ("summary", "groups", "cells", "steps", "heads")

GROUPS = ("learning_rates", "learning_rates_float64")
MEASURES = (
    ("rho_qk", r"$\rho$ (log scale)", "weights"),
    ("drift", "drift (log scale)", "weights"),
    ("drift_augmented", "drift (log scale)", "weights and biases"),
)


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw one row a cell group and one panel a measure, with one line a learning rate."""
    sweeps = {group: style.cells_of(tables, group).sort_values("lr", ascending=False) for group in GROUPS}
    missing = [f"No runs of the cell group {group}." for group, cells in sweeps.items() if cells.empty]
    drawn = [cells for cells in sweeps.values() if len(cells)]
    if not drawn:
        return style.nothing_drawn(style.DOUBLE, missing)
    figure, axes = style.panels(style.DOUBLE, 0.6 + 1.8 * len(drawn), len(drawn), len(MEASURES), sharex=True)
    colors = _colors(pd.concat(drawn))
    for row, cells in zip(axes, drawn, strict=True):
        _draw_sweep(row, tables, cells, colors)
    for ax in axes[-1]:
        ax.set_xlabel("step")
    style.legend_above(figure, axes.flat, columns=3)
    every = pd.concat(drawn)
    names = {row["cell"]: f"learning rate {row['lr']:g}, {row['precision']}" for _, row in every.iterrows()}
    measures = [measure for measure, *_ in MEASURES]
    lost = style.astray(tables["steps"], ["train_loss"], names)
    style.footnotes(figure, missing + lost + style.astray(style.step_rows(tables), measures, names))
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows of the table summary that the figure draws, the end of training first."""
    cells = pd.concat([style.cells_of(tables, group) for group in GROUPS])
    return style.summary_rows(tables, cells["cell"], [measure for measure, *_ in MEASURES])


def _colors(cells: pd.DataFrame) -> dict[float, dict[str, str]]:
    """Colour and line of each learning rate, the same in every row."""
    rates = sorted(cells["lr"].unique(), reverse=True)
    return {
        rate: {"color": style.ORDERED[place % len(style.ORDERED)], "linestyle": style.LINES[place % len(style.LINES)]}
        for place, rate in enumerate(rates)
    }


def _draw_sweep(row: Any, tables: style.Tables, cells: pd.DataFrame, colors: dict[float, dict[str, str]]) -> None:
    for ax, (measure, label, parameters) in zip(row, MEASURES, strict=True):
        for _, cell in cells.iterrows():
            rows = style.summary_of(tables, cell["cell"], measure)
            style.envelope(ax, rows, label=f"learning rate {cell['lr']:g}", **colors[cell["lr"]])
        ax.set_yscale("log", nonpositive="mask")
        ax.set_ylabel(label)
        ax.set_title(f"{parameters}, {cells['precision'].iloc[0]}")
    style.null_band(row[0], cells.iloc[0])
