"""Tables of the parameter-space analysis."""

from attnid.schema import FLOAT, INT, Column, Table, bools, floats, ints, optional, texts

_LAYER_SIZES = ints(
    d_model="width of the model (E)",
    n_heads="query heads (H)",
    n_kv_heads="key/value groups (G)",
    qk_head_dim="width of a query/key head (D)",
    v_head_dim="width of a value head (C)",
    rotary_dim="dimensions of a query/key head that RoPE rotates",
)

_SOURCES = ints(
    query_key_gauge="unidentified: transformations of queries and keys that leave the scores",
    value_output_gauge="unidentified: transformations of values and output that leave their product",
    dead_key_bias="unidentified: key bias",
    dead_value_bias="unidentified: value bias",
    relative_table="unidentified: shift of a head's table of relative positions, and entries that nothing uses",
    latent_gauge="unidentified: rotations and scales of normalised latents (MLA)",
    norm_gain="unidentified: gain of the norm before the layer, absorbed by the projections",
    norm_bias="unidentified: bias of the norm before the layer",
    norm_centring="unidentified: rows of projections that LayerNorm's centring hides",
)

_COUNT = (
    *ints(parameters="all parameters of the layer"),
    *_SOURCES,
    *ints(unidentified="all unidentified directions, closed form", identified="identified parameters, closed form"),
    *floats(identified_fraction="identified / parameters"),
)

_CERTIFICATE = (
    *ints(
        exact_lower="proved lower bound on the generic rank; 0 where the argument fails",
        exact_upper="proved upper bound on the generic rank",
        prime="prime of the modular elimination",
        seed="seed of all random numbers",
    ),
    *bools(certified="all bounds of the row meet and the argument holds: the ranks are proved"),
    *texts(
        assumed="conditions under which the lower bound is a proof",
        failed="condition of the argument that does not hold; empty if all do",
    ),
)

RANKS = Table(
    "ranks",
    "layers as the paper has them: closed form, float64 rank of the Jacobian and certificate, one row a layer",
    (
        *texts(group="family of the grid the layer belongs to", layer="readable name of the layer"),
        *_LAYER_SIZES,
        *bools(
            query_bias="query bias present",
            key_bias="key bias present",
            value_bias="value bias present",
            output_bias="output bias present",
            causal="causal mask",
        ),
        *_COUNT,
        *ints(
            parameters_qk="query and key weights and biases",
            parameters_vo="value and output weights and biases",
            rank="float64 rank of the Jacobian in all parameters",
            rank_qk="float64 rank of its query/key columns",
            rank_vo="float64 rank of its value/output columns",
        ),
        *floats(
            smallest_kept="smallest singular value counted, relative to the largest; worst of the three ranks",
            largest_dropped="largest singular value dropped, relative to the largest; worst of the three ranks",
        ),
        *ints(sequences="random input sequences of the float64 rank", tokens="tokens in a sequence"),
        *_CERTIFICATE,
        *ints(
            exact_lower_qk="proved lower bound on the rank of the query/key columns",
            exact_upper_qk="proved upper bound on it",
            exact_lower_vo="proved lower bound on the rank of the value/output columns",
            exact_upper_vo="proved upper bound on it",
        ),
        *bools(agrees="closed form, float64 rank and certificate agree, for the layer and for both sides"),
    ),
)

VARIANTS = Table(
    "variants",
    "attention variants of current models, small: closed form, float64 rank and certificate, one row a layer",
    (
        *texts(group="kind of variant", layer="readable name of the layer"),
        *_LAYER_SIZES,
        *_COUNT,
        *ints(rank="float64 rank of the Jacobian"),
        *floats(
            smallest_kept="smallest singular value counted, relative to the largest",
            largest_dropped="largest singular value dropped, relative to the largest",
        ),
        *ints(sequences="random input sequences of the float64 rank", tokens="tokens in a sequence"),
        *_CERTIFICATE,
        *bools(agrees="closed form, float64 rank and certificate agree"),
    ),
)

INVARIANCES = Table(
    "invariances",
    "a layer's output before and after a transformation of its weights, float64, one row a random draw",
    (
        *texts(
            name="transformation",
            description="what is done to the weights",
            layer="readable name of the layer",
            expected="unchanged or changed",
        ),
        *ints(draw="index of the random draw"),
        Column("error_epsilons", FLOAT, "relative change of the output (Frobenius)", "float64 machine epsilon"),
        *bools(holds="unchanged: below 1e4 epsilons; changed: above 1e6 epsilons"),
    ),
)

EQUIVALENTS = Table(
    "equivalents",
    "the single-head layer with as many identified parameters as a multi-head layer",
    (
        *texts(model="model whose sizes are used"),
        *ints(
            d_model="width of the multi-head model (E)",
            n_heads="heads (H)",
            width_formula="ceil(E sqrt(2 - 1/H))",
            width_search="smallest square single-head layer with at least as many identified parameters, by search",
        ),
        *floats(
            width_growth="width_search / E",
            attention_growth="attention parameters, 3 E0^2 / 4 E^2",
            block_growth="attention and MLP parameters, 11 E0^2 / 12 E^2",
            model_growth="all parameters with embeddings",
            same_width_left="largest 1 + 2 eta - eta^2 over 0 < eta <= 1: what a single head at E0 = E reaches",
            same_width_right="2 (2 - 1/H), what it would have to reach",
        ),
    ),
)

SQUAD = Table(
    "squad",
    "Figure 1 of the paper: the SQuAD ablation of Bhojanapalli et al. 2020, printed and recomputed",
    (
        *ints(
            head_dim="width of a head (D = C)",
            d_model="width of the ablated model (E)",
            n_heads="heads (H)",
            n_layers="layers",
            attention="attention parameters, recomputed",
            unidentified="unidentified parameters, recomputed",
        ),
        *floats(
            share_percent="unidentified share of the whole model, recomputed, in percent",
            printed_total="parameters of the model as printed, in millions",
            printed_attention="attention parameters as printed, in millions",
            printed_unidentified="unidentified parameters as printed, in millions",
            printed_share_percent="their share as printed, in percent",
            printed_implied_width="width that the printed unidentified count implies: attention x D / (2 x count)",
        ),
        *optional(
            gain_f1="gain in F1 over the row before, as printed, in points",
            gain_em="gain in exact match over the row before, as printed, in points",
        ),
    ),
)

ARCHITECTURES = Table(
    "architectures",
    "unidentified attention parameters of published models, closed form, one row a kind of layer of a model",
    (
        *texts(
            model="published name", role="where in the model these layers stand", layer="readable name of the layer"
        ),
        *ints(layers="layers of this kind"),
        *texts(position="position information"),
        *_LAYER_SIZES,
        *_COUNT,
        *ints(
            parameters_model="attention parameters of all layers of this kind",
            unidentified_model="unidentified parameters of all layers of this kind",
        ),
        *floats(
            paper_fraction="what the paper's rule for plain multi-head attention would say, 1 - 1/(2H)",
            model_parameters="parameters of the whole model, approximate, in millions",
            share_of_model="unidentified parameters of all layers of this kind / parameters of the whole model",
        ),
        *texts(block_norm="norm before the layer: rms, layer (LayerNorm) or none"),
        *ints(
            block_parameters="parameters of a layer and the norm before it",
            block_unidentified="unidentified of them",
        ),
        *floats(block_identified_fraction="identified fraction of them"),
    ),
)

TRAP = Table(
    "trap",
    "stacked softmax layers with small query and key weights: the float64 Jacobian rank beside the proved one, one row "
    "a scale and cut-off",
    (
        *floats(
            scale="standard deviation of the query and key weights",
            cutoff="singular values above it are counted, relative to the largest",
        ),
        *ints(rank_float64="singular values counted in float64"),
        *floats(
            smallest_kept="smallest singular value counted, relative to the largest",
            largest_dropped="largest singular value not counted, relative to the largest",
        ),
        *ints(
            proved_lower="proved lower bound on the rank at the same weights, ball arithmetic",
            proved_upper="proved upper bound: weights less the exact rank of the directions that change nothing",
        ),
        Column("bits", INT, "precision of the ball arithmetic that gave the lower bound", "bit"),
    ),
)

ANALYSIS = (RANKS, VARIANTS, TRAP, INVARIANCES, EQUIVALENTS, SQUAD, ARCHITECTURES)
