rule fetch_corpus:
    input:
        library=library("fetch_corpus.py"),
    output:
        CORPUS,
    params:
        corpus=CONFIG.corpus,
    log:
        "results/logs/corpus.log",
    conda:
        ENVIRONMENT
    script:
        "../scripts/fetch_corpus.py"
