"""Run the smoke pipeline anew and compare its tables with those kept in reference/smoke: python tools/verify.py

With a directory of results as argument, that run is compared in place of a new one. Whole numbers, words and truth
values have to be equal. Other numbers may differ by one percent of the largest of their column in the same cell, or in
the table where it has no cells: float32 sums are taken in another order on another machine. Overlap and drift of SGD
are of second order in the step, and in float32 below rounding: these columns may differ by one percent of the largest
in the table. They, and columns that hold nothing but rounding, have to be of the same size in every cell, within a
factor of 100.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from attnid import tables
from attnid.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "reference" / "smoke"
PARTS = ("Snakefile", "workflow", "config", "config.yaml", "src", "profiles", "environment.yml", "requirements.lock")
TOLERANCE, SAME_SIZE = 0.01, 100.0
ROUNDING = {
    *("largest_dropped", "error_epsilons", "output_error", "grad_norm_key_bias", "norm_key_bias"),
    *("rho_qk_gradient", "rho_qk_augmented_gradient", "rho_vo_gradient", "rho_vo_augmented_gradient"),
    "imbalance_rate_augmented",
}


SECOND_ORDER = {
    *("rho_qk", "rho_qk_augmented", "rho_qk_scaling", "rho_qk_rotation", "rho_vo", "rho_vo_augmented"),
    *("drift", "drift_augmented"),
}


class Difference(NamedTuple):
    """The largest difference of a column in a cell, relative to what it may be a part of, and if it is too much."""

    table: str
    cell: str
    column: str
    size: float
    too_large: bool


def compare(kept: Path, found: Path) -> Iterator[Difference]:
    """Differences of all tables below two directories of results."""
    for place, group in (("analysis", tables.ANALYSIS), ("metrics", tables.METRICS)):
        for table in group:
            if table is tables.SUMMARY:  # made from the others
                continue
            before, after = (tables.read(table, results / place / f"{table.name}.parquet") for results in (kept, found))
            yield from _compare(table, before, after)


def _compare(table: tables.Table, before: pd.DataFrame, after: pd.DataFrame) -> Iterator[Difference]:
    numbers = list(before.select_dtypes("float").columns)
    exact = before.columns.difference(numbers)
    if not before[exact].equals(after[exact]):
        changed = [name for name in exact if not before[name].equals(after[name])]
        yield Difference(table.name, "", ", ".join(changed), np.inf, True)
        return
    cells = before["cell"] if "cell" in before and table is not tables.CELLS else pd.Series("", index=before.index)
    for cell, rows in before.groupby(cells):
        for column in numbers:
            whole = before[column].abs().max() if column in SECOND_ORDER else None
            yield _difference(table.name, str(cell), column, rows[column], after.loc[rows.index, column], whole)


def _difference(
    table: str, cell: str, column: str, before: pd.Series, after: pd.Series, whole: float | None
) -> Difference:
    here, there = (values[np.isfinite(values)].abs().max() for values in (before, after))
    same = np.isfinite(before).equals(np.isfinite(after))
    if not same or not len(before) or np.isnan(here):
        return Difference(table, cell, column, 0.0 if same else np.inf, not same)
    size = float((before - after).abs().max() / (whole or here)) if here else float(there)
    another_size = not here / SAME_SIZE <= there <= here * SAME_SIZE
    if column in ROUNDING:
        return Difference(table, cell, column, size, another_size)
    return Difference(table, cell, column, size, size > TOLERANCE or (column in SECOND_ORDER and another_size))


def copy_workflow(place: Path) -> None:
    """Copy what a run needs to a directory."""
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, place / part)


def run_smoke(place: Path) -> Path:
    """The results of a new run of the smoke pipeline in a directory of its own."""
    copy_workflow(place)
    command = [sys.executable, "-m", "snakemake", "--cores", "all", "analysis", "metrics"]
    subprocess.run([*command, "--configfile", "config/smoke.yaml"], cwd=place, check=True)
    return place / "results"


def verdict(differences: list[Difference]) -> list[str]:
    """What came out, in lines: what is too large, or the largest of what is not."""
    failed = [each for each in differences if each.too_large]
    shown = failed or sorted((each for each in differences if each.column not in ROUNDING), key=lambda each: -each.size)
    lines = [f"{each.table} {each.cell} {each.column}: {each.size:.2g}" for each in shown[:10]]
    if failed:
        return [f"{len(failed)} of {len(differences)} columns differ by more than they may:", *lines]
    return [f"all {len(differences)} columns agree; the largest differences, relative to their column:", *lines[:3]]


def main() -> int:
    """Compare and print; 1 where something differs by more than it may, 2 where there is nothing to compare."""
    with tempfile.TemporaryDirectory(prefix="attnid-verify-") as place:
        try:
            found = Path(sys.argv[1]) if sys.argv[1:] else run_smoke(Path(place))
            differences = list(compare(REFERENCE, found))
        except UserError as error:
            print(f"verify: {error}", file=sys.stderr)
            return 2
    print("\n".join(verdict(differences)))
    return int(any(each.too_large for each in differences))


if __name__ == "__main__":
    sys.exit(main())
