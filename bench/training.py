"""How fast training is, as ratios within one run: python bench/training.py [STEPS]"""

import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import yaml
from plain_gpt import train_plain

from attnid import corpus, plan
from attnid.cell import Cell
from attnid.config import Config, cells, parse
from attnid.config_files import lay_over
from attnid.corpus import Corpus
from attnid.training import Trainer, train

ROOT = Path(__file__).resolve().parent.parent
SEEDS = 5
WORKERS = 2
"""Training jobs side by side, one thread each, as the workflow runs them on two cores."""


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def configuration(*overlays: str) -> Config:
    """config.yaml with overlays on it, on the corpus that needs no network."""
    settings = yaml.safe_load((ROOT / "config.yaml").read_text())
    for overlay in overlays:
        lay_over(settings, yaml.safe_load((ROOT / "config" / overlay).read_text()))
    return parse(settings | {"corpus": corpus.KING_JAMES})


def adamw(settings: Config) -> Cell:
    """The AdamW cell at the configuration's own head count."""
    return next(
        cell for cell in cells(settings).values() if cell.case == "adamw" and cell.n_heads == settings.model.n_heads
    )


def cost_of_measures(cell: Cell, text: Corpus, members: int, repeats: int) -> None:
    """Print what measured steps and validations add to training, one thread."""
    torch.set_num_threads(1)
    trainer = Trainer(cell, text, range(members), torch.device("cpu"))
    every, evaluate = cell.measure_every, cell.evaluate_every
    trainer.advance(2)
    taken: dict[str, list[float]] = {"plain": [], "measured": []}
    for _ in range(repeats):
        taken["plain"].append(seconds(lambda: trainer.advance(every + 1)))
        taken["measured"].append(seconds(lambda: trainer.advance(every)))
    validation = seconds(lambda: trainer._evaluate(1))
    plain, measured = (statistics.median(times) for times in taken.values())
    print(
        f"width {cell.d_model}, {cell.n_layers} layers, {members} seeds, one thread: {plain:.3f} s a step\n"
        f"  measures every {every} steps / training: {(measured - plain) / (every * plain):.3f}\n"
        f"  validation of {cell.eval_batches} batches every {evaluate} steps / training: "
        f"{validation / (evaluate * plain):.3f}"
    )


def _train_block(cell: Cell, text: Corpus, first: int) -> int:
    """A training job as the workflow starts it; returns its peak memory in MB."""
    torch.set_num_threads(1)
    train(cell, text, range(first, first + SEEDS), torch.device("cpu"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def sweep(cell: Cell, text: Corpus) -> None:
    """Print the throughput of the workflow's jobs beside that of a plain loop, in the same run."""
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        warm = cell.model_copy(update={"steps": 2, "decay_steps": 2, "warmup_steps": 1})
        pool.starmap(_train_block, [(warm, text, 0)] * WORKERS)
        peaks: list[int] = []
        jobs = [(cell, text, SEEDS * worker) for worker in range(WORKERS)]
        own = seconds(lambda: peaks.extend(pool.starmap(_train_block, jobs, chunksize=1))) / (WORKERS * SEEDS)
    torch.set_num_threads(WORKERS)
    train_plain(cell, text.train, text.vocabulary_size, 0, 2)
    plain = seconds(lambda: train_plain(cell, text.train, text.vocabulary_size, 0, cell.steps))
    print(
        f"default scale, {cell.steps} steps: {WORKERS} jobs of {SEEDS} seeds, measured and validated, {own:.2f} s a "
        f"run, a plain loop on {WORKERS} threads without {plain:.2f} s\n"
        f"  throughput of the jobs / plain loop: {plain / own:.2f}\n"
        f"  peak memory of a job: {max(peaks)} MB"
    )


def utilisation(cell: Cell, text: Corpus) -> None:
    """Print which share of a core's matrix-product speed training reaches."""
    torch.set_num_threads(1)
    plain = cell.model_copy(update={"measure_every": cell.steps, "evaluate_every": cell.steps})
    taken = seconds(lambda: train(plain, text, range(SEEDS), torch.device("cpu")))
    products = 3 * plan.forward_flops(plain) * cell.steps * SEEDS
    share = products / taken / plan.product_speed()
    print(f"matrix products of training / matrix-product speed of one core: {share:.2f}")


def main(steps: int) -> None:
    """Print all ratios."""
    settings = configuration()
    text_file = ROOT / "results" / "corpus" / f"{corpus.KING_JAMES}.txt"
    if not text_file.exists():
        corpus.fetch(corpus.KING_JAMES, text_file)
    text = corpus.load(text_file, settings.model.context)
    base = adamw(settings)
    short = base.model_copy(update={"steps": steps, "decay_steps": steps})
    sweep(short, text)
    utilisation(short, text)
    cost_of_measures(base, text, SEEDS, repeats=25)
    cost_of_measures(adamw(configuration("paper.yaml")), text, members=1, repeats=3)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
