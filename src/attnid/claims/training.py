"""Claims that training runs settle (tables cells, groups, steps, heads): one number a seed, an interval over seeds.

The thresholds stand here, one for each word of the paper, and were fixed before any run.
"""

import numpy as np
import pandas as pd

from attnid.claims.ledger import (
    NOT_REPRODUCED,
    QUALIFIED,
    REPRODUCED,
    TRAINING,
    Finding,
    MissingError,
    Row,
    Tables,
    claim,
)
from attnid.claims.rules import Part, evidence_rows, number, parts_finding, percent, with_verdict
from attnid.claims.runs import (
    LAST_TENTH,
    SETTLED,
    Cell,
    by_step,
    case,
    cell,
    cells,
    departure,
    difference,
    every_cell,
    factor,
    final_loss,
    kept,
    largest_drop,
    overlap,
    pairing_note,
    reduced,
    scaled,
    settled_median,
    settled_ratio,
    training_finding,
)
from attnid.statistics import SAME_LOSS, Estimate, geometric_interval, log_log_slope, per_seed, slope, t_interval

CLOSE = 1.5
"""Close to, settled, behaves like: within this factor."""
FAR_BELOW = 0.1
"""Far below, small: under a tenth."""
CONSTANT = 0.05
"""Constant: within 5 % of the first value."""
STABLE = 0.1
"""Stable: within 10 % of the first value."""
SLOWLY = 0.5
"""Falls slowly: keeps at least half over the run."""
BALANCED = 0.05
"""tau effectively zero: |tau| under 5 % of trace(G_Q + G_K)."""
COVERS = 0.9
"""Effectively covers: rho of at least nine tenths of 1/(2H)."""
ZERO_EPSILONS = 1e4
"""Numerically zero: under 1e4 machine epsilons of the training's precision, relative to the terms that cancel."""
NOT_ZERO_EPSILONS = 1e2
"""Not zero: above 100 epsilons of the gradient of the whole model."""
SAME_ORDER = 2.0
"""Not significantly different: within a factor of two."""
SPIKE = 10.0
"""A spike of rho: ten times its median over the run."""
SQUARE = (1.5, 2.5)
"""Roughly the square: an exponent nearer to 2 than to 1 or 3."""
FULL_RANK = 1e-10
"""Full rank: smallest over largest eigenvalue of a Gram matrix above 1e-10 (singular values above 1e-5)."""
BACK_TO_ZERO = 0.01
"""Back to zero: under a hundredth of the value just before."""

OPTIMISERS = {"sgd": "SGD", "sgd-decay": "SGD with decay", "adamw": "AdamW", "adamw-rebalanced": "rebalanced AdamW"}
BASE = "Cells: group `cases` (base head count). "
SWEEP = (
    "Cells: group `learning_rates_float64`, else `learning_rates`: in float32 the rounding of the weights makes "
    "a drift of its own. "
)
MEDIAN = f"Per seed: median over layers, heads and the {SETTLED}. "


# ------------------------------------------------------------------ what gradient flow conserves


@claim(
    "conserved-imbalance",
    place=28,
    at="5.1",
    kind=TRAINING,
    statement="Gradient flow leaves G_Q - G_K as it is",
    rule="Cell: the float64 run of SGD (group `floor`), else `sgd` of the group `cases`. Per seed: largest rate of "
    "change of G_Q - G_K along the plain gradient, relative to its terms, over layers, heads and steps. Zero: below "
    f"{ZERO_EPSILONS:.0e} epsilons of the precision. Reproduced if the rate of the weights' own G_Q - G_K is zero; "
    "qualified if only that of the pair augmented with the biases is; not reproduced if neither is.",
)
def _(tables: Tables) -> Finding:
    run = _most_precise_sgd(tables)
    zero = ZERO_EPSILONS * run.epsilon
    return _conserved(run, "imbalance_rate", "imbalance_rate_augmented", "rate of change of G_Q - G_K", zero)


@claim(
    "exact-gradient-overlap",
    place=29,
    at="5.1",
    kind=TRAINING,
    statement="A step along the plain gradient has no part in the unidentified directions",
    rule="Cell: the float64 run of SGD (group `floor`), else `sgd` of the group `cases`. Per seed: largest rho of the "
    "plain gradient over layers, heads and steps. Zero: the square root of rho (a share of length) below "
    f"{ZERO_EPSILONS:.0e} epsilons of the precision. Reproduced if the rho of the weights alone is zero; qualified if "
    "only that of the pair augmented with the biases is; not reproduced if neither is.",
)
def _(tables: Tables) -> Finding:
    run = _most_precise_sgd(tables)
    zero = (ZERO_EPSILONS * run.epsilon) ** 2
    return _conserved(run, "rho_qk_gradient", "rho_qk_augmented_gradient", "rho of the gradient", zero)


# ------------------------------------------------------------------ the cases


@claim(
    "sgd-overlap",
    place=30,
    at="5.3",
    kind=TRAINING,
    figure="paper_figure_2",
    statement="Under SGD rho stays far below 1/(2H)",
    rule=BASE + MEDIAN + f"Far below: rho under {FAR_BELOW} of 1/(2H).",
)
def _(tables: Tables) -> Finding:
    run = case(tables, "sgd")
    return training_finding([run], [Part("rho over 1/(2H)", geometric_interval(overlap(run)), upper=FAR_BELOW)])


@claim(
    "sgd-beta",
    place=31,
    at="5.3",
    kind=TRAINING,
    figure="paper_figure_2",
    statement="Under SGD beta is constant",
    rule=BASE + "Per seed: largest departure of beta from its first value over the run, relative to it, median over "
    f"layers and heads. Constant: below {CONSTANT}.",
)
def _(tables: Tables) -> Finding:
    run = case(tables, "sgd")
    return training_finding([run], [Part("departure of beta", t_interval(departure(run, "beta")), upper=CONSTANT)])


@claim(
    "sgd-decay-beta",
    place=32,
    at="5.3",
    kind=TRAINING,
    figure="paper_figure_2",
    statement="Weight decay makes SGD's beta fall slowly",
    rule=BASE + "Per seed: last over first beta, median over layers and heads. Falls slowly: below 1 and above "
    f"{SLOWLY}.",
)
def _(tables: Tables) -> Finding:
    run = case(tables, "sgd-decay")
    return training_finding([run], [Part("last over first beta", t_interval(kept(run, "beta")), SLOWLY, 1.0)])


@claim(
    "sgd-tau",
    place=33,
    at="5.3",
    kind=TRAINING,
    figure="paper_figure_2",
    statement="Under SGD, with decay or without, tau is effectively zero",
    rule=BASE + MEDIAN + f"Effectively zero: |tau| below {BALANCED} of trace(G_Q + G_K), in both cases.",
)
def _(tables: Tables) -> Finding:
    runs = [case(tables, "sgd"), case(tables, "sgd-decay")]
    return training_finding(runs, [_balanced(run) for run in runs])


@claim(
    "adamw-overlap",
    place=34,
    at="5.3",
    kind=TRAINING,
    figure="paper_figure_2",
    statement="Under AdamW rho comes close to 1/(2H)",
    rule=BASE + MEDIAN + f"Close: within a factor of {CLOSE} of 1/(2H). The evidence sets the values against the "
    "95 % band of a random step, since 1/(2H) is the mean of such a step and not a bound.",
)
def _(tables: Tables) -> Finding:
    run = case(tables, "adamw")
    part = Part("rho over 1/(2H)", geometric_interval(overlap(run)), 1 / CLOSE, CLOSE)
    return training_finding([run], [part], _against_random_steps(run))


@claim(
    "adamw-beta",
    place=35,
    at="5.3",
    kind=TRAINING,
    figure="paper_figure_2",
    statement="AdamW does not conserve beta",
    rule=BASE + "Per seed: largest departure of beta from its first value over the run, relative to it, median over "
    f"layers and heads. Not conserved: above {CONSTANT}.",
)
def _(tables: Tables) -> Finding:
    run = case(tables, "adamw")
    return training_finding([run], [Part("departure of beta", t_interval(departure(run, "beta")), lower=CONSTANT)])


@claim(
    "adamw-tau",
    place=36,
    at="5.3",
    kind=TRAINING,
    figure="tau_layers",
    statement="Under AdamW tau spreads to both signs, most of all in the first layer",
    rule=BASE
    + f"Per seed, after the last step: smallest tau / trace(G_Q + G_K) over layers and heads below -{BALANCED}"
    f" and largest above {BALANCED}; and mean |tau| over the heads of the first layer above that of every other layer.",
)
def _(tables: Tables) -> Finding:
    run = case(tables, "adamw")
    rows = run.of_heads("tau", "trace")
    rows = rows[rows["step"] == rows["step"].max()]
    rows = rows.assign(relative=rows["tau"] / rows["trace"], size=rows["tau"].abs())
    layers = reduced(rows, ["seed", "layer"], "size", "mean").pivot(index="seed", columns="layer", values="size")
    if len(layers.columns) < 2:
        raise MissingError("the model has one layer, so none is first")
    lead = factor(layers.iloc[:, 0], layers.iloc[:, 1:].max(axis=1))
    parts = [
        Part("smallest tau over trace", t_interval(per_seed(rows, "relative", "min")), upper=-BALANCED),
        Part("largest tau over trace", t_interval(per_seed(rows, "relative", "max")), lower=BALANCED),
        Part("|tau| of the first layer over the largest other", lead, lower=1.0),
    ]
    return training_finding([run], parts)


@claim(
    "no-rank-deficiency",
    place=37,
    at="5.3",
    kind=TRAINING,
    figure="paper_figure_2",
    statement="mu stays above zero in every run",
    rule="All cells, seeds, steps, layers and heads, before and after rebalancing. Not reproduced if mu reaches zero; "
    "qualified if it does not, but one of the two Gram matrices loses its rank (smallest over largest eigenvalue below "
    f"{FULL_RANK:.0e}), for the count D^2 needs both; otherwise reproduced. Measured: the smallest mu.",
)
def _(tables: Tables) -> Finding:
    trained = every_cell(tables)
    measures = ("mu", "smallest_q", "smallest_k")
    after = [run.of_rebalanced(*measures) for run in trained if len(run.rebalanced)]
    rows = pd.concat([*(run.of_heads(*measures) for run in trained), *after])
    mu, query, key = (float(rows[measure].min()) for measure in measures)
    verdict = REPRODUCED if min(query, key) > FULL_RANK else QUALIFIED
    evidence = (
        f"Smallest mu {number(mu)}; smallest over largest eigenvalue at least {number(query)} for queries and "
        f"{number(key)} for keys, in {len(trained)} cells."
    )
    finding = Finding(
        verdict if mu > 0 else NOT_REPRODUCED,
        evidence,
        measured=mu,
        seeds=min(run.seeds for run in trained),
        rows=_smallest_by_run(rows),
    )
    return scaled(finding, trained)


@claim(
    "mu-stable-sgd",
    place=52,
    at="5.3",
    kind=TRAINING,
    figure="paper_figure_2",
    statement="mu is stable under SGD and not under AdamW",
    rule=BASE + "Per seed: largest departure of mu from its first value over the run, relative to it, median over "
    f"layers and heads. Stable: below {STABLE} for SGD; not stable: above it for AdamW.",
)
def _(tables: Tables) -> Finding:
    sgd, adamw = case(tables, "sgd"), case(tables, "adamw")
    parts = [
        Part("departure of mu, SGD", t_interval(departure(sgd, "mu")), upper=STABLE),
        Part("departure of mu, AdamW", t_interval(departure(adamw, "mu")), lower=STABLE),
    ]
    return training_finding([sgd, adamw], parts)


@claim(
    "overlap-order",
    place=48,
    at="5.3",
    kind=TRAINING,
    figure="paper_figure_2",
    statement="rho grows from SGD over SGD with decay to AdamW",
    rule=BASE + MEDIAN + "Both paired factors, decay over SGD and AdamW over decay, above 1.",
)
def _(tables: Tables) -> Finding:
    sgd, decay, adamw = (case(tables, name) for name in ("sgd", "sgd-decay", "adamw"))
    parts = [
        Part("rho, decay over SGD", factor(overlap(decay), overlap(sgd)), lower=1.0),
        Part("rho, AdamW over decay", factor(overlap(adamw), overlap(decay)), lower=1.0),
    ]
    return training_finding([sgd, decay, adamw], parts)


@claim(
    "overlap-covers",
    place=49,
    at="5.3",
    kind=TRAINING,
    figure="paper_figure_2",
    statement="Under AdamW some heads effectively cover the unidentified space",
    rule=BASE + f"Per seed: median rho over the {SETTLED} for each layer and head, the largest of these. Covers: above "
    f"{COVERS} of 1/(2H), the paper's line.",
)
def _(tables: Tables) -> Finding:
    run = case(tables, "adamw")
    each = reduced(run.of_heads("rho_qk", after=0.5), ["seed", "layer", "head"], "rho_qk", "median")
    part = Part("largest rho over 1/(2H)", geometric_interval(per_seed(each, "rho_qk", "max") / run.null), lower=COVERS)
    note = f"A random step has 1, a step wholly in the unidentified space {number(1 / run.null)}."
    return training_finding([run], [part], note)


@claim(
    "adamw-best-loss",
    place=50,
    at="Figure 2",
    kind=TRAINING,
    figure="paper_figure_2",
    statement="AdamW reduces the loss most",
    rule=BASE
    + f"Per seed: mean validation loss over the {LAST_TENTH}. AdamW minus SGD and AdamW minus SGD with decay, "
    "paired, both below 0 nats.",
)
def _(tables: Tables) -> Finding:
    adamw, sgd, decay = (case(tables, name) for name in ("adamw", "sgd", "sgd-decay"))
    loss = final_loss(adamw)
    parts = [
        Part(f"AdamW minus {label}, nats", t_interval(difference(loss, final_loss(run))), upper=0.0)
        for label, run in (("SGD", sgd), ("SGD with decay", decay))
    ]
    return training_finding([adamw, sgd, decay], parts)


@claim(
    "decay-compresses-trace",
    place=51,
    at="Figure 2",
    kind=TRAINING,
    figure="paper_figure_2",
    statement="Decay compresses the trace imbalance of queries and keys",
    rule=BASE + MEDIAN + "|tau| of SGD with decay over that of SGD, paired, below 1.",
)
def _(tables: Tables) -> Finding:
    sgd, decay = case(tables, "sgd"), case(tables, "sgd-decay")
    size = factor(_settled_size(decay, "tau"), _settled_size(sgd, "tau"))
    relative = factor(settled_ratio(decay, "tau", "trace"), settled_ratio(sgd, "tau", "trace"))
    note = f"Relative to trace(G_Q + G_K), which decays as well, the factor is {number(relative.mean)}."
    return training_finding([sgd, decay], [Part("|tau|, decay over SGD", size, upper=1.0)], note)


# ------------------------------------------------------------------ rebalancing


@claim(
    "rebalanced-loss",
    place=38,
    at="5.3",
    kind=TRAINING,
    figure="paper_figure_2",
    statement="Rebalancing at intervals leaves AdamW's loss as it is",
    rule=BASE
    + f"Per seed: mean validation loss over the {LAST_TENTH}, rebalanced minus plain AdamW, paired. The same: "
    f"95 % interval within {SAME_LOSS} nats of zero, which is two one-sided t tests at 2.5 % each.",
)
def _(tables: Tables) -> Finding:
    plain, rebalanced = case(tables, "adamw"), case(tables, "adamw-rebalanced")
    part, notes = _same_loss(rebalanced, plain)
    return training_finding([plain, rebalanced], [part], *notes)


@claim(
    "rebalanced-sawtooth",
    place=39,
    at="5.3",
    kind=TRAINING,
    figure="paper_figure_2",
    statement="Rebalancing takes beta back to zero each time, and tau then looks like SGD's",
    rule=BASE + "Per seed: beta just after over beta just before a rebalancing, the largest over rebalancings, layers "
    f"and heads. Back to zero: below {BACK_TO_ZERO}. tau like SGD's: |tau| below {BALANCED} of trace(G_Q + G_K), "
    f"median over layers, heads and the {SETTLED}.",
)
def _(tables: Tables) -> Finding:
    run = case(tables, "adamw-rebalanced")
    parts = [Part("beta after over before", t_interval(largest_drop(run)), upper=BACK_TO_ZERO), _balanced(run)]
    note = f"{run.of_rebalanced()['step'].nunique()} rebalancings, one every {run.settings['rebalance_every']} steps."
    return training_finding([run], parts, note)


@claim(
    "state-clearing-control",
    place=40,
    at="5.3",
    kind=TRAINING,
    statement="Clearing the optimiser's state without touching the weights behaves like plain AdamW",
    rule=f"Cells: `adamw-cleared` (group `control`) against `adamw` (group `cases`), paired. Loss the same: mean over "
    f"the {LAST_TENTH}, 95 % interval within {SAME_LOSS} nats of zero. rho and beta alike: medians over layers, heads "
    f"and the {SETTLED} within a factor of {CLOSE}.",
)
def _(tables: Tables) -> Finding:
    plain, cleared = case(tables, "adamw"), cell(tables, "control", case="adamw-cleared")
    part, notes = _same_loss(cleared, plain)
    alike = [
        Part(
            f"{label}, cleared over plain",
            factor(settled_median(cleared, measure), settled_median(plain, measure)),
            1 / CLOSE,
            CLOSE,
        )
        for label, measure in (("rho", "rho_qk"), ("beta", "beta"))
    ]
    return training_finding([plain, cleared], [part, *alike], *notes)


@claim(
    "sawtooth-envelope",
    place=53,
    at="5.3",
    kind=TRAINING,
    figure="paper_figure_2",
    statement="The teeth of beta shrink with the learning rate",
    rule=BASE + "Per seed: beta just before each rebalancing, median over layers and heads; log-log slope against the "
    "learning rate of that step. Shrinks: slope above 0. Needs three rebalancings.",
)
def _(tables: Tables) -> Finding:
    run = case(tables, "adamw-rebalanced")
    steps = run.of_rebalanced("beta")["step"].unique()
    if len(steps) < 3:
        raise MissingError(f"the cell {run.name} has fewer than three rebalancings")
    rows = run.of_heads("beta")
    peaks = reduced(rows[rows["step"].isin(steps)], ["seed", "step"], "beta", "median")
    peaks = peaks.merge(run.of_steps("lr")[["seed", "step", "lr"]], on=["seed", "step"], how="left")
    slopes = peaks.groupby("seed")[["lr", "beta"]].apply(lambda tooth: log_log_slope(tooth["lr"], tooth["beta"]))
    first, last = (peaks.loc[peaks["step"] == step, "beta"].mean() for step in (steps.min(), steps.max()))
    note = f"{len(steps)} teeth, from {number(first)} to {number(last)}."
    return training_finding([run], [Part("slope of the teeth", t_interval(slopes), lower=0.0)], note)


# ------------------------------------------------------------------ bias gradients


@claim(
    "key-bias-gradient",
    place=41,
    at="Figure 3",
    kind=TRAINING,
    figure="paper_figure_3",
    statement="The gradient of the key bias is numerically zero, whatever the optimiser",
    rule=BASE
    + MEDIAN
    + "Gradient norm of the key bias over that of the same head's query bias. Numerically zero: below "
    f"{ZERO_EPSILONS:.0e} epsilons of the precision, in all four cases.",
)
def _(tables: Tables) -> Finding:
    runs = {label: case(tables, name) for name, label in OPTIMISERS.items()}
    parts = [
        Part(
            f"key over query bias, {label}",
            t_interval(settled_ratio(run, "grad_norm_key_bias", "grad_norm_query_bias")),
            upper=ZERO_EPSILONS * run.epsilon,
        )
        for label, run in runs.items()
    ]
    return training_finding(list(runs.values()), parts)


@claim(
    "query-bias-gradient",
    place=42,
    at="Figure 3",
    kind=TRAINING,
    figure="paper_figure_3",
    statement="The gradient of the query bias is small, but not zero",
    rule=BASE + MEDIAN + "Gradient norm of a head's query bias over that of the whole model. Small: below "
    f"{FAR_BELOW}; not zero: above {NOT_ZERO_EPSILONS:.0e} epsilons of the precision, in all four cases.",
)
def _(tables: Tables) -> Finding:
    runs = {label: case(tables, name) for name, label in OPTIMISERS.items()}
    parts = [
        Part(
            f"query bias over model, {label}",
            geometric_interval(_share_of_gradient(run, "grad_norm_query_bias")),
            NOT_ZERO_EPSILONS * run.epsilon,
            FAR_BELOW,
        )
        for label, run in runs.items()
    ]
    return training_finding(list(runs.values()), parts)


@claim(
    "bias-gradient-optimiser",
    place=54,
    at="Figure 3",
    kind=TRAINING,
    figure="paper_figure_3",
    statement="The gradient norms of the biases hardly depend on the optimiser",
    rule=BASE + MEDIAN + "Gradient norm of the query bias, SGD with decay over SGD and AdamW over SGD, paired. Hardly: "
    f"both within a factor of {SAME_ORDER:g} (the key bias has a rule of its own).",
)
def _(tables: Tables) -> Finding:
    sgd, decay, adamw = (case(tables, name) for name in ("sgd", "sgd-decay", "adamw"))
    norms = settled_median(sgd, "grad_norm_query_bias")
    parts = [
        Part(
            f"query bias, {label} over SGD",
            factor(settled_median(run, "grad_norm_query_bias"), norms),
            1 / SAME_ORDER,
            SAME_ORDER,
        )
        for label, run in (("AdamW", adamw), ("decay", decay))
    ]
    return training_finding([sgd, decay, adamw], parts)


# ------------------------------------------------------------------ drift and learning rate


@claim(
    "drift-learning-rate",
    place=43,
    at="5.3, Figure 4",
    kind=TRAINING,
    figure="paper_figure_4",
    statement="The drift of a step falls with the learning rate, in every layer and head",
    rule=SWEEP + f"Per seed: for each layer and head the median drift over the {SETTLED}, its "
    "log-log slope against the peak learning rate; the smallest over layers and heads. Falls: above 0.",
)
def _(tables: Tables) -> Finding:
    runs = _learning_rates(tables)
    settled = pd.concat([run.of_heads("drift", after=0.5).assign(rate=run.settings["lr"]) for run in runs])
    medians = reduced(settled, ["seed", "layer", "head", "rate"], "drift", "median")
    exponents = _exponents(medians, "drift")
    part = Part("smallest exponent", t_interval(exponents.groupby(level="seed").min()), lower=0.0)
    return training_finding(runs, [part], f"Median exponent {number(exponents.median())}.")


@claim(
    "drift-square",
    place=44,
    at="5.2.1",
    kind=TRAINING,
    figure="paper_figure_4",
    statement="Drift should go roughly as the square of the learning rate",
    printed="2",
    rule=SWEEP + "Per seed: log-log slope against the learning rate, median over layers and "
    "heads, twice: of the augmented drift of step 1, from the same weights and batch; and of the drift of the weights "
    f"alone across whole runs (median over the {SETTLED}). Roughly the square: exponent between {SQUARE[0]} and "
    f"{SQUARE[1]}. Measured: the exponent at step 1.",
)
def _(tables: Tables) -> Finding:
    runs = _learning_rates(tables)
    first = pd.concat([_first_step(run) for run in runs])
    single = pd.concat([_first_step(run) for run in cells(tables, "learning_rates")])
    settled = pd.concat([run.of_heads("drift", after=0.5).assign(rate=run.settings["lr"]) for run in runs])
    medians = reduced(settled, ["seed", "layer", "head", "rate"], "drift", "median")
    parts = [
        Part("exponent at step 1, augmented", _median_exponent(first, "drift_augmented"), *SQUARE),
        Part("exponent across whole runs, weights alone", _median_exponent(medians, "drift"), *SQUARE),
    ]
    at_first = _median_exponent(single, "drift_augmented").mean
    note = f"In the group learning_rates the exponent at step 1 is {number(at_first)}."
    return training_finding(runs, parts, note)


@claim(
    "drift-settles",
    place=45,
    at="5.3",
    kind=TRAINING,
    figure="paper_figure_4",
    statement="Over training the drift settles",
    rule=SWEEP + "Per seed: median drift over layers, heads and the last quarter of the run "
    f"over that of the quarter before, paired. Settles: within a factor of {CLOSE}, at every learning rate.",
)
def _(tables: Tables) -> Finding:
    runs = _learning_rates(tables)
    parts, falls = [], []
    for run in runs:
        last, before = _quarter(run, 0.75, 1.0), _quarter(run, 0.5, 0.75)
        parts.append(Part(_at_rate("last over third quarter", run), factor(last, before), 1 / CLOSE, CLOSE))
        steps = run.of_steps("lr", after=0.5)
        late = steps["step"] > 0.75 * run.settings["steps"]
        falls.append(steps.loc[~late, "lr"].median() / steps.loc[late, "lr"].median())
    note = f"The learning rate itself falls {number(min(falls))}-fold or more between the two quarters."
    return training_finding(runs, parts, note)


@claim(
    "drift-early-layers",
    place=46,
    at="5.3",
    kind=TRAINING,
    figure="paper_figure_4",
    statement="Earlier layers drift more",
    rule=SWEEP + f"Per seed: median drift over heads and the {SETTLED}; slope of its logarithm "
    "(base 10) against the layer's index. More: slope below 0, at every learning rate.",
)
def _(tables: Tables) -> Finding:
    runs = _learning_rates(tables)
    return training_finding(runs, [_slope_over_layers(run) for run in runs])


@claim(
    "overlap-spikes",
    place=47,
    at="5.3",
    kind=TRAINING,
    figure="spikes",
    statement="Where updates are small rho spikes, an artefact of the computation",
    rule="Cells: group `floor` (SGD whose learning rate falls to an absolute 1e-4), in float32 and in float64, paired. "
    f"Per seed: largest rho over layers, heads and the {LAST_TENTH}. Spike: in float32 above {SPIKE:g} times the run's "
    f"median. Artefact: the same number in float64 below 1/{SPIKE:g} of that in float32. Not reproduced if there is no "
    "spike or float64 keeps it whole; otherwise as for several parts.",
)
def _(tables: Tables) -> Finding:
    single, double = (cell(tables, "floor", precision=precision) for precision in ("float32", "float64"))
    late = _largest_late_rho(single)
    spike = Part("spike in float32", geometric_interval(late / per_seed(single.of_heads("rho_qk"), "rho_qk")), SPIKE)
    left = Part("float64 over float32", factor(_largest_late_rho(double), late), upper=1 / SPIKE)
    finding = parts_finding([spike, left], [_small_updates(single)])
    if spike.verdict == NOT_REPRODUCED:
        finding = with_verdict(finding, NOT_REPRODUCED, "There is no spike to explain.")
    elif left.verdict == NOT_REPRODUCED:
        finding = with_verdict(finding, NOT_REPRODUCED, "float64 has it as well: it is no artefact of rounding.")
    return scaled(finding, [single, double])


# ------------------------------------------------------------------ helpers


def _smallest_by_run(rows: pd.DataFrame) -> tuple[Row, ...]:
    smallest = rows.groupby(["cell", "seed"], sort=False)[["mu", "smallest_q", "smallest_k"]].min()
    runs = [f"{name}, seed {seed}" for name, seed in smallest.index]
    listing = evidence_rows("Smallest mu", runs, smallest["mu"], lower=0)
    for side, label in (("q", "queries"), ("k", "keys")):
        listing += evidence_rows(
            f"Smallest over largest eigenvalue, {label}", runs, smallest[f"smallest_{side}"], FULL_RANK
        )
    return listing


def _most_precise_sgd(tables: Tables) -> Cell:
    try:
        return cell(tables, "floor", precision="float64", optimizer="sgd")
    except MissingError:
        return case(tables, "sgd")


def _conserved(run: Cell, bare: str, augmented: str, what: str, zero: float) -> Finding:
    weights, pair = (
        Part(f"{what}, {label}", t_interval(per_seed(run.of_heads(measure), measure, "max")), upper=zero)
        for label, measure in (("weights alone", bare), ("with biases", augmented))
    )
    finding = parts_finding([weights, pair])
    both = weights.verdict == pair.verdict == REPRODUCED
    verdict = NOT_REPRODUCED if pair.verdict == NOT_REPRODUCED else REPRODUCED if both else QUALIFIED
    return scaled(with_verdict(finding, verdict), [run])


def _balanced(run: Cell) -> Part:
    label = OPTIMISERS[str(run.settings["case"])]
    return Part(f"|tau| over trace, {label}", t_interval(settled_ratio(run, "tau", "trace")), upper=BALANCED)


def _settled_size(run: Cell, measure: str) -> pd.Series:
    rows = run.of_heads(measure, after=0.5)
    return per_seed(rows.assign(size=rows[measure].abs()), "size")


def _same_loss(other: Cell, plain: Cell) -> tuple[Part, list[str]]:
    """The part of an equal final loss, and what there is to say beside it."""
    differences = difference(final_loss(other), final_loss(plain))
    part = Part(
        f"final loss, {other.settings['case']} minus {plain.settings['case']}, nats",
        t_interval(differences),
        -SAME_LOSS,
        SAME_LOSS,
    )
    curves = [run.losses().pivot(index="step", columns="seed", values="val_loss") for run in (other, plain)]
    gap = (curves[0] - curves[1]).mean(axis=1).abs().max()
    return part, [pairing_note(differences, SAME_LOSS), f"Largest mean gap at any step: {number(gap)} nats."]


def _against_random_steps(run: Cell) -> str:
    values = run.of_heads("rho_qk", after=0.5)["rho_qk"]
    low, high = float(run.settings["rho_null_low"]), float(run.settings["rho_null_high"])
    above, below = float((values > high).mean()), float((values < low).mean())
    return (
        f"1/(2H) = {number(run.null)} is the mean of a random step (95 % between {number(low)} and {number(high)}) and "
        f"no boundary: a step with this rho is no better than random. Of the values {percent(above)} lie above that "
        f"band and {percent(below)} below; the largest is {number(values.max())}."
    )


def _share_of_gradient(run: Cell, measure: str) -> pd.Series:
    rows = run.of_heads(measure, after=0.5)
    rows = rows.merge(run.of_steps("grad_norm")[["seed", "step", "grad_norm"]], on=["seed", "step"], how="left")
    return per_seed(rows.assign(share=rows[measure] / rows["grad_norm"]), "share")


def _learning_rates(tables: Tables) -> list[Cell]:
    try:
        runs = cells(tables, "learning_rates_float64")
    except MissingError:
        runs = cells(tables, "learning_rates")
    rates = {run.settings["lr"] for run in runs}
    if len(rates) < 2:
        raise MissingError("the group learning_rates has fewer than two learning rates")
    if len(rates) < len(runs):
        raise MissingError("the group learning_rates varies more than the learning rate")
    return runs


def _at_rate(label: str, run: Cell) -> str:
    return f"{label}, learning rate {run.settings['lr']:g}"


def _first_step(run: Cell) -> pd.DataFrame:
    rows = run.of_heads("drift_augmented")
    rows = rows[rows["step"] == rows["step"].min()]
    rates = run.of_steps("lr")[["seed", "step", "lr"]].rename(columns={"lr": "rate"})
    joined: pd.DataFrame = rows.merge(rates, on=["seed", "step"], how="left")
    return joined


def _exponents(rows: pd.DataFrame, measure: str) -> pd.Series:
    """Log-log slope of a measure against the column `rate`, by seed, layer and head."""
    groups = rows.groupby(["seed", "layer", "head"])[["rate", measure]]
    exponents: pd.Series = groups.apply(lambda points: log_log_slope(points["rate"], points[measure]))
    return exponents


def _median_exponent(rows: pd.DataFrame, measure: str) -> Estimate:
    return t_interval(_exponents(rows, measure).groupby(level="seed").median())


def _quarter(run: Cell, start: float, end: float) -> pd.Series:
    rows = run.of_heads("drift", after=start)
    rows = rows[rows["step"] <= end * run.settings["steps"]]
    if rows.empty:
        raise MissingError(f"the cell {run.name} has no measured steps between {start:.0%} and {end:.0%} of the run")
    return per_seed(rows, "drift")


def _slope_over_layers(run: Cell) -> Part:
    medians = reduced(run.of_heads("drift", after=0.5), ["seed", "layer"], "drift", "median")
    if medians["layer"].nunique() < 2:
        raise MissingError("the model has one layer, so none is earlier")
    with np.errstate(divide="ignore"):
        medians = medians.assign(log=np.log10(medians["drift"]))
    slopes = medians.groupby("seed")[["layer", "log"]].apply(lambda layers: slope(layers["layer"], layers["log"]))
    return Part(_at_rate("slope over layers", run), t_interval(slopes), upper=0.0)


def _largest_late_rho(run: Cell) -> pd.Series:
    return per_seed(run.of_heads("rho_qk", after=0.9), "rho_qk", "max")


def _small_updates(run: Cell) -> str:
    norms = by_step(run.of_heads("update_norm"), "update_norm")
    late = norms[norms.index > 0.9 * run.settings["steps"]]
    share = (late.median() / norms.median()).median()
    return f"The updates of that tenth are {number(share)} of the run's median."
