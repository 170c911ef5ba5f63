"""Tables of a training job."""

from attnid.schema import FLOAT, Column, Table, floats, ints, optional, texts

_RUN = (*texts(cell="training cell"), *ints(seed="seed", step="optimiser step, from 1"))
_RUN_KEY = tuple(column.name for column in _RUN)

STEPS = Table(
    "steps",
    "one row a run and measured step",
    (
        *_RUN,
        *floats(
            lr="learning rate of the step",
            train_loss="loss of the step's batch before the step, nats a character",
            grad_norm="norm of the whole gradient before clipping",
            update_norm="norm of the change of all parameters",
        ),
    ),
    version=2,
    key=_RUN_KEY,
)

EVALUATIONS = Table(
    "evaluations",
    "one row a run and validation",
    (*_RUN, *floats(val_loss="loss on the fixed validation batches after the step, nats a character")),
    key=_RUN_KEY,
)

PHASE_STEP, PHASE_REBALANCED = "step", "rebalanced"
REGULAR, RANK_DEFICIENT, NOT_FINITE = "regular", "rank-deficient", "not finite"

HEADS = Table(
    "heads",
    "one row a run, measured step, layer and key/value head with all its query heads. Phase `step`: the step itself, "
    "and the weights after it; phase `rebalanced`: the weights after the rebalancing that followed, without the "
    "columns that describe a step. G_Q = W_Q W_Q^T, with the query heads of a key head side by side, and "
    "G_K = W_K W_K^T; under RoPE a plane is a pair of adjacent rows, 2i and 2i + 1. A share of a step or gradient of "
    "length zero has no value",
    (
        *_RUN,
        *texts(phase="step or rebalanced"),
        *ints(layer="layer, from 0", head="key/value head, from 0"),
        *optional(
            rho_qk="share of the query/key step's squared length that lies along the gauge directions",
            rho_qk_augmented="the same for [W_Q b_Q], [W_K b_K]",
            rho_vo="value/output step: the same",
            rho_vo_augmented="the same for [W_V b_V], W_O",
            rho_qk_scaling="share of the query/key step along the directions of symmetric S",
            rho_qk_rotation="share of the query/key step along the directions of antisymmetric S",
            rho_qk_gradient="rho of the plain gradient, query/key",
            rho_qk_augmented_gradient="rho of the plain gradient, augmented query/key",
            rho_vo_gradient="rho of the plain gradient, value/output",
            rho_vo_augmented_gradient="rho of the plain gradient, augmented value/output",
            imbalance_rate="first-order rate of change of G_Q - G_K along the plain gradient, relative to its terms",
            imbalance_rate_augmented="the same for the augmented pair",
            update_norm="norm of the step in W_Q and W_K of the head",
            drift="norm of the change of G_Q - G_K over the step",
            drift_augmented="the same for the augmented pair",
            drift_augmented_plain="lr^2 |g_Q g_Q^T - g_K g_K^T|: augmented drift of one plain step along the gradient "
            "as clipped",
            grad_norm_query_bias="gradient norm of b_Q",
            grad_norm_key_bias="gradient norm of b_K",
        ),
        *floats(
            beta="|G_Q - G_K|_F after the step; of dimensions that RoPE rotates, what gradient flow conserves of it",
            beta_augmented="the same for the augmented pair",
            tau="trace(G_Q - G_K) after the step",
            tau_augmented="the same for the augmented pair",
            trace="trace(G_Q + G_K) after the step",
            mu="lambda_min(G_Q) + lambda_min(G_K) after the step",
            smallest_q="lambda_min(G_Q) / lambda_max(G_Q) after the step",
            smallest_k="lambda_min(G_K) / lambda_max(G_K) after the step",
            norm_query_bias="norm of b_Q after the step",
            norm_key_bias="norm of b_K after the step",
        ),
        *texts(
            state=f"the query and key weights after the step: {REGULAR}, {RANK_DEFICIENT} (smallest_q or smallest_k "
            f"within rounding of 0, as for weights of zero) or {NOT_FINITE}"
        ),
    ),
    version=3,
    key=(*_RUN_KEY, "phase", "layer", "head"),
)
HEAD_MEASURES = tuple(column.name for column in HEADS.columns if column.type == FLOAT)

REBALANCES = Table(
    "rebalances",
    "one row a run, rebalancing and layer: what it did to the layer's function and to its weights",
    (
        *_RUN,
        *ints(layer="layer, from 0"),
        Column(
            "output_error",
            FLOAT,
            "relative change of the layer's output on the step's batch, computed in float64 from the stored weights",
            "machine epsilon of the stored weights",
        ),
        *floats(moved="relative change of the layer's attention weights and biases"),
        *ints(
            left_alone="products of key/value heads that were left as they were, their weights being rank-deficient, "
            "zero or not finite"
        ),
    ),
    version=3,
    key=(*_RUN_KEY, "layer"),
)

TRAINING = (STEPS, EVALUATIONS, HEADS, REBALANCES)
