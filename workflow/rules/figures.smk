rule draw_figure:
    input:
        unpack(figure_tables),
        library=lambda wildcards: library(
            "draw_figure.py", f"attnid.figures.{wildcards.figure}"
        ),
    output:
        pdf="results/figures/{figure}.pdf",
        png=report(
            "results/figures/{figure}.png",
            caption="../report/figure.rst",
            category="Figures",
            subcategory=figure_subcategory,
            labels=figure_labels,
        ),
    log:
        "results/logs/figures/{figure}.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    params:
        caption=figure_caption,
    script:
        "../scripts/draw_figure.py"
