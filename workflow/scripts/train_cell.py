import json
from pathlib import Path

import torch

from attnid import provenance, tables
from attnid.cell import Cell
from attnid.job import job
from attnid.training import TABLES
from attnid.training_job import run

with job(snakemake.log[0]) as log:
    torch.set_num_threads(snakemake.threads)
    frames, record = run(
        cell=Cell.model_validate(snakemake.params.settings),
        first=int(snakemake.wildcards.first),
        last=int(snakemake.wildcards.last),
        text=Path(snakemake.input.corpus),
        device=snakemake.resources.device,
        code=provenance.digest([*snakemake.input.library, snakemake.input.lock]),
        log=log,
        tensorboard=bool(snakemake.resources.tensorboard),
    )
    for table in TABLES:
        tables.write(table, frames[table.name], Path(snakemake.output[table.name]))
    Path(snakemake.output.run).write_text(json.dumps(record, indent=1) + "\n")
