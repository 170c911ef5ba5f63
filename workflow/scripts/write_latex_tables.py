from pathlib import Path

from attnid import booktabs, tables
from attnid.job import job

with job(snakemake.log[0]):
    frames = {
        name: tables.read(tables.BY_NAME[name], Path(path))
        for name, path in snakemake.input.items()
        if name in tables.BY_NAME
    }
    for name, path in snakemake.output.items():
        Path(path).write_text(booktabs.TABLES[name](frames), encoding="utf-8")
