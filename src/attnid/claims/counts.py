"""Claims that proved ranks of layers settle (table ranks), and the equivalent single head (table equivalents)."""

from dataclasses import replace

import numpy as np
import pandas as pd

from attnid.claims.ledger import (
    CORRECTED,
    COUNT,
    NOT_REPRODUCED,
    QUALIFIED,
    REPRODUCED,
    Finding,
    MissingError,
    Tables,
    claim,
    some,
    table,
)
from attnid.claims.rules import (
    FORMULA_RULE,
    SAME,
    Quantity,
    evidence_rows,
    formula,
    furthest_from_one,
    holds_or_not,
    number,
    percent,
    rank_scale,
    span,
    with_verdict,
)

PLAIN = "Rows: no RoPE, no grouping, no biases, heads at most as wide as the model (D, C <= E). "
SPLIT = "Rows: no RoPE, no grouping, no biases, D = C = E/H. "
ROUNDING = 0.005
LIKE_HALF = (0.45, 0.55)
ROUGHLY_60 = (0.55, 0.65)


@claim(
    "qk-gauge-dimension",
    place=1,
    at="4.2, 4.4",
    kind=COUNT,
    statement="The D x E query and key matrices of a head hold 2DE numbers, D^2 of which mean nothing",
    rule=PLAIN + "Measured: query/key parameters minus their rank; formula: H D^2. " + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = plain(tables)
    return formula(rows, query_key(rows), "H D^2", rows["n_heads"] * rows["qk_head_dim"] ** 2)


@claim(
    "qk-fraction",
    place=2,
    at="4.2",
    kind=COUNT,
    figure="identified_fraction",
    statement="Share of a query/key pair's parameters that is identified",
    printed="1 - D/(2E)",
    rule=PLAIN + "Measured: query/key rank over query/key parameters. " + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = plain(tables)
    return formula(rows, identified_query_key(rows), "1 - D/(2E)", 1 - rows["qk_head_dim"] / (2 * rows["d_model"]))


@claim(
    "full-rank-head",
    place=3,
    at="4.2",
    kind=COUNT,
    figure="identified_fraction",
    statement="A head as wide as the model (D = E) is identified by half",
    printed="0.5",
    rule=PLAIN + "Of these D = E. Measured: query/key rank over query/key parameters; formula: 1/2. " + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = plain(tables)
    rows = some(rows[rows["qk_head_dim"] == rows["d_model"]], "layers with D = E")
    return formula(rows, identified_query_key(rows), "1/2", 0.5)


@claim(
    "never-fully-identified",
    place=4,
    at="4.2",
    kind=COUNT,
    figure="head_width",
    statement="The best a head can do is D = 1, and even that leaves something unidentified",
    printed="1 - 1/(2E)",
    rule=PLAIN
    + "Measured: query/key rank over query/key parameters. The formula is compared where D = 1; any row above "
    + "1 - 1/(2E) means not reproduced. "
    + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = plain(tables)
    best = 1 - 1 / (2 * rows["d_model"])
    narrow = some(rows[rows["qk_head_dim"] == 1], "layers with D = 1")
    finding = formula(narrow, identified_query_key(narrow), "1 - 1/(2E)", best[narrow.index])
    above = rows[identified_query_key(rows).measured > best + SAME]
    if above.empty:
        return with_verdict(finding, finding.verdict, f"None of {len(rows)} layers lies above it.")
    return with_verdict(finding, NOT_REPRODUCED, f"Above it lies {above['layer'].iloc[0]}.")


@claim(
    "trivial-example",
    place=5,
    at="4.1",
    kind=COUNT,
    statement="With E = 1, the 2D numbers of a head act on the scores as one number",
    printed="2D - 1 of 2D unidentified",
    rule="Rows: no RoPE, no grouping, no biases, E = 1. Measured: query/key parameters minus their rank; formula: "
    "H (2D - 1). " + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = without_biases(ungrouped(proved(tables)))
    rows = some(rows[(rows["rotary_dim"] == 0) & (rows["d_model"] == 1)], "layers with E = 1")
    return formula(rows, query_key(rows), "H (2D - 1)", rows["n_heads"] * (2 * rows["qk_head_dim"] - 1))


@claim(
    "multi-head-fraction-qk",
    place=6,
    at="4.5",
    kind=COUNT,
    figure="identified_fraction",
    statement="Share of all query/key weights of a multi-head layer that is identified when D = E/H",
    printed="1 - 1/(2H)",
    rule=SPLIT + "Measured: query/key rank over query/key parameters. " + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = split(tables)
    return formula(rows, identified_query_key(rows), "1 - 1/(2H)", 1 - 1 / (2 * rows["n_heads"]))


@claim(
    "multi-head-fraction-all",
    place=7,
    at="4.5",
    kind=COUNT,
    figure="identified_fraction",
    statement="Share of all four weight matrices of a multi-head layer that is identified when D = C = E/H",
    printed="1 - 1/(2H)",
    rule=SPLIT + "Measured: rank over parameters. " + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = split(tables)
    return formula(rows, identified_layer(rows), "1 - 1/(2H)", 1 - 1 / (2 * rows["n_heads"]))


@claim(
    "six-heads",
    place=8,
    at="4.5",
    kind=COUNT,
    figure="identified_fraction",
    statement="Identified share with 6 heads",
    printed="11/12, about 83%",
    rule=SPLIT + f"Of these H = 6. Measured: rank over parameters. Reproduced if within {ROUNDING} of 0.83; corrected "
    "if it is 11/12 instead, the other of the two numbers printed; otherwise not reproduced.",
)
def _(tables: Tables) -> Finding:
    rows = with_heads(split(tables), 6)
    finding = formula(rows, identified_layer(rows), "11/12", 11 / 12)
    if abs(finding.measured - 0.83) <= ROUNDING:
        return with_verdict(finding, REPRODUCED)
    if finding.verdict != REPRODUCED:
        return with_verdict(finding, NOT_REPRODUCED)
    return with_verdict(finding, CORRECTED, f"That is {percent(finding.measured)}, not 83 %.")


@claim(
    "eight-heads",
    place=9,
    at="4.5",
    kind=COUNT,
    figure="identified_fraction",
    statement="Identified share with 8 heads",
    printed="15/16, about 94%",
    rule=SPLIT + "Of these H = 8. Measured: rank over parameters; formula: 15/16. " + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = with_heads(split(tables), 8)
    finding = formula(rows, identified_layer(rows), "15/16", 15 / 16)
    return with_verdict(finding, finding.verdict, f"That is {percent(finding.measured)}.")


@claim(
    "vo-gauge-dimension",
    place=10,
    at="4.5",
    kind=COUNT,
    statement="The value and output matrices of a head have C^2 directions that mean nothing",
    rule=PLAIN + "Measured: value/output parameters minus their rank; formula: H C^2. " + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = plain(tables)
    return formula(rows, value_output(rows), "H C^2", rows["n_heads"] * rows["v_head_dim"] ** 2)


@claim(
    "dead-bias-total",
    place=15,
    at="4.7",
    kind=COUNT,
    statement="At C = D = E/H, 2E biases of a layer can be left out",
    printed="2E",
    rule="Rows: key and value bias, no grouping, D = C = E/H; with or without RoPE and output bias. Measured: "
    "unidentified directions beyond the two gauges. " + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = equal_share(ungrouped(proved(tables)))
    rows = some(rows[rows["key_bias"] & rows["value_bias"]], "layers with key and value bias")
    gauges = rows["query_key_gauge"] + rows["value_output_gauge"]
    dead = Quantity(
        "Dead biases of a layer",
        rows["parameters"] - rows["exact_lower"] - gauges,
        rows["dead_key_bias"] + rows["dead_value_bias"],
    )
    return formula(rows, dead, "2E", 2 * rows["d_model"])


@claim(
    "larger-heads",
    place=16,
    at="4.8.1",
    kind=COUNT,
    figure="head_width",
    statement="With a head width chosen freely, the unidentified share of the query/key weights grows with it",
    printed="D/(2E)",
    rule=PLAIN + "Of these D other than E/H. Measured: unidentified over all query/key parameters. " + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = plain(tables)
    rows = some(rows[rows["qk_head_dim"] * rows["n_heads"] != rows["d_model"]], "layers with D other than E/H")
    share = query_key(rows).per(rows["parameters_qk"], "Unidentified share of query/key")
    return formula(rows, share, "D/(2E)", rows["qk_head_dim"] / (2 * rows["d_model"]))


@claim(
    "larger-heads-limit",
    place=17,
    at="4.8.1",
    kind=COUNT,
    figure="head_width",
    statement="At D = E half of the query/key weights is unidentified, however many heads",
    printed="0.5",
    rule=PLAIN + "Of these D = E and H > 1. Measured: unidentified over all query/key parameters; formula: 1/2. "
    "" + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = plain(tables)
    wide = (rows["qk_head_dim"] == rows["d_model"]) & (rows["n_heads"] > 1)
    rows = some(rows[wide], "layers with D = E and several heads")
    share = query_key(rows).per(rows["parameters_qk"], "Unidentified share of query/key")
    return formula(rows, share, "1/2", 0.5)


@claim(
    "rope-dimension",
    place=19,
    at="4.8.2",
    kind=COUNT,
    statement="Under RoPE a query/key head keeps D unidentified directions",
    printed="D",
    rule="Rows: RoPE on the whole head, no grouping, no biases. Measured: query/key parameters minus their rank; "
    "formula: H D. " + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = some(rotary(ungrouped(without_biases(proved(tables)))), "layers with RoPE")
    return formula(rows, query_key(rows), "H D", rows["n_heads"] * rows["qk_head_dim"])


@claim(
    "gqa-dimension",
    place=21,
    at="4.9",
    kind=COUNT,
    statement="With G key/value groups the query/key gauge has one S a group",
    printed="G D^2",
    rule="Rows: grouped (G < H), no RoPE, no biases, D, C <= E. Measured: query/key parameters minus their rank. "
    + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = grouped(tables)
    return formula(rows, query_key(rows), "G D^2", rows["n_kv_heads"] * rows["qk_head_dim"] ** 2)


@claim(
    "gqa-factor",
    place=22,
    at="4.9",
    kind=COUNT,
    statement="Grouping reduces what is unidentified by the number of heads a group",
    printed="H/G",
    rule="Rows: grouped (G < H), no RoPE, no biases, D, C <= E, each against H D^2 of 2 H D E without groups. "
    "Reproduced if the measured count and the measured fraction of the query/key weights both fall by H/G in every "
    "row; qualified if only the count does and the fraction falls by (H + G)/(2G); otherwise not reproduced. Measured: "
    "the fall of the fraction over H/G, where they differ most.",
)
def _(tables: Tables) -> Finding:
    rows = grouped(tables)
    H, G, D, E = (rows[name] for name in ("n_heads", "n_kv_heads", "qk_head_dim", "d_model"))
    left = query_key(rows)
    count_factor = Quantity("Fall of the count", H * D**2 / left.measured, H * D**2 / left.closed)
    share = left.per(rows["parameters_qk"], "")
    share_factor = Quantity("Fall of the fraction", D / (2 * E) / share.measured, D / (2 * E) / share.closed)
    by_count = formula(rows, count_factor, "H/G", H / G)
    by_share = formula(rows, share_factor, "H/G", H / G)
    by_other = formula(rows, share_factor, "(H + G)/(2G)", (H + G) / (2 * G))
    both = Finding(REPRODUCED, f"{by_count.evidence} {by_share.evidence}", rank_scale(rows), by_share.measured)
    both = replace(both, rows=by_count.rows + by_share.rows)
    if by_count.verdict != REPRODUCED:
        return with_verdict(both, NOT_REPRODUCED)
    if by_share.verdict == REPRODUCED:
        return both
    verdict = QUALIFIED if by_other.verdict == REPRODUCED else NOT_REPRODUCED
    return with_verdict(both, verdict, by_other.evidence)


@claim(
    "rope-gqa-dimension",
    place=23,
    at="4.9",
    kind=COUNT,
    statement="RoPE and grouping together leave D directions a group in the query/key gauge",
    printed="G D",
    rule="Rows: RoPE on the whole head, grouped (G < H), no biases. Measured: query/key parameters minus their rank. "
    + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = rotary_grouped(tables)
    return formula(rows, query_key(rows), "G D", rows["n_kv_heads"] * rows["qk_head_dim"])


@claim(
    "gqa-complete",
    place=57,
    at="4.9",
    kind=COUNT,
    statement="One S a group is all the freedom that grouped attention has",
    rule="Rows: grouped (G < H), no RoPE, no biases, D, C <= E. Measured: parameters of the layer minus their rank; "
    "formula: G (D^2 + C^2). " + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = grouped(tables)
    expected = rows["n_kv_heads"] * (rows["qk_head_dim"] ** 2 + rows["v_head_dim"] ** 2)
    return formula(rows, layer(rows), "G (D^2 + C^2)", expected)


@claim(
    "constrained-count",
    place=55,
    at="4.3",
    kind=COUNT,
    statement="Two matrices with orthonormal rows and D scales between them have as many degrees of freedom as a "
    "query/key pair has identified parameters",
    printed="2DE - D^2",
    rule=PLAIN + "Measured: query/key rank; formula: H (2 (D E - D (D + 1)/2) + D), the dimensions of two Stiefel "
    "manifolds and the scales. " + FORMULA_RULE,
)
def _(tables: Tables) -> Finding:
    rows = plain(tables)
    D, E = rows["qk_head_dim"], rows["d_model"]
    frame = D * E - D * (D + 1) // 2
    identified = Quantity(
        "Query/key rank",
        rows["exact_lower_qk"],
        rows["parameters_qk"] - rows["query_key_gauge"] - rows["dead_key_bias"],
    )
    return formula(rows, identified, "2 (DE - D (D + 1)/2) + D a head", rows["n_heads"] * (2 * frame + D))


@claim(
    "rotations-half",
    place=56,
    at="2",
    kind=COUNT,
    statement="Rotations make up something like half of a head's unidentified directions",
    printed="D(D-1)/2 of D^2",
    rule=PLAIN + "Measured: D (D - 1)/2 over the unidentified query/key directions of a head. Something like half: "
    f"between {LIKE_HALF[0]} and {LIKE_HALF[1]}. Reproduced if so in every row, qualified in some, not reproduced in "
    "none.",
)
def _(tables: Tables) -> Finding:
    rows = plain(tables)
    D = rows["qk_head_dim"]
    share = D * (D - 1) / 2 * rows["n_heads"] / query_key(rows).measured
    half = share.between(*LIKE_HALF)
    narrowest, widest = int(np.argmin(D)), int(np.argmax(D))
    evidence = (
        f"Share of the rotations: {number(share.iloc[narrowest])} at D = {D.iloc[narrowest]}, "
        f"{number(share.iloc[widest])} at D = {D.iloc[widest]}; like half in {half.sum()} of {len(rows)} layers"
    )
    evidence += f", from D = {D[half].min()} on." if half.any() and not half.all() else "."
    verdict = REPRODUCED if half.all() else QUALIFIED if half.any() else NOT_REPRODUCED
    return Finding(
        verdict,
        evidence,
        rank_scale(rows),
        float(share.iloc[widest]),
        float(share.min()),
        float(share.max()),
        rows=evidence_rows("Share of the rotations", rows["layer"], share, *LIKE_HALF),
    )


@claim(
    "rope-improves-layer",
    place=58,
    at="4.8.2, abstract",
    kind=COUNT,
    statement="RoPE raises the share of parameters that mean something",
    rule="Rows: RoPE on the whole head, no grouping, no biases, D = C > 1, D <= E; each against the same layer without "
    "RoPE, H (D^2 + C^2). Measured: by how much the unidentified directions of the whole layer fall. Reproduced if "
    "always more than twofold; qualified if they always fall, but at most twofold; otherwise not reproduced.",
)
def _(tables: Tables) -> Finding:
    rows = rotary(ungrouped(without_biases(proved(tables))))
    D, C = rows["qk_head_dim"], rows["v_head_dim"]
    rows = some(rows[(D == C) & (D > 1) & (rows["d_model"] >= D)], "layers with RoPE and D = C > 1")
    D, H = rows["qk_head_dim"], rows["n_heads"]
    whole = 2 * H * D**2 / layer(rows).measured
    pair = H * D**2 / query_key(rows).measured
    verdict = REPRODUCED if (whole > 2).all() else QUALIFIED if whole.between(1 + SAME, 2).all() else NOT_REPRODUCED
    evidence = (
        f"RoPE leaves {number(whole.min())} to {number(whole.max())} times fewer unidentified directions in a layer, "
        f"and {number(pair.min())} to {number(pair.max())} times fewer in its query/key weights: the value/output "
        "gauge stays."
    )
    listing = evidence_rows("Fall of the layer's directions", rows["layer"], whole, 2)
    listing += evidence_rows("Fall of the query/key directions", rows["layer"], pair)
    ends = float(whole.min()), float(whole.max())
    return Finding(verdict, evidence, rank_scale(rows), ends[1], *ends, rows=listing)


@claim(
    "equivalent-single-head",
    place=25,
    at="4.10",
    kind=COUNT,
    statement="Width of the square single-head layer with as many identified parameters as a multi-head layer",
    printed="ceil(E sqrt(2 - 1/H))",
    rule="All rows of equivalents. Measured: the smallest width found by search. Reproduced if the formula gives it in "
    "every row, and for H > 1 it exceeds E; qualified if in some rows; corrected if in none.",
)
def _(tables: Tables) -> Finding:
    rows = table(tables, "equivalents")
    found, expected = rows["width_search"], rows["width_formula"]
    holds = (found == expected) & ((rows["n_heads"] == 1) | (found > rows["d_model"]))
    ratio = found / expected
    evidence = f"The formula gives the width found by search in {holds.sum()} of {len(rows)} rows"
    if not holds.all():
        first = rows[~holds].iloc[0]
        evidence += f"; not for E = {first['d_model']}, H = {first['n_heads']}: search finds {first['width_search']}"
    verdict = REPRODUCED if holds.all() else QUALIFIED if holds.any() else CORRECTED
    return Finding(
        verdict,
        evidence + ".",
        _equivalent_scale(rows),
        float(ratio.iloc[furthest_from_one(ratio)]),
        rows=evidence_rows("Width found by search", _sizes(rows), found, expected, expected),
    )


@claim(
    "equivalent-size-12-heads",
    place=26,
    at="4.10",
    kind=COUNT,
    statement="The single-head model that replaces 12 heads is larger by this much",
    printed="roughly 60%",
    rule=f"Row of equivalents with 12 heads of width 64 (GPT-2 small). Roughly 60 %: growth between "
    f"{percent(ROUGHLY_60[0])} and {percent(ROUGHLY_60[1])}. Reproduced if width, attention, blocks and whole model "
    "all grow so; qualified if some do; not reproduced if none does. Measured: growth of the whole model.",
)
def _(tables: Tables) -> Finding:
    rows = with_heads(table(tables, "equivalents"), 12)
    rows = some(rows[rows["d_model"] == 12 * 64], "rows with 12 heads of width 64 in the table equivalents")
    first = rows.iloc[0]
    growth = {
        "width": first["width_growth"] - 1,
        "attention parameters": first["attention_growth"] - 1,
        "attention and MLP parameters": first["block_growth"] - 1,
        "the whole model": first["model_growth"] - 1,
    }
    so = [ROUGHLY_60[0] <= value <= ROUGHLY_60[1] for value in growth.values()]
    verdict = REPRODUCED if all(so) else QUALIFIED if any(so) else NOT_REPRODUCED
    evidence = f"{first['model']}: " + ", ".join(f"{what} +{percent(value)}" for what, value in growth.items()) + "."
    listing = evidence_rows("Growth", [f"{first['model']}, {what}" for what in growth], pd.Series(growth), *ROUGHLY_60)
    return Finding(verdict, evidence, _equivalent_scale(rows), float(growth["the whole model"]), rows=listing)


@claim(
    "no-equivalent-at-same-width",
    place=27,
    at="4.10",
    kind=COUNT,
    statement="At the same width no single head has as many identified parameters as several heads",
    printed="left side at most 2, right side at least 3",
    rule="Rows of equivalents with H > 1. Reproduced if same_width_left is at most 2 and same_width_right at least 3 "
    "in every row; otherwise not reproduced. Measured: the smallest distance between the two.",
)
def _(tables: Tables) -> Finding:
    rows = table(tables, "equivalents")
    rows = some(rows[rows["n_heads"] > 1], "rows with several heads in the table equivalents")
    left, right = rows["same_width_left"].max(), rows["same_width_right"].min()
    evidence = f"The left side reaches {number(left)}, the right side is at least {number(right)}."
    listing = evidence_rows("Left side", _sizes(rows), rows["same_width_left"], upper=2)
    listing += evidence_rows("Right side", _sizes(rows), rows["same_width_right"], lower=3)
    verdict = holds_or_not(left <= 2 and right >= 3)
    return Finding(verdict, evidence, _equivalent_scale(rows), float(right - left), rows=listing)


def query_key(rows: pd.DataFrame) -> Quantity:
    """Unidentified query/key directions of a layer."""
    return Quantity(
        "Unidentified query/key directions",
        rows["parameters_qk"] - rows["exact_lower_qk"],
        rows["query_key_gauge"] + rows["dead_key_bias"],
    )


def value_output(rows: pd.DataFrame) -> Quantity:
    """Unidentified value/output directions of a layer."""
    return Quantity(
        "Unidentified value/output directions",
        rows["parameters_vo"] - rows["exact_lower_vo"],
        rows["value_output_gauge"] + rows["dead_value_bias"],
    )


def layer(rows: pd.DataFrame) -> Quantity:
    """Unidentified directions of a layer."""
    return Quantity("Unidentified directions", rows["parameters"] - rows["exact_lower"], rows["unidentified"])


def identified_query_key(rows: pd.DataFrame) -> Quantity:
    """Identified share of the query/key parameters."""
    share = query_key(rows).per(rows["parameters_qk"], "")
    return Quantity("Identified share of query/key", 1 - share.measured, 1 - share.closed)


def identified_layer(rows: pd.DataFrame) -> Quantity:
    """Identified share of all parameters."""
    share = layer(rows).per(rows["parameters"], "")
    return Quantity("Identified share of the layer", 1 - share.measured, 1 - share.closed)


def proved(tables: Tables) -> pd.DataFrame:
    """Layers whose ranks are proved."""
    rows = table(tables, "ranks")
    return some(rows[rows["certified"]], "layers with a proved rank in the table ranks")


def plain(tables: Tables) -> pd.DataFrame:
    """Layers of the paper's sections 4.2 to 4.5: no RoPE, groups or biases, heads no wider than the model."""
    rows = ungrouped(without_biases(proved(tables)))
    return some(narrow(rows[rows["rotary_dim"] == 0]), "plain layers in the table ranks")


def split(tables: Tables) -> pd.DataFrame:
    """Of these, the layers whose heads share the model's width."""
    return some(equal_share(plain(tables)), "plain layers with D = C = E/H")


def grouped(tables: Tables) -> pd.DataFrame:
    """Layers with fewer key/value groups than heads, otherwise plain."""
    rows = without_biases(proved(tables))
    chosen = (rows["rotary_dim"] == 0) & (rows["n_kv_heads"] < rows["n_heads"])
    return some(narrow(rows[chosen]), "grouped layers in the table ranks")


def rotary_grouped(tables: Tables) -> pd.DataFrame:
    """Layers with RoPE on the whole head and fewer key/value groups than heads."""
    rows = rotary(without_biases(proved(tables)))
    return some(rows[rows["n_kv_heads"] < rows["n_heads"]], "grouped layers with RoPE in the table ranks")


def rotary(rows: pd.DataFrame) -> pd.DataFrame:
    """Layers with RoPE on the whole head."""
    return rows[rows["rotary_dim"] == rows["qk_head_dim"]]


def ungrouped(rows: pd.DataFrame) -> pd.DataFrame:
    """Layers with a key/value head for each query head."""
    return rows[rows["n_kv_heads"] == rows["n_heads"]]


def narrow(rows: pd.DataFrame) -> pd.DataFrame:
    """Layers whose heads are no wider than the model."""
    return rows[(rows["qk_head_dim"] <= rows["d_model"]) & (rows["v_head_dim"] <= rows["d_model"])]


def equal_share(rows: pd.DataFrame) -> pd.DataFrame:
    """Layers with D = C = E/H."""
    shared = rows["qk_head_dim"] * rows["n_heads"] == rows["d_model"]
    return rows[shared & (rows["v_head_dim"] == rows["qk_head_dim"])]


def without_biases(rows: pd.DataFrame) -> pd.DataFrame:
    """Layers without any bias."""
    return rows[~rows[["query_bias", "key_bias", "value_bias", "output_bias"]].any(axis=1)]


def with_heads(rows: pd.DataFrame, n_heads: int) -> pd.DataFrame:
    """Rows with so many heads."""
    chosen = rows[rows["n_heads"] == n_heads]
    if chosen.empty:
        raise MissingError(f"there is no layer with {n_heads} heads")
    return chosen


def _sizes(rows: pd.DataFrame) -> list[str]:
    return [f"E {width}, H {heads}" for width, heads in zip(rows["d_model"], rows["n_heads"], strict=True)]


def _equivalent_scale(rows: pd.DataFrame) -> str:
    return f"exact arithmetic, width {span(rows['d_model'])}, heads {span(rows['n_heads'])}"
