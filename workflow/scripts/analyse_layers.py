from pathlib import Path

import torch

from attnid import analysis, tables
from attnid.config import Analysis
from attnid.job import job


def report(done: int, total: int, layer: str) -> None:
    log.info(f"rank {done} of {total}, {layer}")


with job(snakemake.log[0]) as log:
    torch.set_num_threads(snakemake.threads)
    settings = Analysis.model_validate(snakemake.params.analysis)
    grid = analysis.rank_grid(settings.d_model, settings.head_counts, settings.head_widths)
    frames = {
        "ranks": analysis.rank_table(grid, report=report),
        "invariances": analysis.invariance_table(settings.invariance_draws),
        "equivalents": analysis.equivalent_table(),
        "squad": analysis.squad_table(),
        "architectures": analysis.architecture_table(),
    }
    for name, frame in frames.items():
        tables.write(tables.BY_NAME[name], frame, Path(snakemake.output[name]))
    analysis.require_agreement(frames["ranks"])
