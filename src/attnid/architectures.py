"""Published models: the sizes and features of their attention layers, from a data file shipped with the package."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attnid.layer import LayerSpec

DATA = Path(__file__).parent / "data" / "architectures.csv"

_SIZES = ("d_model", "n_heads", "n_kv_heads", "qk_head_dim", "v_head_dim", "rotary_dim")
_BIASES = ("query_bias", "key_bias", "value_bias", "output_bias")


@dataclass(frozen=True)
class Architecture:
    """A published model.

    `attention_blocks` counts all attention layers, cross-attention included; `model_parameters` are those of the whole
    model, approximate, in millions. Where `unexpressed` names features that `LayerSpec` cannot say, `spec` is None.
    """

    model: str
    attention_blocks: int
    position: str
    model_parameters: float
    unexpressed: tuple[str, ...]
    spec: LayerSpec | None


def architectures(path: Path = DATA) -> list[Architecture]:
    """All models of the data file, those without a LayerSpec among them."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_architecture(row) for row in csv.DictReader(file)]


def layer_spec(row: Mapping[str, str]) -> LayerSpec | None:
    """The attention layer of a row of the data file; None where it has a feature that `unexpressed_features` names.

    Masks, sliding windows, absolute positions, RoPE frequencies and the pairing of rotated dimensions change no count
    and are left out. So is a soft cap of the scores where the layer has no key bias.
    """
    if unexpressed_features(row):
        return None
    sizes = {name: int(row[name]) for name in _SIZES}
    biases = {name: row[name] == "1" for name in _BIASES}
    return LayerSpec.model_validate(sizes | biases)


def unexpressed_features(row: Mapping[str, str]) -> tuple[str, ...]:
    """Features that change the count and that `LayerSpec` cannot say."""
    present = {
        "relative bias": row["position"] == "relative bias",
        "query/key normalisation": row["qk_norm"] != "none",
        "attention sinks": row["sinks"] == "1",
        "latent attention": bool(row["kv_latent"]),
        "soft cap with a key bias": row["soft_cap"] == "1" and row["key_bias"] == "1",
    }
    return tuple(feature for feature, there in present.items() if there)


def _architecture(row: Mapping[str, str]) -> Architecture:
    return Architecture(
        model=row["model"],
        attention_blocks=int(row["attention_blocks"]),
        position=row["position"],
        model_parameters=float(row["model_parameters_M"]),
        unexpressed=unexpressed_features(row),
        spec=layer_spec(row),
    )
