import json
from datetime import UTC, datetime
from pathlib import Path

from attnid import claims, explorer, figures, paths, report, tables
from attnid.job import job


def entry(name: str) -> report.FigureEntry:
    module = figures.load(name)
    return report.FigureEntry(
        title=module.TITLE,
        caption=module.CAPTION,
        png=paths.figure(name, "png").read_bytes(),
        table=module.behind({table: frames[table] for table in module.TABLES}),
        table_path=snakemake.input[module.TABLES[0]],
    )


with job(snakemake.log[0]):
    frames = {
        name: tables.read(tables.BY_NAME[name], Path(path))
        for name, path in snakemake.input.items()
        if name in tables.BY_NAME
    }
    runs = json.loads(Path(snakemake.input.made_with_runs).read_text())
    contents = report.Contents(
        claims=frames["claims"],
        evidence=frames["evidence"],
        register={claim.id: claim for claim in claims.all_claims()},
        architectures=frames["architectures"],
        figures={name: entry(name) for name in snakemake.params.figures},
        explorer=explorer.explorer(frames),
        runs=runs,
        missing=[report.MissingJob(**job) for job in snakemake.params.missing],
        astray=report.astray(frames),
        commands=report.commands(snakemake.params.options, runs, snakemake.params.made_here),
        config=json.loads(Path(snakemake.input.made_with_config).read_text()),
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        notes=(claims.training_scale(frames["claims"]), claims.READING),
    )
    Path(snakemake.output[0]).write_text(report.render(contents), encoding="utf-8")
