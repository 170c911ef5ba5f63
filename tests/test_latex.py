"""What is written for LaTeX."""

import pytest

from attnid import latex


def test_special_characters_are_escaped() -> None:
    assert latex.escape("50 % of D^2 & {x}_1") == r"50 \% of D\textasciicircum{}2 \& \{x\}\_1"
    assert latex.escape("C\\{0}, ρ < 1") == r"C\textbackslash{}\{0\}, \ensuremath{\rho} \textless{} 1"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.91666667, r"\ensuremath{{0.9167}}"),
        (1024, r"\ensuremath{{1024}}"),
        (1.338e-8, r"\ensuremath{{1.338 \times 10^{-8}}}"),
        (float("nan"), "--"),
        (float("inf"), "--"),
        (None, "--"),
    ],
)
def test_a_number_has_four_digits_or_is_a_dash(value: object, text: str) -> None:
    assert latex.number(value) == text


def test_an_interval_needs_both_ends() -> None:
    assert latex.interval(-0.5, 1e-5) == r"\ensuremath{{[-0.5, 1 \times 10^{-5}]}}"
    assert latex.interval(-0.5, float("nan")) == "--"


def test_a_table_has_its_rows_between_the_rules() -> None:
    lines = latex.table(["a", "b"], [["1", "2"], ["3", "4"]], "lr").splitlines()
    assert lines[0] == r"\begin{tabular}{lr}"
    assert lines[1:] == [
        r"\toprule",
        r"a & b \\",
        r"\midrule",
        r"1 & 2 \\",
        r"3 & 4 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_a_long_table_repeats_its_heads_and_ends_every_page_with_a_rule() -> None:
    text = latex.table(["a"], [["1"]], "l", long=True)
    before, rows = text.split("\\endfoot\n")
    assert before.index("a \\\\") < before.index(r"\endhead") < before.index(r"\bottomrule")
    assert rows == "1 \\\\\n\\end{longtable}\n"


def test_a_table_without_rows_says_so() -> None:
    assert r"\multicolumn{3}{c}{not run} \\" in latex.table(["a", "b", "c"], [], "lll")
