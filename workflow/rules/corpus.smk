rule fetch_corpus:
    input:
        library=library("fetch_corpus.py"),
    output:
        CORPUS,
    log:
        "results/logs/corpus.log",
    conda:
        ENVIRONMENT
    params:
        corpus=lambda wildcards: CONFIG.corpus,
    script:
        "../scripts/fetch_corpus.py"
