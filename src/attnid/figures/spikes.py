"""Rho and the update norm towards the end of training: are the spikes of rho an artifact?"""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnid import style

TITLE = "Spikes of ρ at the end of training"
CAPTION = (
    "The last third of SGD's steps; the learning rate ends at the floor in each title, in float32 and in float64: "
    "means over seeds, logarithmic axes. Top: ρ of the query/key step with biases, median (line) and range (band) over "
    "layers and heads, with 1/(2H) and the band of a random step. Bottom: update norm of a head, likewise. Spikes that "
    "come with small steps in float32 and not in float64 are rounding of the stored weights."
)
TABLES = ("heads", "groups", "cells", "steps")

RUNS = (("cases", "sgd", "float32"), ("floor", "sgd-floor", "float32"), ("floor", "sgd-floor", "float64"))
MEASURES = (
    ("rho_qk_augmented", r"$\rho$ with biases (log scale)"),
    ("update_norm", "update norm (log scale)"),
)
SHOWN = 1 / 3


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw one column a run, rho above and the update norm below."""
    cells, notes = [], []
    for (_, case, precision), cell in zip(RUNS, _cells(tables), strict=True):
        if cell is None:
            notes.append(f"No runs of {case} in {precision}.")
        else:
            cells.append(cell)
    if not cells:
        return style.nothing_drawn(style.DOUBLE, notes)
    figure, axes = style.panels(style.DOUBLE, 3.4, len(MEASURES), len(cells), sharey="row")
    heads = style.step_rows(tables)
    for column, cell in zip(axes.T, cells, strict=True):
        column[0].set_title(f"SGD, floor {cell['lr_floor']:g}, {cell['precision']}", fontweight="bold")
        _draw_run(column, _end(heads, cell), cell)
    for ax, (_, label) in zip(axes[:, 0], MEASURES, strict=True):
        ax.set_ylabel(label)
    style.legend_above(figure, axes[0], columns=4)
    names = {cell["cell"]: f"{style.case_label(cell['case'])}, {cell['precision']}" for cell in cells}
    notes += style.astray(tables["steps"], ["train_loss"], names)
    style.footnotes(figure, notes + style.astray(heads, [measure for measure, _ in MEASURES], names))
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows and columns of the table heads that the figure draws, the end of training first."""
    heads = style.step_rows(tables)[["cell", "seed", "step", "layer", "head", *(measure for measure, _ in MEASURES)]]
    shown = [_end(heads, cell) for cell in _cells(tables) if cell is not None]
    rows = pd.concat([heads.head(0), *shown])
    return rows.sort_values("step", ascending=False, kind="stable")


def _cells(tables: style.Tables) -> list[pd.Series | None]:
    """The row of the table cells behind each of RUNS, None where there are no runs."""
    return [
        style.cell_of(style.cells_of(tables, group), case=case, precision=precision) for group, case, precision in RUNS
    ]


def _end(heads: pd.DataFrame, cell: pd.Series) -> pd.DataFrame:
    """Rows of a cell in the last part of its steps."""
    start = (1 - SHOWN) * float(cell["steps"])
    return heads[(heads["cell"] == str(cell["cell"])) & (heads["step"] > start)]


def _draw_run(column: Sequence[Axes], rows: pd.DataFrame, cell: pd.Series) -> None:
    color = style.case_color(cell["case"])
    for ax, (measure, _) in zip(column, MEASURES, strict=True):
        ax.set_yscale("log", nonpositive="mask")
        style.envelope(ax, style.over_heads(rows, measure), color, label=style.case_label(cell["case"]))
    style.null_band(column[0], cell)
    column[-1].set_xlabel("step")
