from pathlib import Path

from attnid import claims, dataset, tables
from attnid.job import job

with job(snakemake.log[0]):
    if snakemake.params.config:
        dataset.require_settings(Path(snakemake.input.made_with_config), snakemake.params.config)
    paths = {name: Path(path) for name, path in snakemake.input.items() if name in tables.BY_NAME}
    findings = claims.findings({name: tables.read(tables.BY_NAME[name], path) for name, path in paths.items()})
    frame = claims.verdicts(findings)
    tables.write(tables.CLAIMS, frame, Path(snakemake.output.parquet))
    tables.write(tables.EVIDENCE, claims.evidence(findings), Path(snakemake.output.evidence))
    Path(snakemake.output.markdown).write_text(claims.to_markdown(frame), encoding="utf-8")
    Path(snakemake.output.latex).write_text(claims.to_latex(frame), encoding="utf-8")
