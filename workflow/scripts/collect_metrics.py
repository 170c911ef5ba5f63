import json
from pathlib import Path

from attnid import dataset, metrics, tables
from attnid.cell import Cell
from attnid.job import job
from attnid.run_record import write_records

with job(snakemake.log[0]):
    groups = {
        group: [Cell.model_validate(settings) for settings in members.values()]
        for group, members in snakemake.params.groups.items()
    }
    runs = [dataset.read_block(Path(path).parent) for path in snakemake.input.runs]
    frames = metrics.collect(
        groups,
        {table.name: [Path(path) for path in snakemake.input[table.name]] for table in tables.TRAINING},
    )
    for name, frame in frames.items():
        tables.write(tables.BY_NAME[name], frame, Path(snakemake.output[name]))
    write_records(runs, Path(snakemake.output.made_with_runs))
    Path(snakemake.output.made_with_config).write_text(json.dumps(snakemake.params.config, indent=1) + "\n")
