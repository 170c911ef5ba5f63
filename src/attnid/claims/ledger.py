"""What a claim is, the register of all claims, and the judge that turns tables into the table claims."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import nan

import pandas as pd

from attnid.tables import CLAIMS

REPRODUCED = "reproduced"
CORRECTED = "corrected"
QUALIFIED = "qualified"
NOT_REPRODUCED = "not reproduced"
NOT_RUN = "not run"
VERDICTS = (REPRODUCED, CORRECTED, QUALIFIED, NOT_REPRODUCED, NOT_RUN)

COUNT, INVARIANCE, TRAINING, TABLE = "count", "invariance", "training", "table"

Tables = Mapping[str, pd.DataFrame]
"""Frames by the names of their tables in `attnid.tables`."""


@dataclass(frozen=True)
class Finding:
    """What the tables say about one claim.

    `measured` is missing (NaN) where no single number stands for the claim, `low` and `high` where it has no interval;
    `seeds` is 0 for what no run enters; `scale` says at which sizes the verdict was reached.
    """

    verdict: str
    evidence: str
    scale: str = ""
    measured: float = nan
    low: float = nan
    high: float = nan
    seeds: int = 0


@dataclass(frozen=True)
class Claim:
    """One claim of the paper, and the written rule by which `judge` gives its verdict."""

    id: str
    at: str
    kind: str
    statement: str
    printed: str | None
    rule: str
    judge: Callable[[Tables], Finding]


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
)
"""The claims in the order in which the ledger lists them."""

REGISTER: dict[str, Claim] = {}


def claim(
    id: str, *, at: str, kind: str, statement: str, rule: str, printed: str | None = None
) -> Callable[[Callable[[Tables], Finding]], Callable[[Tables], Finding]]:
    """Register a function of the tables as the rule of one claim."""

    def register(judge: Callable[[Tables], Finding]) -> Callable[[Tables], Finding]:
        if id not in ORDER or id in REGISTER:
            raise ValueError(f"claim {id}: not in ORDER, or registered twice")
        REGISTER[id] = Claim(id, at, kind, statement, printed, rule, judge)
        return judge

    return register


def all_claims() -> Iterator[Claim]:
    """Every claim in the order of the ledger."""
    return (REGISTER[id] for id in ORDER)


def judge(tables: Tables) -> pd.DataFrame:
    """The table claims: one row a claim, in order, whatever tables there are."""
    return pd.DataFrame([_row(claim, finding(claim, tables)) for claim in all_claims()])[CLAIMS.names]


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
        "verdict": finding.verdict,
        "evidence": finding.evidence,
    }
