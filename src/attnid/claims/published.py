"""Claims about published models and a published ablation (tables architectures and squad)."""

import pandas as pd

from attnid.claims.counts import layer, rotary_grouped
from attnid.claims.ledger import (
    CORRECTED,
    NOT_REPRODUCED,
    QUALIFIED,
    REPRODUCED,
    TABLE,
    Finding,
    Tables,
    claim,
    some,
    table,
)
from attnid.claims.rules import evidence_rows, furthest_from_one, number, percent

LLAMA = {"n_heads": 64, "n_kv_heads": 8, "qk_head_dim": 128}
LLAMA_PRINTED = 131_072
PRINTED_RANGE = (0.80, 0.90)
ROUNDED = 0.005
MOST = 0.5


@claim(
    "squad-table",
    place=18,
    at="Figure 1",
    kind=TABLE,
    figure="squad_table",
    statement="Unidentified parameters of the SQuAD ablation at head widths 32, 64, 128 and 256",
    printed="0.26 M, 1.05 M, 4.20 M, 16.82 M (0.20 %, 0.74 %, 2.50 %, 7.71 %)",
    rule="Measured: recomputed over printed count, the row where they differ most. Same: within 1 % of the larger "
    "number or half of its last printed digit. Reproduced if every count is the same; corrected if the printed "
    "attention parameters are (so the sizes are right) and no count is; qualified if some counts are; otherwise not "
    "reproduced.",
)
def _(tables: Tables) -> Finding:
    rows = table(tables, "squad")
    counts = _as_printed(rows["unidentified"] / 1e6, rows["printed_unidentified"], 0.005)
    attention = _as_printed(rows["attention"] / 1e6, rows["printed_attention"], 0.05)
    ratio = rows["unidentified"] / 1e6 / rows["printed_unidentified"]
    if counts.all():
        verdict = REPRODUCED
    elif not attention.all():
        verdict = NOT_REPRODUCED
    else:
        verdict = QUALIFIED if counts.any() else CORRECTED
    listed = [
        f"d_p = {row['head_dim']:.0f}: {row['unidentified'] / 1e6:.4g} M ({row['share_percent']:.3g} %), printed "
        f"{row['printed_unidentified']:.4g} M ({row['printed_share_percent']:.3g} %)"
        for _, row in rows.iterrows()
    ]
    widths = rows["printed_implied_width"]
    evidence = (
        f"{'; '.join(listed)}. The printed counts imply a width of {widths.min():.0f} to {widths.max():.0f}, the model "
        f"has {rows['d_model'].iloc[0]}."
    )
    printed = 1e6 * rows["printed_unidentified"]
    listing = evidence_rows("Unidentified parameters", _widths(rows), rows["unidentified"], printed, printed)
    measured = float(ratio.iloc[furthest_from_one(ratio)])
    return Finding(verdict, evidence, _squad_scale(rows), measured, rows=listing)


@claim(
    "squad-most-benefit",
    place=60,
    at="4.8.1",
    kind=TABLE,
    figure="squad_table",
    statement="In the ablation most of the gain comes with more identified parameters rather than with wider heads",
    rule="Measured: share of the summed F1 gain that the first step (head width 32 to 64) brings; most: over half, for "
    "exact match as well, otherwise not reproduced. Reproduced if the table can also tell the two causes apart, that "
    "is if identified parameters and head width do not both grow at every step; qualified if it cannot.",
)
def _(tables: Tables) -> Finding:
    rows = table(tables, "squad").sort_values("head_dim")
    gains = rows[["gain_f1", "gain_em"]].iloc[1:]
    some(gains, "steps in the table squad")
    shares = gains.iloc[0] / gains.sum(skipna=False)
    identified = (rows["attention"] - rows["unidentified"]) / 1e6
    together = bool((identified.diff().iloc[1:] > 0).all() and (rows["head_dim"].diff().iloc[1:] > 0).all())
    verdict = NOT_REPRODUCED
    if (shares > MOST).all():
        verdict = QUALIFIED if together else REPRODUCED
    evidence = (
        f"The first step brings {percent(shares['gain_f1'])} of the F1 gain and {percent(shares['gain_em'])} of the "
        f"exact-match gain. Identified parameters: {', '.join(number(value) for value in identified)} M at head widths "
        f"{', '.join(str(width) for width in rows['head_dim'])}"
    )
    evidence += ": both grow at every step, so the table cannot tell them apart." if together else "."
    listing = evidence_rows("Share of the gain", ["first step, F1", "first step, exact match"], shares, MOST)
    listing += evidence_rows("Identified parameters, millions", _widths(rows), identified)
    return Finding(verdict, evidence, _squad_scale(rows), float(shares["gain_f1"]), rows=listing)


@claim(
    "llama2-70b",
    place=24,
    at="4.9",
    kind=TABLE,
    figure="architectures",
    statement="Unidentified query/key directions of a Llama-2-70B layer under RoPE and grouping",
    printed="131,072 instead of 1,048,576, a factor of 8",
    rule=f"Row of architectures with 64 heads, 8 groups, D = 128 and RoPE on the whole head. Reproduced if its "
    f"query/key gauge is {LLAMA_PRINTED:,}; corrected if it is another number and the closed form equals the rank in "
    "all rows of ranks with RoPE and groups; otherwise not reproduced. Measured: its query/key gauge.",
)
def _(tables: Tables) -> Finding:
    rows = table(tables, "architectures")
    for column, value in LLAMA.items():
        rows = rows[rows[column] == value]
    rows = some(rows[rows["rotary_dim"] == rows["qk_head_dim"]], "model with 64 heads, 8 groups, D = 128 and RoPE")
    by_name = rows[rows["model"].str.contains("llama-?2", case=False, regex=True)]
    model = (rows if by_name.empty else by_name).iloc[0]
    gauge = int(model["query_key_gauge"])
    attested = rotary_grouped(tables)
    ranks = layer(attested)
    agree = bool((ranks.measured == ranks.closed).all())
    verdict = REPRODUCED if gauge == LLAMA_PRINTED else CORRECTED if agree else NOT_REPRODUCED
    G, D, H = model["n_kv_heads"], model["qk_head_dim"], model["n_heads"]
    evidence = (
        f"{model['model']}: G D = {gauge:,} query/key directions a layer; grouping alone would leave G D^2 = "
        f"{G * D**2:,}, neither of the two H D^2 = {H * D**2:,}. The value/output gauge is "
        f"{model['value_output_gauge']:,}. The closed form equals the rank in "
        f"{(ranks.measured == ranks.closed).sum()} of {len(attested)} small layers with RoPE and groups."
    )
    directions = pd.Series([gauge])
    listing = evidence_rows("Query/key directions a layer", [model["model"]], directions, LLAMA_PRINTED, LLAMA_PRINTED)
    listing += evidence_rows("Unidentified directions", attested["layer"], ranks.measured, ranks.closed, ranks.closed)
    return Finding(verdict, evidence, "closed form at the published sizes", float(gauge), rows=listing)


@claim(
    "published-architectures",
    place=59,
    at="6",
    kind=TABLE,
    figure="architectures",
    statement="Published multi-head architectures identify this share of their attention parameters",
    printed="80-90%",
    rule="Models of architectures without grouping and without latent attention, all their attention layers together. "
    "Reproduced if the identified fraction lies between 79.5 and 90.5 % in every model, qualified in some, corrected "
    "in none. Measured: the median, and the smallest and largest.",
)
def _(tables: Tables) -> Finding:
    rows = table(tables, "architectures")
    multi_head = (rows["n_heads"] == rows["n_kv_heads"]) & (rows["latent_gauge"] == 0)
    rows = some(rows[multi_head], "multi-head models in the table architectures")
    whole = rows.groupby("model", sort=False)[["parameters_model", "unidentified_model"]].sum()
    fraction = 1 - whole["unidentified_model"] / whole["parameters_model"]
    inside = fraction.between(PRINTED_RANGE[0] - ROUNDED, PRINTED_RANGE[1] + ROUNDED)
    verdict = REPRODUCED if inside.all() else QUALIFIED if inside.any() else CORRECTED
    listed = ", ".join(f"{model} {percent(share)}" for model, share in fraction.items())
    evidence = f"Between 80 and 90 %: {inside.sum()} of {len(fraction)} models. {listed}."
    scale = f"closed form at the sizes of {len(fraction)} published models"
    ends = float(fraction.min()), float(fraction.max())
    listing = evidence_rows(
        "Identified share", fraction.index, fraction, PRINTED_RANGE[0] - ROUNDED, PRINTED_RANGE[1] + ROUNDED
    )
    return Finding(verdict, evidence, scale, float(fraction.median()), *ends, rows=listing)


def _as_printed(recomputed: pd.Series, printed: pd.Series, half_digit: float) -> pd.Series:
    """Whether two numbers are the same: within 1 % or half of the last printed digit."""
    difference = (recomputed - printed).abs()
    return (difference <= 0.01 * printed) | (difference <= half_digit)


def _widths(rows: pd.DataFrame) -> list[str]:
    return [f"head width {width}" for width in rows["head_dim"]]


def _squad_scale(rows: pd.DataFrame) -> str:
    layers, width, heads = (rows[name].iloc[0] for name in ("n_layers", "d_model", "n_heads"))
    return f"{layers} layers, width {width}, {heads} heads, as published"
