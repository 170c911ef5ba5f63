from pathlib import Path

from attnid import figures, style, tables
from attnid.job import job

with job(snakemake.log[0]):
    module = figures.load(snakemake.wildcards.figure)
    frames = {name: tables.read(tables.BY_NAME[name], Path(snakemake.input[name])) for name in module.TABLES}
    for path, fonts in ((snakemake.output.png, style.SCREEN), (snakemake.output.pdf, style.PRINT)):
        style.save(module.draw(frames, fonts), Path(path), fonts)
