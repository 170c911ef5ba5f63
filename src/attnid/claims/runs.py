"""Training runs as rules read them: a cell with its rows, per-seed numbers, and the scale in words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from attnid import statistics
from attnid.claims.ledger import NOT_REPRODUCED, Finding, MissingError, NotFiniteError, Tables, some, table
from attnid.claims.rules import Part, parts_finding
from attnid.statistics import Estimate, geometric_interval, paired_differences, per_seed, reduce_groups
from attnid.tables import PHASE_REBALANCED, PHASE_STEP

EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7}
"""Machine epsilon of a training precision."""

SETTLED = "settled part: steps after half of the run"
LAST_TENTH = "steps after nine tenths of the run"

PAPER_SCALE = {"n_layers": 6, "d_model": 384, "n_heads": 6, "context": 256, "batch_size": 64, "steps": 5000}
"""The paper's own scale, as far as it is printed or stock nanoGPT (section 5)."""


@dataclass(frozen=True)
class Cell:
    """One training cell: its row of the table cells, and its rows of heads (by phase), steps and evaluations."""

    settings: pd.Series
    heads: pd.DataFrame
    rebalanced: pd.DataFrame
    steps: pd.DataFrame
    evaluations: pd.DataFrame

    @property
    def name(self) -> str:
        """The cell's name."""
        return str(self.settings["cell"])

    @property
    def null(self) -> float:
        """Mean of rho for a random step: 1/(2H)."""
        return float(self.settings["rho_null_mean"])

    @property
    def epsilon(self) -> float:
        """Machine epsilon of the training."""
        return EPSILONS[str(self.settings["precision"])]

    @cached_property
    def seeds(self) -> int:
        """Runs of the cell."""
        return int(self.steps["seed"].nunique())

    def of_heads(self, *measures: str, after: float = 0.0) -> pd.DataFrame:
        """Rows of the phase `step`, after a share of the run, with these measures finite in the whole run."""
        return self._part(self._checked(self.heads, measures), after)

    def of_rebalanced(self, *measures: str) -> pd.DataFrame:
        """Rows of the phase `rebalanced`."""
        return self._checked(some(self.rebalanced, f"rebalancings in the cell {self.name}"), measures)

    def of_steps(self, *measures: str, after: float = 0.0) -> pd.DataFrame:
        """Rows of the table steps, after a share of the run."""
        return self._part(self._checked(self.steps, measures), after)

    def losses(self, after: float = 0.0) -> pd.DataFrame:
        """Rows of the table evaluations, after a share of the run."""
        return self._part(self._checked(self.evaluations, ["val_loss"]), after)

    def _part(self, rows: pd.DataFrame, after: float) -> pd.DataFrame:
        chosen = rows[rows["step"] > after * self.settings["steps"]]
        return some(chosen, f"measured steps after {after:.0%} of the run in the cell {self.name}")

    def _checked(self, rows: pd.DataFrame, measures: Sequence[str]) -> pd.DataFrame:
        for measure in measures:
            rows = statistics.defined(rows, measure)
            if rows.empty:
                raise MissingError(f"the cell {self.name} has no values of {measure}")
            astray = rows[~np.isfinite(rows[measure])]
            if len(astray):
                first = astray.groupby("seed")["step"].min()
                runs = ", ".join(f"seed {seed} from step {step}" for seed, step in first.items())
                raise NotFiniteError(f"{measure} is not finite in the cell {self.name}, {runs}")
        return rows


def cells(tables: Tables, group: str, **settings: Any) -> list[Cell]:
    """The cells of a group with these settings, in the table's order. Raises MissingError where there is none."""
    members = table(tables, "groups")
    chosen = table(tables, "cells")
    chosen = chosen[chosen["cell"].isin(members.loc[members["group"] == group, "cell"])]
    for column, value in settings.items():
        chosen = chosen[chosen[column] == value]
    wanted = ", ".join(f"{column} {value}" for column, value in settings.items())
    some(chosen, f"cells in the group {group}" + (f" with {wanted}" if wanted else ""))
    return [_cell(tables, row) for _, row in chosen.iterrows()]


def cell(tables: Tables, group: str, **settings: Any) -> Cell:
    """The one of these cells. Raises MissingError where there are several, for then it is not clear which is meant."""
    found = cells(tables, group, **settings)
    if len(found) > 1:
        names = ", ".join(run.name for run in found)
        raise MissingError(f"the group {group} has several cells where the rule reads one: {names}")
    return found[0]


def case(tables: Tables, name: str) -> Cell:
    """A case at the base head count: a cell of the group `cases`."""
    return cell(tables, "cases", case=name)


def every_cell(tables: Tables) -> list[Cell]:
    """All cells that were trained."""
    return [_cell(tables, row) for _, row in table(tables, "cells").iterrows()]


def _cell(tables: Tables, settings: pd.Series) -> Cell:
    name = settings["cell"]
    heads, steps, evaluations = (
        frame[frame["cell"] == name] for frame in (table(tables, part) for part in ("heads", "steps", "evaluations"))
    )
    some(heads, f"rows of the cell {name} in the table heads")
    some(steps, f"rows of the cell {name} in the table steps")
    some(evaluations, f"rows of the cell {name} in the table evaluations")
    of_steps, rebalanced = (heads[heads["phase"] == phase] for phase in (PHASE_STEP, PHASE_REBALANCED))
    return Cell(settings, of_steps, rebalanced, steps, evaluations)


# ------------------------------------------------------------------ one number a seed


def settled_median(cell: Cell, measure: str) -> pd.Series:
    """Median over layers, heads and the settled steps, by seed."""
    return per_seed(cell.of_heads(measure, after=0.5), measure)


def settled_ratio(cell: Cell, numerator: str, denominator: str) -> pd.Series:
    """Median over layers, heads and settled steps of |numerator| / denominator, by seed."""
    rows = cell.of_heads(numerator, denominator, after=0.5)
    return per_seed(rows.assign(ratio=rows[numerator].abs() / rows[denominator]), "ratio")


def overlap(cell: Cell) -> pd.Series:
    """rho of the settled steps over 1/(2H), by seed."""
    return settled_median(cell, "rho_qk") / cell.null


def departure(cell: Cell, measure: str) -> pd.Series:
    """Largest |value / first value - 1| of a run, median over layers and heads, by seed."""
    rows = by_step(cell.of_heads(measure), measure)
    largest = (rows.div(rows.iloc[0]) - 1).abs().max()
    return largest.groupby(level="seed").median()


def kept(cell: Cell, measure: str) -> pd.Series:
    """Last value over first value, median over layers and heads, by seed."""
    rows = by_step(cell.of_heads(measure), measure)
    return (rows.iloc[-1] / rows.iloc[0]).groupby(level="seed").median()


def largest_drop(cell: Cell) -> pd.Series:
    """beta just after a rebalancing over beta just before, the largest over rebalancings, layers and heads, by seed."""
    before, after = by_step(cell.of_heads("beta"), "beta"), by_step(cell.of_rebalanced("beta"), "beta")
    return (after / before.loc[after.index]).max().groupby(level="seed").max()


def by_step(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """A measure with steps as rows, in order, and (seed, layer, head) as columns."""
    return rows.pivot(index="step", columns=["seed", "layer", "head"], values=measure).sort_index()


def final_loss(cell: Cell) -> pd.Series:
    """Mean validation loss of the last tenth of the run, by seed, in nats a character."""
    return per_seed(cell.losses(after=0.9), "val_loss", "mean")


def factor(numerator: pd.Series, denominator: pd.Series) -> Estimate:
    """Geometric mean over paired seeds of numerator / denominator, with the interval of the logarithms."""
    seeds = numerator.index.intersection(denominator.index)
    if seeds.empty:
        raise MissingError("the cells compared have no seed in common")
    return geometric_interval(numerator[seeds] / denominator[seeds])


def difference(first: pd.Series, second: pd.Series) -> pd.Series:
    """first - second over paired seeds. Raises MissingError where they have none in common."""
    differences = paired_differences(first, second)
    if differences.empty:
        raise MissingError("the cells compared have no seed in common")
    return differences


def reduced(rows: pd.DataFrame, keys: list[str], measure: str, reduction: str | Callable[..., Any]) -> pd.DataFrame:
    """One row for each combination of the keys."""
    return reduce_groups(rows, keys, measure, reduction).reset_index()


# ------------------------------------------------------------------ findings


def training_finding(cells: Sequence[Cell], parts: Sequence[Part], *notes: str) -> Finding:
    """The finding of several parts on these cells, with their scale."""
    return scaled(parts_finding(parts, notes), cells)


def scaled(finding: Finding, cells: Sequence[Cell]) -> Finding:
    """The finding with its scale, and where weights behind it lack full rank.

    There the gauge has fewer directions than the null counts. A claim not reproduced says whose scale that is.
    """
    notes = [
        f"In {cell.name} {found}."
        for cell in cells
        for found in (statistics.rank_deficient(cell.heads), statistics.steps_of_length_zero(cell.heads))
        if found
    ]
    finding = replace(finding, scale=scale(cells, finding.seeds), evidence=" ".join([finding.evidence, *notes]))
    if finding.verdict != NOT_REPRODUCED:
        return finding
    own = all(
        all(cell.settings[name] == value for name, value in PAPER_SCALE.items())
        and cell.settings["corpus"] == "tiny-shakespeare"
        for cell in cells
    )
    note = "This is the paper's own scale." if own else "This is so at the scale given, which is not the paper's."
    return replace(finding, evidence=f"{finding.evidence} {note}")


def scale(cells: Sequence[Cell], seeds: int) -> str:
    """Sizes of the runs in words."""
    rows = pd.DataFrame([cell.settings for cell in cells])

    def values(column: str) -> str:
        return ", ".join(str(value) for value in sorted(set(rows[column])))

    parts = [
        f"{values('n_layers')} layers",
        f"width {values('d_model')}",
        f"{values('n_heads')} heads",
        f"context {values('context')}",
        f"batch {values('batch_size')}",
        f"{values('steps')} steps",
        values("corpus"),
        f"{seeds} seed" + ("" if seeds == 1 else "s"),
    ]
    if set(rows["precision"]) != {"float32"}:
        parts.append(values("precision"))
    return ", ".join(parts)


def pairing_note(differences: pd.Series, margin: float) -> str:
    """The equivalence test of paired differences in words."""
    test = statistics.equivalence(differences, margin)
    return f"Two one-sided t tests against {margin} nats: p = {test.p_value:.2g}."
