"""Unidentified fraction of a whole layer against the width of its heads."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from attnid import style

TITLE = "Unidentified fraction against head width"
CAPTION = (
    "Share of an attention layer's parameters that are unidentified when the head width D is free, at fixed model "
    "width E and number of heads H. Lines: closed form. Points: from the proved rank of the layer. "
    "The rings mark the usual width D = E/H, where the share is 1/(2H), the dotted line D = E, where it is one half "
    "for any number of heads."
)
TABLES = ("ranks",)

COLUMNS = (
    "layer",
    "d_model",
    "n_heads",
    "qk_head_dim",
    "v_head_dim",
    "parameters",
    "unidentified",
    "exact_lower",
    "certified",
)
MARKERS = ("o", "s", "^", "D", "v")
RING: Any = {"marker": "o", "markersize": 7, "markerfacecolor": "none", "linestyle": "none", "markeredgewidth": 0.8}


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw one line of closed forms and one row of measured points for each number of heads."""
    ranks = _rows(tables)
    if ranks.empty:
        return style.nothing_drawn(style.SINGLE, ["no layers with free head widths in the table of ranks"])
    figure, axes = style.panels(style.SINGLE, 2.7)
    ax = axes[0, 0]
    for index, (_, rows) in enumerate(ranks.groupby(["d_model", "n_heads"])):
        rows = rows.sort_values("qk_head_dim").assign(dropped=lambda rows: 1 - rows["exact_lower"] / rows["parameters"])
        width, heads = int(rows["d_model"].iloc[0]), int(rows["n_heads"].iloc[0])
        color, marker = style.PALETTE[index % len(style.PALETTE)], MARKERS[index % len(MARKERS)]
        ax.plot(rows["qk_head_dim"], rows["unidentified"] / rows["parameters"], color=color)
        ax.plot(rows["qk_head_dim"], rows["dropped"], color=color, marker=marker, linestyle="none")
        usual = rows[rows["qk_head_dim"] * heads == width]
        ax.plot(usual["qk_head_dim"], usual["dropped"], color=color, **RING)
        name = f"E = {width}, H = {heads}" + "\nring: D = E/H" * bool(len(usual))
        named = (usual if len(usual) else rows.tail(1))[["qk_head_dim", "dropped"]].iloc[0]
        style.beside(ax, tuple(named), name, (6, -3), va="top", color=color)
        ax.axvline(width, color=style.GREY, linewidth=0.6, linestyle=":", zorder=0)
        ax.annotate("D = E", (width, 1), xycoords=ax.get_xaxis_transform(), ha="center", va="bottom", color=style.GREY)
    ax.axhline(0.5, color=style.GREY, linewidth=0.6, linestyle=":", zorder=0)
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("head width D")
    ax.set_ylabel("unidentified fraction of the parameters")
    ax.set_title("line: closed form, point: proved rank", loc="left")
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows and columns of the table ranks that the figure draws."""
    return _rows(tables)[[*COLUMNS]]


def _rows(tables: style.Tables) -> pd.DataFrame:
    ranks = tables["ranks"]
    ranks = ranks[ranks["certified"]]
    return ranks[ranks["group"] == "head-width"]
