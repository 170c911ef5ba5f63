from pathlib import Path

import torch

from attnid import devices, paths, provenance, schema
from attnid.cell import Cell
from attnid.job import job
from attnid.live import running
from attnid.training_job import run
from attnid.training_tables import TRAINING

cell = Cell.model_validate(snakemake.params.settings)
first, last = int(snakemake.wildcards.first), int(snakemake.wildcards.last)
with (
    job(snakemake.log[0]) as log,
    running(paths.running(cell.id, first, last)) as live,
    devices.device(snakemake.resources.device) as device,
):
    torch.set_num_threads(snakemake.threads)
    frames, record = run(
        cell=cell,
        first=first,
        last=last,
        text=Path(snakemake.input.corpus),
        device=device,
        code=provenance.code([*snakemake.input.library, snakemake.input.lock], snakemake.input.optimizer),
        log=log,
        tensorboard=bool(snakemake.resources.tensorboard),
        live=live,
    )
    for table in TRAINING:
        schema.write(table, frames[table.name], Path(snakemake.output[table.name]))
    Path(snakemake.output.run).write_text(record.model_dump_json(indent=1) + "\n")
