"""The attention layers of a whole model: which kinds there are, and how many of each."""

from dataclasses import dataclass

from attnid.layer import LayerSpec


@dataclass(frozen=True)
class AttentionLayers:
    """Equal attention layers of a model.

    `role` says where they stand ("self", "encoder self", "decoder self", "cross"), `number` how many there are, and
    `spec` what each of them is. The layers of a model are a list of these; no two of them describe the same layers.
    """

    role: str
    number: int
    spec: LayerSpec
