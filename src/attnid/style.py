"""The one style of all figures: colours, sizes, and the few drawing steps and look-ups that they share.

Figures are drawn without pyplot, so nothing global is left behind. Colours are those of Okabe and Ito (cases) and Tol
(layers), darkened until each stands out from white paper, and apart from each other for readers with any of the common
colour-vision deficiencies.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from textwrap import wrap
from typing import Any, Protocol

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from attnid.statistics import SAME_LOSS, defined, rank_deficient, steps_of_length_zero, undefined
from attnid.tables import PHASE_STEP

SINGLE, DOUBLE = 3.4, 7.0
"""Widths of one and of two columns of print, in inches."""
SMALL = 6
"""Points of the smallest letters in a figure."""
POINTS_AN_INCH = 72
LETTER_WIDTH, LINE_HEIGHT = 0.6, 1.3
"""Of a letter of the wider font on average, and of a line, in sizes of the font."""

INK, GREY, PALE = "#222222", "#6b6b6b", "#d9d9d9"
BLACK, BLUE, VERMILION, GREEN = "#000000", "#00548F", "#A73900", "#009D72"
PINK, ORANGE, VIOLET = "#BC7CB0", "#CD8200", "#848AE6"
PALETTE = (BLACK, BLUE, VERMILION, GREEN, PINK, ORANGE, VIOLET)
ORDERED = ("#440154", "#31688E", "#00A85C", "#A39300")
"""Colours for an ordered setting (a learning rate), dark to light."""

CASES: Mapping[str, tuple[str, str]] = {
    "sgd": ("SGD", BLUE),
    "sgd-decay": ("SGD, weight decay", VIOLET),
    "adamw": ("AdamW", VERMILION),
    "adamw-rebalanced": ("AdamW, rebalanced", GREEN),
    "adamw-cleared": ("AdamW, state cleared", ORANGE),
    "sgd-floor": ("SGD, floor 1e-4", PINK),
    "sgd-unclipped": ("SGD, unclipped", BLUE),
    "sgd-momentum": ("SGD, momentum", BLUE),
    "sign-sgd": ("sign-SGD", PINK),
    "sign-sgd-momentum": ("sign-SGD, momentum", PINK),
    "adam-no-momentum": ("Adam, no momentum", ORANGE),
    "adam": ("Adam", ORANGE),
    "adamw-unclipped": ("AdamW, unclipped", VERMILION),
    "muon": ("Muon", BLACK),
    "adamw-rebalanced-kept": ("rebalanced, state kept", GREEN),
    "adamw-rebalanced-moved": ("rebalanced, state moved", BLUE),
    "adamw-both": ("QK and VO rebalanced", VIOLET),
    "adamw-both-kept": ("QK and VO, state kept", VIOLET),
    "adamw-both-moved": ("QK and VO, state moved", VIOLET),
    "adamw-projected": ("QK steps projected", PINK),
    "adamw-both-projected": ("QK and VO steps projected", PINK),
}
LAYERS = ("#332288", "#C6626D", "#0CA1B4", "#979732", "#8988E6", "#7F1B4E")
LINES = ("-", "--", ":", "-.")

SETTINGS: Any = {
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.labelsize": 7,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "lines.linewidth": 1.0,
    "lines.markersize": 3.5,
    "axes.formatter.limits": (-3, 4),
    "axes.formatter.useoffset": False,
    "pdf.fonttype": 42,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}

SCREEN: Any = {"font.family": "DejaVu Sans", "mathtext.fontset": "dejavusans"}
PRINT: Any = {"font.family": "STIXGeneral", "mathtext.fontset": "stix"}
"""Fonts that read well on a screen, and those that match the Times of an article."""

Tables = Mapping[str, pd.DataFrame]


class Draw(Protocol):
    """Draws a figure from tables in the fonts given."""

    def __call__(self, tables: Tables, fonts: Any = SCREEN) -> Figure:
        """Draw the figure."""


def styled(draw: Callable[[Tables], Figure]) -> Draw:
    """Draw a figure in this style, whatever style the caller has set."""

    @wraps(draw)
    def in_style(tables: Tables, fonts: Any = SCREEN) -> Figure:
        with mpl.rc_context(SETTINGS | fonts):
            return draw(tables)

    return in_style


def panels(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure of the given size in inches and its axes, a (rows, columns) array."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def save(figure: Figure, path: Path, fonts: Any = SCREEN) -> None:
    """Write a figure as PDF or PNG, by the path's suffix: the same bytes each time, and never half of them.

    `fonts` are those that the figure was drawn in.
    """
    metadata: dict[str, dict[str, str | None]] = {
        ".pdf": {"Creator": "attnid", "Producer": "matplotlib", "CreationDate": None},
        ".png": {"Software": "attnid"},
    }
    if path.suffix not in metadata:
        raise ValueError(f"a figure is saved as .pdf or .png, not as {path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        with mpl.rc_context(SETTINGS | fonts):
            figure.savefig(partial, dpi=240, metadata=metadata[path.suffix])
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def case_label(case: str) -> str:
    """Name of a training case for a reader; a case of the user's own keeps its name."""
    return CASES[case][0] if case in CASES else case


def case_color(case: str) -> str:
    """The one colour of a training case; grey for a case of the user's own."""
    return CASES[case][1] if case in CASES else GREY


def layer_style(layer: int) -> dict[str, str]:
    """Colour and line of a layer, the same in every figure."""
    return {"color": LAYERS[layer % len(LAYERS)], "linestyle": LINES[layer % len(LINES)]}


def null_band(ax: Axes, cell: pd.Series) -> None:
    """The line at 1/(2H) and the middle 95 % of rho for a random step, of a row of the table cells."""
    ax.axhspan(
        cell["rho_null_low"], cell["rho_null_high"], color=PALE, linewidth=0, zorder=0, label="random step, 95 %"
    )
    ax.axhline(1 / (2 * cell["n_heads"]), color=GREY, linewidth=0.7, linestyle="--", zorder=1, label="1/(2H)")


def null_span(ax: Axes, cell: pd.Series) -> None:
    """The middle 95 % of rho for a random step over its mean, on a horizontal axis of such ratios."""
    low, high = (cell[f"rho_null_{end}"] / cell["rho_null_mean"] for end in ("low", "high"))
    ax.axvspan(low, high, color=PALE, linewidth=0, zorder=0)
    ax.axvline(1, color=GREY, linewidth=0.7, linestyle="--", zorder=1)


def same_loss(ax: Axes, axis: str) -> None:
    """The margin within which differences of losses count as none, and the line at zero."""
    span, line = (ax.axvspan, ax.axvline) if axis == "x" else (ax.axhspan, ax.axhline)
    span(-SAME_LOSS, SAME_LOSS, color=PALE, linewidth=0, zorder=0)
    line(0, color=GREY, linewidth=0.7, zorder=1)


def envelope(ax: Axes, frame: pd.DataFrame, color: str, label: str = "", **line: Any) -> None:
    """A band from `minimum` to `maximum` and a line at `median` over the steps, of rows like those of summary."""
    minimum = frame["minimum"]
    if ax.get_yscale() == "log":
        values = frame[["minimum", "median", "maximum"]].to_numpy(float)
        minimum = minimum.clip(lower=values[values > 0].min(initial=1.0))
    ax.fill_between(frame["step"], minimum, frame["maximum"], color=color, alpha=0.2, linewidth=0)
    ax.plot(frame["step"], frame["median"], color=color, label=label, **line)


def beside(ax: Axes, at: tuple[float, float], text: str, offset: tuple[float, float], **options: Any) -> None:
    """Text beside a point, `offset` in points away."""
    ax.annotate(text, at, offset, textcoords="offset points", **options)


def name_pair(ax: Axes, lines: Sequence[tuple[str, str, pd.DataFrame]]) -> None:
    """Write the names of two lines on a logarithmic axis at their end: above the higher band, below the lower one.

    Lines are (name, colour, rows like those of summary by step).
    """
    lower, higher = sorted(lines, key=lambda line: float(line[2]["median"].iloc[-1]))
    for (name, color, rows), edge, farthest, offset in ((lower, "minimum", min, -2), (higher, "maximum", max, 2)):
        under_the_name = rows[edge].tail(len(rows) // 3 + 1)
        drawn = under_the_name[under_the_name > 0]
        if len(drawn):
            at, side = (rows["step"].iloc[-1], farthest(drawn)), "bottom" if offset > 0 else "top"
            beside(ax, at, name, (0, offset), ha="right", va=side, color=color)
    ax.margins(y=0.15)


def nothing_drawn(width: float, sentences: Sequence[str]) -> Figure:
    """The figure drawn in place of one for which there are no data: it says what is missing."""
    figure, axes = panels(width, 1.2)
    axes[0, 0].set_axis_off()
    said = "\n".join(_wrapped(sentences, width, SETTINGS["font.size"]))
    axes[0, 0].text(0.5, 0.5, said, ha="center", va="center", color=GREY)
    return figure


def footnotes(figure: Figure, sentences: Sequence[str]) -> None:
    """Sentences below the figure, which grows by their height; nothing for none."""
    if sentences:
        lines = _wrapped(sentences, figure.get_figwidth(), SMALL)
        figure.set_figheight(figure.get_figheight() + len(lines) * LINE_HEIGHT * SMALL / POINTS_AN_INCH)
        figure.supxlabel("\n".join(lines), x=0.01, ha="left", color=GREY, fontsize=SMALL)


def _wrapped(sentences: Iterable[str], width: float, size: float) -> list[str]:
    """Sentences of letters of a size in points, in lines that fit a width in inches."""
    letters = int(0.97 * width * POINTS_AN_INCH / (LETTER_WIDTH * size))
    return [line for sentence in sentences for line in wrap(sentence, letters, subsequent_indent="  ")]


def legend_above(figure: Figure, axes: Iterable[Axes], columns: int) -> None:
    """One legend over the figure, each label once."""
    entries: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        figure.legend(list(entries.values()), list(entries), loc="outside upper center", ncols=columns)


def axis_of_heads(ax: Axes, heads: Iterable[int]) -> None:
    """A logarithmic axis of head counts with each count written."""
    counts = sorted(set(heads))
    ax.set_xscale("log", base=2)
    ax.set_xticks(counts, [str(count) for count in counts])
    ax.minorticks_off()
    ax.set_xlabel("heads H (log scale)")


def cells_of(tables: Tables, group: str) -> pd.DataFrame:
    """Rows of the table cells that a cell group holds and that have runs, in the group's order."""
    members = tables["groups"].loc[tables["groups"]["group"] == group, ["cell"]]
    members = members[members["cell"].isin(tables["heads"]["cell"])]
    return members.merge(tables["cells"], on="cell", how="inner")


def cell_of(cells: pd.DataFrame, **settings: Any) -> pd.Series | None:
    """The first row of the table cells with these settings, None where there is none."""
    for column, value in settings.items():
        cells = cells[cells[column] == value]
    return None if cells.empty else cells.iloc[0]


def step_rows(tables: Tables) -> pd.DataFrame:
    """Rows of the table heads that describe a step."""
    heads = tables["heads"]
    return heads[heads["phase"] == PHASE_STEP]


def summary_of(tables: Tables, cell: str, measure: str) -> pd.DataFrame:
    """Rows of the table summary for one cell and measure, by step."""
    summary = tables["summary"]
    return summary[(summary["cell"] == cell) & (summary["measure"] == measure)].sort_values("step")


def summary_rows(tables: Tables, cells: Iterable[str], measures: Iterable[str]) -> pd.DataFrame:
    """Rows of the table summary for these cells and measures, the end of training first."""
    summary = tables["summary"]
    rows = summary[summary["cell"].isin(list(cells)) & summary["measure"].isin(list(measures))]
    return rows.sort_values(["step", "measure", "cell"], ascending=[False, True, True])


def over_heads(frame: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Minimum, median and maximum of a measure over the rows of each run and step, then their means over seeds.

    As in the table summary, for rows of the table heads that it does not hold: one layer alone, or the phase after a
    rebalancing. What a value that is not finite enters is missing.
    """
    frame = defined(frame, measure)
    point = ["step", "phase"]
    runs = frame.groupby([*point, "seed"])[measure].agg(["min", "median", "max"])
    finite = np.isfinite(frame[measure]).groupby([frame[key] for key in point]).all()
    means = runs.groupby(point).mean().where(finite).reset_index()
    means = means.rename(columns={"min": "minimum", "max": "maximum"})
    return means.sort_values(point, ascending=[True, False])  # phase step comes before rebalanced


def astray(frame: pd.DataFrame, measures: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Sentences that name the cells with values that cannot be drawn, or of weights without full rank, if any.

    They say which measures, in how many runs, and from which step. `frame` holds rows of the tables steps or heads,
    `names` the reader's name of each cell that is drawn.
    """
    sentences = []
    for cell, name in names.items():
        rows = frame[frame["cell"] == cell]
        lost = pd.DataFrame({measure: ~np.isfinite(rows[measure]) & ~undefined(rows, measure) for measure in measures})
        if lost.any(axis=None):
            where, of = rows[lost.any(axis=1)], rows["seed"].nunique()
            runs, first = where["seed"].nunique(), where["step"].min()
            which = ", ".join(lost.columns[lost.any()])
            sentences.append(f"{name}: not finite in {runs} of {of} runs, first at step {first}: {which}.")
        if "state" in rows and (deficient := rank_deficient(rows)):
            sentences.append(f"{name}: {deficient}.")
        if "update_norm" in rows and (none := steps_of_length_zero(rows)):
            sentences.append(f"{name}: {none}.")
    return sentences


def head_rows(tables: Tables, group: str, measures: Sequence[str]) -> pd.DataFrame:
    """Rows and columns of the table heads that describe the steps of a cell group, the end of training first."""
    rows = step_rows(tables)
    rows = rows[rows["cell"].isin(cells_of(tables, group)["cell"])]
    return rows[["cell", "seed", "step", "layer", "head", *measures]].sort_values("step", ascending=False)


def settled_medians(tables: Tables, cell: pd.Series, measure: str) -> pd.Series:
    """Median of a measure over layers, heads and the second half of a cell's steps, by seed.

    A run with a value that is not finite has none.
    """
    rows = step_rows(tables)
    rows = defined(rows[(rows["cell"] == cell["cell"]) & (rows["step"] > cell["steps"] / 2)], measure)
    finite = np.isfinite(rows[measure]).groupby(rows["seed"]).all()
    medians: pd.Series = rows.groupby("seed")[measure].median().where(finite)
    return medians


def final_losses(tables: Tables, cell: pd.Series) -> pd.Series:
    """Mean validation loss over the last tenth of a cell's steps, by seed, in nats a character."""
    rows = tables["evaluations"]
    rows = rows[(rows["cell"] == cell["cell"]) & (rows["step"] > 0.9 * cell["steps"])]
    finite = np.isfinite(rows["val_loss"]).groupby(rows["seed"]).all()
    losses: pd.Series = rows.groupby("seed")["val_loss"].mean().where(finite)
    return losses


def interval(values: pd.Series) -> tuple[float, float]:
    """Mean over seeds and half the width of its 95 % t interval (0 for one seed); NaN where a run has no value."""
    if values.empty or values.isna().any():
        return float("nan"), float("nan")
    reach = values.sem() * stats.t.ppf(0.975, len(values) - 1) if len(values) > 1 else 0.0
    return float(values.mean()), float(reach)


def forest(ax: Axes, rows: Sequence[tuple[str, str, pd.Series]], logarithmic: bool = False) -> None:
    """A line a row from the top: each seed a small point, and the mean over seeds with its 95 % t interval.

    Rows are (label, colour, one value a seed); on a logarithmic axis means and intervals are those of the logarithms.
    """
    for place, (_, color, values) in enumerate(rows):
        ax.plot(values, [place] * len(values), ".", color=color, markersize=2.5, alpha=0.4)
        mean, reach = interval(np.log(values) if logarithmic else values)
        middle, ends = (mean, (mean - reach, mean + reach))
        if logarithmic:
            middle, ends = np.exp(middle), tuple(np.exp(end) for end in ends)
        ax.plot(ends, [place, place], color=color, linewidth=1.2)
        ax.plot([middle], [place], "o", color=color)
    ax.set_yticks(range(len(rows)), [label for label, _, _ in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    if logarithmic:
        ax.set_xscale("log")
