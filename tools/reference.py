"""Keep the tables of a finished run, results/ unless given: python tools/reference.py [RESULTS [REFERENCE]]

Numbers keep seven digits, so that the files stay small. Every verdict must be the same from them.
"""

import shutil
import sys
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from attnid import claims, tables
from attnid.schema import FLOAT, TEXT, as_arrow

ROOT = Path(__file__).resolve().parent.parent
RESULTS, REFERENCE = ROOT / "results", ROOT / "reference"


def keep(table: tables.Table, source: Path, target: Path) -> pd.DataFrame:
    """Write a table with its numbers in seven digits, compressed; returns it as it is read again."""
    frame = tables.read(table, source)
    numbers = frame.select_dtypes(float).columns
    frame[numbers] = frame[numbers].astype(np.float32).astype(float)
    target.parent.mkdir(parents=True, exist_ok=True)
    split = [column.name for column in table.columns if column.type == FLOAT]
    texts = [column.name for column in table.columns if column.type == TEXT]
    options = {"use_byte_stream_split": split} if split else {}
    pq.write_table(
        as_arrow(table, frame), target, compression="zstd", compression_level=15, use_dictionary=texts, **options
    )
    return tables.read(table, target)


def main(results: Path, reference: Path) -> None:
    """Write all tables and what made them, and compare the verdicts."""
    shutil.rmtree(reference / "analysis", ignore_errors=True)
    shutil.rmtree(reference / "metrics", ignore_errors=True)
    kept = {}
    for place in ("analysis", "metrics"):
        for source in sorted((results / place).glob("*.parquet")):
            kept[source.stem] = keep(tables.BY_NAME[source.stem], source, reference / place / source.name)
    for name in ("runs.json", "config.json"):
        shutil.copy(results / "metrics" / name, reference / "metrics" / name)
    before = tables.read(tables.CLAIMS, results / "claims.parquet").set_index("id")["verdict"]
    after = claims.judge(kept).set_index("id")["verdict"]
    changed = after[after != before.reindex(after.index)]
    if len(changed):
        raise SystemExit(f"verdicts that seven digits change: {changed.to_dict()}")
    size = sum(path.stat().st_size for path in reference.rglob("*.parquet"))
    print(f"{len(kept)} tables, {size / 1e6:.1f} MB, {len(after)} verdicts the same")


if __name__ == "__main__":
    main(*(Path(given or usual) for given, usual in zip_longest(sys.argv[1:], (RESULTS, REFERENCE))))
