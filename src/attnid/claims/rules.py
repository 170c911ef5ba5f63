"""The kinds of rule that claims share: a formula against measured ranks, and intervals over runs against thresholds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, nan

import numpy as np
import pandas as pd

from attnid.claims.ledger import (
    CORRECTED,
    NOT_REPRODUCED,
    QUALIFIED,
    REPRODUCED,
    Finding,
    NotFiniteError,
    Row,
)
from attnid.statistics import Estimate

SAME = 1e-9
"""Relative difference below which a measured and a printed number are the same: room for float64 division only."""

FORMULA_RULE = (
    "Reproduced if the formula gives the measured number in every row. Where it does not, the closed form of "
    "`attnid.counting` must: then qualified if the formula holds in some rows, corrected if in none. Otherwise not "
    "reproduced. Ranks are the proved ones; rows without a proof are left out."
)


@dataclass(frozen=True)
class Quantity:
    """A number a row, as measured by rank and as the closed form gives it."""

    name: str
    measured: pd.Series
    closed: pd.Series

    def per(self, whole: pd.Series, name: str) -> "Quantity":
        """The quantity as a share of another number of the row."""
        return Quantity(name, self.measured / whole, self.closed / whole)


def formula(rows: pd.DataFrame, quantity: Quantity, text: str, printed: pd.Series | float) -> Finding:
    """Compare a printed formula with what was measured in every row, under FORMULA_RULE.

    `measured` of the finding is the measured number where the formula is one number for all rows, and measured over
    printed otherwise; of the rows, the one where the two differ most.
    """
    constant = isinstance(printed, float)
    expected = pd.Series(printed, index=rows.index, dtype=float) if isinstance(printed, float) else printed
    ratio = quantity.measured / expected
    holds = _same(quantity.measured, expected)
    worst = furthest_from_one(ratio)
    evidence = f"{quantity.name}: {text} is the measured number in {holds.sum()} of {len(rows)} rows"
    if not holds.all():
        evidence += f"; not in {_examples(rows, quantity, expected, holds)}"
    return Finding(
        verdict=_formula_verdict(quantity, holds),
        evidence=evidence + ".",
        scale=rank_scale(rows),
        measured=float((quantity.measured if constant else ratio).iloc[worst]),
        rows=evidence_rows(quantity.name, rows["layer"], quantity.measured, expected, expected),
    )


def evidence_rows(
    part: str,
    items: Iterable[object],
    values: pd.Series,
    lower: pd.Series | float = nan,
    upper: pd.Series | float = nan,
    average: str | None = None,
) -> tuple[Row, ...]:
    """A row of evidence for each item: its value, and the range in which the rule wants it."""
    columns = [np.broadcast_to(np.asarray(column, dtype=float), len(values)) for column in (values, lower, upper)]
    rows = zip(items, *columns, strict=True)
    return tuple(
        Row(part, str(item), float(value), float(low), float(high), average) for item, value, low, high in rows
    )


def rank_scale(rows: pd.DataFrame) -> str:
    """Sizes of the layers whose rank settles a claim."""
    layers = "1 layer" if len(rows) == 1 else f"{len(rows)} layers"
    return f"proved rank of {layers}, width {span(rows['d_model'])}, heads {span(rows['n_heads'])}"


def combine(verdicts: Iterable[str]) -> str:
    """The verdict of a claim with several parts.

    Reproduced if all parts are; not reproduced if none is and at least one is not; otherwise qualified.
    """
    found = set(verdicts)
    if found == {REPRODUCED}:
        return REPRODUCED
    return NOT_REPRODUCED if NOT_REPRODUCED in found and REPRODUCED not in found else QUALIFIED


def holds_or_not(condition: bool) -> str:
    """The verdict of a part that has no interval."""
    return REPRODUCED if condition else NOT_REPRODUCED


@dataclass(frozen=True)
class Part:
    """One condition of a rule on runs: an estimate, and the interval in which it has to lie."""

    label: str
    estimate: Estimate
    lower: float = -inf
    upper: float = inf

    @property
    def verdict(self) -> str:
        """Reproduced if the whole 95 % interval lies inside, not reproduced if all of it lies outside, else qualified.

        A single run has no interval: inside is then `qualified`.
        """
        estimate = self.estimate
        if not estimate.finite:
            raise NotFiniteError(f"{self.label} has no finite value in some run")
        if estimate.n < 2:
            return QUALIFIED if self.lower < estimate.mean < self.upper else NOT_REPRODUCED
        if self.lower < estimate.low and estimate.high < self.upper:
            return REPRODUCED
        return NOT_REPRODUCED if estimate.high <= self.lower or estimate.low >= self.upper else QUALIFIED

    @property
    def text(self) -> str:
        """The estimate with its interval, and what was wanted."""
        estimate = self.estimate
        spread = f"95 % {number(estimate.low)} to {number(estimate.high)}" if estimate.n > 1 else "one run"
        return f"{self.label}: {number(estimate.mean)} ({spread}; wanted {self._wanted})"

    @property
    def rows(self) -> tuple[Row, ...]:
        """The value of every run."""
        lower, upper = (bound if isfinite(bound) else nan for bound in (self.lower, self.upper))
        values, average = self.estimate.values, self.estimate.average
        return evidence_rows(self.label, (f"seed {seed}" for seed in values.index), values, lower, upper, average)

    @property
    def _wanted(self) -> str:
        if isfinite(self.lower) and isfinite(self.upper):
            return f"{number(self.lower)} to {number(self.upper)}"
        return f"above {number(self.lower)}" if isfinite(self.lower) else f"below {number(self.upper)}"


def parts_finding(parts: Sequence[Part], notes: Sequence[str] = ()) -> Finding:
    """The finding of several parts; the first one is the claim's number."""
    first = parts[0].estimate
    return Finding(
        verdict=combine([part.verdict for part in parts]),
        evidence=" ".join(["; ".join(part.text for part in parts) + ".", *notes]),
        measured=first.mean,
        low=first.low,
        high=first.high,
        seeds=min(part.estimate.n for part in parts),
        rows=tuple(row for part in parts for row in part.rows),
    )


def with_verdict(finding: Finding, verdict: str, note: str = "") -> Finding:
    """The finding with another verdict, and a sentence more."""
    return replace(finding, verdict=verdict, evidence=f"{finding.evidence} {note}".strip())


def furthest_from_one(ratios: pd.Series) -> int:
    """Position of the ratio that differs most from 1."""
    return int(np.argmax(np.abs(ratios.to_numpy(dtype=float) - 1)))


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.3g}"


def percent(share: float) -> str:
    """A share as percent with one decimal."""
    return f"{100 * share:.1f} %"


def span(values: pd.Series) -> str:
    """Smallest to largest."""
    low, high = values.min(), values.max()
    return f"{low}" if low == high else f"{low} to {high}"


def _formula_verdict(quantity: Quantity, holds: pd.Series) -> str:
    if holds.all():
        return REPRODUCED
    if not _same(quantity.measured, quantity.closed)[~holds].all():
        return NOT_REPRODUCED
    return QUALIFIED if holds.any() else CORRECTED


def _examples(rows: pd.DataFrame, quantity: Quantity, expected: pd.Series, holds: pd.Series) -> str:
    shown = [
        f"{rows.loc[row, 'layer']}: {quantity.measured[row]:.6g} against {expected[row]:.6g}"
        for row in rows.index[~holds][:3]
    ]
    more = (~holds).sum() - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _same(first: pd.Series, second: pd.Series) -> pd.Series:
    close = np.isclose(first.astype(float), second.astype(float), rtol=SAME, atol=SAME)
    return pd.Series(close, index=first.index)
