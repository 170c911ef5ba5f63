"""Tables about a model's attention layers."""

from dataclasses import replace

from attnid.schema import Column, Table, floats, ints, optional, texts
from attnid.tables import CELLS
from attnid.training_tables import HEADS, NOT_FINITE, RANK_DEFICIENT, REGULAR

ALIVE, NEAR_DEAD, DEAD = "alive", "near-dead", "dead"

WEIGHTS = Table(
    "weights",
    "one row an attention layer of a model and key/value head with all its query heads. Without a value: what the "
    "normalisation of a layer keeps from moving",
    (
        *texts(layer="path of the attention module"),
        *ints(head="key/value head, from 0"),
        *optional(
            beta="|G_Q - G_K|_F; of dimensions that RoPE rotates, what gradient flow conserves of it",
            tau="trace(G_Q - G_K)",
            trace="trace(G_Q + G_K)",
            mu="lambda_min(G_Q) + lambda_min(G_K)",
        ),
        *floats(
            condition_q="condition number of the query heads' weights side by side; infinite without full rank",
            condition_k="condition number of W_K",
            condition_v="condition number of W_V",
            condition_o="condition number of the output weights of the query heads side by side",
            effective_rank_qk="exp of the entropy of the singular values of W_Q^T W_K as shares (Roy, Vetterli 2007)",
            effective_rank_vo="the same of W_O W_V",
            size_vo="Frobenius norm of W_O W_V",
            dead_key_bias="norm of the part of b_K on which nothing depends",
        ),
        *texts(
            state=f"the query and key weights: {REGULAR}, {RANK_DEFICIENT} or {NOT_FINITE}",
            liveliness=f"{DEAD}: W_O W_V is zero up to rounding; {NEAR_DEAD}: below 1 % of the largest; {ALIVE}",
        ),
    ),
    key=("layer", "head"),
)


def _as_in(table: Table, *names: str) -> tuple[Column, ...]:
    """Columns of another table, of which a value may be missing here."""
    columns = {column.name: column for column in table.columns}
    return tuple(replace(columns[name], nullable=True) for name in names)


OVERLAPS = Table(
    "overlaps",
    "one row a measured step of a model, attention layer and key/value head with all its query heads: the step itself, "
    "and the weights after it, as in the table heads. Without a value: what a layer's normalisation keeps from moving, "
    "and shares of a step of length zero",
    (
        *ints(step="optimiser step, from 1"),
        *texts(layer="path of the attention module"),
        *ints(head="key/value head, from 0"),
        *_as_in(HEADS, "rho_qk", "rho_qk_augmented"),
        *_as_in(CELLS, "rho_null_mean", "rho_null_low", "rho_null_high"),
        *_as_in(HEADS, "rho_vo", "rho_vo_augmented"),
        *_as_in(CELLS, "rho_vo_null_mean", "rho_vo_null_low", "rho_vo_null_high"),
        *_as_in(HEADS, "update_norm", "drift", "drift_augmented", "beta", "beta_augmented", "tau", "tau_augmented"),
        *_as_in(HEADS, "trace", "mu"),
        *texts(state=f"the query and key weights after the step: {REGULAR}, {RANK_DEFICIENT} or {NOT_FINITE}"),
    ),
    key=("step", "layer", "head"),
)
