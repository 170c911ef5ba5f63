"""Published models and a published ablation, counted."""

from math import isqrt
from typing import Any

import pandas as pd

from attnid.analysis_tables import ARCHITECTURES, EQUIVALENTS, SQUAD
from attnid.architectures import Architecture, architectures
from attnid.attention_layers import AttentionLayers
from attnid.counting import count, gauge_dimension
from attnid.layer import LayerSpec, layer_name

# Rows of the token and of the position embedding.
EMBEDDINGS = {
    "nanoGPT shakespeare_char": 65 + 256,
    "gpt2 (small)": 50_257 + 1_024,
    "gpt2-medium": 50_257 + 1_024,
    "gpt2-large": 50_257 + 1_024,
    "gpt2-xl": 50_257 + 1_024,
}
HEAD_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def equivalent_table() -> pd.DataFrame:
    """The single head with as many identified parameters as a multi-head layer (section 4.10): `EQUIVALENTS`.

    For each GPT model, its own number of heads and those of HEAD_COUNTS that divide its width.
    """
    rows = [
        _equivalent_row(model, model.layers[0], heads)
        for model in architectures()
        if model.model in EMBEDDINGS
        for heads in _possible_heads(model.layers[0].spec)
    ]
    return pd.DataFrame(rows)[EQUIVALENTS.names]


def single_head_identified(width: int, head_width: int) -> int:
    """Identified parameters of the paper's single-head layer: W_Q and W_K (D0 x E0), one square W_V, no W_O."""
    return 2 * head_width * width - gauge_dimension(width, width, head_width) + width**2


def square_single_head_width(identified: int) -> int:
    """Smallest E0 = D0 whose single-head layer has at least `identified` identified parameters, by bisection."""
    low, high = 0, identified
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if single_head_identified(middle, middle) >= identified else (middle, high)
    return high


def formula_width(width: int, heads: int) -> int:
    """ceil(E sqrt(2 - 1/H)) in integers."""
    return isqrt((width**2 * (2 * heads - 1) - 1) // heads) + 1


def gpt_parameters(embeddings: int, blocks: int, width: int, single_head: bool) -> int:
    """Parameters of a GPT-2-like model.

    Tied token and position embeddings (`embeddings` rows), blocks of attention and an MLP of width 4 E, all with
    biases, two LayerNorms a block and one at the end. Multi-head attention has four square matrices, the paper's
    single head three.
    """
    matrices = 3 if single_head else 4
    attention_parameters = matrices * (width**2 + width)
    mlp = 8 * width**2 + 5 * width
    norms = 2 * 2 * width
    return embeddings * width + blocks * (attention_parameters + mlp + norms) + 2 * width


def _possible_heads(spec: LayerSpec) -> list[int]:
    return sorted({spec.n_heads, *(heads for heads in HEAD_COUNTS if spec.d_model % heads == 0)})


def _equivalent_row(model: Architecture, layers: AttentionLayers, heads: int) -> dict[str, Any]:
    E, blocks, embeddings = layers.spec.d_model, layers.number, EMBEDDINGS[model.model]
    identified = count(LayerSpec.multi_head(E, heads)).identified
    E0 = square_single_head_width(identified)
    growth = gpt_parameters(embeddings, blocks, E0, True) / gpt_parameters(embeddings, blocks, E, False)
    return {
        "model": model.model,
        "d_model": E,
        "n_heads": heads,
        "width_formula": formula_width(E, heads),
        "width_search": E0,
        "width_growth": E0 / E,
        "attention_growth": 3 * E0**2 / (4 * E**2),
        "block_growth": 11 * E0**2 / (12 * E**2),
        "model_growth": growth,
        "same_width_left": max(single_head_identified(E, width) for width in range(1, E + 1)) / E**2,
        "same_width_right": identified / E**2,
    }


SQUAD_PRINTED = pd.DataFrame(
    {
        "head_dim": [32, 64, 128, 256],
        "printed_total": [130.0, 142.0, 168.0, 218.0],
        "printed_attention": [12.6, 25.2, 50.4, 100.9],
        "printed_unidentified": [0.26, 1.05, 4.20, 16.82],
        "printed_share_percent": [0.20, 0.74, 2.50, 7.71],
        "gain_f1": [None, 0.98, 0.09, 0.73],
        "gain_em": [None, 1.22, 0.32, 0.63],
    }
)
SQUAD_WIDTH, SQUAD_HEADS, SQUAD_LAYERS = 512, 8, 24


def squad_table() -> pd.DataFrame:
    """Figure 1 of the paper, printed and recomputed from the ablated model's sizes: a frame for `SQUAD`.

    Counts are of attention weights without biases, as in the printed table; shares are of the printed totals.
    """
    frame = SQUAD_PRINTED.assign(d_model=SQUAD_WIDTH, n_heads=SQUAD_HEADS, n_layers=SQUAD_LAYERS)
    counts = [count(LayerSpec.with_heads(SQUAD_WIDTH, SQUAD_HEADS, width)) for width in frame["head_dim"]]
    frame["attention"] = [SQUAD_LAYERS * counted.parameters for counted in counts]
    frame["unidentified"] = [SQUAD_LAYERS * counted.unidentified for counted in counts]
    frame["share_percent"] = 100 * frame["unidentified"] / (1e6 * frame["printed_total"])
    frame["printed_implied_width"] = (
        frame["printed_attention"] * frame["head_dim"] / (2 * frame["printed_unidentified"])
    )
    return frame[SQUAD.names]


def architecture_table() -> pd.DataFrame:
    """Closed-form counts of all published models, a row a kind of layer: a frame for `ARCHITECTURES`."""
    rows = [_architecture_row(model, layers) for model in architectures() for layers in model.layers]
    return pd.DataFrame(rows)[ARCHITECTURES.names]


def _architecture_row(model: Architecture, layers: AttentionLayers) -> dict[str, Any]:
    spec = layers.spec
    counted, block = count(spec.alone), count(spec)
    unidentified = layers.number * counted.unidentified
    return {
        "model": model.model,
        "role": layers.role,
        "layers": layers.number,
        "layer": layer_name(spec.alone),
        "position": model.position,
        **spec.model_dump(include=set(ARCHITECTURES.names)),
        **counted.columns,
        "parameters_model": layers.number * counted.parameters,
        "unidentified_model": unidentified,
        "paper_fraction": 1 - 1 / (2 * spec.n_heads),
        "model_parameters": model.model_parameters,
        "share_of_model": unidentified / (1e6 * model.model_parameters),
        "block_norm": spec.pre_norm,
        "block_parameters": block.parameters,
        "block_unidentified": block.unidentified,
        "block_identified_fraction": block.identified_fraction,
    }
