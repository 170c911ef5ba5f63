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
        mem_mb=growing(1000),
        runtime=growing(10),
    script:
        "../scripts/draw_figure.py"
