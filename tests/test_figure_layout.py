"""What the eye would see in every figure, on screen and in print: small, cut or colliding letters, unnamed axes."""

from collections.abc import Iterator
from functools import cache
from itertools import combinations, product

import beyond_tables
import numpy as np
import pandas as pd
import pytest
import synthetic
from colours import contrast
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from attnid import figures, style, tables

SMALLEST = 6
"""Points of the smallest letters that are read in print without effort."""
SLACK = 0.5
"""Points by which boxes of letters may touch: they hold some white around the letters."""


def lost(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The tables with one seed's later steps not finite, which figures name below themselves."""
    heads, evaluations = frames["heads"].copy(), frames["evaluations"].copy()
    late = heads["seed"].eq(2) & heads["step"].ge(heads["step"].median()) & heads["phase"].eq("step")
    heads.loc[late, list(tables.HEAD_MEASURES)] = np.nan
    heads.loc[late, "state"] = "not finite"
    evaluations.loc[evaluations["seed"].eq(2) & evaluations["step"].ge(30), "val_loss"] = np.nan
    return frames | {"heads": heads, "evaluations": evaluations}


WHOLE = (synthetic.all_tables(), beyond_tables.base())
LOST = (lost(synthetic.all_tables()), lost(beyond_tables.base()))
DRAWINGS = {
    "on screen": (style.SCREEN, WHOLE),
    "in print": (style.PRINT, WHOLE),
    "with lost runs": (style.SCREEN, LOST),
}


@pytest.fixture(params=list(product(figures.NAMES, DRAWINGS)), ids=" ".join)
def figure(request: pytest.FixtureRequest) -> Figure:
    return laid_out(*request.param)


@cache
def laid_out(name: str, drawing: str) -> Figure:
    """The figure after its axes and letters have found their places."""
    fonts, (of_paper, beyond) = DRAWINGS[drawing]
    figure = figures.load(name).draw(beyond if figures.group(name) else of_paper, fonts)
    figure.set_dpi(72)
    FigureCanvasAgg(figure).draw()
    return figure


@cache
def letters(figure: Figure) -> dict[Text, Bbox]:
    """Every text that is drawn, and its box in points."""
    found: dict[Text, Bbox] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", lambda text, renderer: found.update({text: text.get_window_extent(renderer)}))
        figure.canvas.draw()
    return {text: box for text, box in found.items() if text.get_visible() and text.get_text().strip()}


def overlap(first: Bbox, second: Bbox) -> bool:
    common = Bbox.intersection(first, second)
    return common is not None and min(common.width, common.height) > SLACK


def scales(figure: Figure) -> Iterator[tuple[Axes, str, str]]:
    """Axes, scale and label of every axis; one that shares its scale with others has their label."""
    for ax in figure.axes:
        for scale, label, group in (
            (ax.get_xscale(), "get_xlabel", ax.get_shared_x_axes()),
            (ax.get_yscale(), "get_ylabel", ax.get_shared_y_axes()),
        ):
            yield ax, scale, " ".join(getattr(other, label)() for other in group.get_siblings(ax))


def test_letters_are_large_enough_for_print(figure: Figure) -> None:
    assert {text.get_text(): text.get_fontsize() for text in letters(figure) if text.get_fontsize() < SMALLEST} == {}


def test_letters_do_not_collide(figure: Figure) -> None:
    pairs = combinations(letters(figure).items(), 2)
    assert [(a.get_text(), b.get_text()) for (a, first), (b, second) in pairs if overlap(first, second)] == []


def test_letters_stay_on_the_paper(figure: Figure) -> None:
    paper = figure.bbox.padded(SLACK)
    off = [text.get_text() for text, box in letters(figure).items() if Bbox.union([box, paper]).bounds != paper.bounds]
    assert off == []


def test_an_axis_is_called_logarithmic_where_it_is(figure: Figure) -> None:
    found = [(scale, label) for _, scale, label in scales(figure)]
    assert [(scale, label) for scale, label in found if (scale == "log") != ("log scale" in label)] == []


def test_the_null_band_is_drawn_where_rho_is(figure: Figure) -> None:
    assert [ax.get_position() for ax in figure.axes if shows_rho(ax) and not bands(ax)] == []


def test_rho_is_looked_for_where_it_is_drawn() -> None:
    showing = {name for name in figures.NAMES if any(map(shows_rho, laid_out(name, "in print").axes))}
    of_paper = {"paper_figure_2", "paper_figure_4", "rho_heads", "spikes"}
    assert showing == of_paper | {"layer_kinds", "overlap_causes", "rebalancing_state"}
    assert sum(map(shows_rho, laid_out("paper_figure_2", "in print").axes)) == 4


def test_lines_and_letters_stand_out_from_paper(figure: Figure) -> None:
    inks = {text.get_color() for text in letters(figure)}
    inks |= {line.get_color() for ax in figure.axes for line in ax.lines if line.get_color() != "none"}
    assert {ink: contrast(ink, "white") for ink in inks if contrast(ink, "white") < 3} == {}


def shows_rho(ax: Axes) -> bool:
    """Whether axes, or those whose height they share, are named after rho."""
    rows = ax.get_shared_y_axes().get_siblings(ax)
    names = [ax.get_xlabel(), *(other.get_ylabel() for other in rows), *(other.get_title() for other in rows)]
    return any(r"$\rho$" in name for name in names)


def bands(ax: Axes) -> list[str]:
    """The shapes in the colour of the null band."""
    colors = [patch.get_facecolor() for patch in ax.patches]
    colors += [color for shape in ax.collections for color in shape.get_facecolor()]
    return [found for found in map(to_hex, colors) if found == style.PALE]
