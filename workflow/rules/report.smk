rule report_page:
    input:
        **TABLES,
        **{f"made_with_{name}": path for name, path in MADE_WITH.items()},
        claims=rules.judge_claims.output.parquet,
        figures=[path for path in FIGURES if path.suffix == ".png"],
        library=library(
            "report_page.py",
            *(f"attnid.figures.{name}" for name in FIGURE_NAMES),
        ),
        templates=[os.path.relpath(path) for path in sorted(pages.TEMPLATES.iterdir())],
    output:
        "results/report.html",
    log:
        "results/logs/report.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    params:
        figures=FIGURE_NAMES,
    script:
        "../scripts/report_page.py"
