"""A picture of a model's attention weights."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from attnid import style
from attnid.errors import UserError

PANELS = {
    "beta": r"$\beta$ / trace($G_Q + G_K$)",
    "tau": r"$\tau$ / trace($G_Q + G_K$)",
    "effective_rank_qk": r"effective rank of $W_Q^T W_K$",
    "effective_rank_vo": r"effective rank of $W_O W_V$",
}


def draw_weights(heads: pd.DataFrame, path: Path) -> None:
    """Draw a point for every head by layer, and write the figure. Raises UserError where that cannot be done."""
    figure = weights_figure({"weights": heads})
    try:
        style.save(figure, path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: the figure cannot be written ({error})") from None


@style.styled
def weights_figure(tables: style.Tables) -> Figure:
    """Imbalance and effective rank of every head, layer by layer, from the table `weights`."""
    heads = tables["weights"]
    names = list(dict.fromkeys(heads["layer"]))
    places = heads["layer"].map({name: place for place, name in enumerate(names)})
    figure, axes = style.panels(style.DOUBLE, 3.6, 2, 2, sharex=True)
    for ax, (measure, label) in zip(axes.flat, PANELS.items(), strict=True):
        values = heads[measure] / heads["trace"] if measure in ("beta", "tau") else heads[measure]
        ax.plot(places, values, "o", markersize=2.5, alpha=0.6, color=style.INK)
        ax.plot(values.groupby(places).median(), color=style.GREY, linewidth=0.8, zorder=0)
        ax.set_ylabel(label)
    for ax in axes[-1]:
        ax.set_xlabel(f"attention layer, of {len(names)}")
    return figure
