from attnid.job import job

with job(snakemake.log[0]):
    pass
