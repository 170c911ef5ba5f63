"""Unidentified parameters of published models by source, beside what the paper's rule says of them."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnid import style

TITLE = "Unidentified parameters of published models"
CAPTION = (
    "Share of the attention parameters of published models that is unidentified, by source, closed form, all attention "
    "layers together; each kind of layer has a small twin with the same features whose count is proved. Rings: the "
    "paper's rule for plain multi-head attention, 1/(2H). Right: the unidentified parameters of all attention layers, "
    "in millions, and their share of the whole model. Norms before a layer are not counted."
)
TABLES = ("architectures",)

SOURCES = {
    "value/output gauge": (("value_output_gauge",), style.PALETTE[1]),
    "query/key gauge": (("query_key_gauge",), style.PALETTE[2]),
    "latents (MLA)": (("latent_gauge",), style.PALETTE[3]),
    "biases, tables": (("dead_key_bias", "dead_value_bias", "relative_table"), style.PALETTE[4]),
}
COLUMNS = (
    "model",
    "role",
    "layers",
    "layer",
    "parameters",
    "unidentified",
    "identified_fraction",
    "paper_fraction",
    "unidentified_model",
    "share_of_model",
    "block_norm",
    "block_parameters",
    "block_unidentified",
)
ROW = 0.135
"""Height of a model's bar with its space, in inches."""


@style.styled
def draw(tables: style.Tables) -> Figure:
    """Draw one bar a model."""
    models = _models(tables["architectures"])
    if models.empty:
        return style.nothing_drawn(style.DOUBLE, ["no models in the table of architectures"])
    figure, axes = style.panels(style.DOUBLE, 0.9 + ROW * len(models))
    figure.set_layout_engine("constrained", rect=(0, 0, 0.985, 1))
    ax = axes[0, 0]
    places = range(len(models))
    left = pd.Series(0.0, index=models.index)
    for name, (_, color) in SOURCES.items():
        share = 100 * models[name] / models["parameters"]
        ax.barh(places, share, left=left, height=0.7, color=color, label=name)
        left = left + share
    rule = 100 * (1 - models["paper_fraction"])
    ax.plot(rule, places, linestyle="none", marker="o", markerfacecolor="white", color=style.INK, label="1/(2H)")
    ax.set_yticks(places, models["model"].str.replace(r" \(.*enc.*", "", regex=True))
    ax.set_ylim(len(models) - 0.4, -0.6)
    ax.set_xlim(left=0)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("unidentified share of the attention parameters, %")
    _write_numbers(ax, models)
    style.legend_above(figure, [ax], columns=len(SOURCES) + 1)
    return figure


def behind(tables: style.Tables) -> pd.DataFrame:
    """The table architectures: a row a kind of layer of a model."""
    return tables["architectures"][[*COLUMNS]]


def _models(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a model, its kinds of attention layers together: parameters and unidentified ones by source."""
    columns = {"parameters": rows["parameters_model"], "unidentified": rows["unidentified_model"]}
    for name, (sources, _) in SOURCES.items():
        columns[name] = rows["layers"] * rows[list(sources)].sum(axis=1)
    summed = pd.DataFrame(columns).groupby(rows["model"], sort=False).sum()
    first = rows.groupby("model", sort=False)[["paper_fraction", "model_parameters"]].first()
    summed["share_of_model"] = summed["unidentified"] / (1e6 * first["model_parameters"])
    return summed.join(first).reset_index()


def _write_numbers(ax: Axes, models: pd.DataFrame) -> None:
    """Columns of numbers right of the bars."""
    small: Any = {"ha": "right", "fontsize": style.SMALL}
    for x, head in ((1.1, "unidentified,\nmillions"), (1.2, "share of\nmodel, %")):
        ax.annotate(head, (x, 1.0), xycoords="axes fraction", va="bottom", **small)
    for place, (_, row) in enumerate(models.iterrows()):
        numbers = ((1.1, f"{row['unidentified'] / 1e6:.3g}"), (1.2, f"{100 * row['share_of_model']:.2g}"))
        for x, text in numbers:
            ax.annotate(text, (x, place), xycoords=ax.get_yaxis_transform(), va="center", **small)
