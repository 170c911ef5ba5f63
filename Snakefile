"""Rebuild every numerical claim of arXiv 2609.01231: snakemake --cores N"""

from snakemake.utils import min_version

min_version("9.0")


configfile: "config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/corpus.smk"
include: "workflow/rules/analysis.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/metrics.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/article.smk"


localrules:
    all,
    fetch_corpus,
    prefetch,
    analysis,
    training,
    metrics,
    figures,
    claims,
    report,
    article,


rule all:
    default_target: True
    input:
        rules.report_page.output,
        rules.judge_claims.output,
        rules.write_latex_tables.output,
        FIGURES,


rule prefetch:
    input:
        CORPUS,


rule analysis:
    input:
        made_here(rules.analyse_layers.output),


rule training:
    input:
        made_here(list(BLOCK_TABLES.values())),


rule metrics:
    input:
        made_here(rules.collect_metrics.output),


rule figures:
    input:
        FIGURES,


rule claims:
    input:
        rules.judge_claims.output,


rule report:
    input:
        rules.report_page.output,


rule article:
    input:
        rules.typeset_article.output,


onsuccess:
    report = Path("results/report.html")
    if report.exists() and report.stat().st_mtime >= STARTED:
        print("Done. The page to read is results/report.html.", file=sys.stderr)


onerror:
    print(
        "What is done stays, and the same command goes on from there. A page from the training jobs that are done, which "
        "names the others: the same command with --config partial=true.",
        file=sys.stderr,
    )
