"""One self-contained page for a person: verdicts first, then figures, models, errata, commands and provenance."""

import shlex
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pandas as pd
import yaml
from PIL import Image

from attnid import pages, paths, style
from attnid.claims.ledger import ANSWERS, BEYOND, CORRECTED, NOT_REPRODUCED, NOT_RUN, QUALIFIED, REPRODUCED, Claim
from attnid.explorer import Explorer
from attnid.tables import HEAD_MEASURES

PAPER_VERDICTS = (REPRODUCED, CORRECTED, QUALIFIED, NOT_REPRODUCED, NOT_RUN)
SHOWN_FIRST = 40
"""Rows of a figure's table that the page holds; the others are in the file that it names."""
PAGE_PIXELS, PHONE_PIXELS = 4 / 7, 600
"""CSS pixels for a pixel of a figure, and the width from which a figure scrolls sideways on a phone."""

MODEL_COLUMNS = {
    "model": "model",
    "role": "layers",
    "layers": "number",
    "d_model": "E",
    "n_heads": "H",
    "n_kv_heads": "G",
    "qk_head_dim": "D",
    "v_head_dim": "C",
    "position": "positions",
    "parameters": "parameters a layer",
    "unidentified": "unidentified a layer",
    "identified_fraction": "identified share",
    "share_of_model": "unidentified share of the whole model",
}
"""Columns of the table architectures on the page, and their names there."""


TARGETS = {
    "everything": "",
    "ranks, invariances and published models": "analysis",
    "training": "training",
    "the tables of all runs": "metrics",
    "the figures": "figures",
    "the verdicts": "claims",
    "this page": "report",
    "the article, as a PDF (needs TeX)": "article",
}
"""What the commands of the page make, and their targets of Snakemake."""
MAKE_TABLES = ("analysis", "training", "metrics")
"""The targets that make nothing where the tables come from another run."""


@dataclass(frozen=True)
class FigureEntry:
    """A figure with what the page shows beside it: its caption, and the table behind it with that table's path."""

    title: str
    caption: str
    png: bytes
    table: pd.DataFrame
    table_path: str


@dataclass(frozen=True)
class MissingJob:
    """A training job that has not been done: its cell and seeds, and the last line of its log, empty without one."""

    cell: str
    seeds: str
    last_words: str


@dataclass(frozen=True)
class Contents:
    """What the page is made of.

    `claims` and `evidence` have the columns of `tables.CLAIMS` and `tables.EVIDENCE`, `architectures` those of
    `tables.ARCHITECTURES`; `register` holds every claim by its id; `explorer` is what the page's explorer draws;
    `figures` holds the figures by name, in the page's order; `runs` has one entry a training job, as in runs.json;
    `astray` are sentences on runs with values that are not finite; `commands` are what can be made again and how, as
    `commands` gives them; `config` is the resolved configuration; `created` says when the page was made; `notes` are
    sentences above the ledger.
    """

    claims: pd.DataFrame
    evidence: pd.DataFrame
    register: Mapping[str, Claim]
    architectures: pd.DataFrame
    figures: Mapping[str, FigureEntry]
    explorer: Explorer
    runs: Sequence[Mapping[str, Any]]
    missing: Sequence[MissingJob]
    astray: Sequence[str]
    commands: Sequence[tuple[str, str]]
    config: Mapping[str, Any]
    created: str
    notes: Sequence[str] = ()


def render(contents: Contents) -> str:
    """The report as one HTML page that needs nothing else. All text is escaped."""
    ledger = _ledger(contents)
    runs = contents.runs
    return pages.template("report.html.j2").render(
        created=contents.created,
        notes=contents.notes,
        tallies=_tallies(ledger),
        claims=ledger,
        errata=[row for row in ledger if row["verdict"] in (CORRECTED, QUALIFIED)],
        figures={name: _shown(entry) for name, entry in contents.figures.items()},
        explorer=contents.explorer,
        models=contents.architectures[list(MODEL_COLUMNS)].rename(columns=MODEL_COLUMNS),
        missing=contents.missing,
        astray=contents.astray,
        commands=contents.commands,
        runs=runs,
        ran=_ran(runs),
        facts={
            "commit": _distinct(run["commit"] for run in runs),
            "device": _distinct(run["device"] for run in runs),
            "machine": _distinct(run["machine"] for run in runs),
            "seeds": _distinct(seed for run in runs for seed in pages.listed(run["seeds"])),
            **_versions(runs),
        },
        config=yaml.safe_dump(dict(contents.config), sort_keys=False, allow_unicode=True),
    )


def commands(options: Sequence[str], runs: Sequence[Mapping[str, Any]], made_here: bool) -> list[tuple[str, str]]:
    """What can be made again, and the command that does it with the same configuration.

    `options` are the arguments that give snakemake the configuration; `runs` has one entry a training job, as in
    runs.json; `made_here` says whether the tables come from this run, and not from another.
    """
    targets = {what: target for what, target in TARGETS.items() if made_here or target not in MAKE_TABLES}
    lines = [(what, ["snakemake", "--cores", "all", target, *options]) for what, target in targets.items()]
    if made_here and runs:
        seeds = pages.listed(runs[0]["seeds"])
        job = str(paths.block(runs[0]["cell"], min(seeds), max(seeds)) / "run.json")
        lines.append(("one training job, as an example", ["snakemake", "--cores", "all", "--force", job, *options]))
    return [(what, shlex.join(word for word in words if word)) for what, words in lines]


def astray(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """Sentences on the cells with values that are not finite, or with weights without full rank."""
    names = {cell: cell for cell in tables["cells"]["cell"]}
    return [
        *style.astray(tables["steps"], ["train_loss"], names),
        *style.astray(tables["evaluations"], ["val_loss"], names),
        *style.astray(style.step_rows(dict(tables)), list(HEAD_MEASURES), names),
    ]


def _ledger(contents: Contents) -> list[dict[str, Any]]:
    """The rows of the ledger, each with its rule, its figure if the page has it, and the numbers behind it."""
    behind = dict(list(contents.evidence.groupby("id", sort=False)))
    none = contents.evidence.head(0)
    rows = []
    for row in contents.claims.to_dict("records"):
        claim = contents.register[row["id"]]
        figure = claim.figure if claim.figure in contents.figures else None
        numbers = behind.get(row["id"], none).drop(columns="id")
        rows.append(
            {
                **{str(name): value for name, value in row.items()},
                "rule": claim.rule,
                "figure": figure,
                "numbers": numbers,
            }
        )
    return rows


def _tallies(ledger: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """How many claims of the paper, and how many questions beyond it where such were asked, have which verdict."""
    found = Counter((row["kind"] == BEYOND, row["verdict"]) for row in ledger)
    tallies = {
        "claims of the paper": {verdict: found[False, verdict] for verdict in PAPER_VERDICTS},
        "questions beyond the paper": {verdict: found[True, verdict] for verdict in ANSWERS.values()},
    }
    return {name: counts for name, counts in tallies.items() if sum(counts.values())}


def _ran(runs: Sequence[Mapping[str, Any]]) -> str:
    """What was trained, in a sentence."""
    if not runs:
        return "No training ran for this page."
    settings, trained = len({run["cell"] for run in runs}), sum(len(pages.listed(run["seeds"])) for run in runs)
    seconds = pages.duration(sum(run["seconds"] for run in runs))
    where = _distinct(f"{run['device']}, {run['machine']}" for run in runs)
    return f"{trained} training runs of {settings} settings in {len(runs)} jobs, {seconds} of training on {where}."


def _shown(entry: FigureEntry) -> dict[str, Any]:
    """What the template needs of a figure: the picture inline, its size on the page and the table's first rows.

    The picture is the same, pixel for pixel, as WebP, which takes less than half the room.
    """
    picture, webp = Image.open(BytesIO(entry.png)), BytesIO()
    picture.convert("RGB").save(webp, "webp", lossless=True)
    width = round(picture.width * PAGE_PIXELS)
    return {
        "width": width,
        "height": round(picture.height * PAGE_PIXELS),
        "wide": width > PHONE_PIXELS,
        "title": entry.title,
        "caption": entry.caption,
        "picture": f"data:image/webp;base64,{b64encode(webp.getvalue()).decode()}",
        "table": entry.table.head(SHOWN_FIRST),
        "length": len(entry.table),
        "path": entry.table_path,
    }


def _versions(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Package versions of all jobs; several where jobs differ."""
    names = sorted({name for run in runs for name in run["versions"]})
    return {name: _distinct(run["versions"][name] for run in runs if name in run["versions"]) for name in names}


def _distinct(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values)) or "–"
