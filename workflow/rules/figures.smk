TABLES = {name: paths.analysis(name) for name in ANALYSIS} | {
    name: paths.metrics(name) for name in METRICS
}


def figure_tables(wildcards):
    """Tables that a figure is drawn from, by name."""
    names = figure_modules.load(wildcards.figure).TABLES
    return {name: TABLES[name] for name in names}


rule draw_figure:
    input:
        unpack(figure_tables),
        library=lambda wildcards: library(
            "draw_figure.py", f"attnid.figures.{wildcards.figure}"
        ),
    output:
        pdf="results/figures/{figure}.pdf",
        png="results/figures/{figure}.png",
    log:
        "results/logs/figures/{figure}.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=1000,
    script:
        "../scripts/draw_figure.py"
