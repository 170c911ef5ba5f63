rule analyse_layers:
    input:
        library=library("analyse_layers.py"),
        models=os.path.relpath(sources.PACKAGE / "data" / "architectures.csv"),
        lock=LOCK,
    output:
        **{name: paths.analysis(name) for name in ANALYSIS},
    log:
        "results/logs/analysis.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(1500),
        runtime=growing(30),
    params:
        analysis=CONFIG.analysis.model_dump(mode="json"),
    script:
        "../scripts/analyse_layers.py"
