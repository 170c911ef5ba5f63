"""Figure 2 of the paper: loss, rho, beta, tau and mu over training, one row a case."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attnid import style

TITLE = "Training measures by case (Figure 2 of the paper)"
CAPTION = (
    "One row a training case, means over seeds. Loss: training batch (thin) and validation (thick), in nats a "
    "character. ρ: share of the query/key step that lies along unidentified directions; band and solid line are the "
    "range and median over layers and heads, the dashed line is the median of the form with biases. The horizontal "
    "dashed line is 1/(2H), the grey band the middle 95 % of ρ for a random step; the dotted grey line, on the right "
    "axis, is the largest update norm of a head. β = |G_Q − G_K|, τ = trace(G_Q − G_K) and μ = λ_min(G_Q) + λ_min(G_K) "
    "by layer: line and band are the median and range over heads. Where weights are rebalanced, each rebalancing is "
    "drawn: the value before and after it. Loss, ρ and τ share their axis over the rows whose losses are all finite."
)
TABLES = ("summary", "groups", "cells", "steps", "evaluations", "heads")

CASES = ("sgd", "sgd-decay", "adamw", "adamw-rebalanced")
TITLES = (
    "loss\n(nats a character)",
    "$\\rho$\n(dotted, right: update norm)",
    "$\\beta$\n$\\|G_Q-G_K\\|_F$",
    "$\\tau$\n$\\mathrm{trace}(G_Q-G_K)$",
    "$\\mu$\n$\\lambda_{\\min}(G_Q)+\\lambda_{\\min}(G_K)$",
)
LOSSES, RHOS = ("train_loss", "val_loss"), ("rho_qk", "rho_qk_augmented")
BY_LAYER = ("beta", "tau", "mu")


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw a row of five panels for each case of the cell group `cases`."""
    cells = style.cells_of(tables, "cases")
    if cells.empty:
        return style.nothing_drawn(style.DOUBLE, ["no runs of the cell group cases"])
    figure, axes = style.panels(style.DOUBLE, 0.6 + 1.4 * len(cells), len(cells), len(TITLES), sharex=True)
    losses = tables["steps"].groupby("cell")["train_loss"]
    finite = losses.agg(lambda values: np.isfinite(values).all())
    shared = [row for row, cell in zip(axes, cells["cell"], strict=True) if finite.get(cell, True)]
    for column in (0, 1, 3):
        for row in shared[1:]:
            row[column].sharey(shared[0][column])
    for ax, title in zip(axes[0], TITLES, strict=True):
        ax.set_title(title)
    for row, (_, cell) in zip(axes, cells.iterrows(), strict=True):
        row[0].set_ylabel(style.case_label(cell["case"]), fontweight="bold")
        _draw_case(row, tables, cell)
    for ax in axes[:, [1, 2, 4]].flat:
        _from_zero(ax)
    for ax in axes[-1]:
        ax.set_xlabel("step")
    style.legend_above(figure, [ax for row in axes for ax in row[[0, 1, 2]]], columns=6)
    names = dict(zip(cells["cell"], cells["case"].map(style.case_label), strict=True))
    notes = [f"No runs of {case}." for case in CASES if case not in set(cells["case"])]
    notes += style.astray(tables["steps"], ["train_loss"], names)
    notes += style.astray(tables["evaluations"], ["val_loss"], names)
    measures = [*RHOS, "update_norm", *BY_LAYER]
    style.footnotes(figure, notes + style.astray(style.step_rows(tables), measures, names))
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows of the table summary that the figure draws, the end of training first."""
    return style.summary_rows(
        tables, style.cells_of(tables, "cases")["cell"], [*LOSSES, *RHOS, "update_norm", *BY_LAYER]
    )


def _draw_case(row: Any, tables: style.Tables, cell: pd.Series) -> None:
    heads = tables["heads"]
    heads = heads[heads["cell"] == cell["cell"]]
    color = style.case_color(cell["case"])
    for measure, width, label in (("train_loss", 0.6, "training batch"), ("val_loss", 1.3, "validation")):
        loss = style.summary_of(tables, cell["cell"], measure)
        row[0].plot(loss["step"], loss["median"], color=color, linewidth=width, label=label)
    _draw_rho(row[1], tables, cell, color)
    for ax, measure in zip(row[2:], BY_LAYER, strict=True):
        for layer, rows in heads.groupby("layer"):
            line = style.layer_style(int(str(layer)))
            style.envelope(ax, style.over_heads(rows, measure), label=f"layer {layer}", **line)
    row[3].axhline(0, color=style.GREY, linewidth=0.5, zorder=0)


def _draw_rho(ax: Axes, tables: style.Tables, cell: pd.Series, color: str) -> None:
    style.null_band(ax, cell)
    style.envelope(ax, style.summary_of(tables, cell["cell"], "rho_qk"), color, label=r"$\rho$")
    augmented = style.summary_of(tables, cell["cell"], "rho_qk_augmented")
    ax.plot(
        augmented["step"],
        augmented["median"],
        color=style.INK,
        linewidth=0.7,
        linestyle="--",
        label=r"$\rho$ with biases",
    )
    norms = style.summary_of(tables, cell["cell"], "update_norm")
    twin = ax.twinx()
    twin.spines["right"].set_visible(True)
    twin.plot(norms["step"], norms["maximum"], color=style.GREY, linewidth=0.8, linestyle=":", label="update norm")
    _from_zero(twin)
    twin.yaxis.set_major_locator(MaxNLocator(4))
    twin.ticklabel_format(axis="y", scilimits=(-5, 5))
    twin.tick_params(colors=style.GREY)


def _from_zero(ax: Axes) -> None:
    """Let the axis begin at zero, with room for a line that lies on it."""
    top = max(shared.dataLim.y1 for shared in ax.get_shared_y_axes().get_siblings(ax))
    if np.isfinite(top) and top > 0:
        ax.set_ylim(-0.04 * top, 1.08 * top)
