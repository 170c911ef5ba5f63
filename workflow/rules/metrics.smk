rule collect_metrics:
    input:
        **BLOCK_TABLES,
        runs=[block / "run.json" for block in BLOCKS],
        library=library("collect_metrics.py"),
    output:
        **{name: paths.metrics(name) for name in METRICS},
        runs="results/metrics/runs.json",
    log:
        "results/logs/metrics.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=1500,
    params:
        groups={
            group: {cell.id: cell.model_dump(mode="json") for cell in members}
            for group, members in configuration.grouped_cells(CONFIG).items()
        },
    script:
        "../scripts/collect_metrics.py"
