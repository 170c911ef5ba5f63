from pathlib import Path

from attnid import figures, style, tables
from attnid.job import job

with job(snakemake.log[0]):
    module = figures.load(snakemake.wildcards.figure)
    frames = {name: tables.read(tables.BY_NAME[name], Path(snakemake.input[name])) for name in module.TABLES}
    figure = module.draw(frames)
    for path in snakemake.output:
        style.save(figure, Path(path))
