"""What a run will take: jobs, hours, memory, disk. Estimates, from the sizes of the cells and one matrix product."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnid.cell import Cell, Device
from attnid.config import Config, cells, seed_blocks
from attnid.training_tables import HEADS, STEPS

# Fitted to default runs on two cores of an AMD EPYC: share of the matrix-product speed that training reaches without
# its attention weights, what an attention weight costs, and float64 beside float32.
UTILISATION = 0.5
FLOPS_PER_ATTENTION_WEIGHT = 1_000
FLOAT64_COST = 2.4
START_SECONDS = 4
PROCESS_MB = 600
SNAKEMAKE_MB = 400
"""What Snakemake's own processes take of a cluster job's memory."""
ASSUMED_SPEED = {"cpu": 3e10, "gpu": 3e12}
"""Matrix-product speed of a slow core and a slow GPU, for the time limit of a job on a machine not yet known."""
SHORTEST_MINUTES = 10
BYTES_PER_ROW = {STEPS.name: 70, HEADS.name: 200}
CORPUS_CHARACTERS = 100


@dataclass(frozen=True)
class Plan:
    """Expected cost of all training jobs: seconds of one job after another, peak memory of a job, disk in all."""

    training_jobs: int
    runs: int
    seconds: float
    job_mb: int
    disk_mb: float


def wants_gpu(device: Device) -> bool:
    """Whether training jobs should ask for a GPU; `auto` looks for an NVIDIA driver on this machine."""
    return device == "cuda" or (device == "auto" and Path("/dev/nvidiactl").exists())


def job_memory(cell: Cell, members: int) -> int:
    """Memory that a training job may need, in MB: the process, weights with gradients and moments, activations."""
    tokens = members * cell.batch_size * cell.context
    floats = cell.n_layers * (40 * cell.d_model + 8 * cell.n_heads * cell.context) + 6 * CORPUS_CHARACTERS
    weights = members * block_weights(cell)
    size = 8 if cell.precision == "float64" else 4
    return PROCESS_MB + (tokens * floats + 8 * weights) * size // 10**6


def job_minutes(cell: Cell, members: int, gpu: bool) -> int:
    """Time limit of a training job on a machine not yet known, twice what a slow one takes."""
    seconds = START_SECONDS + members * cost(cell) / ASSUMED_SPEED["gpu" if gpu else "cpu"]
    return max(SHORTEST_MINUTES, math.ceil(2 * seconds / 60))


def block_weights(cell: Cell) -> int:
    """Weights of the blocks of one model, its attention and its MLPs."""
    return 12 * cell.n_layers * cell.d_model**2


def forward_flops(cell: Cell) -> int:
    """Operations of the matrix products of one forward pass of one batch."""
    products = 2 * (block_weights(cell) + CORPUS_CHARACTERS * cell.d_model)
    mixing = 4 * cell.n_layers * cell.context * cell.d_model
    return cell.batch_size * cell.context * (products + mixing)


def cost(cell: Cell) -> float:
    """What one run costs, forward, backward and validation, in operations of a float32 matrix product."""
    attention_weights = cell.batch_size * cell.n_layers * cell.n_heads * cell.context**2
    passes = 3 * cell.steps + cell.eval_batches * cell.steps / cell.evaluate_every
    forward = forward_flops(cell) / UTILISATION + FLOPS_PER_ATTENTION_WEIGHT / 3 * attention_weights
    return passes * forward * (FLOAT64_COST if cell.precision == "float64" else 1)


def plan(config: Config, speed: float) -> Plan:
    """Expected cost of a configuration on a machine that multiplies matrices at `speed` operations a second."""
    blocks = seed_blocks(config.training.all_seeds, config.training.seeds_per_job)
    largest = max(last - first + 1 for first, last in blocks)
    all_cells = cells(config).values()
    return Plan(
        training_jobs=len(all_cells) * len(blocks),
        runs=len(all_cells) * config.training.seeds,
        seconds=sum(cost(cell) for cell in all_cells) * config.training.seeds / speed
        + START_SECONDS * len(all_cells) * len(blocks),
        job_mb=max(job_memory(cell, largest) for cell in all_cells),
        disk_mb=sum(2 * _table_bytes(cell) + _checkpoint_bytes(cell) for cell in all_cells)
        * config.training.seeds
        / 1e6,
    )


def product_speed(size: int = 1024, repeats: int = 5) -> float:
    """float32 matrix-product speed of one core of this machine (or its GPU), operations a second."""
    import torch

    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    a = torch.ones(size, size, device=device)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        (a @ a)[0, 0].item()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)


def sentences(expected: Plan, cores: Sequence[int]) -> list[str]:
    """A plan in words."""
    spans = ", ".join(f"{span(expected.seconds / n)} with {n} at a time" for n in cores)
    return [
        f"{counted(expected.training_jobs, 'training job')}, {counted(expected.runs, 'run')} in all, from nothing",
        f"training: about {spans}, on this machine",
        f"memory: about {expected.job_mb / 1000:.1f} GB a training job",
        f"disk: about {expected.disk_mb:.0f} MB",
    ]


def counted(number: int, thing: str) -> str:
    """A number of things, in words."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def span(seconds: float) -> str:
    """A time in the largest unit that leaves at least two of it."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return counted(round(seconds), "second")


def _checkpoint_bytes(cell: Cell) -> int:
    """The last checkpoint of a run: weights and at most two moments."""
    return 3 * block_weights(cell) * (8 if cell.precision == "float64" else 4)


def _table_bytes(cell: Cell) -> float:
    measured = cell.steps / cell.measure_every + (cell.steps / cell.rebalance_every if cell.rebalance_every else 0)
    heads = cell.n_layers * cell.n_heads
    return measured * (BYTES_PER_ROW["steps"] + heads * BYTES_PER_ROW["heads"])
