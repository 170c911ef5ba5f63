"""Rho of the settled part of training against the number of heads."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from attnid import style
from attnid.statistics import defined

TITLE = "ρ against heads, with and without rebalancing"
CAPTION = (
    "ρ of the query/key step in the second half of training, against the number of heads H at fixed width. Each seed "
    "counts with its median over steps, layers and heads (small points); large points and bars are the mean over seeds "
    "and its 95 % t interval (no bar for one seed). The dashed line is 1/(2H), what a random step is expected to have, "
    "and the grey band the middle 95 % of random steps."
)
TABLES = ("heads", "groups", "cells")

MARKERS = ("o", "s", "^", "D")
DODGE = 1.06


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw one row of points with intervals for each case of the cell group `heads`."""
    cells, heads = style.cells_of(tables, "heads"), style.step_rows(tables)
    if cells.empty:
        return style.nothing_drawn(style.SINGLE, ["no runs of the cell group heads"])
    figure, axes = style.panels(style.SINGLE, 2.7)
    ax = axes[0, 0]
    _draw_null(ax, cells)
    cases = list(cells["case"].unique())
    for index, case in enumerate(cases):
        dodge = DODGE ** (index - (len(cases) - 1) / 2)
        medians = _settled_medians(cells[cells["case"] == case], heads)
        _draw_case(ax, medians, case, MARKERS[index % len(MARKERS)], dodge)
    style.axis_of_heads(ax, cells["n_heads"])
    ax.set_ylim(bottom=0)
    ax.set_ylabel(r"$\rho$, second half of the steps")
    ax.legend(loc="upper right")
    names = {cell["cell"]: f"{style.case_label(cell['case'])}, H {cell['n_heads']}" for _, cell in cells.iterrows()}
    style.footnotes(figure, style.astray(heads, ["rho_qk"], names))
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows and columns of the table heads that the figure draws."""
    return _settled(style.cells_of(tables, "heads"), style.step_rows(tables))[
        ["cell", "seed", "step", "layer", "head", "rho_qk"]
    ]


def _draw_null(ax: Axes, cells: pd.DataFrame) -> None:
    null = cells.drop_duplicates("n_heads").sort_values("n_heads")
    counts = null["n_heads"]
    low, high = null["rho_null_low"], null["rho_null_high"]
    ax.fill_between(counts, low, high, color=style.PALE, linewidth=0, label="random step, 95 %", zorder=0)
    ax.plot(counts, 1 / (2 * counts), color=style.GREY, linewidth=0.8, linestyle="--", label="1/(2H)", zorder=1)


def _settled_medians(cells: pd.DataFrame, heads: pd.DataFrame) -> pd.DataFrame:
    """Median of rho over layers, heads and the second half of the steps: one row a number of heads and seed.

    A run with a value that is not finite has none.
    """
    settled = _settled(cells, heads)
    run = [settled["n_heads"], settled["seed"]]
    finite = np.isfinite(settled["rho_qk"]).groupby(run).all()
    return settled["rho_qk"].groupby(run).median().where(finite).reset_index()


def _settled(cells: pd.DataFrame, heads: pd.DataFrame) -> pd.DataFrame:
    """Rows of these cells in the second half of the steps."""
    rows = defined(heads, "rho_qk").merge(cells[["cell", "n_heads", "steps"]], on="cell")
    return rows[rows["step"] > rows["steps"] / 2]


def _draw_case(ax: Axes, medians: pd.DataFrame, case: str, marker: str, dodge: float) -> None:
    color = style.case_color(case)
    ax.plot(medians["n_heads"] * dodge, medians["rho_qk"], ".", color=color, markersize=2, alpha=0.5)
    complete = medians.groupby("n_heads").filter(lambda runs: runs["rho_qk"].notna().all())
    over_seeds = complete.groupby("n_heads")["rho_qk"].agg(["mean", "sem", "count"])
    reach = over_seeds["sem"] * stats.t.ppf(0.975, over_seeds["count"] - 1)
    ax.errorbar(
        over_seeds.index * dodge,
        over_seeds["mean"],
        yerr=reach.fillna(0),
        color=color,
        marker=marker,
        linestyle="none",
        elinewidth=0.9,
        capsize=1.5,
        label=style.case_label(case),
    )
