"""The one exception that stands for a user's mistake, and how it is told."""

import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError


class UserError(Exception):
    """A mistake in a configuration, file or argument, told in one sentence.

    The sentence names the key or file, what was found and what is allowed. Entry points print it and exit with
    status 2; they never show a traceback for it.
    """


def validation_sentence(error: ValidationError, where: str, model: type[BaseModel]) -> str:
    """The first complaint of a failed validation: where, which key, what was found, what is allowed.

    A key that is unknown comes before one that is missing: it may be that one, misspelled.
    """
    first = min(error.errors(include_url=False), key=lambda complaint: complaint["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] == "value_error":
        return f"{where}: {first['ctx']['error']}"
    if first["type"] == "missing":
        return f"{where}: {key} is missing"
    if first["type"] == "extra_forbidden":
        return f"{where}: {key} is not a key; allowed beside it: {', '.join(_siblings(model, first['loc']))}"
    return f"{where}: {key or 'it'} is {shown(first['input'])}; {first['msg'][:1].lower()}{first['msg'][1:]}"


def listed(names: Iterable[str], word: str) -> str:
    """Names in a sentence, with a word before the last: `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last


def shown(value: object) -> str:
    """A value that a user gave, in a sentence: as Python writes it, cut where that is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 200 else f"{text[:200]}..."


def printable(text: str) -> str:
    """A text for a terminal: control characters, which would command it, as Python writes them; lines stay."""
    return re.sub(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", lambda found: ascii(found[0])[1:-1], text)


def _siblings(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    section: Any = model
    for part in location[:-1]:
        if isinstance(section, type) and issubclass(section, BaseModel):
            section = section.model_fields[str(part)].annotation
        else:
            section = section.__args__[1]
    return list(section.model_fields)
