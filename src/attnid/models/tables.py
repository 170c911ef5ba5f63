"""Tables about a model's attention layers."""

from attnid.schema import Table, floats, ints, optional, texts
from attnid.training_tables import NOT_FINITE, RANK_DEFICIENT, REGULAR

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

OVERLAPS = Table(
    "overlaps",
    "one row a measured step of a model, attention layer and key/value head with all its query heads: the step itself, "
    "and the weights after it, as in the table heads. Without a value: what a layer's normalisation keeps from moving, "
    "and shares of a step of length zero",
    (
        *ints(step="optimiser step, from 1"),
        *texts(layer="path of the attention module"),
        *ints(head="key/value head, from 0"),
        *optional(
            rho_qk="share of the query/key step's squared length that lies along the gauge directions",
            rho_qk_augmented="the same for [W_Q b_Q], [W_K b_K]",
            rho_qk_null_mean="mean of rho_qk for a random (isotropic) step of this layer",
            rho_qk_null_low="2.5 % quantile of rho_qk for a random step",
            rho_qk_null_high="97.5 % quantile of rho_qk for a random step",
            rho_vo="share of the value/output step's squared length that lies along the gauge directions",
            rho_vo_augmented="the same for [W_V b_V], W_O",
            rho_vo_null_mean="mean of rho_vo for a random step",
            rho_vo_null_low="2.5 % quantile of rho_vo for a random step",
            rho_vo_null_high="97.5 % quantile of rho_vo for a random step",
            update_norm="norm of the step in W_Q and W_K of the head",
            drift="norm of the change of G_Q - G_K over the step",
            drift_augmented="the same for the augmented pair",
            beta="|G_Q - G_K|_F after the step; of dimensions that RoPE rotates, what gradient flow conserves of it",
            beta_augmented="the same for the augmented pair",
            tau="trace(G_Q - G_K) after the step",
            tau_augmented="the same for the augmented pair",
            trace="trace(G_Q + G_K) after the step",
            mu="lambda_min(G_Q) + lambda_min(G_K) after the step",
        ),
        *texts(state=f"the query and key weights after the step: {REGULAR}, {RANK_DEFICIENT} or {NOT_FINITE}"),
    ),
    key=("step", "layer", "head"),
)
