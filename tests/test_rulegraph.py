"""The picture of the rules in the documents is of the workflow as it is."""

import shutil

import pytest
import rulegraph


def test_the_picture_of_the_rules_is_up_to_date() -> None:
    assert rulegraph.drawn(rulegraph.PICTURE.read_text()) == rulegraph.edges(), "run: python tools/rulegraph.py"


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")
def test_a_picture_shows_the_pairs_it_is_drawn_from() -> None:
    pairs = {("make", "read"), ("read", "tell"), ("make", "tell")}
    picture = rulegraph.draw(pairs)
    assert rulegraph.drawn(picture) == pairs
    assert "graphviz version" not in picture
