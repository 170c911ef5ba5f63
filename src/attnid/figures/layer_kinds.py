"""rho in layers with RoPE and grouped heads, each against the null of its own gauge."""

import pandas as pd
from matplotlib.figure import Figure

from attnid import style

TITLE = "RoPE and grouped heads"
CAPTION = (
    "ρ of the query/key step (left) and of the value/output step (right) over what a random step has on average in the "
    "same layer, second half of training. Under RoPE the query/key gauge is one scaled rotation a plane; with grouped "
    "heads there is one transformation a group. Each seed counts with its median over steps, layers and heads (small "
    "points); large points and lines are the geometric mean over seeds and its 95 % t interval. Grey bars hold the "
    "middle 95 % of random steps in that layer. Logarithmic axes."
)
TABLES = ("heads", "groups", "cells")
GROUP = "layers"
SIDES = {"rho_qk": ("rho_null", "queries and keys"), "rho_vo": ("rho_vo_null", "values and outputs")}


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw one line a cell of the group `layers`, by kind of layer."""
    cells = style.cells_of(tables, GROUP).sort_values(
        ["case", "rotary_dim", "n_kv_heads"], ascending=[True, True, False]
    )
    if cells.empty:
        return style.nothing_drawn(style.DOUBLE, [f"no runs of the cell group {GROUP}"])
    figure, axes = style.panels(style.DOUBLE, 0.9 + 0.19 * len(cells), 1, 2, sharey=True)
    for ax, (measure, (null, label)) in zip(axes[0], SIDES.items(), strict=True):
        style.forest(ax, [_line(tables, cell, measure, null) for _, cell in cells.iterrows()], logarithmic=True)
        for place, (_, cell) in enumerate(cells.iterrows()):
            low, high = (cell[f"{null}_{end}"] / cell[f"{null}_mean"] for end in ("low", "high"))
            ax.fill_betweenx([place - 0.4, place + 0.4], low, high, color=style.PALE, linewidth=0, zorder=0)
        ax.set_title(label, fontweight="bold")
        ax.set_xlabel(r"$\rho$ relative to a random step (log scale)")
    names = {cell["cell"]: _label(cell) for _, cell in cells.iterrows()}
    style.footnotes(figure, style.astray(style.step_rows(tables), list(SIDES), names))
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows and columns of the table heads that the figure draws, the end of training first."""
    return style.head_rows(tables, GROUP, list(SIDES))


def _line(tables: style.Tables, cell: pd.Series, measure: str, null: str) -> tuple[str, str, pd.Series]:
    ratio = style.settled_medians(tables, cell, measure) / cell[f"{null}_mean"]
    return _label(cell), style.case_color(cell["case"]), ratio


def _label(cell: pd.Series) -> str:
    kinds = ["RoPE"] * bool(cell["rotary_dim"])
    shared = cell["n_kv_heads"]
    kinds += [f"{shared} key/value head{'s' * (shared > 1)}"] * bool(shared < cell["n_heads"])
    return f"{style.case_label(cell['case'])}: {', '.join(kinds) or 'plain'}"
