"""How fast ranks are proved: python bench/exact.py [SIZE] [PICTURE]

Ratios of elimination modulo a prime against singular values and FLINT's rank of the same matrix, and how the time of a
certificate grows with the layer; the growth is drawn where a path for the picture is given.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from flint import nmod_mat
from matplotlib.figure import Figure

from attnid import style
from attnid.exact import certify
from attnid.layer import LayerSpec, numel
from attnid.modular import PRIME, Field

THREADS = 2
LAYERS = ((16, 2), (24, 3), (32, 4), (48, 6), (64, 8))
"""Width and heads."""


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(size: int) -> None:
    """Print how long three ways to the rank of one random matrix take."""
    field = Field()
    matrix = field.random((size, size), torch.Generator().manual_seed(0))
    field.rank_(matrix[:512, :512].clone())
    own, copy = [], matrix.clone()
    own_seconds = seconds(lambda: own.append(field.rank_(copy)))
    singular_seconds = seconds(lambda: torch.linalg.svdvals(matrix))
    product_seconds = seconds(lambda: matrix @ matrix)
    entries = matrix.remainder(PRIME).long().flatten().tolist()
    theirs = nmod_mat(size, size, entries, PRIME)
    del entries
    found: list[int] = []
    flint_seconds = seconds(lambda: found.append(theirs.rank()))
    assert own == found, (own, found)
    print(f"rank of a {size} x {size} matrix, {THREADS} threads: {own[0]} modulo {PRIME} in {own_seconds:.2f} s")
    print(f"elimination / torch.linalg.svdvals: {own_seconds / singular_seconds:.3f} ({singular_seconds:.2f} s)")
    print(f"elimination / FLINT's rank: {own_seconds / flint_seconds:.3f} ({flint_seconds:.2f} s)")
    print(f"elimination / float64 matrix product: {own_seconds / product_seconds:.2f} ({product_seconds:.2f} s)")


def grow() -> list[tuple[int, float]]:
    """Print and return weights and seconds of certificates of plain layers."""
    certify(LayerSpec.multi_head(8, 1))
    measured = []
    for width, heads in LAYERS:
        spec = LayerSpec.multi_head(width, heads)
        start = time.perf_counter()
        rank = certify(spec).layer
        taken = time.perf_counter() - start
        weights = numel(spec.parameter_shapes)
        print(f"width {width}, {heads} heads, {weights:,} weights: {rank.lower} to {rank.upper} in {taken:.1f} s")
        measured.append((weights, taken))
    print(f"time of a certificate: {_growth(measured)}")
    return measured


def draw(measured: list[tuple[int, float]]) -> Figure:
    """Seconds against weights, with the exponent."""
    figure, axes = style.panels(style.SINGLE, 2.4)
    ax = axes[0, 0]
    weights, taken = zip(*measured, strict=True)
    ax.plot(weights, taken, color=style.PALETTE[1], marker="o")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(weights, [f"{number:,}" for number in weights])
    ax.set_xlabel("weights of the layer (log scale)")
    ax.set_ylabel(f"seconds, {THREADS} threads (log scale)")
    ax.set_title(f"certificate of a multi-head layer\n{_growth(measured)}", loc="left")
    return figure


def _growth(measured: list[tuple[int, float]]) -> str:
    return f"weights^{_exponent(measured):.2f} over all sizes, ^{_exponent(measured[-2:]):.2f} between the last two"


def _exponent(measured: list[tuple[int, float]]) -> float:
    """Slope of the logarithms, by least squares."""
    weights, taken = np.log(np.array(measured, dtype=float)).T
    return float(np.polyfit(weights, taken, 1)[0])


if __name__ == "__main__":
    torch.set_num_threads(THREADS)
    compare(int(sys.argv[1]) if len(sys.argv) > 1 else 4096)
    points = grow()
    if len(sys.argv) > 2:
        style.save(style.styled(lambda _: draw(points))({}), Path(sys.argv[2]))
