"""Published models: the sizes and features of their attention layers, from a data file shipped with the package."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from attnid.attention_layers import AttentionLayers
from attnid.layer import LayerSpec

DATA = Path(__file__).parent / "data" / "architectures.csv"


@dataclass(frozen=True)
class Architecture:
    """A published model; `model_parameters` are those of the whole model, approximate, in millions."""

    model: str
    position: str
    model_parameters: float
    layers: tuple[AttentionLayers, ...]


def architectures(path: Path = DATA) -> list[Architecture]:
    """All models of the data file, one row of which is one kind of layer of a model."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [_architecture(model, list(kinds)) for model, kinds in groupby(rows, key=lambda row: row["model"])]


def layer_spec(row: Mapping[str, str]) -> LayerSpec:
    """The attention layer of a row: its columns named like fields of LayerSpec, empty where the default holds.

    Sliding windows, absolute positions, RoPE's frequencies and the pairing of rotated dimensions change no count and
    have no column.
    """
    fields = LayerSpec.model_fields
    return LayerSpec.model_validate_strings({name: text for name, text in row.items() if name in fields and text})


def _architecture(model: str, kinds: list[dict[str, str]]) -> Architecture:
    return Architecture(
        model=model,
        position=kinds[0]["position"],
        model_parameters=float(kinds[0]["model_parameters_M"]),
        layers=tuple(AttentionLayers(row["role"], int(row["layers"]), layer_spec(row)) for row in kinds),
    )
