import json
import resource
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from attnid import corpus, provenance, tables
from attnid.config import Cell
from attnid.job import job
from attnid.training import Progress, choose_device, train

REPORT_EVERY = 5.0

with job(snakemake.log[0]) as log:
    torch.set_num_threads(snakemake.threads)
    cell = Cell.model_validate(snakemake.params.settings)
    first, last = int(snakemake.wildcards.first), int(snakemake.wildcards.last)
    device = choose_device(snakemake.resources.device)
    started, begin, reported = datetime.now(UTC), time.monotonic(), 0.0

    def report(progress: Progress) -> None:
        global reported
        now = time.monotonic()
        if progress.step < progress.steps and now - reported < REPORT_EVERY:
            return
        reported = now
        left = (now - begin) / progress.step * (progress.steps - progress.step)
        log.info(
            f"{cell.id} seeds {first} to {last} on {device}: step {progress.step} of {progress.steps}, "
            f"loss {progress.loss:.3f}" + (f", {left:.0f} s left" if progress.step > 1 else "")
        )

    text = corpus.load(Path(snakemake.input.corpus), cell.context)
    frames = train(cell, text, range(first, last + 1), device, report)
    for table in (tables.STEPS, tables.HEADS, tables.REBALANCES):
        tables.write(table, frames[table.name], Path(snakemake.output[table.name]))
    run = {
        "cell": cell.id,
        "seeds": list(range(first, last + 1)),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "machine": provenance.machine(),
        "threads": snakemake.threads,
        "commit": provenance.commit(),
        "versions": provenance.versions(),
        "started": started.isoformat(timespec="seconds"),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "seconds": round(time.monotonic() - begin, 1),
        "settings": cell.model_dump(mode="json"),
    }
    Path(snakemake.output.run).write_text(json.dumps(run, indent=1) + "\n")
