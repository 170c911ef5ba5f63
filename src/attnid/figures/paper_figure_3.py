"""Figure 3 of the paper: gradient norms of the key bias and of the query bias."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnid import style

TITLE = "Gradient norms of the key and query biases (Figure 3 of the paper)"
CAPTION = (
    "Gradient norm of the query bias and of the key bias over training, three cases, means over seeds, "
    "logarithmic axis. Band: range over layers and heads; solid line: median; dashed line: mean. The key bias has no "
    "effect on the layer, so that its gradient is rounding error; the query bias has one. An exact zero lies "
    "below any such axis and is named under the figure."
)
TABLES = ("summary", "groups", "cells", "heads")

CASES = ("sgd", "adamw", "adamw-rebalanced")
BIASES = (
    ("grad_norm_query_bias", "query bias", style.PALETTE[1]),
    ("grad_norm_key_bias", "key bias", style.PALETTE[2]),
)
STATISTICS = ["minimum", "median", "mean", "maximum"]


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw one panel a case, with both biases on one logarithmic axis."""
    cells = {case: style.cell_of(style.cells_of(tables, "cases"), case=case) for case in CASES}
    notes = [f"No runs of {case}." for case, cell in cells.items() if cell is None]
    names = {cell["cell"]: style.case_label(case) for case, cell in cells.items() if cell is not None}
    if not names:
        return style.nothing_drawn(style.DOUBLE, notes)
    figure, axes = style.panels(style.DOUBLE, 2.5, 1, len(names), sharey=True)
    for ax, (cell, name) in zip(axes[0], names.items(), strict=True):
        ax.set_title(name, fontweight="bold")
        ax.set_xlabel("step")
        notes += _draw_case(ax, tables, cell, name)
    axes[0, 0].set_ylabel("gradient norm (log scale)")
    measures = [measure for measure, *_ in BIASES]
    style.footnotes(figure, notes + style.astray(style.step_rows(tables), measures, names))
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows of the table summary that the figure draws, the end of training first."""
    cells = style.cells_of(tables, "cases")
    return style.summary_rows(tables, cells.loc[cells["case"].isin(CASES), "cell"], [measure for measure, *_ in BIASES])


def _draw_case(ax: Axes, tables: style.Tables, cell: str, name: str) -> list[str]:
    """Draw the envelopes of one case; say which of its values are exactly zero."""
    ax.set_yscale("log", nonpositive="clip")
    ax.minorticks_off()
    zeros, lines = [], []
    for measure, label, color in BIASES:
        rows = style.summary_of(tables, cell, measure)
        lines.append((label, color, rows))
        style.envelope(ax, rows, color, label=f"{label}, median")
        ax.plot(rows["step"], rows["mean"], color=color, linewidth=0.8, linestyle="--", label=f"{label}, mean")
        steps = int((rows[STATISTICS] == 0).any(axis=1).sum())
        if steps:
            zeros.append(
                f"{name}: {measure} is exactly zero for some heads in all runs at {steps} of {len(rows)} steps."
            )
    style.name_pair(ax, lines)
    return zeros
