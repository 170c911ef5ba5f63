"""The tables of an article, in LaTeX: the ledger of verdicts, models, counts, training. Columns of text break lines."""

import re
from collections.abc import Callable, Mapping

import pandas as pd

from attnid import latex
from attnid.claims import runs
from attnid.claims.ledger import CORRECTED, NOT_REPRODUCED, NOT_RUN, MissingError, NotFiniteError, Tables
from attnid.statistics import Estimate, geometric_interval, t_interval

RHO, NULL = r"$\rho$", "$1/(2H)$"


def verdicts(tables: Tables) -> str:
    """Every claim: what is said, printed and measured, and the verdict; over several pages."""
    return _ledger(tables["claims"], long=True)


def departures(tables: Tables) -> str:
    """The claims that came out otherwise than printed, or did not at all."""
    claims = tables["claims"]
    return _ledger(claims[claims["verdict"].isin([CORRECTED, NOT_REPRODUCED])])


def architectures(tables: Tables) -> str:
    """Published models by kind of attention layer: sizes, parameters and unidentified ones; over several pages."""
    heads = ["model", "layers", "$E$", "$H$", "$G$", "$D$", "$C$", "positions"]
    heads += ["parameters, M", "unidentified, M", r"identified, \%", r"of model, \%"]
    sizes = ("layers", "d_model", "n_heads", "n_kv_heads", "qk_head_dim", "v_head_dim")
    rows = [
        [
            latex.escape(_model(row["model"], row["role"])),
            *(str(row[size]) for size in sizes),
            latex.escape(row["position"]),
            latex.number(row["parameters_model"] / 1e6),
            latex.number(row["unidentified_model"] / 1e6),
            latex.number(100 * row["identified_fraction"]),
            latex.number(100 * row["share_of_model"]),
        ]
        for row in tables["architectures"].to_dict("records")
    ]
    return latex.table(heads, rows, "lrrrrrrlrrrr", True)


def counts(tables: Tables) -> str:
    """Families of layers: how many, how many ranks are proved and agree, and the range of the identified share."""
    heads = ["layers", "number", "$E$", "proved", "agreeing", r"identified, \%"]
    layers = pd.concat([tables["ranks"], tables["variants"]])
    rows = [
        [
            latex.escape(str(family)),
            str(len(rows)),
            _span(rows["d_model"]),
            str(rows["certified"].sum()),
            str(rows["agrees"].sum()),
            _span(100 * rows["identified_fraction"]),
        ]
        for family, rows in layers.groupby("group", sort=False)
    ]
    return latex.table(heads, rows, "lrrrrr")


def overlap(tables: Tables) -> str:
    """Rho of the settled steps by case and number of heads, beside its mean for a random step."""
    heads = ["case", "$H$", "seeds", NULL, RHO, f"{RHO} over {NULL}"]
    rows = [
        [
            latex.escape(str(cell.settings["case"])),
            str(cell.settings["n_heads"]),
            str(cell.seeds),
            latex.number(cell.null),
            _estimate(cell, _rho, geometric_interval),
            _estimate(cell, runs.overlap, geometric_interval),
        ]
        for cell in sorted(_cells(tables, "heads"), key=lambda cell: tuple(cell.settings[["case", "n_heads"]]))
    ]
    return latex.table(heads, rows, "lrrrll")


def losses(tables: Tables) -> str:
    """Final validation losses of the cases at the base number of heads."""
    heads = ["case", "optimiser", "rate", "decay", "seeds", "loss, nats a character"]
    rows = [
        [
            *(latex.escape(str(cell.settings[name])) for name in ("case", "optimizer")),
            *(latex.number(cell.settings[name]) for name in ("lr", "weight_decay")),
            str(cell.seeds),
            _estimate(cell, runs.final_loss, t_interval),
        ]
        for cell in _cells(tables, "cases")
    ]
    return latex.table(heads, rows, "llrrrl")


def squad(tables: Tables) -> str:
    """The paper's reading of the SQuAD ablation beside what its own definitions give."""
    heads = ["$D$", "printed, M", "counted, M", r"printed, \%", r"counted, \%"]
    rows = [
        [
            str(row["head_dim"]),
            latex.number(row["printed_unidentified"]),
            latex.number(row["unidentified"] / 1e6),
            latex.number(row["printed_share_percent"]),
            latex.number(row["share_percent"]),
        ]
        for row in tables["squad"].to_dict("records")
    ]
    return latex.table(heads, rows, "rrrrr")


TABLES: Mapping[str, Callable[[Tables], str]] = {
    "verdicts": verdicts,
    "departures": departures,
    "architectures": architectures,
    "counts": counts,
    "overlap": overlap,
    "losses": losses,
    "squad": squad,
}
"""The tables by the names of their files: each writes LaTeX from the tables of a run."""


def _ledger(claims: pd.DataFrame, long: bool = False) -> str:
    heads = ["claim", "statement", "printed", "measured", "seeds", "verdict"]
    rows = [
        [
            *(latex.escape(text) for text in (row["id"], row["statement"])),
            latex.escape(row["printed"]) if isinstance(row["printed"], str) else "",
            _with_interval(row["measured"], row["low"], row["high"]),
            str(row["seeds"] or ""),
            latex.escape(row["verdict"]),
        ]
        for row in claims.to_dict("records")
    ]
    columns = _paragraphs(0.15, 0.31, 0.13, 0.16) + "r" + _paragraphs(0.09)
    return latex.table(heads, rows, columns, long)


def _cells(tables: Tables, group: str) -> list[runs.Cell]:
    """The cells of a group that have runs."""
    try:
        return runs.cells(tables, group)
    except MissingError:
        return []


def _rho(cell: runs.Cell) -> pd.Series:
    return runs.settled_median(cell, "rho_qk")


def _estimate(
    cell: runs.Cell, by_seed: Callable[[runs.Cell], pd.Series], interval: Callable[[pd.Series], Estimate]
) -> str:
    """A number over the seeds of a cell with its interval; in words where it has none."""
    try:
        estimate = interval(by_seed(cell))
    except MissingError:
        return NOT_RUN
    except NotFiniteError:
        return "not finite"
    return _with_interval(estimate.mean, estimate.low, estimate.high)


def _with_interval(value: object, low: object, high: object) -> str:
    interval = latex.interval(low, high)
    return latex.number(value) + (f" {interval}" if interval != latex.MISSING else "")


def _span(values: pd.Series) -> str:
    low, high = latex.number(values.min()), latex.number(values.max())
    return low if low == high else f"{low}--{high}"


def _model(name: str, role: str) -> str:
    """A model's name without its counts of layers, and the kind of layer where that is not plain self-attention."""
    return re.sub(r" \(.*enc.*", "", name) + ("" if role == "self" else f", {role}")


def _paragraphs(*widths: float) -> str:
    """Columns of text that breaks, their widths as shares of the line."""
    return "".join(rf">{{\raggedright\arraybackslash}}p{{{width}\linewidth}}" for width in widths)
