LATEX_TABLES = [
    "verdicts",
    "departures",
    "architectures",
    "counts",
    "overlap",
    "losses",
    "squad",
]


rule write_latex_tables:
    input:
        **TABLES,
        claims=rules.judge_claims.output.parquet,
        library=library("write_latex_tables.py"),
    output:
        **{name: paths.latex_table(name) for name in LATEX_TABLES},
    log:
        "results/logs/latex_tables.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    script:
        "../scripts/write_latex_tables.py"


rule typeset_article:
    input:
        article=os.path.relpath(ARTICLE),
        macros=rules.judge_claims.output.latex,
        tables=rules.write_latex_tables.output,
        figures=article_figures,
        library=library("typeset_article.py"),
    output:
        "results/article.pdf",
    log:
        "results/logs/article.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    script:
        "../scripts/typeset_article.py"
