rule judge_claims:
    input:
        **TABLES,
        library=library("judge_claims.py"),
    output:
        parquet="results/claims.parquet",
        markdown="results/claims.md",
        latex="results/claims.tex",
    log:
        "results/logs/claims.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    script:
        "../scripts/judge_claims.py"
