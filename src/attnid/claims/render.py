"""The table claims for readers: as Markdown, and as LaTeX macros."""

import re
from math import isfinite

import pandas as pd

from attnid.claims.ledger import BEYOND, REGISTER, TRAINING, VERDICTS

DIGITS = ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    **{character: f"\\{character}" for character in "{}$&#%_"},
}


READING = (
    "Each claim's rule says what its measured number is: a count, a share, a ratio to the printed formula (1: the "
    "formula gives the number), float64 epsilons, nats. Brackets hold the 95 % interval over seeds, or the range over "
    "layers or models where no seeds are given. A run with a value that is not finite reproduces nothing; weights "
    "without full rank, where fewer directions are unidentified than a null counts, are named with the numbers."
)
PAPER = "6 layers, width 384, 6 heads, context 256, batch 64, 5000 steps, tiny-shakespeare"


def training_scale(frame: pd.DataFrame) -> str:
    """At which scale most training verdicts were reached, beside the paper's, in a sentence."""
    scales = frame.loc[(frame["kind"] == TRAINING) & (frame["scale"] != ""), "scale"]
    if scales.empty:
        return "No training verdict was reached."
    return f"Most training verdicts were reached at: {scales.mode()[0]}. The paper's own scale: {PAPER}."


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
    """One macro for each claim's value, its interval, seeds, scale, printed value and verdict.

    The names derive from the id: `qk-fraction` gives \\attnidQkFraction, \\attnidQkFractionLow, ...High, ...Seeds,
    ...Scale, ...Printed and ...Verdict; digits are spelled out. A missing value is a dash.
    """
    lines = ["% Values and verdicts of the claims of arXiv 2609.01231. \\input this file in the preamble."]
    for row in _rows(frame):
        name = macro_name(str(row["id"]))
        bodies = {
            "": _latex_number(row["measured"]),
            "Low": _latex_number(row["low"]),
            "High": _latex_number(row["high"]),
            "Seeds": str(row["seeds"]),
            "Scale": escape(str(row["scale"] or "--")),
            "Printed": escape(str(row["printed"])) if _given(row["printed"]) else "--",
            "Verdict": escape(str(row["verdict"])),
        }
        lines += [f"\\newcommand{{{name}{suffix}}}{{{body}}}" for suffix, body in bodies.items()]
    return "\n".join(lines) + "\n"


def macro_name(id: str) -> str:
    """The macro of a claim: letters only, each word of the id capitalised, digits spelled out."""
    spelled = re.sub(r"\d", lambda digit: f"-{DIGITS[int(digit.group())]}-", id)
    return "\\attnid" + "".join(word.capitalize() for word in spelled.split("-") if word)


def escape(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return "".join(LATEX.get(character, character) for character in text)


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


def _latex_number(value: object) -> str:
    number = _float(value)
    if not isfinite(number):
        return "--"
    mantissa, _, exponent = f"{number:.4g}".partition("e")
    return rf"\ensuremath{{{mantissa} \times 10^{{{int(exponent)}}}}}" if exponent else rf"\ensuremath{{{mantissa}}}"


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def _given(value: object) -> bool:
    return isinstance(value, str)
