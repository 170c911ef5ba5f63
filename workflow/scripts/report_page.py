import json
from datetime import UTC, datetime
from pathlib import Path

from attnid import claims, figures, paths, report, tables
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
    page = report.render(
        claims=frames["claims"],
        rules={claim.id: claim.rule for claim in claims.all_claims()},
        figures={name: entry(name) for name in snakemake.params.figures},
        runs=json.loads(Path(snakemake.input.made_with_runs).read_text()),
        config=json.loads(Path(snakemake.input.made_with_config).read_text()),
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        notes=(claims.training_scale(frames["claims"]), claims.READING),
    )
    Path(snakemake.output[0]).write_text(page, encoding="utf-8")
