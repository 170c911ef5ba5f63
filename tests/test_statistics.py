"""Intervals, paired tests, exponents and the summary, against scipy, numpy and hand computation."""

from math import inf, isnan, nan

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from attnid import statistics, tables
from attnid.statistics import Estimate, equivalence, log_log_slope, paired_differences, per_seed, slope, t_interval

samples = st.lists(st.integers(-1000, 1000).map(lambda number: number / 16), min_size=2, max_size=12)


def test_t_interval_by_hand():
    estimate = t_interval([1.0, 2.0, 3.0])
    reach = 4.302652729911275 / np.sqrt(3)  # t quantile for 2 degrees of freedom, standard deviation 1
    assert estimate.n == 3
    assert estimate.mean == pytest.approx(2.0)
    assert (estimate.low, estimate.high) == pytest.approx((2 - reach, 2 + reach))


@given(samples)
def test_t_interval_is_scipys(values):
    if np.ptp(values) > 0:
        found, expected = t_interval(values), stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-9)


def test_one_run_has_no_interval_and_none_no_estimate():
    single = t_interval([3.0])
    assert (single.mean, single.n) == (3.0, 1)
    assert isnan(single.low)
    assert isnan(single.high)
    with pytest.raises(ValueError, match="at least one value"):
        t_interval([])


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_value_that_is_not_finite_is_not_dropped(bad):
    estimate = t_interval([1.0, bad, 2.0])
    assert not estimate.finite
    assert estimate.n == 3


def test_geometric_interval_by_hand():
    estimate, logs = statistics.geometric_interval([1.0, 10.0, 100.0]), t_interval(np.log([1.0, 10.0, 100.0]))
    assert estimate.mean == pytest.approx(10.0)
    assert (estimate.low, estimate.high) == pytest.approx((np.exp(logs.low), np.exp(logs.high)))
    assert not statistics.geometric_interval([1.0, 0.0]).finite
    assert not statistics.geometric_interval([1.0, -1.0]).finite


def test_paired_differences_use_the_seeds_in_common():
    first = pd.Series({0: 1.0, 1: 2.0, 2: 4.0})
    second = pd.Series({2: 1.0, 1: 1.5, 7: 9.0})
    assert paired_differences(first, second).to_dict() == {1: 0.5, 2: 3.0}


@given(samples, st.floats(0.01, 50))
def test_equivalence_is_two_one_sided_t_tests(values, margin):
    if np.ptp(values) == 0:
        return
    result = equivalence(values, margin)
    below = stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    above = stats.ttest_1samp(values, margin, alternative="less").pvalue
    assert result.p_value == pytest.approx(max(below, above), rel=1e-6, abs=1e-12)
    inside = -margin < result.difference.low and result.difference.high < margin
    assert result.equivalent == inside or min(abs(margin - abs(end)) for end in _ends(result.difference)) < 1e-9


def _ends(estimate: Estimate) -> tuple[float, float]:
    return estimate.low, estimate.high


def test_equal_runs_are_equivalent_and_one_run_proves_nothing():
    assert equivalence([0.01, 0.01, 0.01], 0.02) == statistics.Equivalence(t_interval([0.01] * 3), 0.02, 0.0, True)
    assert not equivalence([0.03, 0.03, 0.03], 0.02).equivalent
    single = equivalence([0.0], 0.02)
    assert not single.equivalent
    assert isnan(single.p_value)


@given(st.floats(-3, 3), st.floats(0.1, 10))
def test_exponent_of_a_power_law(exponent, scale):
    x = np.array([0.0625, 0.125, 0.25, 0.5])
    assert log_log_slope(x, scale * x**exponent) == pytest.approx(exponent, abs=1e-9)


def test_slope_is_polyfits_and_needs_finite_values_that_vary():
    x, y = [0.0, 1.0, 3.0], [1.0, -1.0, 2.0]
    assert slope(x, y) == pytest.approx(np.polyfit(x, y, 1)[0])
    assert isnan(slope([1.0, 1.0], [0.0, 2.0]))
    assert isnan(log_log_slope([1.0, 2.0], [0.0, 1.0]))
    assert isnan(log_log_slope([1.0, 2.0], [nan, 1.0]))


def _heads(values: dict[tuple[int, int, int], float]) -> pd.DataFrame:
    """Rows of the table heads with beta given by (seed, step, head); everything else 1."""
    rows = [
        {"cell": "a", "seed": seed, "step": step, "phase": "step", "layer": 0, "head": head, "beta": value}
        for (seed, step, head), value in values.items()
    ]
    frame = pd.DataFrame(rows).reindex(columns=tables.HEADS.names).assign(state="regular")
    return frame.fillna(dict.fromkeys(tables.HEAD_MEASURES, 1.0))


def _steps(seeds: int) -> pd.DataFrame:
    rows = [dict.fromkeys(tables.STEPS.names, 1.0) | {"cell": "a", "seed": seed, "step": 1} for seed in range(seeds)]
    return pd.DataFrame(rows)


def _losses(seeds: int) -> pd.DataFrame:
    return _steps(seeds).assign(val_loss=1.0)[tables.EVALUATIONS.names]


def test_per_seed_reduces_steps_layers_and_heads_to_one_number_a_run():
    heads = _heads({(0, 1, 0): 1.0, (0, 1, 1): 2.0, (0, 2, 0): 6.0, (1, 1, 0): 5.0, (1, 1, 1): inf})
    medians = per_seed(heads, "beta")
    assert medians[0] == 2.0
    assert isnan(medians[1])
    assert per_seed(heads, "beta", "max")[0] == 6.0


def test_summary_by_hand():
    heads = _heads({(0, 1, 0): 1.0, (0, 1, 1): 3.0, (0, 1, 2): 8.0, (1, 1, 0): 3.0, (1, 1, 1): 5.0, (1, 1, 2): 10.0})
    rebalanced = heads.assign(phase="rebalanced", beta=0.0)
    summary = statistics.summarise(_steps(2), _losses(2), pd.concat([heads, rebalanced], ignore_index=True))
    row = summary[summary["measure"] == "beta"].iloc[0]
    assert (row["minimum"], row["median"], row["mean"], row["maximum"], row["seeds"]) == (2.0, 4.0, 5.0, 9.0, 2)
    interval = t_interval([3.0, 5.0])
    assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high))


def test_summary_holds_every_measure_once_a_step_and_fits_its_table(tmp_path):
    heads = _heads({(seed, 1, head): 1.0 for seed in range(3) for head in range(2)})
    summary = statistics.summarise(_steps(3), _losses(3), heads)
    assert sorted(summary["measure"]) == sorted(["val_loss", *tables.HEAD_MEASURES, *statistics.STEP_MEASURES.values()])
    losses = summary[summary["measure"].isin(["val_loss", "model_update_norm"])]
    assert (losses[["minimum", "median", "mean", "maximum"]] == 1.0).all(axis=None)
    tables.write(tables.SUMMARY, summary, tmp_path / "summary.parquet")
    assert len(tables.read(tables.SUMMARY, tmp_path / "summary.parquet")) == len(summary)


def test_summary_of_a_run_that_went_astray_is_missing_there_alone(tmp_path):
    heads = _heads({(0, 1, 0): 1.0, (1, 1, 0): 1.0, (0, 2, 0): 1.0, (1, 2, 0): 2.0})
    heads.loc[(heads["seed"] == 1) & (heads["step"] == 1), ["beta", "state"]] = nan, "not finite"
    summary = statistics.summarise(_steps(2), _losses(2), heads)
    beta = summary[summary["measure"] == "beta"].set_index("step")
    assert beta.loc[1, ["minimum", "median", "mean", "maximum", "low", "high"]].isna().all()
    assert beta.loc[2, "median"] == 1.5
    tables.write(tables.SUMMARY, summary, tmp_path / "summary.parquet")


def test_a_step_of_length_zero_has_no_rho_and_leaves_the_others_theirs(tmp_path):
    heads = _heads({(0, 1, 0): 1.0, (0, 1, 1): 3.0, (1, 1, 0): 1.0, (1, 1, 1): 5.0, (0, 2, 0): 1.0, (1, 2, 0): 1.0})
    none = (heads["seed"] == 1) & (heads["step"] == 1) & (heads["head"] == 1)
    heads.loc[none, "rho_qk"] = nan
    summary = statistics.summarise(_steps(2), _losses(2), heads)
    rho = summary[summary["measure"] == "rho_qk"].set_index("step")
    beta = summary[summary["measure"] == "beta"].set_index("step")
    assert rho["seeds"].tolist() == beta["seeds"].tolist() == [2, 2]
    assert rho["median"].notna().all()
    only = heads[~none & (heads["step"] == 1)].groupby("seed")["rho_qk"].median().mean()
    assert rho.loc[1, "median"] == pytest.approx(only)


def test_summary_of_one_seed_has_no_interval():
    summary = statistics.summarise(_steps(1), _losses(1), _heads({(0, 1, 0): 1.0}))
    assert summary[["low", "high"]].isna().all(axis=None)
    assert (summary["seeds"] == 1).all()
