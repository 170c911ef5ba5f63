from pathlib import Path

from attnid import claims, tables
from attnid.job import job

with job(snakemake.log[0]):
    inputs = [table for table in tables.ALL if table.name in snakemake.input.keys()]
    frame = claims.judge({table.name: tables.read(table, Path(snakemake.input[table.name])) for table in inputs})
    tables.write(tables.CLAIMS, frame, Path(snakemake.output.parquet))
    Path(snakemake.output.markdown).write_text(claims.to_markdown(frame), encoding="utf-8")
    Path(snakemake.output.latex).write_text(claims.to_latex(frame), encoding="utf-8")
