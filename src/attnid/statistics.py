"""Statistics over runs: a seed is a run, and only runs count as independent.

Layers, heads and steps of one run are reduced to one number a seed first (`per_seed`); intervals are t intervals over
those numbers. A value that is not finite is never dropped: what it enters is not finite either.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from math import isfinite, nan

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from attnid.tables import HEAD_MEASURES, NOT_FINITE, PHASE_STEP, RANK_DEFICIENT, SUMMARY

CONFIDENCE = 0.95
ARITHMETIC, GEOMETRIC = "arithmetic", "geometric"
"""Means over runs."""
SAME_LOSS = 0.02
"""Nats a character within which two losses count as the same: the margin of the equivalence tests."""

STEP_MEASURES = {
    "lr": "lr",
    "train_loss": "train_loss",
    "grad_norm": "grad_norm",
    "update_norm": "model_update_norm",
}
"""Columns of the table steps, and the names of their measures in the table summary."""


@dataclass(frozen=True)
class Estimate:
    """A mean over runs with its t interval. `low` and `high` are NaN for fewer than two runs.

    `values` are the runs' own, by seed where they came so; `average` says which mean of them it is.
    """

    mean: float
    low: float
    high: float
    n: int
    values: pd.Series = field(default_factory=lambda: pd.Series(dtype=float), repr=False, compare=False)
    average: str = ARITHMETIC

    @property
    def finite(self) -> bool:
        """Whether every run gave a finite value."""
        return isfinite(self.mean)


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided t tests of a mean difference against a margin.

    `p_value` is the larger of the two; `equivalent` says that both tests reject, which is the same as the interval of
    `difference` lying inside (-margin, margin).
    """

    difference: Estimate
    margin: float
    p_value: float
    equivalent: bool


@dataclass(frozen=True)
class Difference:
    """A mean less another, of runs that have nothing to do with each other, with its interval.

    `p_value` is that of a difference this large where the means are equal. All but `mean` are NaN where a side has
    fewer than two runs.
    """

    mean: float
    low: float
    high: float
    p_value: float


def t_interval(values: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """Mean of one value a run, with its two-sided t interval. Raises ValueError without a value."""
    by_run = pd.Series(values, dtype=float)
    sample, n = by_run.to_numpy(), len(by_run)
    if n == 0:
        raise ValueError("an estimate needs at least one value")
    if not np.isfinite(sample).all():
        return Estimate(nan, nan, nan, n, by_run)
    mean = float(sample.mean())
    if n < 2:
        return Estimate(mean, nan, nan, n, by_run)
    reach = _quantile(confidence, n) * _standard_error(sample)
    return Estimate(mean, mean - reach, mean + reach, n, by_run)


def geometric_interval(values: ArrayLike, confidence: float = CONFIDENCE) -> Estimate:
    """Geometric mean of one value a run, with the t interval of the logarithms; NaN where one is not positive."""
    by_run = pd.Series(values, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = t_interval(np.log(by_run), confidence)
    mean, low, high = np.exp([logs.mean, logs.low, logs.high])
    return Estimate(float(mean), float(low), float(high), logs.n, by_run, GEOMETRIC)


def welch_interval(first: ArrayLike, second: ArrayLike, confidence: float = CONFIDENCE) -> Difference:
    """Mean of the second sample less that of the first, with Welch's t interval: each has its own variance."""
    samples = [np.asarray(values, dtype=float) for values in (first, second)]
    with np.errstate(invalid="ignore"):
        mean = float(samples[1].mean() - samples[0].mean())
    if not isfinite(mean) or min(sample.size for sample in samples) < 2:
        return Difference(mean, nan, nan, nan)
    errors = np.array([_standard_error(sample) for sample in samples])
    error = float(np.hypot(*errors))
    if error == 0:
        return Difference(mean, mean, mean, float(mean == 0))
    freedom = 1 / sum((part / error) ** 4 / (sample.size - 1) for part, sample in zip(errors, samples, strict=True))
    reach = float(stats.t.ppf((1 + confidence) / 2, freedom)) * error
    return Difference(mean, mean - reach, mean + reach, 2 * float(stats.t.sf(abs(mean) / error, freedom)))


def paired_differences(first: pd.Series, second: pd.Series) -> pd.Series:
    """first - second for the seeds that both have; both are indexed by seed."""
    seeds = first.index.intersection(second.index)
    return first.loc[seeds] - second.loc[seeds]


def equivalence(differences: ArrayLike, margin: float, confidence: float = CONFIDENCE) -> Equivalence:
    """Test that a mean paired difference lies inside (-margin, margin), each side at (1 - confidence) / 2.

    A single run gives no test: its p value is NaN and it is not equivalent.
    """
    estimate = t_interval(differences, confidence)
    if not isfinite(estimate.low):
        return Equivalence(estimate, margin, nan, False)
    p_value = _one_sided(margin - abs(estimate.mean), np.asarray(differences, dtype=float))
    return Equivalence(estimate, margin, p_value, p_value < (1 - confidence) / 2)


def log_log_slope(x: ArrayLike, y: ArrayLike) -> float:
    """Least-squares slope of log y against log x: the exponent of a power law.

    NaN where a value is not positive and finite, or x does not vary.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return slope(np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float)))


def slope(x: ArrayLike, y: ArrayLike) -> float:
    """Least-squares slope of y against x; NaN where a value is not finite or x does not vary."""
    abscissa, ordinate = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if not (np.isfinite(abscissa).all() and np.isfinite(ordinate).all()) or np.ptp(abscissa) == 0:
        return nan
    centred = abscissa - abscissa.mean()
    return float(centred @ ordinate / (centred @ centred))


def defined(heads: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Rows without those in which a measure has no value although the weights are finite.

    That is a share, or a ratio, of a step or gradient of length zero. Rows of tables without a state stay.
    """
    return heads[~undefined(heads, measure)]


def undefined(heads: pd.DataFrame, measure: str) -> pd.Series:
    """Where a measure has no value although the weights are finite; nowhere in tables without a state."""
    if "state" not in heads:
        return pd.Series(False, index=heads.index)
    return heads[measure].isna() & (heads["state"] != NOT_FINITE)


def steps_of_length_zero(heads: pd.DataFrame) -> str:
    """How many steps of heads have length zero, in words; empty for none."""
    none, all_steps = int((heads["update_norm"] == 0).sum()), int(heads["update_norm"].notna().sum())
    return f"{none} of {all_steps} steps of heads have length zero and no rho" if none else ""


def rank_deficient(heads: pd.DataFrame) -> str:
    """Where query or key weights in rows of the table heads lack full rank, in words; empty for nowhere."""
    rows = heads[heads["state"] == RANK_DEFICIENT]
    if rows.empty:
        return ""
    places = sorted(set(zip(rows["layer"], rows["head"], strict=True)))
    shown = ", ".join(f"layer {layer} head {head}" for layer, head in places[:3])
    more = f" and {len(places) - 3} more heads" if len(places) > 3 else ""
    runs, of = rows["seed"].nunique(), heads["seed"].nunique()
    return f"weights without full rank in {runs} of {of} runs, first at step {rows['step'].min()}: {shown}{more}"


def per_seed(frame: pd.DataFrame, measure: str, reduction: str | Callable[[pd.Series], float] = "median") -> pd.Series:
    """One number a seed: all rows of a run (steps, layers, heads) reduced, indexed by seed.

    A seed with a value that is not finite, or missing, gets NaN.
    """
    return reduce_groups(frame, ["seed"], measure, reduction)


def reduce_groups(
    frame: pd.DataFrame, keys: list[str], measure: str, reduction: str | Callable[[pd.Series], float] = "median"
) -> pd.Series:
    """One number for each combination of the keys; NaN where a row's value is not finite or missing."""
    groups = frame.groupby(keys[0] if len(keys) == 1 else keys)[measure]
    finite = np.isfinite(frame[measure]).groupby([frame[key] for key in keys]).all()
    reduced: pd.Series = groups.agg(reduction).where(finite)
    return reduced


def summarise(
    steps: pd.DataFrame,
    evaluations: pd.DataFrame,
    heads: pd.DataFrame,
    head_measures: Iterable[str] = HEAD_MEASURES,
) -> pd.DataFrame:
    """The table summary: every measure of the tables steps and evaluations, and those named of heads (phase `step`).

    Reduced over layers and heads, then over seeds.

    A measure that is not finite in a run is so in the summary of that step; heads without a value, for their step has
    length zero, are left out.
    """
    head_rows = heads[heads["phase"] == PHASE_STEP]
    parts = [_summarise_measure(steps, column, name) for column, name in STEP_MEASURES.items()]
    parts += [_summarise_measure(evaluations, "val_loss", "val_loss")]
    parts += [_summarise_measure(defined(head_rows, column), column, column) for column in head_measures]
    return pd.concat(parts, ignore_index=True)[SUMMARY.names]


def _summarise_measure(frame: pd.DataFrame, column: str, name: str) -> pd.DataFrame:
    run, point = ["cell", "step", "seed"], ["cell", "step"]
    reductions: dict[Hashable, str] = {"minimum": "min", "median": "median", "mean": "mean", "maximum": "max"}
    over_heads = pd.DataFrame({key: reduce_groups(frame, run, column, how) for key, how in reductions.items()})
    seeds = over_heads.groupby(level=point)
    complete = over_heads["mean"].notna().groupby(level=point).all()
    summary = seeds.mean().where(complete, nan)
    n = seeds.size()
    quantiles = n.map({size: _quantile(CONFIDENCE, size) for size in n.unique()})
    reach = quantiles * seeds["median"].sem()
    summary = summary.assign(measure=name, seeds=n, low=summary["median"] - reach, high=summary["median"] + reach)
    return summary.reset_index()


def _quantile(confidence: float, n: int) -> float:
    return float(stats.t.ppf((1 + confidence) / 2, n - 1)) if n > 1 else nan


def _one_sided(room: float, sample: np.ndarray) -> float:
    """p value of the t test that the mean stays short of a bound, `room` away; the nearer bound has the larger one."""
    error = _standard_error(sample)
    if error == 0:
        return 0.0 if room > 0 else 1.0
    return float(stats.t.sf(room / error, sample.size - 1))


def _standard_error(sample: np.ndarray) -> float:
    return float(sample.std(ddof=1) / np.sqrt(sample.size))
