"""What a claim is, the register of all claims, and the judge that turns tables into the table claims."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import nan

import pandas as pd

from attnid.tables import CLAIMS, EVIDENCE

REPRODUCED = "reproduced"
CORRECTED = "corrected"
QUALIFIED = "qualified"
NOT_REPRODUCED = "not reproduced"
NOT_RUN = "not run"

SUPPORTED, OPEN, NOT_SUPPORTED = "supported", "open", "not supported"
ANSWERS = {REPRODUCED: SUPPORTED, QUALIFIED: OPEN, NOT_REPRODUCED: NOT_SUPPORTED, NOT_RUN: NOT_RUN}
"""Verdicts on questions that the paper leaves open, by the verdict that the same finding gives on a claim."""
VERDICTS = (REPRODUCED, CORRECTED, QUALIFIED, NOT_REPRODUCED, SUPPORTED, OPEN, NOT_SUPPORTED, NOT_RUN)

COUNT, INVARIANCE, TRAINING, TABLE, BEYOND = "count", "invariance", "training", "table", "beyond"

Tables = Mapping[str, pd.DataFrame]
"""Frames by the names of their tables in `attnid.tables`."""


@dataclass(frozen=True)
class Row:
    """One number behind a verdict: what of, whose, and the range in which the rule wants it (NaN: no such end)."""

    part: str
    item: str
    value: float
    lower: float = nan
    upper: float = nan


@dataclass(frozen=True)
class Finding:
    """What the tables say about one claim.

    `measured` is missing (NaN) where no single number stands for the claim, `low` and `high` where it has no interval;
    `seeds` is 0 for what no run enters; `scale` says at which sizes the verdict was reached; `rows` are the numbers
    behind it.
    """

    verdict: str
    evidence: str
    scale: str = ""
    measured: float = nan
    low: float = nan
    high: float = nan
    seeds: int = 0
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Claim:
    """One claim of the paper or question beyond it, and the written rule by which `judge` gives its verdict.

    A question is judged where its `group` of cells was configured. `figure` names the figure that shows what is
    claimed, if one does.
    """

    id: str
    at: str
    kind: str
    statement: str
    printed: str | None
    rule: str
    judge: Callable[[Tables], Finding]
    group: str | None = None
    figure: str | None = None


class MissingError(Exception):
    """A table, cell or measure that a rule needs is not there: the claim is `not run`."""


class NotFiniteError(Exception):
    """A run that a rule needs has a value that is not finite: the claim is `not reproduced`."""


ORDER = (
    "qk-gauge-dimension",
    "qk-fraction",
    "full-rank-head",
    "never-fully-identified",
    "trivial-example",
    "multi-head-fraction-qk",
    "multi-head-fraction-all",
    "six-heads",
    "eight-heads",
    "vo-gauge-dimension",
    "gauge-invariance",
    "bias-gauge",
    "key-bias-dead",
    "value-bias-dead",
    "dead-bias-total",
    "larger-heads",
    "larger-heads-limit",
    "squad-table",
    "rope-dimension",
    "rope-group",
    "gqa-dimension",
    "gqa-factor",
    "rope-gqa-dimension",
    "llama2-70b",
    "equivalent-single-head",
    "equivalent-size-12-heads",
    "no-equivalent-at-same-width",
    "conserved-imbalance",
    "exact-gradient-overlap",
    "sgd-overlap",
    "sgd-beta",
    "sgd-decay-beta",
    "sgd-tau",
    "adamw-overlap",
    "adamw-beta",
    "adamw-tau",
    "no-rank-deficiency",
    "rebalanced-loss",
    "rebalanced-sawtooth",
    "state-clearing-control",
    "key-bias-gradient",
    "query-bias-gradient",
    "drift-learning-rate",
    "drift-square",
    "drift-settles",
    "drift-early-layers",
    "overlap-spikes",
    "overlap-order",
    "overlap-covers",
    "adamw-best-loss",
    "decay-compresses-trace",
    "mu-stable-sgd",
    "sawtooth-envelope",
    "bias-gradient-optimiser",
    "constrained-count",
    "rotations-half",
    "gqa-complete",
    "rope-improves-layer",
    "published-architectures",
    "squad-most-benefit",
    "overlap-by-momentum",
    "overlap-by-division",
    "overlap-by-sign",
    "overlap-by-decay",
    "overlap-by-clipping",
    "overlap-of-muon",
    "state-at-rebalancing",
    "state-at-rebalancing-both",
    "projected-loss",
    "rebalanced-overlap",
    "rebalancing-interval-cleared",
    "rebalancing-interval-moved",
    "layers-adamw-overlap",
    "layers-sgd-overlap",
    "layers-rebalancing",
    "key-bias-wanders",
    "scaling-against-rotation",
    "beta-augmented-conserved",
    "plain-step-identity",
)
"""The claims in the order in which the ledger lists them."""

REGISTER: dict[str, Claim] = {}


def claim(
    id: str,
    *,
    at: str,
    kind: str,
    statement: str,
    rule: str,
    printed: str | None = None,
    group: str | None = None,
    figure: str | None = None,
) -> Callable[[Callable[[Tables], Finding]], Callable[[Tables], Finding]]:
    """Register a function of the tables as the rule of one claim."""

    def register(judge: Callable[[Tables], Finding]) -> Callable[[Tables], Finding]:
        if id not in ORDER or id in REGISTER:
            raise ValueError(f"claim {id}: not in ORDER, or registered twice")
        REGISTER[id] = Claim(id, at, kind, statement, printed, rule, judge, group, figure)
        return judge

    return register


def all_claims() -> Iterator[Claim]:
    """Every claim in the order of the ledger."""
    return (REGISTER[id] for id in ORDER)


Findings = Sequence[tuple[Claim, Finding]]


def findings(tables: Tables) -> Findings:
    """What the tables say of every claim, in order, whatever tables there are, and of every question that was asked."""
    configured = {None, *tables["groups"]["group"]} if "groups" in tables else {None}
    return [(claim, finding(claim, tables)) for claim in all_claims() if claim.group in configured]


def verdicts(findings: Findings) -> pd.DataFrame:
    """The table claims: one row a claim."""
    return pd.DataFrame([_row(claim, finding) for claim, finding in findings])[CLAIMS.names]


def evidence(findings: Findings) -> pd.DataFrame:
    """The table evidence: the numbers behind every verdict, once where two rows of a table give the same."""
    rows = [{"id": claim.id, **asdict(row)} for claim, finding in findings for row in finding.rows]
    return pd.DataFrame(rows, columns=EVIDENCE.names).drop_duplicates(ignore_index=True)


def judge(tables: Tables) -> pd.DataFrame:
    """The table claims for these tables."""
    return verdicts(findings(tables))


def table(tables: Tables, name: str) -> pd.DataFrame:
    """A table with at least one row."""
    if name not in tables:
        raise MissingError(f"the table {name} is missing")
    return some(tables[name], f"rows in the table {name}")


def some(rows: pd.DataFrame, what: str) -> pd.DataFrame:
    """The rows, if there are any."""
    if rows.empty:
        raise MissingError(f"there are no {what}")
    return rows


def finding(claim: Claim, tables: Tables) -> Finding:
    """What the tables say about one claim; never an exception for tables that lack something."""
    try:
        return claim.judge(tables)
    except MissingError as reason:
        return Finding(NOT_RUN, f"Not judged: {reason}.")
    except NotFiniteError as reason:
        return Finding(NOT_REPRODUCED, f"Cannot be read from runs that went astray: {reason}.")


def _row(claim: Claim, finding: Finding) -> dict[str, object]:
    return {
        "id": claim.id,
        "at": claim.at,
        "kind": claim.kind,
        "statement": claim.statement,
        "printed": claim.printed,
        "measured": finding.measured,
        "low": finding.low,
        "high": finding.high,
        "seeds": finding.seeds,
        "scale": finding.scale,
        "verdict": ANSWERS[finding.verdict] if claim.kind == BEYOND else finding.verdict,
        "evidence": finding.evidence,
    }
