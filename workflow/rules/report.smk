rule report_page:
    input:
        **TABLES,
        **{f"made_with_{name}": path for name, path in MADE_WITH.items()},
        claims=rules.judge_claims.output.parquet,
        evidence=rules.judge_claims.output.evidence,
        figures=[path for path in FIGURES if path.suffix == ".png"],
        library=library(
            "report_page.py",
            *(f"attnid.figures.{name}" for name in FIGURE_NAMES),
        ),
        templates=[os.path.relpath(path) for path in sorted(pages.TEMPLATES.iterdir())],
    output:
        report(
            "results/report.html",
            caption="../report/page.rst",
            category="Page",
            labels={"file": "page to read"},
        ),
    log:
        "results/logs/report.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    params:
        figures=FIGURE_NAMES,
        options=configuration_options(),
        made_here=not CONFIG.tables,
        missing=[
            {
                "cell": block.parent.name,
                "seeds": " to ".join(block.name.split("-")[1:]),
                "last_words": last_words(
                    Path(f"results/logs/training/{block.parent.name}_{block.name}.log")
                ),
            }
            for block in MISSING
        ],
    script:
        "../scripts/report_page.py"
