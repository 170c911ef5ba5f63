"""Figure 1 of the paper: the SQuAD ablation as a table, printed beside recomputed."""

from collections.abc import Callable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnid import style

TITLE = "The SQuAD ablation, printed and recomputed (Figure 1 of the paper)"
CAPTION = (
    "Attention and unidentified parameters of the SQuAD ablation of Bhojanapalli et al. 2020, as the paper prints them "
    "and recomputed from the model's sizes, in millions, and their share of the whole model in percent. Gains are over "
    "the row before, as printed, in points. The printed counts follow from the width in the last column, not from the "
    "ablated model's."
)
TABLES = ("squad",)

MILLION = 1e6
Cell = Callable[[pd.Series], str]
COLUMNS: tuple[tuple[str, float, Cell], ...] = (
    ("head\nwidth", 0.03, lambda row: _number(row["head_dim"], 0)),
    ("model\n(M, printed)", 0.13, lambda row: _number(row["printed_total"], 0)),
    ("printed", 0.225, lambda row: _number(row["printed_attention"], 1)),
    ("recomputed", 0.315, lambda row: _number(row["attention"] / MILLION, 1)),
    ("printed", 0.42, lambda row: _number(row["printed_unidentified"], 2)),
    ("recomputed", 0.515, lambda row: _number(row["unidentified"] / MILLION, 3)),
    ("printed", 0.615, lambda row: _number(row["printed_share_percent"], 2)),
    ("recomputed", 0.705, lambda row: _number(row["share_percent"], 2)),
    ("F1", 0.8, lambda row: _number(row["gain_f1"], 2)),
    ("EM", 0.86, lambda row: _number(row["gain_em"], 2)),
    ("printed\nimplies E", 0.95, lambda row: _number(row["printed_implied_width"], 0)),
)
SPANS = (
    ("attention (M)", 0.18, 0.36),
    ("unidentified (M)", 0.375, 0.56),
    ("share of model (%)", 0.575, 0.75),
    ("gain (points)", 0.765, 0.89),
)


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw the table with one row a head width."""
    rows = behind(tables)
    if rows.empty:
        return style.nothing_drawn(style.DOUBLE, ["no rows in the table of the SQuAD ablation"])
    figure = Figure(figsize=(style.DOUBLE, 0.8 + 0.2 * len(rows)))
    ax = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    ax.set_axis_off()
    ax.set_xlim(0, 1)
    ax.set_ylim(len(rows), -3.7)
    _draw_head(ax, rows.iloc[0])
    for place, (_, row) in enumerate(rows.iterrows()):
        for _, x, cell in COLUMNS:
            ax.text(x, place, cell(row), ha="center", va="center")
    _rule(ax, 0, 1, len(rows) - 0.4, 0.8)
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """The table squad, all of it."""
    return tables["squad"].sort_values("head_dim")


def _draw_head(ax: Axes, model: pd.Series) -> None:
    sizes = f"width {model['d_model']:.0f}, {model['n_heads']:.0f} heads, {model['n_layers']:.0f} layers"
    ax.text(0, -3.2, f"Ablated model: {sizes}", ha="left", va="center")
    _rule(ax, 0, 1, -2.7, 0.8)
    for name, left, right in SPANS:
        ax.text((left + right) / 2, -2.2, name, ha="center", va="center", fontweight="bold")
        _rule(ax, left, right, -1.75, 0.4)
    for name, x, _ in COLUMNS:
        ax.text(x, -0.75, name, ha="center", va="baseline", linespacing=1.05)
    _rule(ax, 0, 1, -0.55, 0.5)


def _rule(ax: Axes, left: float, right: float, y: float, width: float) -> None:
    ax.plot([left, right], [y, y], color=style.INK, linewidth=width, clip_on=False)


def _number(value: float, digits: int) -> str:
    return "–" if pd.isna(value) else f"{value:,.{digits}f}"
