"""What the page's explorer draws: rho and losses of every training cell, thinned, and the script that draws them.

The script is Vega with the few lines of `explorer.js`, bundled by vl-convert; nothing is fetched.
"""

import json
import zlib
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import vl_convert

from attnid import pages, style
from attnid.statistics import undefined

MOST_VALUES = 120_000
"""Values of steps that a page holds, at about three and a half bytes each."""

RHO_MEASURES = {"rho_qk": "rho_null", "rho_vo": "rho_vo_null"}
"""Columns of the table heads, and the beginning of the names of their nulls in the table cells."""
LOSS = "val_loss"
MEASURES = {
    "rho_qk": "ρ of query/key steps",
    "rho_vo": "ρ of value/output steps",
    LOSS: "validation loss, nats a character",
}


@dataclass(frozen=True)
class Explorer:
    """What the template explorer.html.j2 needs.

    `cells` has one entry a training cell that has runs: its name, label and measures. A measure has the `steps` that
    are kept; its `lines`, (seed, layer, head) or (seed,) each; for each line the `values` at these steps and, in
    `settled`, their median over the second half of all measured steps; and in `null` the mean, the lower and the upper
    end of the middle 95 % for a random step, None for a loss. A value that is missing or not finite is None.
    """

    cells: list[dict[str, Any]]
    start: int
    """The cell that is shown first."""

    @property
    def labels(self) -> list[str]:
        """A reader's name of each cell; no two are the same."""
        return [cell["label"] for cell in self.cells]

    @property
    def thinned(self) -> bool:
        """Whether steps are left out."""
        measures = [measure for cell in self.cells for measure in cell["measures"].values()]
        return any(measure["of_steps"] > len(measure["steps"]) for measure in measures)

    @property
    def data(self) -> str:
        """`cells` as JSON, compressed (zlib) and in base64."""
        text = json.dumps(self.cells, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return b64encode(zlib.compress(text.encode(), 9)).decode()

    @property
    def vega(self) -> str:
        """Version of Vega that the script holds."""
        return vl_convert.get_vega_version()

    @property
    def measures(self) -> dict[str, str]:
        """A reader's name of each measure."""
        return MEASURES

    @property
    def script(self) -> str:
        """The JavaScript module that draws: Vega and explorer.js."""
        return _bundle()


def explorer(tables: style.Tables) -> Explorer:
    """The explorer of the tables cells, heads and evaluations, in the order of the table cells."""
    heads, evaluations = style.step_rows(tables), tables["evaluations"]
    cells = tables["cells"][tables["cells"]["cell"].isin(heads["cell"])]
    lines = len(heads.drop_duplicates(["cell", "seed", "layer", "head"]))
    most_steps = max(MOST_VALUES // max(len(RHO_MEASURES) * lines, 1), 2)
    by_cell = {name: dict(list(frame.groupby("cell"))) for name, frame in (("heads", heads), ("losses", evaluations))}
    entries = []
    for (_, cell), label in zip(cells.iterrows(), _labels(cells), strict=True):
        name = cell["cell"]
        losses = by_cell["losses"].get(name, evaluations.head(0))
        entries.append(
            {"cell": name, "label": label, "measures": _measured(cell, by_cell["heads"][name], losses, most_steps)}
        )
    adamw = [index for index, case in enumerate(cells["case"]) if case == "adamw"]
    return Explorer(entries, adamw[0] if adamw else 0)


@cache
def _bundle() -> str:
    return vl_convert.javascript_bundle((pages.TEMPLATES / "explorer.js").read_text(encoding="utf-8"))


def _measured(cell: pd.Series, heads: pd.DataFrame, losses: pd.DataFrame, most_steps: int) -> dict[str, Any]:
    measures = {}
    for name, null in RHO_MEASURES.items():
        ends = [_short(cell[f"{null}_{end}"]) for end in ("mean", "low", "high")]
        measures[name] = {**_lines(heads, ["seed", "layer", "head"], name, most_steps), "null": ends}
    return {**measures, LOSS: {**_lines(losses, ["seed"], LOSS, most_steps), "null": None}}


def _lines(frame: pd.DataFrame, line: list[str], measure: str, most_steps: int) -> dict[str, Any]:
    """A measure of one cell, one line for each distinct value of the columns `line`."""
    wide = frame.pivot(index=line, columns="step", values=measure).sort_index()
    steps = wide.columns.to_numpy()
    kept = steps[_thinned(len(steps), most_steps)]
    settled = frame[(frame["step"] > frame["step"].max() / 2) & ~undefined(frame, measure)]
    finite = np.isfinite(settled[measure]).groupby([settled[column] for column in line]).all()
    medians = settled.groupby(line)[measure].median().where(finite).reindex(wide.index)
    return {
        "steps": kept.tolist(),
        "of_steps": len(steps),
        "lines": [list(key) if isinstance(key, tuple) else [key] for key in wide.index.tolist()],
        "values": [[_short(value) for value in row] for row in wide[kept].to_numpy()],
        "settled": [_short(value) for value in medians],
    }


def _thinned(count: int, most: int) -> list[int]:
    """Places of at most so many of `count` items, evenly spread, the first and the last among them."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))}) if count else []


def _short(value: float) -> float | None:
    """A number to four significant digits; None for one that is missing or not finite."""
    return float(f"{value:.4g}") if np.isfinite(value) else None


def _labels(cells: pd.DataFrame) -> list[str]:
    """A reader's name of each cell, with its hash where two would have the same."""
    labels = pd.Series([_label(cell) for _, cell in cells.iterrows()], index=cells.index, dtype=object)
    twice = labels.duplicated(keep=False)
    return list(labels.where(~twice, labels + " (" + cells["cell"] + ")"))


def _label(cell: pd.Series) -> str:
    parts = [style.case_label(cell["case"]), f"H {cell['n_heads']}"]
    parts += [f"G {cell['n_kv_heads']}"] if cell["n_kv_heads"] != cell["n_heads"] else []
    parts += ["RoPE"] if cell["rotary_dim"] else []
    parts += [f"lr {cell['lr']:g}"]
    parts += [f"every {cell['rebalance_every']} steps"] if cell["rebalance_every"] else []
    parts += [cell["precision"]] if cell["precision"] != "float32" else []
    return ", ".join(parts)
