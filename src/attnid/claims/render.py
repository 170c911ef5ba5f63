"""The table claims for readers: as Markdown, and as LaTeX macros."""

import re
from collections.abc import Mapping
from math import isfinite

import pandas as pd

from attnid import latex
from attnid.claims.ledger import ANSWERS, BEYOND, NOT_RUN, PAPER_VERDICTS, REGISTER, TRAINING, VERDICTS, all_claims

DIGITS = ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
MACROS = {
    "": "value",
    "Interval": "interval in brackets",
    "Measured": "value, and its interval where it has one",
    "Low": "lower end of the interval",
    "High": "upper end",
    "Seeds": "runs behind the value",
    "Scale": "scale at which the verdict was reached",
    "Printed": "what the paper prints",
    "Verdict": "verdict",
}
"""A claim's macros by the suffix of their names, and what each holds."""

READING = (
    "Each claim's rule says what its measured number is: a count, a share, a ratio to the printed formula (1: the "
    "formula gives the number), float64 epsilons, nats. Brackets hold the 95 % interval over seeds, or the range over "
    "layers or models where no seeds are given. A run with a value that is not finite reproduces nothing; weights "
    "without full rank, where fewer directions are unidentified than a null counts, are named with the numbers."
)
PAPER = "6 layers, width 384, 6 heads, context 256, batch 64, 5000 steps, tiny-shakespeare"


def training_scale(frame: pd.DataFrame) -> str:
    """At which scale most training verdicts were reached, beside the paper's, in a sentence."""
    scale = _usual_scale(frame)
    if not scale:
        return "No training verdict was reached."
    return f"Most training verdicts were reached at: {scale}. The paper's own scale: {PAPER}."


def _usual_scale(frame: pd.DataFrame) -> str:
    """The scale of most training verdicts; empty where none was reached."""
    scales = frame.loc[(frame["kind"] == TRAINING) & (frame["scale"] != ""), "scale"]
    return "" if scales.empty else str(scales.mode()[0])


def to_markdown(frame: pd.DataFrame) -> str:
    """The claims as a page: the verdicts in one table, then each claim with its evidence and its rule."""
    lines = [
        "# Claims of arXiv 2609.01231",
        "",
        f"{tally(frame)} {READING}",
        "",
        training_scale(frame),
        "",
        verdict_table(frame),
    ]
    for row in _rows(frame):
        lines += ["", f"## {row['id']}: {row['verdict']}", "", f"{row['statement']} ({row['at']}).", ""]
        lines += [f"- Evidence: {row['evidence']}"]
        lines += [f"- Scale: {row['scale']}"] if row["scale"] else []
        lines += [f"- Rule: {REGISTER[str(row['id'])].rule}"]
    return "\n".join(lines) + "\n"


def tally(frame: pd.DataFrame) -> str:
    """How many claims, and how many questions beyond them, have which verdict, in a sentence each."""
    questions = frame["kind"] == BEYOND
    parts = {"claims": frame[~questions], "questions beyond the paper": frame[questions]}
    return " ".join(f"{len(rows)} {name}: {_counted(rows)}." for name, rows in parts.items() if len(rows))


def _counted(frame: pd.DataFrame) -> str:
    counts = frame["verdict"].value_counts()
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if verdict in counts)


def verdict_table(frame: pd.DataFrame) -> str:
    """One line a claim: what is said and printed, what was measured, and the verdict, as a Markdown table."""
    lines = [
        "| claim | section | statement | printed | measured | seeds | verdict |",
        "|---|---|---|---|---|---|---|",
        *(_markdown_row(row) for row in _rows(frame)),
    ]
    return "\n".join(lines)


def to_latex(frame: pd.DataFrame) -> str:
    r"""LaTeX macros: of every claim and question that there is, of the totals of each verdict, and of the scale.

    The names derive from the id: `qk-fraction` gives \attnidQkFraction, its value, and with the keys of MACROS as
    suffixes \attnidQkFractionInterval and so on. A missing value is a dash; what was not run says so.
    """
    rows = {str(row["id"]): row for row in _rows(frame)}
    scales = {"paper-scale": PAPER, "training-scale": _usual_scale(frame) or NOT_RUN}
    macros = {macro_name(name): latex.escape(scale) for name, scale in scales.items()} | _totals(frame)
    for claim in all_claims():
        row = rows.get(claim.id, {"printed": claim.printed, "verdict": NOT_RUN})
        macros |= {macro_name(claim.id) + suffix: body for suffix, body in _bodies(row).items()}
    lines = [f"\\newcommand{{{name}}}{{{body}}}" for name, body in macros.items()]
    return (
        "\n".join(["% Verdicts on the claims of arXiv 2609.01231. \\input this file in the preamble.", *lines]) + "\n"
    )


def _bodies(row: Mapping[str, object]) -> dict[str, str]:
    """A claim's macros by suffix."""
    printed = latex.escape(str(row["printed"])) if _given(row["printed"]) else latex.MISSING
    if row["verdict"] == NOT_RUN:
        return dict.fromkeys(MACROS, rf"\mbox{{{NOT_RUN}}}") | {"Printed": printed}
    value, interval = latex.number(row["measured"]), latex.interval(row["low"], row["high"])
    return {
        "": value,
        "Interval": interval,
        "Measured": f"{value} {interval}" if interval != latex.MISSING else value,
        "Low": latex.number(row["low"]),
        "High": latex.number(row["high"]),
        "Seeds": str(row["seeds"]),
        "Scale": latex.escape(str(row["scale"] or latex.MISSING)),
        "Printed": printed,
        "Verdict": latex.escape(str(row["verdict"])),
    }


def _totals(frame: pd.DataFrame) -> dict[str, str]:
    """Macros of how many claims, and how many questions beyond them, there are and have each verdict."""
    questions = frame["kind"] == BEYOND
    parts = {"claims": (frame[~questions], PAPER_VERDICTS), "questions": (frame[questions], ANSWERS.values())}
    totals = {}
    for name, (rows, verdicts) in parts.items():
        totals[macro_name(name)] = str(len(rows))
        totals |= {macro_name(f"{name} {verdict}"): str((rows["verdict"] == verdict).sum()) for verdict in verdicts}
    return totals


def macro_name(id: str) -> str:
    """The macro of a claim: letters only, each word of the id capitalised, digits spelled out."""
    spelled = re.sub(r"\d", lambda digit: f"-{DIGITS[int(digit.group())]}-", id)
    return "\\attnid" + "".join(word.capitalize() for word in re.split("[- ]", spelled))


def _rows(frame: pd.DataFrame) -> list[dict[str, object]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _markdown_row(row: dict[str, object]) -> str:
    printed = str(row["printed"]) if _given(row["printed"]) else ""
    cells = [row["id"], row["at"], row["statement"], printed, _interval(row), row["seeds"] or "", row["verdict"]]
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _interval(row: dict[str, object]) -> str:
    measured, low, high = (_float(row[name]) for name in ("measured", "low", "high"))
    if not isfinite(measured):
        return ""
    return f"{measured:.4g}" + (f" ({low:.3g} to {high:.3g})" if isfinite(low) and isfinite(high) else "")


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def _given(value: object) -> bool:
    return isinstance(value, str)
