"""The float64 rank of stacked layers against the scale of their query and key weights, beside the proved rank."""

from math import log10, sqrt

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure

from attnid import style

TITLE = "A float64 rank that is wrong in silence"
CAPTION = (
    "Rank of the outputs of stacked single-head softmax layers (no mask, no residual) as functions of their weights, "
    "against the scale of the query and key weights; values have scale 1. (a) Singular values of the float64 Jacobian "
    "above a cut-off relative to the largest, and the rank proved at the same weights; above the line, the bits of "
    "ball arithmetic that the proof took. (b) The gaps in the singular values that the cut-offs fall into: from the "
    "largest value dropped (open) to the smallest kept (filled). Beside those wider than a factor of 10: the rank that "
    "every cut-off within the gap finds. Grey: below the rounding of float64. A wide gap does not tell a true rank "
    "from a wrong one."
)
TABLES = ("trap",)

WIDE = 10
VERDICTS = {"the proved rank": style.PALETTE[1], "a wrong rank": style.PALETTE[2], "an open rank": style.GREY}
LARGEST_MARKER, MARKER_STEP = 8.0, 1.4
EPSILON = float(np.finfo(np.float64).eps)
SMALLEST_SHOWN = EPSILON / 30


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw the ranks on the left and the gaps that they rest on on the right."""
    trap = tables["trap"]
    if trap.empty:
        return style.nothing_drawn(style.DOUBLE, ["no ranks of stacked layers in the table trap"])
    figure, axes = style.panels(style.DOUBLE, 2.7, columns=2)
    proved = trap.drop_duplicates("scale").sort_values("scale")
    _draw_measured(axes[0, 0], trap)
    _draw_proved(axes[0, 0], proved)
    _draw_gaps(axes[0, 1], trap)
    for ax, letter in zip(axes[0], "ab", strict=True):
        ax.set_title(letter, loc="left", fontweight="bold")
        ax.set_xscale("log")
        ax.margins(x=0.08)
        ax.set_xlabel("scale of the query and key weights (log scale)")
    style.footnotes(figure, _not_proved(proved))
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """Rows of the table trap, the smallest scale first."""
    return tables["trap"].sort_values(["scale", "cutoff"])


def _draw_measured(ax: Axes, trap: pd.DataFrame) -> None:
    """One line a cut-off; smaller markers on larger ones, so that equal ranks stay visible."""
    cutoffs = sorted(trap["cutoff"].unique(), reverse=True)
    colors = map(to_hex, LinearSegmentedColormap.from_list("ordered", style.ORDERED)(np.linspace(0, 1, len(cutoffs))))
    for index, (cutoff, color) in enumerate(zip(cutoffs, colors, strict=True)):
        rows = trap[trap["cutoff"] == cutoff].sort_values("scale")
        size, label = LARGEST_MARKER - index * MARKER_STEP, f"$10^{{{log10(cutoff):.3g}}}$"
        ax.plot(rows["scale"], rows["rank_float64"], color=color, marker="o", markersize=size, label=label)
    ax.legend(loc="lower right", title="float64, cut-off")
    ax.set_ylabel("rank")


def _draw_proved(ax: Axes, proved: pd.DataFrame) -> None:
    bounds = proved["proved_lower"], proved["proved_upper"]
    ax.fill_between(proved["scale"], *bounds, color=style.PALE, linewidth=0, zorder=0)
    for bound in bounds:
        ax.plot(proved["scale"], bound, color=style.INK, linewidth=1.6, zorder=1)
    above = [(float(row["scale"]), int(row["proved_upper"]), int(row["bits"])) for _, row in proved.iterrows()]
    for scale, rank, bits in above:
        style.beside(ax, (scale, rank), str(bits), (0, 6), ha="center", fontsize=style.SMALL, color=style.GREY)
    (first, rank, _), (last, last_rank, _) = above[0], above[-1]
    style.beside(ax, (first, rank), "proved rank, and the bits of its proof", (-5, 15))
    style.beside(ax, (last, last_rank), str(last_rank), (7, 0), va="center")
    ax.set_ylim(0, 1.2 * max(rank for _, rank, _ in above))


def _not_proved(proved: pd.DataFrame) -> list[str]:
    """A sentence for every scale at which the bounds do not meet."""
    left_open = proved[proved["proved_lower"] < proved["proved_upper"]]
    return [
        f"Scale {row['scale']:g}: proved to lie from {row['proved_lower']:.0f} to {row['proved_upper']:.0f}."
        for _, row in left_open.iterrows()
    ]


def _draw_gaps(ax: Axes, trap: pd.DataFrame) -> None:
    """A bar a gap, from the largest singular value dropped to the smallest kept."""
    seen = []
    for _, gap in trap.drop_duplicates(["scale", "rank_float64"]).iterrows():
        scale, rank = float(gap["scale"]), int(gap["rank_float64"])
        kept, dropped = float(gap["smallest_kept"]), max(float(gap["largest_dropped"]), SMALLEST_SHOWN)
        verdict = _verdict(rank, int(gap["proved_lower"]), int(gap["proved_upper"]))
        seen.append(verdict)
        color = VERDICTS[verdict]
        ax.plot([scale, scale], [dropped, kept], color=color, linewidth=1.6)
        ax.plot(scale, kept, color=color, marker="o")
        ax.plot(scale, dropped, color=color, marker="o", markerfacecolor="white")
        if kept > WIDE * dropped:
            style.beside(ax, (scale, sqrt(kept * dropped)), str(rank), (4, 0), va="center", color=color)
    for verdict, color in VERDICTS.items():
        if verdict in seen:
            ax.plot([], [], color=color, linewidth=1.6, label=verdict)
    ax.legend(loc="upper right", title="gap in float64 that shows")
    ax.axhspan(SMALLEST_SHOWN, EPSILON, color=style.PALE, linewidth=0, zorder=0)
    ax.annotate("rounding of float64", (0.02, 0.015), xycoords="axes fraction", color=style.GREY)
    ax.set_yscale("log")
    ax.set_ylim(SMALLEST_SHOWN, 1)
    ax.set_ylabel("singular values around the cut-off,\nrelative to the largest (log scale)")


def _verdict(rank: int, lower: int, upper: int) -> str:
    """What the proved bounds say of a rank, a name in VERDICTS."""
    if lower <= rank <= upper:
        return "the proved rank" if lower == upper else "an open rank"
    return "a wrong rank"
