from pathlib import Path

import torch

from attnid import schema, stacked
from attnid.analysis import invariances, published, ranks
from attnid.analysis_tables import ANALYSIS, RANKS, VARIANTS
from attnid.config import Analysis
from attnid.job import job


def report(done: int, total: int, name: str) -> None:
    log.info(f"rank {done} of {total}, {name}")


with job(snakemake.log[0]) as log:
    torch.set_num_threads(snakemake.threads)
    settings = Analysis.model_validate(snakemake.params.analysis)
    grid = ranks.rank_grid(settings.d_model, settings.head_counts, settings.head_widths)
    frames = {
        "ranks": ranks.rank_table(RANKS, grid, report=report),
        "variants": ranks.rank_table(VARIANTS, ranks.variant_grid(), report=report),
        "trap": stacked.trap_table(report=report),
        "invariances": invariances.invariance_table(settings.invariance_draws),
        "equivalents": published.equivalent_table(),
        "squad": published.squad_table(),
        "architectures": published.architecture_table(),
    }
    for table in ANALYSIS:
        schema.write(table, frames[table.name], Path(snakemake.output[table.name]))
    for name in ("ranks", "variants"):
        ranks.require_agreement(frames[name])
