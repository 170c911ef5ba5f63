from pathlib import Path

from attnid import paths, typesetting
from attnid.job import job

with job(snakemake.log[0]):
    typesetting.typeset(Path(snakemake.input.article), paths.RESULTS, Path(snakemake.output[0]))
