"""What the documents show is what the program does."""

import json
import re
from pathlib import Path

import pytest
from settings import ROOT

from attnid import claims, cli, screen
from attnid.counting import count
from attnid.layer import LayerSpec

COUNTING = (ROOT / "docs" / "counting.md").read_text()
RESEARCHER = (ROOT / "docs" / "researcher.md").read_text()
EXAMPLES = re.findall(r"^\| .* \| `(\{.*\})` \|$", COUNTING, re.MULTILINE)


def test_every_variant_has_an_example() -> None:
    named = {name for example in EXAMPLES for name in json.loads(example)}
    unsaid = {"qk_norm_gain", "pre_norm_gain", "relative_distance"}
    assert set(LayerSpec.model_fields) - unsaid == named


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_a_layer_has_a_closed_form(example: str) -> None:
    counted = count(LayerSpec.from_fields(json.loads(example)))
    assert 0 < counted.unidentified < counted.parameters


def test_the_session_shown_is_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.search(r"\$ cat layer.json\n(.*)\n\$ attnid count layer.json (.*)\n((?:.+\n)*)```", COUNTING)
    assert shown is not None
    layer, options, output = shown.groups()
    path = tmp_path / "layer.json"
    path.write_text(layer)
    assert cli.main(["count", str(path), *options.split()]) == 0
    printed, expected = (
        [line for line in text.splitlines() if not line.startswith("gap ")]
        for text in (capsys.readouterr().out, output)
    )
    assert printed == expected


SHOWN = dict(re.findall(r"^\$ attnid (watch|compare) .*\n((?:.*\n)+?)```$", RESEARCHER, re.MULTILINE))


def test_the_run_that_is_shown_has_the_columns_of_the_command() -> None:
    header, *rows = SHOWN["watch"].splitlines()[2:]
    assert re.split(r"  +", header) == list(screen.COLUMNS)
    assert len({len(line) for line in (header, *rows)}) == 1


def test_the_comparison_that_is_shown_is_of_claims_that_there_are() -> None:
    named = re.findall(r"^([a-z-]+): .* in A, .* in B$", SHOWN["compare"], re.MULTILINE)
    assert named
    assert set(named) <= set(claims.REGISTER)
    assert re.search(
        rf"^{len(named)} of \d+ claims differ, {len(named)} in their verdict\.$", SHOWN["compare"], re.MULTILINE
    )
