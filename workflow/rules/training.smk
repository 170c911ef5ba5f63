rule train_cell:
    input:
        corpus=CORPUS,
        library=library("train_cell.py"),
        optimizer=optimizer_files,
        lock=LOCK,
    output:
        steps="results/training/{cell}/seeds-{first}-{last}/steps.parquet",
        evaluations="results/training/{cell}/seeds-{first}-{last}/evaluations.parquet",
        heads="results/training/{cell}/seeds-{first}-{last}/heads.parquet",
        rebalances="results/training/{cell}/seeds-{first}-{last}/rebalances.parquet",
        run="results/training/{cell}/seeds-{first}-{last}/run.json",
    log:
        "results/logs/training/{cell}_seeds-{first}-{last}.log",
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        device=CONFIG.device,
        tensorboard=int(CONFIG.tensorboard),
        gpu=int(GPU),
        mem_mb=lambda wildcards, attempt: attempt
        * (
            plan.SNAKEMAKE_MB
            + plan.job_memory(CELLS[wildcards.cell], members(wildcards))
        ),
        runtime=lambda wildcards, attempt: attempt
        * plan.job_minutes(CELLS[wildcards.cell], members(wildcards), GPU),
    params:
        settings=lambda wildcards: CELLS[wildcards.cell].model_dump(mode="json"),
    script:
        "../scripts/train_cell.py"
