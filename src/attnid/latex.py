"""Text, numbers and tables as LaTeX writes them. Tables need the packages booktabs and, where long, longtable."""

from collections.abc import Iterable, Sequence
from math import isfinite
from numbers import Real

SPECIAL = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "−": r"\ensuremath{-}",
    "–": "--",
    "×": r"\ensuremath{\times}",
    "≥": r"\ensuremath{\ge}",
    "≤": r"\ensuremath{\le}",
    "ρ": r"\ensuremath{\rho}",
    "β": r"\ensuremath{\beta}",
    "τ": r"\ensuremath{\tau}",
    "μ": r"\ensuremath{\mu}",
    **{character: f"\\{character}" for character in "{}$&#%_"},
}
MISSING = "--"


def escape(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return "".join(SPECIAL.get(character, character) for character in text)


def number(value: object) -> str:
    """A number with four digits, in or out of math mode; a dash for what is missing or not finite."""
    return _unbroken(_digits(value)) if _is_finite(value) else MISSING


def interval(low: object, high: object) -> str:
    """An interval in brackets, in or out of math mode; a dash where an end is missing."""
    if not (_is_finite(low) and _is_finite(high)):
        return MISSING
    return _unbroken(f"[{_digits(low)}, {_digits(high)}]")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], columns: str, long: bool = False) -> str:
    """A table ruled by booktabs: cells are LaTeX, `columns` is the format of a tabular.

    A long one breaks over pages and repeats its heads. One without rows says so.
    """
    head = f"{' & '.join(heads)} \\\\"
    body = [f"{' & '.join(row)} \\\\" for row in rows]
    body = body or [rf"\multicolumn{{{len(heads)}}}{{c}}{{not run}} \\"]
    name = "longtable" if long else "tabular"
    top = [r"\toprule", head, r"\midrule", *([r"\endhead", r"\bottomrule", r"\endfoot"] if long else [])]
    bottom = [] if long else [r"\bottomrule"]
    return "\n".join([rf"\begin{{{name}}}{{{columns}}}", *top, *body, *bottom, rf"\end{{{name}}}"]) + "\n"


def _unbroken(formula: str) -> str:
    """A formula that no line breaks."""
    return rf"\ensuremath{{{{{formula}}}}}"


def _digits(value: object) -> str:
    mantissa, _, exponent = f"{value:.4g}".partition("e")
    return rf"{mantissa} \times 10^{{{int(exponent)}}}" if exponent else mantissa


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and isfinite(value)
