rule report_page:
    input:
        **TABLES,
        claims=rules.judge_claims.output.parquet,
        figures=[path for path in FIGURES if path.suffix == ".png"],
        runs=rules.collect_metrics.output.runs,
        library=library(
            "report_page.py",
            *(f"attnid.figures.{name}" for name in FIGURE_NAMES),
        ),
        template=os.path.relpath(sources.PACKAGE / "data" / "report.html.j2"),
    output:
        "results/report.html",
    log:
        "results/logs/report.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=1000,
    params:
        config=CONFIG.model_dump(mode="json"),
        figures=FIGURE_NAMES,
    script:
        "../scripts/report_page.py"
