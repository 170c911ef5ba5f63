from pathlib import Path

from attnid.corpus import fetch
from attnid.job import job

with job(snakemake.log[0]):
    fetch(snakemake.params.corpus, Path(snakemake.output[0]))
