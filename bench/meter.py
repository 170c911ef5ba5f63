"""What measuring a model of one's own costs, as ratios within one run: python bench/meter.py [STEPS]

A model of the size of GPT-2 small (12 layers, width 768, 12 heads) takes AdamW steps on random tokens, float32.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

from attnid import OverlapMeter, rebalance_

BATCH, TOKENS, EVERY = 4, 256, 10


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(steps: int) -> None:
    """Take turns: a step as it is, and a step that is measured; then the meter around steps that it only counts."""
    torch.manual_seed(0)
    logging.set_verbosity_error()
    model = GPT2LMHeadModel(GPT2Config(attn_pdrop=0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(50_000, (BATCH, TOKENS))
    meter, counting = OverlapMeter(model, every=1), OverlapMeter(model, every=10**9)

    def count(times: int) -> None:
        for _ in range(times):
            with counting:
                pass

    def step(kind: str) -> None:
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        if kind == "plain":
            optimizer.step()
        else:
            with meter:
                optimizer.step()

    step("plain")
    taken: dict[str, list[float]] = {"plain": [], "measured": []}
    for _ in range(steps):
        for kind, times in taken.items():
            times.append(seconds(lambda kind=kind: step(kind)))  # type: ignore[misc]
    plain, measured = (statistics.median(times) for times in taken.values())
    count(1)
    print(f"a step of GPT-2 small, {BATCH} x {TOKENS} tokens, {torch.get_num_threads()} threads: {plain:.2f} s")
    print(f"the meter around a step that it does not measure: {seconds(lambda: count(1000)) * 1000:.1f} microseconds")
    print(
        f"a measured step: {measured / plain - 1:+.1%}, so every {EVERY} steps: {(measured / plain - 1) / EVERY:+.2%}"
    )
    print(f"rebalance_ with AdamW's moments: {seconds(lambda: rebalance_(model, optimizer)) / plain:.2f} steps")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
