"""One self-contained page for a person: verdicts first, then figures, errata, provenance and configuration."""

import struct
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import yaml
from pandas.api.types import is_numeric_dtype

from attnid import pages

VERDICTS = ("reproduced", "corrected", "qualified", "not reproduced", "not run")
ANSWERS = ("supported", "open", "not supported")
"""Verdicts on questions beyond the paper; shown where such were asked."""
ERRATA = ("corrected", "qualified")
ROWS_SHOWN = 40
PAGE_PIXELS, PHONE_PIXELS = 4 / 7, 600
"""CSS pixels for a pixel of a figure, and the width from which a figure scrolls sideways on a phone."""


@dataclass(frozen=True)
class FigureEntry:
    """A figure with what the page shows beside it: its caption, and the table behind it with that table's path."""

    title: str
    caption: str
    png: bytes
    table: pd.DataFrame
    table_path: str


def render(
    claims: pd.DataFrame,
    rules: Mapping[str, str],
    figures: Mapping[str, FigureEntry],
    runs: Sequence[Mapping[str, Any]],
    config: Mapping[str, Any],
    created: str,
    notes: Sequence[str] = (),
) -> str:
    """The report as one HTML page that needs nothing else.

    `claims` has the columns of `tables.CLAIMS`; `rules` holds the rule behind each verdict by claim; `figures` holds
    the figures by name, in the page's order; `runs` has one entry a training job with the keys cell, seeds, device,
    machine, threads, commit, versions, started, seconds and settings; `config` is the resolved configuration; `created`
    says when the page was made; `notes` are sentences above the ledger. All text is escaped.
    """
    ledger = [dict(row, rule=rules.get(row["id"])) for row in _records(claims)]
    return pages.template("report.html.j2").render(
        created=created,
        notes=notes,
        verdicts=_counts(ledger),
        claims=ledger,
        errata=[row for row in ledger if row["verdict"] in ERRATA],
        figures={name: _shown(entry) for name, entry in figures.items()},
        runs=runs,
        seconds=sum(run["seconds"] for run in runs),
        facts={
            "commit": _distinct(run["commit"] for run in runs),
            "device": _distinct(run["device"] for run in runs),
            "machine": _distinct(run["machine"] for run in runs),
            "seeds": _distinct(seed for run in runs for seed in pages.listed(run["seeds"])),
        },
        versions=_versions(runs),
        config=yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True),
    )


def _counts(ledger: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    found = Counter(row["verdict"] for row in ledger)
    asked = any(verdict in found for verdict in ANSWERS)
    return {verdict: found[verdict] for verdict in (*VERDICTS, *(ANSWERS if asked else ()))}


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _shown(entry: FigureEntry) -> dict[str, Any]:
    """What the template needs of a figure: the picture inline, its size on the page and the table's first rows."""
    pixels_wide, pixels_high = struct.unpack(">II", entry.png[16:24])  # where every PNG file states its size
    width = round(pixels_wide * PAGE_PIXELS)
    return {
        "width": width,
        "height": round(pixels_high * PAGE_PIXELS),
        "wide": width > PHONE_PIXELS,
        "title": entry.title,
        "caption": entry.caption,
        "picture": f"data:image/png;base64,{b64encode(entry.png).decode()}",
        "columns": [str(column) for column in entry.table.columns],
        "numeric": [is_numeric_dtype(entry.table[column]) for column in entry.table.columns],
        "rows": entry.table.head(ROWS_SHOWN).to_numpy(dtype=object).tolist(),
        "length": len(entry.table),
        "path": entry.table_path,
    }


def _versions(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Package versions of all jobs; several where jobs differ."""
    names = sorted({name for run in runs for name in run["versions"]})
    return {name: _distinct(run["versions"][name] for run in runs if name in run["versions"]) for name in names}


def _distinct(values: Any) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values)) or "–"
