"""What attnid compare does with two results directories: read them, and say what differs in lines, JSON or a page."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attnid import claims, dataset, tables
from attnid.comparison import DIFFERS, NO_INTERVAL, ONLY_A, ONLY_B, Comparison, Ledger, compare
from attnid.errors import UserError, shown
from attnid.run_record import read_json
from attnid.statistics import CONFIDENCE, GEOMETRIC

Settings = Sequence[tuple[str, Any, Any]]
"""Keys of the configuration, each with its value in A and in B."""


@dataclass(frozen=True)
class Compared:
    """Two results directories, the settings in which they differ (None where one keeps none), and their ledgers."""

    a: Path
    b: Path
    settings: Settings | None
    comparison: Comparison

    def claims(self, everything: bool = True) -> Iterator[tuple[Mapping[str, Any], pd.DataFrame]]:
        """The claims that differ, or all, each with the numbers behind it."""
        behind = dict(list(self.comparison.numbers.groupby("id", sort=False)))
        none = self.comparison.numbers.head(0)
        for claim in _records(self.comparison.claims):
            if everything or claim["state"] == DIFFERS:
                yield claim, behind.get(claim["id"], none).drop(columns="id")

    def summary(self) -> dict[str, int | float]:
        """How many claims and numbers were compared, and how many of them differ."""
        found, numbers, tested = self.comparison.claims, self.comparison.numbers, self.comparison.tested
        exact = numbers[numbers["average"].isna() & ~numbers["state"].isin([ONLY_A, ONLY_B])]
        counted = numbers["state"].value_counts()
        return {
            "claims": len(found),
            "claims_that_differ": int((found["state"] == DIFFERS).sum()),
            "verdicts_that_differ": int((found["verdict_a"] != found["verdict_b"]).sum()),
            "means": len(tested),
            "means_that_differ": int((tested["state"] == DIFFERS).sum()),
            "means_apart_one_by_one": int((tested["p_value"] < 1 - CONFIDENCE).sum()),
            "means_apart_by_chance": round((1 - CONFIDENCE) * len(tested), 2),
            "means_without_interval": int(counted.get(NO_INTERVAL, 0)),
            "exact": len(exact),
            "exact_that_differ": int((exact["state"] == DIFFERS).sum()),
            "only_in_a": int(counted.get(ONLY_A, 0)),
            "only_in_b": int(counted.get(ONLY_B, 0)),
        }

    def sentences(self) -> list[str]:
        """The summary in words."""
        n, level = self.summary(), f"{CONFIDENCE:.0%}"
        words = [
            f"{n['claims_that_differ']} of {n['claims']} claims differ, {n['verdicts_that_differ']} in their verdict.",
            f"{n['exact_that_differ']} of {n['exact']} exact numbers differ.",
            f"{n['means_that_differ']} of {n['means']} means over runs differ, by intervals that hold together "
            f"at {level}.",
            f"One by one at {level}, {n['means_apart_one_by_one']} would; chance alone makes about "
            f"{n['means_apart_by_chance']:.1f}.",
        ]
        if n["means_without_interval"]:
            words.append(f"{n['means_without_interval']} means have no interval: a side has a single run or no mean.")
        if n["only_in_a"] or n["only_in_b"]:
            words.append(f"{n['only_in_a']} numbers stand in A alone, {n['only_in_b']} in B alone.")
        return words

    def lines(self, everything: bool) -> list[str]:
        """What differs, a claim at a time, for a terminal; all claims if asked."""
        lines = [f"A: {self.a}", f"B: {self.b}", *_settings_lines(self.settings), ""]
        for claim, numbers in self.claims(everything):
            lines.append(f"{claim['id']}: {_verdicts(claim)}")
            lines += [f"  {line}" for line in _number_lines(numbers, everything)]
        return [*lines, *([""] if lines[-1] else []), *self.sentences()]

    def as_json(self, everything: bool) -> dict[str, Any]:
        """The same for a program; what is missing or not finite is null."""
        keys = None if self.settings is None else [{"key": key, "a": a, "b": b} for key, a, b in self.settings]
        listed = [{**claim, "numbers": _records(numbers)} for claim, numbers in self.claims(everything)]
        return {"a": str(self.a), "b": str(self.b), "settings": keys, "summary": self.summary(), "claims": listed}

    def page(self) -> str:
        """All of it as one HTML page that needs nothing else. All text is escaped."""
        from attnid import pages

        every = [
            (claim, numbers[numbers["state"] == DIFFERS], numbers[numbers["state"] != DIFFERS])
            for claim, numbers in self.claims()
        ]
        return pages.template("compare.html.j2").render(
            a=self.a,
            b=self.b,
            settings=self.settings,
            sentences=self.sentences(),
            differing=[entry for entry in every if entry[0]["state"] == DIFFERS],
            agreeing=[entry for entry in every if entry[0]["state"] != DIFFERS],
        )


def compare_results(a: Path, b: Path) -> Compared:
    """Compare what two results directories say of every claim.

    Raises UserError where one is none, lacks tables or has damaged ones, or both are the same.
    """
    for directory in (a, b):
        if not os.path.isdir(directory):
            raise UserError(f"compare: {directory} is no directory; expected the results of a run")
    if a.samefile(b):
        raise UserError(f"compare: {a} and {b} are the same directory; expected two")
    return Compared(a, b, _settings(a, b), compare(ledger(a), ledger(b)))


def ledger(directory: Path) -> Ledger:
    """The verdicts of a results directory and the numbers behind them, judged from its tables where it has none yet.

    Raises UserError where a table is missing, damaged, empty or of another version.
    """
    verdicts, evidence = (directory / f"{table.name}.parquet" for table in (tables.CLAIMS, tables.EVIDENCE))
    if verdicts.exists():
        return _read(verdicts, evidence)
    if (directory / "metrics").is_dir():
        return _judged(directory)
    raise UserError(
        f"compare: {directory} has neither {verdicts.name} nor metrics/; expected a directory in which "
        "`snakemake claims` has run, or a run's tables"
    )


def save(page: str, path: Path) -> None:
    """Write a page, whole or not at all. Raises UserError where it cannot be written."""
    if path.suffix != ".html":
        raise UserError(f"{path}: pages are saved as .html")
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(page, encoding="utf-8", errors="backslashreplace")
        partial.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({os.strerror(error.errno) if error.errno else error})") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def _read(verdicts: Path, evidence: Path) -> Ledger:
    if not evidence.exists():
        raise UserError(f"{evidence}: is missing; `snakemake claims` writes it beside {verdicts.name}")
    found = Ledger(tables.read(tables.CLAIMS, verdicts), tables.read(tables.EVIDENCE, evidence))
    if found.claims.empty:
        raise UserError(f"{verdicts}: has no rows; expected one a claim")
    if found.evidence.empty and found.claims["measured"].notna().any():
        raise UserError(f"{evidence}: has no rows; expected the numbers behind {verdicts.name}")
    for id in sorted(set(found.evidence["id"]) - set(found.claims["id"])):
        raise UserError(f"{evidence}: has numbers behind {id}, which {verdicts.name} lacks; expected both of one run")
    return found


def _judged(directory: Path) -> Ledger:
    places = {"analysis": tables.ANALYSIS, "metrics": tables.METRICS}
    frames = {
        table.name: tables.read(table, directory / place / f"{table.name}.parquet")
        for place, kinds in places.items()
        for table in kinds
    }
    findings = claims.findings(frames)
    return Ledger(claims.verdicts(findings), claims.evidence(findings))


def _settings(a: Path, b: Path) -> Settings | None:
    paths = [directory / "metrics" / "config.json" for directory in (a, b)]
    if not all(path.exists() for path in paths):
        return None
    found = [read_json(path) for path in paths]
    for path, settings in zip(paths, found, strict=True):
        if not isinstance(settings, dict):
            raise UserError(f"{path}: holds {shown(settings)}; expected the keys of a configuration")
    return list(dataset.differences(*found))


def _settings_lines(settings: Settings | None) -> list[str]:
    if settings is None:
        return ["whether their settings differ is unknown: one has no metrics/config.json"]
    keys = [f"{key} ({shown(a)} in A, {shown(b)} in B)" for key, a, b in settings]
    return [f"their settings differ: {', '.join(keys)}"] if keys else []


def _verdicts(claim: Mapping[str, Any]) -> str:
    a, b = claim["verdict_a"], claim["verdict_b"]
    return f"{a} in both" if a == b else f"{a} in A, {b} in B"


def _number_lines(numbers: pd.DataFrame, everything: bool) -> Iterator[str]:
    """The numbers behind a claim that differ, and how many stand in one side alone; means that agree as well if asked.

    Exact numbers that agree are counted.
    """
    alone = numbers["state"].isin([ONLY_A, ONLY_B])
    exact = numbers["average"].isna()
    listed = numbers[~alone & (numbers["state"].eq(DIFFERS) | (everything & ~exact))]
    for number in _records(listed):
        yield _line(number)
    if everything and (equal := (exact & ~alone & ~numbers["state"].eq(DIFFERS)).sum()):
        yield f"exact numbers that agree: {equal}"
    for state in (ONLY_A, ONLY_B):
        if count := (numbers["state"] == state).sum():
            yield f"numbers {state}: {count}"
    if not everything and listed.empty and not alone.all():
        yield "no number behind it differs by more than chance makes it"


def _line(number: Mapping[str, Any]) -> str:
    digits = ".12g" if number["average"] is None else ".4g"
    a, b, difference, low, high = (
        "-" if number[name] is None else format(number[name], digits)
        for name in ("a", "b", "difference", "low", "high")
    )
    line = ", ".join(filter(None, [number["part"], number["item"]])) + f": {a} in A, {b} in B"
    if number["average"] is None:
        return line
    between = f"B / A {difference}" if number["average"] == GEOMETRIC else f"B - A {difference}"
    interval = f" [{low}, {high}]" if number["p_value"] is not None else ", no interval"
    return f"{line}; {between}{interval}, {number['runs_a']} and {number['runs_b']} runs, {number['state']}"


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dictionaries; None for what is missing or not finite."""
    finite = frame.replace([np.inf, -np.inf], np.nan).astype(object)
    return [
        dict(zip(frame.columns, row, strict=True)) for row in finite.where(finite.notna(), None).to_numpy().tolist()
    ]
