"""Colours of the figures: each stands out from paper, and apart from the others for every reader."""

import pytest
from colours import VISIONS, closest, contrast, lab, linear
from settings import default_settings

from attnid import style

APART = 20
"""Distance in CIELAB at which neighbouring lines and marks are told apart at a glance."""
OF_THE_PAPER = [style.case_color(case) for case in default_settings()["cases"]]
TOLD_APART = {
    "palette": style.PALETTE,
    "ordered": style.ORDERED,
    "layers": style.LAYERS,
    "cases": OF_THE_PAPER,
}


def test_the_yardsticks_know_black_from_white_and_what_is_confused() -> None:
    assert contrast("black", "white") == pytest.approx(21)
    assert lab(linear("white")) == pytest.approx([100, 0, 0], abs=0.1)
    red_and_olive = ["#D55E00", "#828200"]
    assert closest(red_and_olive, "deuteranopia") < APART < closest(red_and_olive, "normal")


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("name", TOLD_APART)
def test_colours_are_told_apart_with_every_vision(name: str, vision: str) -> None:
    assert closest(TOLD_APART[name], vision) > APART


@pytest.mark.parametrize("color", sorted({*style.PALETTE, *style.ORDERED, *style.LAYERS, style.INK, style.GREY}))
def test_lines_and_letters_stand_out_from_paper(color: str) -> None:
    assert contrast(color, "white") > 3


@pytest.mark.parametrize("color", [style.INK, style.GREY])
def test_letters_and_the_null_line_stand_out_from_the_null_band(color: str) -> None:
    assert contrast(color, style.PALE) > 3
