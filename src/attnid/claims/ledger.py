"""What a claim is, the register of all claims, and the judge that turns tables into the table claims."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, nan

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
PAPER_VERDICTS = (REPRODUCED, CORRECTED, QUALIFIED, NOT_REPRODUCED, NOT_RUN)
VERDICTS = (REPRODUCED, CORRECTED, QUALIFIED, NOT_REPRODUCED, SUPPORTED, OPEN, NOT_SUPPORTED, NOT_RUN)

COUNT, INVARIANCE, TRAINING, TABLE, BEYOND = "count", "invariance", "training", "table", "beyond"

Tables = Mapping[str, pd.DataFrame]
"""Frames by the names of their tables in `attnid.tables`."""


@dataclass(frozen=True)
class Row:
    """One number behind a verdict: what of, whose, and the range in which the rule wants it (NaN: no such end).

    `average` is the mean over runs that the rule judges, None where it judges none.
    """

    part: str
    item: str
    value: float
    lower: float = nan
    upper: float = nan
    average: str | None = None


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

    `place` is the claim's number in the ledger; those without one come after those with one. A question is judged where
    its `group` of cells was configured. `figure` names the figure that shows what is claimed, if one does.
    """

    id: str
    at: str
    kind: str
    statement: str
    printed: str | None
    rule: str
    judge: Callable[[Tables], Finding]
    place: int | None = None
    group: str | None = None
    figure: str | None = None


class MissingError(Exception):
    """A table, cell or measure that a rule needs is not there: the claim is `not run`."""


class NotFiniteError(Exception):
    """A run that a rule needs has a value that is not finite: the claim is `not reproduced`."""


REGISTER: dict[str, Claim] = {}


def claim(
    id: str,
    *,
    at: str,
    kind: str,
    statement: str,
    rule: str,
    printed: str | None = None,
    place: int | None = None,
    group: str | None = None,
    figure: str | None = None,
) -> Callable[[Callable[[Tables], Finding]], Callable[[Tables], Finding]]:
    """Register a function of the tables as the rule of one claim."""

    def register(judge: Callable[[Tables], Finding]) -> Callable[[Tables], Finding]:
        if id in REGISTER:
            raise ValueError(f"claim {id} is registered twice")
        REGISTER[id] = Claim(id, at, kind, statement, printed, rule, judge, place, group, figure)
        return judge

    return register


def all_claims() -> list[Claim]:
    """Every claim in the order of the ledger: the paper's, then questions beyond it.

    Of each, those with a place by their places, then the others by their modules, as they stand there.
    """
    return sorted(REGISTER.values(), key=_order)


def _order(claim: Claim) -> tuple[bool, float, str]:
    return claim.kind == BEYOND, inf if claim.place is None else claim.place, claim.judge.__module__


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
