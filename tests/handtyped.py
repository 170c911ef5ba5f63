"""Numbers that an article's text holds by itself, in digits or in words."""

import re
from collections.abc import Iterable

WORDS = (
    *("zero", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "dozen"),
    *("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety", "hundred", "thousand", "million"),
    *("half", "halves", "third", "thirds", "quarter", "quarters", "fifth", "fifths", "sixth", "tenth", "tenths"),
    *("twice", "thrice", "double", "doubled", "triple", "tripled", "percent", "per cent"),
)
NUMBER = re.compile(rf"\b(?:{'|'.join(WORDS)})\b|\d+(?:[.,]\d+)*|[½⅓⅔¼¾]", re.IGNORECASE)
BODY = re.compile(r"\\begin\{document\}(.*)\\begin\{thebibliography\}", re.DOTALL)
COMMENT = re.compile(r"(?<!\\)%.*")
COMMAND = re.compile(
    r"\\(?:label|ref|cite|input|includegraphics|begin|end)(?:\[[^]]*\])?\{[^}]*\}|\\[A-Za-z]+",
)
"""Commands, of them the macros of results, with what names a place and no number."""


def handtyped(article: str, phrases: Iterable[str] = ()) -> list[str]:
    """Numbers between an article's beginning and its references, each with what stands around it.

    `phrases` are left out: as they stand in the article, with single spaces.
    """
    found = BODY.search(article)
    assert found is not None
    text = " ".join(COMMENT.sub("", found[1]).split())
    for phrase in phrases:
        assert phrase in text, f"the article does not say {phrase}"
        text = text.replace(phrase, " ")
    text = COMMAND.sub(" ", text)
    return [text[max(match.start() - 30, 0) : match.end() + 30] for match in NUMBER.finditer(text)]
