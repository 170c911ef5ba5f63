"""Identified fraction of a whole layer against the number of heads."""

import pandas as pd
from matplotlib.figure import Figure

from attnid import style

TITLE = "Identified fraction against heads"
CAPTION = (
    "Share of an attention layer's parameters that are identified, at fixed width, against the number of heads H. "
    "Lines: closed form. Points: proved rank of the layer over its parameters. More heads identify "
    "more; RoPE and grouped keys and values (GQA) each take away a part of the unidentified directions."
)
TABLES = ("ranks",)

SERIES = (
    ("heads", "multi-head", style.PALETTE[0], "o", "-"),
    ("heads-rope", "RoPE", style.PALETTE[1], "s", "--"),
    ("heads-gqa", "GQA", style.PALETTE[2], "^", "-."),
    ("heads-rope-gqa", "RoPE + GQA", style.PALETTE[3], "D", ":"),
)
COLUMNS = (
    "layer",
    "d_model",
    "n_heads",
    "n_kv_heads",
    "parameters",
    "identified",
    "identified_fraction",
    "exact_lower",
    "certified",
)


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw one line of closed forms and one row of measured points for each kind of layer."""
    ranks = _rows(tables)
    if ranks.empty:
        return style.nothing_drawn(style.SINGLE, ["no layers in the table of ranks"])
    figure, axes = style.panels(style.SINGLE, 2.7)
    ax = axes[0, 0]
    missing = []
    for group, label, color, marker, line in SERIES:
        rows = ranks[ranks["group"] == group].sort_values(["n_heads", "n_kv_heads"])
        if rows.empty:
            missing.append(f"No layers of {label}.")
            continue
        ax.plot(rows["n_heads"], rows["identified_fraction"], color=color, linestyle=line)
        ax.plot(rows["n_heads"], rows["exact_lower"] / rows["parameters"], color=color, marker=marker, linestyle="none")
        ax.plot([], [], color=color, linestyle=line, marker=marker, label=label + _sharing(rows))
    style.axis_of_heads(ax, ranks["n_heads"])
    widths = ", ".join(str(width) for width in sorted(ranks["d_model"].unique()))
    ax.set_ylabel("identified fraction of the parameters")
    ax.set_title(f"width E = {widths}; line: closed form, point: proved rank", loc="left")
    ax.legend(loc="lower right")
    style.footnotes(figure, missing)
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows and columns of the table ranks that the figure draws."""
    return _rows(tables)[[*COLUMNS]]


def _sharing(rows: pd.DataFrame) -> str:
    """How many heads share a group of keys and values, where that is one number for all layers of a line."""
    shared = (rows["n_heads"] / rows["n_kv_heads"]).unique()
    return f", H/G = {shared[0]:g}" if len(shared) == 1 and shared[0] > 1 else ""


def _rows(tables: style.Tables) -> pd.DataFrame:
    ranks = tables["ranks"]
    ranks = ranks[ranks["certified"]]
    return ranks[ranks["group"].isin([group for group, *_ in SERIES])]
