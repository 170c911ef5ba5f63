rule judge_claims:
    input:
        **TABLES,
        made_with_config=MADE_WITH["config"],
        library=library("judge_claims.py"),
    output:
        parquet="results/claims.parquet",
        evidence="results/evidence.parquet",
        markdown=report(
            "results/claims.md",
            caption="../report/ledger.rst",
            category="Claims",
            labels={"file": "verdicts"},
        ),
        latex="results/claims.tex",
    log:
        "results/logs/claims.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    params:
        config=None if CONFIG.tables else SETTINGS,
    script:
        "../scripts/judge_claims.py"
