"""Claims that a layer's output before and after a transformation settles (table invariances), with ranks beside it."""

from dataclasses import dataclass, replace
from math import nan

import pandas as pd

from attnid.claims.counts import proved, ungrouped
from attnid.claims.ledger import INVARIANCE, NOT_REPRODUCED, REPRODUCED, Finding, Row, Tables, claim, some, table
from attnid.claims.rules import FORMULA_RULE, Quantity, combine, evidence_rows, formula, holds_or_not, number

UNCHANGED, CHANGED = 1e4, 1e6
"""Relative change of the output in float64 epsilons: below the first a layer is unchanged, above the second changed."""

THRESHOLDS = (
    f"Unchanged: relative change of the output below {UNCHANGED:.0e} float64 epsilons in every draw; changed: above "
    f"{CHANGED:.0e} in every draw. "
)
ALL_OR_NOTHING = "Reproduced if all are so, not reproduced if none is, otherwise qualified."


@claim(
    "gauge-invariance",
    place=11,
    at="4.2",
    kind=INVARIANCE,
    statement="Queries by S and keys by S^-T, values by S and outputs by S^-1: the layer does the same",
    rule=THRESHOLDS + "Both transformations leave the layer unchanged. " + ALL_OR_NOTHING,
)
def _(tables: Tables) -> Finding:
    return _all_expected(unchanged=[_outcome(tables, "query-key-gauge"), _outcome(tables, "value-output-gauge")])


@claim(
    "bias-gauge",
    place=12,
    at="4.6",
    kind=INVARIANCE,
    statement="The biases have to move along with the weights, or the layer changes",
    rule=THRESHOLDS + "Moving weights and biases leaves the layer unchanged; moving the weights alone changes it. "
    "" + ALL_OR_NOTHING,
)
def _(tables: Tables) -> Finding:
    return _all_expected(
        unchanged=[_outcome(tables, "query-key-gauge-with-biases")],
        changed=[_outcome(tables, "query-key-gauge-biases-left")],
    )


@claim(
    "rope-group",
    place=20,
    at="4.8.2",
    kind=INVARIANCE,
    statement="Under RoPE, scaled rotations of the planes leave the scores, other S do not",
    rule=THRESHOLDS + "A commuting S leaves the layer unchanged, a general one changes it. " + ALL_OR_NOTHING,
)
def _(tables: Tables) -> Finding:
    return _all_expected(unchanged=[_outcome(tables, "rope-commuting")], changed=[_outcome(tables, "rope-general")])


@claim(
    "key-bias-dead",
    place=13,
    at="4.7.1",
    kind=INVARIANCE,
    statement="The key bias of any softmax head does nothing",
    printed="HD per layer",
    rule=THRESHOLDS + "Not reproduced if a new key bias does not leave a layer without RoPE unchanged. Otherwise two "
    "parts: it leaves a layer with RoPE unchanged; and in all rows of ranks with a key bias and no grouping, with RoPE "
    "or not, the directions beyond the gauge are H D, by this rule: " + FORMULA_RULE + " Reproduced if both parts "
    "are, otherwise qualified.",
)
def _(tables: Tables) -> Finding:
    rows = ungrouped(proved(tables))
    rows = some(rows[rows["key_bias"]], "layers with a key bias")
    dead = Quantity(
        "Dead key biases",
        rows["parameters_qk"] - rows["exact_lower_qk"] - rows["query_key_gauge"],
        rows["dead_key_bias"],
    )
    counted = formula(rows, dead, "H D", rows["n_heads"] * rows["qk_head_dim"])
    anywhere, under_rope = _outcome(tables, "key-bias-any"), _outcome(tables, "rope-key-bias")
    parts = [holds_or_not(under_rope.unchanged), counted.verdict]
    finding = _dead(anywhere, parts, under_rope.text, counted)
    return replace(finding, rows=finding.rows + under_rope.rows(upper=UNCHANGED))


@claim(
    "value-bias-dead",
    place=14,
    at="4.7.2",
    kind=INVARIANCE,
    statement="The value bias of any multi-head layer can go into the output bias",
    printed="HC per layer",
    rule=THRESHOLDS + "Not reproduced if folding a value bias into the output bias does not leave the layer unchanged. "
    "Otherwise: all rows of ranks with a value bias and no grouping, with an output bias or not. Measured: "
    "value/output directions beyond the gauge; formula: H C. " + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = ungrouped(proved(tables))
    rows = some(rows[rows["value_bias"]], "layers with a value bias")
    dead = Quantity(
        "Dead value biases",
        rows["parameters_vo"] - rows["exact_lower_vo"] - rows["value_output_gauge"],
        rows["dead_value_bias"],
    )
    counted = formula(rows, dead, "H C", rows["n_heads"] * rows["v_head_dim"])
    return _dead(_outcome(tables, "value-bias-folded"), [counted.verdict], "", counted)


@dataclass(frozen=True)
class _Outcome:
    name: str
    errors: pd.Series

    @property
    def unchanged(self) -> bool:
        return bool((self.errors < UNCHANGED).all())

    @property
    def changed(self) -> bool:
        return bool((self.errors > CHANGED).all())

    @property
    def worst(self) -> float:
        return float(self.errors.max(skipna=False))

    def rows(self, lower: float = nan, upper: float = nan) -> tuple[Row, ...]:
        """The error of every draw."""
        draws = (f"draw {draw}" for draw in range(1, len(self.errors) + 1))
        return evidence_rows(f"{self.name}, epsilons", draws, self.errors, lower, upper)

    @property
    def text(self) -> str:
        return (
            f"{self.name}: {number(self.errors.min(skipna=False))} to {number(self.worst)} epsilons in "
            f"{len(self.errors)} draws."
        )


def _outcome(tables: Tables, name: str) -> _Outcome:
    rows = table(tables, "invariances")
    rows = some(rows[rows["name"] == name], f"draws of {name} in the table invariances")
    return _Outcome(name, rows["error_epsilons"])


def _all_expected(unchanged: list[_Outcome], changed: list[_Outcome] | None = None) -> Finding:
    controls = changed or []
    verdicts = [holds_or_not(outcome.unchanged) for outcome in unchanged]
    verdicts += [holds_or_not(outcome.changed) for outcome in controls]
    rows = sum((outcome.rows(upper=UNCHANGED) for outcome in unchanged), ())
    rows += sum((outcome.rows(lower=CHANGED) for outcome in controls), ())
    return replace(_finding(combine(verdicts), [*unchanged, *controls], unchanged[0].worst), rows=rows)


def _dead(anywhere: _Outcome, parts: list[str], note: str, counted: Finding) -> Finding:
    verdict = combine([REPRODUCED, *parts]) if anywhere.unchanged else NOT_REPRODUCED
    finding = _finding(verdict, [anywhere], anywhere.worst)
    evidence = " ".join(filter(None, [finding.evidence, note, counted.evidence]))
    rows = anywhere.rows(upper=UNCHANGED) + counted.rows
    return Finding(verdict, evidence, f"{finding.scale}; {counted.scale}", finding.measured, rows=rows)


def _finding(verdict: str, outcomes: list[_Outcome], measured: float) -> Finding:
    draws = sum(len(outcome.errors) for outcome in outcomes)
    return Finding(verdict, " ".join(outcome.text for outcome in outcomes), f"float64, {draws} random draws", measured)
