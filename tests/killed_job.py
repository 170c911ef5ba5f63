"""One training job in the current directory, for tests that kill it: python killed_job.py PRECISION OUT"""

import logging
import sys
from pathlib import Path

import torch
from settings import cell

from attnid import tables
from attnid.training_job import run
from attnid.training_tables import TRAINING

CPU = torch.device("cpu")

if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    precision, out = sys.argv[1], Path(sys.argv[2])
    settings = cell(
        steps=600,
        measure_every=20,
        evaluate_every=40,
        dropout=0.1,
        rebalance="qk",
        rebalance_every=70,
        precision=precision,
    )
    print("started", flush=True)
    frames, record = run(settings, 0, 1, Path("text.txt"), CPU, "code", logging.getLogger(), checkpoint_every=0.2)
    for table in TRAINING:
        tables.write(table, frames[table.name], out / f"{table.name}.parquet")
    print(record.continued_from)
