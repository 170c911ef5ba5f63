"""How fast training is, as ratios within one run: python bench/training.py [STEPS]"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import yaml

from attnid import corpus, plan
from attnid.config import Cell, cells, parse
from attnid.training import train

ROOT = Path(__file__).resolve().parent.parent
SEEDS = 5


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(steps: int) -> None:
    """Print the ratios at the default scale, on one thread as the workflow's training jobs run."""
    torch.set_num_threads(1)
    settings = parse(yaml.safe_load((ROOT / "config.yaml").read_text()))
    text_file = ROOT / "results" / "corpus" / f"{corpus.KING_JAMES}.txt"
    if not text_file.exists():
        corpus.fetch(corpus.KING_JAMES, text_file)
    text = corpus.load(text_file, settings.model.context)
    base = next(cell for cell in cells(settings).values() if cell.case == "adamw")
    measured = base.model_copy(update={"steps": steps})
    unmeasured = measured.model_copy(update={"measure_every": steps})

    def run(cell: Cell, seeds: range) -> float:
        return seconds(lambda: train(cell, text, seeds, torch.device("cpu")))

    run(unmeasured.model_copy(update={"steps": 5, "measure_every": 5, "warmup_steps": 1}), range(SEEDS))
    together, plain = run(measured, range(SEEDS)), run(unmeasured, range(SEEDS))
    apart = sum(run(measured, range(seed, seed + 1)) for seed in range(SEEDS))
    products = 3 * plan.forward_flops(unmeasured) * steps * SEEDS
    print(f"{SEEDS} seeds, {steps} steps, default scale, one thread")
    print(f"{SEEDS} seeds one after another / side by side: {apart / together:.2f}")
    print(f"with measures and validation every {base.measure_every} steps / without: {together / plain:.2f}")
    print(
        f"matrix products of training / matrix-product speed of one core: {products / plain / plan.product_speed():.2f}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
