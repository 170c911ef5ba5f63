from pathlib import Path

import torch

from attnid import devices, provenance, schema
from attnid.cell import Cell
from attnid.job import job
from attnid.training_job import run
from attnid.training_tables import TRAINING

with job(snakemake.log[0]) as log, devices.device(snakemake.resources.device) as device:
    torch.set_num_threads(snakemake.threads)
    frames, record = run(
        cell=Cell.model_validate(snakemake.params.settings),
        first=int(snakemake.wildcards.first),
        last=int(snakemake.wildcards.last),
        text=Path(snakemake.input.corpus),
        device=device,
        code=provenance.digest([*snakemake.input.library, snakemake.input.lock]),
        log=log,
        tensorboard=bool(snakemake.resources.tensorboard),
    )
    for table in TRAINING:
        schema.write(table, frames[table.name], Path(snakemake.output[table.name]))
    Path(snakemake.output.run).write_text(record.model_dump_json(indent=1) + "\n")
