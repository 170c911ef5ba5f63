rule collect_metrics:
    input:
        **BLOCK_TABLES,
        runs=[block / "run.json" for block in BLOCKS],
        library=library("collect_metrics.py"),
    output:
        **{name: paths.metrics(name) for name in METRICS},
        **{f"made_with_{name}": paths.made_with(name) for name in ("runs", "config")},
    log:
        "results/logs/metrics.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(1500),
        runtime=growing(10),
    params:
        config=SETTINGS,
        groups={
            group: {cell.id: cell.model_dump(mode="json") for cell in members}
            for group, members in trained_groups().items()
        },
    script:
        "../scripts/collect_metrics.py"
