"""Questions that the paper leaves open, answered from the cell groups of config/full.yaml.

Each is put as a statement with a rule, as the paper's claims are, and judged in the same way; the thresholds are those
of `attnid.claims.training` and were fixed before any run. Supported: the rule holds. Not supported: it fails. Open: the
seeds do not settle it, or parts of it hold and others do not.
"""

from functools import partial

import pandas as pd

from attnid import statistics
from attnid.claims.ledger import BEYOND, Finding, MissingError, Tables, claim, some
from attnid.claims.rules import Part, number
from attnid.claims.runs import (
    LAST_TENTH,
    Cell,
    cell,
    cells,
    departure,
    difference,
    factor,
    final_loss,
    largest_drop,
    overlap,
    settled_median,
    training_finding,
)
from attnid.claims.training import BACK_TO_ZERO, CLOSE, FAR_BELOW, MEDIAN
from attnid.statistics import SAME_LOSS, geometric_interval, per_seed, t_interval

RAISES = 10.0
"""Causes overlap: raises rho tenfold."""
WANDERS = 0.1
"""Wanders: grows to a tenth of what a bias that matters grows to."""
IDENTITY = 0.01
"""An identity holds: within one percent at every step."""

PLAIN = "adamw"
STATES = {"cleared": "", "kept": "-kept", "moved along": "-moved"}
FACTOR = MEDIAN + "Factors are paired by seed. "
LOSS = f"Per seed: mean validation loss over the {LAST_TENTH}, minus plain AdamW's, paired. The same: 95 % interval "
LOSS += f"within {SAME_LOSS} nats of zero. "

about_causes = partial(
    claim, kind=BEYOND, at="which part of a step causes the overlap", group="causes", figure="overlap_causes"
)
about_state = partial(claim, kind=BEYOND, at="rebalancing's state", group="rebalancing", figure="rebalancing_state")
about_intervals = partial(
    claim, kind=BEYOND, at="rebalancing's state", group="intervals", figure="rebalancing_interval"
)
about_layers = partial(claim, kind=BEYOND, at="RoPE and grouped heads", group="layers", figure="layer_kinds")
about_key_bias = partial(claim, kind=BEYOND, at="the dead key bias under Adam", group="key_bias", figure="key_bias")
about_halves = partial(claim, kind=BEYOND, at="scaling against rotation", group="causes", figure="scaling_rotation")
about_beta = partial(claim, kind=BEYOND, at="beta conserved", group="conserved", figure="conserved_beta")


# ------------------------------------------------------------------ which part of a step causes the overlap


@about_causes(
    "overlap-by-momentum",
    statement="Momentum alone makes SGD's steps overlap with the unidentified directions",
    rule=FACTOR + f"rho of SGD with momentum over that of SGD: above {RAISES:g}.",
)
def _(tables: Tables) -> Finding:
    return _raised(tables, "sgd-momentum", "sgd")


@about_causes(
    "overlap-by-division",
    statement="Adam's division by root mean squares, without momentum or decay, makes steps overlap",
    rule=FACTOR + f"rho of Adam without momentum over that of SGD: above {RAISES:g}.",
)
def _(tables: Tables) -> Finding:
    return _raised(tables, "adam-no-momentum", "sgd")


@about_causes(
    "overlap-by-sign",
    statement="Taking the gradient's signs is enough to make steps overlap",
    rule=FACTOR + f"rho of sign-SGD over that of SGD: above {RAISES:g}.",
)
def _(tables: Tables) -> Finding:
    return _raised(tables, "sign-sgd", "sgd")


@about_causes(
    "overlap-by-decay",
    statement="Weight decay adds little to what Adam's steps overlap",
    rule=FACTOR + f"rho of AdamW over that of Adam without decay: within a factor of {CLOSE}.",
)
def _(tables: Tables) -> Finding:
    return _alike(tables, [(PLAIN, "adam")])


@about_causes(
    "overlap-by-clipping",
    statement="Clipping the gradient's norm has no part in the overlap",
    rule=FACTOR + f"rho without clipping over that with it, of SGD and of AdamW: both within a factor of {CLOSE}.",
)
def _(tables: Tables) -> Finding:
    return _alike(tables, [("sgd-unclipped", "sgd"), ("adamw-unclipped", PLAIN)])


@about_causes(
    "overlap-of-muon",
    statement="Muon's orthogonalised steps overlap less than AdamW's",
    rule=FACTOR + "rho of Muon over that of AdamW: below 1.",
)
def _(tables: Tables) -> Finding:
    muon, adamw = (cell(tables, "causes", case=name) for name in ("muon", PLAIN))
    part = Part("rho, Muon over AdamW", factor(overlap(muon), overlap(adamw)), upper=1.0)
    return training_finding([muon, adamw], [part], _over_null([muon, adamw]))


# ------------------------------------------------------------------ rebalancing and the optimiser's state


@about_state(
    "state-at-rebalancing",
    statement="Query/key rebalancing leaves the loss as it is, whether the state is cleared, kept or moved along",
    rule=LOSS + "All three.",
)
def _(tables: Tables) -> Finding:
    return _same_losses(tables, {label: f"adamw-rebalanced{suffix}" for label, suffix in STATES.items()})


@about_state(
    "state-at-rebalancing-both",
    statement="So does rebalancing values and outputs as well",
    rule=LOSS + "All three.",
)
def _(tables: Tables) -> Finding:
    return _same_losses(tables, {label: f"adamw-both{suffix}" for label, suffix in STATES.items()})


@about_state(
    "projected-loss",
    statement="Taking the unidentified part out of every step leaves the loss as it is",
    rule=LOSS + "With query/key steps projected, and with value/output steps as well.",
)
def _(tables: Tables) -> Finding:
    return _same_losses(tables, {"query/key": "adamw-projected", "both": "adamw-both-projected"})


@about_state(
    "rebalanced-overlap",
    statement="Rebalancing makes AdamW's later steps overlap less",
    rule=FACTOR + "rho of rebalanced over plain AdamW, with the state cleared, kept and moved along: all below 1.",
)
def _(tables: Tables) -> Finding:
    plain = cell(tables, "rebalancing", case=PLAIN)
    runs = {label: cell(tables, "rebalancing", case=f"adamw-rebalanced{end}") for label, end in STATES.items()}
    parts = [
        Part(f"rho, state {label}, over plain", factor(overlap(run), overlap(plain)), upper=1.0)
        for label, run in runs.items()
    ]
    return training_finding([plain, *runs.values()], parts)


@about_intervals(
    "rebalancing-interval-cleared",
    statement="How often weights are rebalanced and the state cleared does not matter to the loss",
    rule=LOSS + "At every interval of the group.",
)
def _(tables: Tables) -> Finding:
    return _any_interval(tables, "adamw-rebalanced")


@about_intervals(
    "rebalancing-interval-moved",
    statement="How often weights are rebalanced does not matter to the loss if the state moves along",
    rule=LOSS + "At every interval of the group.",
)
def _(tables: Tables) -> Finding:
    return _any_interval(tables, "adamw-rebalanced-moved")


# ------------------------------------------------------------------ RoPE and grouped heads


@about_layers(
    "layers-adamw-overlap",
    statement="AdamW's rho stands to the null of its own layer as in plain attention, with RoPE and grouped heads",
    rule=FACTOR + "rho over the mean of a random step in the same layer; that ratio over the one of plain multi-head "
    f"attention, for RoPE, grouped heads and both: within a factor of {CLOSE}.",
)
def _(tables: Tables) -> Finding:
    runs = _kinds(tables, PLAIN)
    plain = runs.pop("plain")
    parts = [
        Part(f"rho over null, {kind} over plain", factor(overlap(run), overlap(plain)), 1 / CLOSE, CLOSE)
        for kind, run in runs.items()
    ]
    return training_finding([plain, *runs.values()], parts, _over_null([plain, *runs.values()]))


@about_layers(
    "layers-sgd-overlap",
    statement="SGD's rho stays far below the null of its own layer with RoPE and grouped heads",
    rule=MEDIAN + f"rho over the mean of a random step in the same layer: under {FAR_BELOW}, in all four kinds.",
)
def _(tables: Tables) -> Finding:
    runs = _kinds(tables, "sgd")
    parts = [
        Part(f"rho over null, {kind}", geometric_interval(overlap(run)), upper=FAR_BELOW) for kind, run in runs.items()
    ]
    return training_finding(list(runs.values()), parts)


@about_layers(
    "layers-rebalancing",
    statement="Rebalancing in the group that RoPE and grouping leave takes beta to zero and leaves the loss as it is",
    rule=f"For RoPE, grouped heads and both. Beta just after over just before, the largest of a run: below "
    f"{BACK_TO_ZERO}. {LOSS}All three kinds.",
)
def _(tables: Tables) -> Finding:
    plain, balanced = _kinds(tables, PLAIN), _kinds(tables, "adamw-rebalanced")
    parts = []
    for kind in [kind for kind in balanced if kind != "plain"]:
        drop = t_interval(largest_drop(balanced[kind]))
        parts.append(Part(f"beta after over before, {kind}", drop, upper=BACK_TO_ZERO))
        losses = difference(final_loss(balanced[kind]), final_loss(plain[kind]))
        parts.append(Part(f"final loss, {kind}, nats", t_interval(losses), -SAME_LOSS, SAME_LOSS))
    return training_finding([*plain.values(), *balanced.values()], parts)


# ------------------------------------------------------------------ the dead key bias


@about_key_bias(
    "key-bias-wanders",
    statement="Under AdamW the key bias wanders although nothing depends on it, in float32 and not in float64",
    rule="Per seed: norm of the key bias over that of the same head's query bias after the last step, median over "
    f"layers and heads. Wanders: above {WANDERS} in float32; stays: below {WANDERS} in float64.",
)
def _(tables: Tables) -> Finding:
    single, double = (cell(tables, "key_bias", precision=precision) for precision in ("float32", "float64"))
    parts = [
        Part("key over query bias, float32", t_interval(_bias_ratio(single)), lower=WANDERS),
        Part("key over query bias, float64", t_interval(_bias_ratio(double)), upper=WANDERS),
    ]
    norms = ", ".join(
        f"{run.settings['precision']} {number(per_seed(_last(run, 'norm_key_bias'), 'norm_key_bias').mean())}"
        for run in (single, double)
    )
    return training_finding([single, double], parts, f"Norm of a head's key bias at the end: {norms}.")


# ------------------------------------------------------------------ scalings and rotations


@about_halves(
    "scaling-against-rotation",
    statement="What AdamW wastes goes into scalings more than into rotations, beyond what chance gives",
    rule=MEDIAN
    + "rho along symmetric S over its null, against rho along antisymmetric S over its null, paired: above 1.",
)
def _(tables: Tables) -> Finding:
    run = cell(tables, "causes", case=PLAIN)
    if run.settings["qk_head_dim"] == 1:
        raise MissingError("heads of width 1 have no rotations")
    shares = {
        half: settled_median(run, f"rho_qk_{half}") / float(run.settings[f"rho_{half}_null_mean"])
        for half in ("scaling", "rotation")
    }
    part = Part("scalings over rotations", factor(shares["scaling"], shares["rotation"]), lower=1.0)
    note = "Over their nulls: " + ", ".join(
        f"{half}s {number(geometric_interval(share).mean)}" for half, share in shares.items()
    )
    return training_finding([run], [part], f"{note}.")


# ------------------------------------------------------------------ what is conserved


@about_beta(
    "beta-augmented-conserved",
    statement="With the biases in, SGD conserves beta to a fraction of what it does without them",
    rule="Float64. Per seed: largest departure from the first value over the run, relative to it, median over layers "
    f"and heads; that of the augmented beta over that of the bare one: below {FAR_BELOW}.",
)
def _(tables: Tables) -> Finding:
    single, double = (cell(tables, "conserved", precision=precision) for precision in ("float32", "float64"))
    bare, augmented = (departure(double, measure) for measure in ("beta", "beta_augmented"))
    part = Part("augmented over bare departure", factor(augmented, bare), upper=FAR_BELOW)
    departures = ", ".join(
        f"{precision} {label} {number(geometric_interval(departure(run, measure)).mean)}"
        for precision, run in (("float32", single), ("float64", double))
        for label, measure in (("bare", "beta"), ("augmented", "beta_augmented"))
    )
    return training_finding([double], [part], f"Departures: {departures}.")


@about_beta(
    "plain-step-identity",
    statement="The augmented drift of one plain step is lr^2 |g_Q g_Q^T - g_K g_K^T|",
    printed="1",
    rule="SGD without decay, float64. Per seed: largest departure from 1 of the drift over that number, over layers, "
    f"heads and measured steps: below {IDENTITY}. Measured: that departure.",
)
def _(tables: Tables) -> Finding:
    single, double = (cell(tables, "conserved", precision=precision) for precision in ("float32", "float64"))
    part = Part("departure from 1, float64", t_interval(_identity(double, "max")), upper=IDENTITY)
    rounding = t_interval(_identity(single, "median")).mean
    return training_finding(
        [double], [part], f"In float32 rounding makes its own drift: median departure {number(rounding)}."
    )


# ------------------------------------------------------------------ helpers


def _raised(tables: Tables, name: str, base: str) -> Finding:
    run, plain = (cell(tables, "causes", case=case) for case in (name, base))
    part = Part(f"rho, {name} over {base}", factor(overlap(run), overlap(plain)), lower=RAISES)
    return training_finding([run, plain], [part], _over_null([run, plain]))


def _alike(tables: Tables, compared: list[tuple[str, str]]) -> Finding:
    runs, parts = [], []
    for name, base in compared:
        pair = [cell(tables, "causes", case=case) for case in (name, base)]
        parts.append(Part(f"rho, {name} over {base}", factor(*(overlap(run) for run in pair)), 1 / CLOSE, CLOSE))
        runs += pair
    return training_finding(runs, parts)


def _over_null(runs: list[Cell]) -> str:
    values = ", ".join(f"{run.name} {number(geometric_interval(overlap(run)).mean)}" for run in runs)
    return f"rho over its null: {values}."


def _same_losses(tables: Tables, names: dict[str, str]) -> Finding:
    plain = cell(tables, "rebalancing", case=PLAIN)
    runs = {label: cell(tables, "rebalancing", case=name) for label, name in names.items()}
    return _against(plain, runs)


def _any_interval(tables: Tables, name: str) -> Finding:
    runs = cells(tables, "intervals", case=name)
    plain = cell(tables, "cases", case=PLAIN)
    return _against(plain, {f"every {run.settings['rebalance_every']}": run for run in runs})


def _against(plain: Cell, runs: dict[str, Cell]) -> Finding:
    differences = {label: difference(final_loss(run), final_loss(plain)) for label, run in runs.items()}
    parts = [
        Part(f"final loss minus plain, {label}, nats", t_interval(values), -SAME_LOSS, SAME_LOSS)
        for label, values in differences.items()
    ]
    worst = max(statistics.equivalence(values, SAME_LOSS).p_value for values in differences.values())
    note = f"Two one-sided t tests against {SAME_LOSS} nats: largest p = {number(worst)}."
    return training_finding([plain, *runs.values()], parts, note)


def _kinds(tables: Tables, case: str) -> dict[str, Cell]:
    """Runs of a case by kind of layer."""
    found = {}
    for run in cells(tables, "layers", case=case):
        rope = bool(run.settings["rotary_dim"])
        grouped = run.settings["n_kv_heads"] < run.settings["n_heads"]
        found[
            {(False, False): "plain", (True, False): "RoPE", (False, True): "grouped"}.get((rope, grouped), "both")
        ] = run
    if "plain" not in found or len(found) < 2:
        raise MissingError(f"the group layers has no plain layer and another one of the case {case}")
    return found


def _last(run: Cell, *measures: str) -> pd.DataFrame:
    rows = run.of_heads(*measures)
    return some(rows[rows["step"] == rows["step"].max()], "last step")


def _bias_ratio(run: Cell) -> pd.Series:
    rows = _last(run, "norm_key_bias", "norm_query_bias")
    return per_seed(rows.assign(ratio=rows["norm_key_bias"] / rows["norm_query_bias"]), "ratio")


def _identity(run: Cell, reduction: str) -> pd.Series:
    rows = run.of_heads("drift_augmented", "drift_augmented_plain")
    ratio = rows["drift_augmented"] / rows["drift_augmented_plain"]
    return per_seed(rows.assign(departure=(ratio - 1).abs()), "departure", reduction)
