"""Two ledgers side by side: which verdicts differ, and which numbers behind them by more than chance makes them.

- **Means over runs** (seeds, or draws of an invariance) are compared by Welch's t interval of their difference; of
  their factor, by the logarithms, where the ledger judges the geometric mean. The runs of both sides count as
  independent. Where both have the same seeds, the interval is then rather too wide: it may miss a difference, and
  does not make one up.
- **Many comparisons**: all intervals hold together at 95 % (Bonferroni: each at 1 - 0.05/m for m intervals), so that
  of two runs that differ by chance alone at most one pair in twenty has any mean that differs.
- **Exact numbers** (counts, ranks, shares, published sizes) differ where they are not equal to 1e-9.
- **A claim** differs where its verdict does, or a number behind it.
- **What one side lacks**: a claim that is absent or not run there has another verdict. A number that stands in one
  alone, such as that of a cell that the other did not train, is named and is no difference.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from math import isclose, isnan, nan

import numpy as np
import pandas as pd

from attnid.claims.rules import SAME
from attnid.statistics import ARITHMETIC, CONFIDENCE, GEOMETRIC, Difference, welch_interval

DIFFERS, AGREES, NO_INTERVAL, ONLY_A, ONLY_B = "differs", "agrees", "no interval", "only in A", "only in B"
ABSENT = "absent"
"""The verdict of a claim that a ledger does not list."""

RUN = r"^(?:(?P<of>.+), )?(?P<run>(?:seed|draw) \d+)$"
"""Items of the table evidence that are runs: `seed 3`, or of a cell `adamw_h4_3f2a91, seed 3`; and draws."""
KEY = ["id", "part", "item", "again"]

Key = tuple[Hashable, ...]


@dataclass(frozen=True)
class Ledger:
    """The tables claims and evidence of one results directory."""

    claims: pd.DataFrame
    evidence: pd.DataFrame


@dataclass(frozen=True)
class Comparison:
    """Two ledgers, A and B, as frames.

    `claims`: one row a claim of either, with `at`, `kind`, `statement`, the columns `verdict`, `measured`, `low`,
    `high` and `seeds` of both sides (`_a`, `_b`), `differing`, how many numbers behind it differ, and `state`.

    `numbers`: one row a mean over runs or an exact number, with `id`, `part`, `item` (layer, model or cell; empty for
    a mean that the claim has one of), `average` (missing for an exact number), `runs` and value of both sides
    (`runs_a`, `a`, ...), `difference` (b - a; b / a of geometric means), the ends `low` and `high` of its interval,
    `p_value` before correction, and `state`.
    """

    claims: pd.DataFrame
    numbers: pd.DataFrame

    @property
    def differs(self) -> bool:
        """Whether any claim does."""
        return bool((self.claims["state"] == DIFFERS).any())

    @property
    def tested(self) -> pd.DataFrame:
        """The means over runs that have an interval."""
        return self.numbers[self.numbers["p_value"].notna()]


@dataclass(frozen=True)
class _Sample:
    """The values of one part of a claim: of runs, or a single exact number, which has no average."""

    average: str | None
    values: np.ndarray

    @property
    def runs(self) -> int:
        return 0 if self.average is None else self.values.size

    def mean(self, average: str | None) -> float:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return float(np.exp(np.log(self.values).mean()) if average == GEOMETRIC else self.values.mean())


def compare(a: Ledger, b: Ledger) -> Comparison:
    """Which claims and numbers of two ledgers differ."""
    numbers = _numbers(_samples(a.evidence), _samples(b.evidence))
    return Comparison(_claims(a.claims, b.claims, numbers), numbers)


def _claims(a: pd.DataFrame, b: pd.DataFrame, numbers: pd.DataFrame) -> pd.DataFrame:
    said = ["id", "at", "kind", "statement"]
    both = pd.concat([a[said], b[said]]).drop_duplicates("id", ignore_index=True)
    for side, frame in (("a", a), ("b", b)):
        found = frame.set_index("id")[["verdict", "measured", "low", "high", "seeds"]].add_suffix(f"_{side}")
        both = both.join(found, on="id")
        both = both.fillna({f"verdict_{side}": ABSENT, f"seeds_{side}": 0}).astype({f"seeds_{side}": int})
    differing = numbers.loc[numbers["state"] == DIFFERS, "id"].value_counts()
    both["differing"] = both["id"].map(differing).fillna(0).astype(int)
    differs = (both["verdict_a"] != both["verdict_b"]) | (both["differing"] > 0)
    return both.assign(state=np.where(differs, DIFFERS, AGREES))


def _samples(evidence: pd.DataFrame) -> dict[Key, _Sample]:
    """The numbers behind the claims, those of runs put together."""
    found = evidence["item"].str.extract(RUN)
    run = found["run"].notna()
    rows = evidence.assign(
        item=found["of"].where(run, evidence["item"]).fillna(""),
        again=evidence.groupby(["id", "part", "item"]).cumcount(),
        average=evidence["average"].fillna(ARITHMETIC),
        run=run,
    )
    return {
        key: _Sample(group["average"].iloc[0] if group["run"].iloc[0] else None, group["value"].to_numpy(dtype=float))
        for key, group in rows.groupby(KEY, sort=False)
    }


def _numbers(a: dict[Key, _Sample], b: dict[Key, _Sample]) -> pd.DataFrame:
    singly = [_difference(a[key], b[key], CONFIDENCE) for key in a if key in b]
    tested = sum(not isnan(difference.p_value) for difference in singly)
    rows = list(_rows(a, b, 1 - (1 - CONFIDENCE) / max(tested, 1)))
    columns = ["average", "runs_a", "runs_b", "a", "b", "difference", "low", "high", "p_value", "state"]
    return pd.DataFrame(rows, columns=[*KEY, *columns]).drop(columns="again")


def _rows(a: dict[Key, _Sample], b: dict[Key, _Sample], confidence: float) -> Iterator[tuple[object, ...]]:
    for key in {**a, **b}:
        one, other = a.get(key), b.get(key)
        average = _average(one or other, other or one)
        of_a, of_b = ((0, nan) if side is None else (side.runs, side.mean(average)) for side in (one, other))
        if one is None or other is None:
            difference, state = Difference(nan, nan, nan, nan), ONLY_B if one is None else ONLY_A
        else:
            difference = _difference(one, other, confidence)
            state = _state(one, other, difference)
        yield (
            *key,
            average,
            *(of_a[0], of_b[0], of_a[1], of_b[1]),
            *(difference.mean, difference.low, difference.high, difference.p_value),
            state,
        )


def _average(one: _Sample | None, other: _Sample | None) -> str | None:
    """The mean by which two samples are compared: that of both, the plain one where they have different ones."""
    averages = {sample.average for sample in (one, other) if sample}
    return averages.pop() if len(averages) == 1 else ARITHMETIC


def _difference(one: _Sample, other: _Sample, confidence: float) -> Difference:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if _average(one, other) != GEOMETRIC:
            return welch_interval(one.values, other.values, confidence)
        logs = welch_interval(np.log(one.values), np.log(other.values), confidence)
        factor, low, high = map(float, np.exp([logs.mean, logs.low, logs.high]))
    return Difference(factor, low, high, logs.p_value)


def _state(one: _Sample, other: _Sample, difference: Difference) -> str:
    if _equal(one.values, other.values):
        return AGREES
    if one.average is None and other.average is None:
        return DIFFERS
    if isnan(difference.p_value):
        return NO_INTERVAL
    none = 1.0 if _average(one, other) == GEOMETRIC else 0.0
    return AGREES if difference.low <= none <= difference.high else DIFFERS


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two samples hold the same numbers, up to float64 division; missing ones are the same."""
    pairs = zip(np.sort(one), np.sort(other), strict=False)
    return one.size == other.size and all(
        isclose(left, right, rel_tol=SAME) or (isnan(left) and isnan(right)) for left, right in pairs
    )
