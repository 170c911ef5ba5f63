"""Parquet tables: every column of every table is defined here and nowhere else."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from attnid.errors import UserError

INT = pa.int64()
FLOAT = pa.float64()
BOOL = pa.bool_()
TEXT = pa.string()


@dataclass(frozen=True)
class Column:
    """One column: its Arrow type, what it holds, its unit, and whether a value may be missing."""

    name: str
    type: pa.DataType
    description: str
    unit: str = "1"
    nullable: bool = False

    @property
    def field(self) -> pa.Field:
        metadata = {"description": self.description, "unit": self.unit}
        return pa.field(self.name, self.type, nullable=self.nullable, metadata=metadata)


@dataclass(frozen=True)
class Table:
    """One table: its columns in order, and a version that changes with their meaning."""

    name: str
    description: str
    columns: tuple[Column, ...]
    version: int = 1

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def schema(self) -> pa.Schema:
        metadata = {"table": self.name, "version": str(self.version), "description": self.description}
        return pa.schema([column.field for column in self.columns], metadata=metadata)


def write(table: Table, frame: pd.DataFrame, path: Path) -> None:
    """Write a frame as a table, by rename, so that a reader never sees half of it.

    Raises ValueError where the frame's columns are not the table's.
    """
    if set(frame.columns) != set(table.names):
        missing, extra = set(table.names) - set(frame.columns), set(frame.columns) - set(table.names)
        raise ValueError(f"table {table.name}: missing columns {sorted(missing)}, unknown columns {sorted(extra)}")
    arrow = pa.Table.from_arrays(
        [_array(table, column, frame[column.name]) for column in table.columns], schema=table.schema
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        pq.write_table(arrow, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _array(table: Table, column: Column, values: pd.Series) -> pa.Array:
    """NaN stands for a missing value where there may be one; in other columns it is a value that is not finite."""
    array = pa.array(values if column.nullable else values.to_numpy(), column.type, from_pandas=column.nullable)
    if array.null_count and not column.nullable:
        raise ValueError(f"table {table.name}: the column {column.name} has missing values")
    return array


def read(table: Table, path: Path) -> pd.DataFrame:
    """Read a table. Raises UserError where the file is missing, damaged or of another schema."""
    try:
        arrow = pq.read_table(path, partitioning=None)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; expected the table {table.name}") from None
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]})") from None
    _check(table, arrow.schema, path)
    result: pd.DataFrame = arrow.select(table.names).to_pandas()
    return result


def read_all(table: Table, paths: Iterable[Path]) -> pd.DataFrame:
    """Read several files of one table, one below the other, in the order given."""
    return pd.concat([read(table, path) for path in paths], ignore_index=True)


def _check(table: Table, found: pa.Schema, path: Path) -> None:
    metadata = {key.decode(): value.decode() for key, value in (found.metadata or {}).items()}
    name, version = metadata.get("table"), metadata.get("version")
    if name != table.name:
        raise UserError(f"{path}: holds the table {name!r}, expected {table.name!r}")
    if version != str(table.version):
        raise UserError(f"{path}: version {version} of the table {name}, expected version {table.version}")
    for column in table.columns:
        if column.name not in found.names:
            raise UserError(f"{path}: the table {name} lacks its column {column.name}")
        if found.field(column.name).type != column.type:
            kind = found.field(column.name).type
            raise UserError(f"{path}: column {column.name} holds {kind}, expected {column.type}")


def _ints(**descriptions: str) -> tuple[Column, ...]:
    return tuple(Column(name, INT, text) for name, text in descriptions.items())


def _bools(**descriptions: str) -> tuple[Column, ...]:
    return tuple(Column(name, BOOL, text) for name, text in descriptions.items())


def _texts(**descriptions: str) -> tuple[Column, ...]:
    return tuple(Column(name, TEXT, text) for name, text in descriptions.items())


def _floats(**descriptions: str) -> tuple[Column, ...]:
    return tuple(Column(name, FLOAT, text) for name, text in descriptions.items())


def _optional(**descriptions: str) -> tuple[Column, ...]:
    return tuple(Column(name, FLOAT, text, nullable=True) for name, text in descriptions.items())


_LAYER_SIZES = _ints(
    d_model="width of the model (E)",
    n_heads="query heads (H)",
    n_kv_heads="key/value groups (G)",
    qk_head_dim="width of a query/key head (D)",
    v_head_dim="width of a value head (C)",
    rotary_dim="dimensions of a query/key head that RoPE rotates",
)

_SOURCES = _ints(
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
    *_ints(parameters="all parameters of the layer"),
    *_SOURCES,
    *_ints(unidentified="all unidentified directions, closed form", identified="identified parameters, closed form"),
    *_floats(identified_fraction="identified / parameters"),
)

_CERTIFICATE = (
    *_ints(
        exact_lower="proved lower bound on the generic rank; 0 where the argument fails",
        exact_upper="proved upper bound on the generic rank",
        prime="prime of the modular elimination",
        seed="seed of all random numbers",
    ),
    *_bools(certified="all bounds of the row meet and the argument holds: the ranks are proved"),
    *_texts(
        assumed="conditions under which the lower bound is a proof",
        failed="condition of the argument that does not hold; empty if all do",
    ),
)

# ---------------------------------------------------------------- analysis

RANKS = Table(
    "ranks",
    "layers as the paper has them: closed form, float64 rank of the Jacobian and certificate, one row a layer",
    (
        *_texts(group="family of the grid the layer belongs to", layer="readable name of the layer"),
        *_LAYER_SIZES,
        *_bools(
            query_bias="query bias present",
            key_bias="key bias present",
            value_bias="value bias present",
            output_bias="output bias present",
            causal="causal mask",
        ),
        *_COUNT,
        *_ints(
            parameters_qk="query and key weights and biases",
            parameters_vo="value and output weights and biases",
            rank="float64 rank of the Jacobian in all parameters",
            rank_qk="float64 rank of its query/key columns",
            rank_vo="float64 rank of its value/output columns",
        ),
        *_floats(
            smallest_kept="smallest singular value counted, relative to the largest; worst of the three ranks",
            largest_dropped="largest singular value dropped, relative to the largest; worst of the three ranks",
        ),
        *_ints(sequences="random input sequences of the float64 rank", tokens="tokens in a sequence"),
        *_CERTIFICATE,
        *_ints(
            exact_lower_qk="proved lower bound on the rank of the query/key columns",
            exact_upper_qk="proved upper bound on it",
            exact_lower_vo="proved lower bound on the rank of the value/output columns",
            exact_upper_vo="proved upper bound on it",
        ),
        *_bools(agrees="closed form, float64 rank and certificate agree, for the layer and for both sides"),
    ),
)

VARIANTS = Table(
    "variants",
    "attention variants of current models, small: closed form, float64 rank and certificate, one row a layer",
    (
        *_texts(group="kind of variant", layer="readable name of the layer"),
        *_LAYER_SIZES,
        *_COUNT,
        *_ints(rank="float64 rank of the Jacobian"),
        *_floats(
            smallest_kept="smallest singular value counted, relative to the largest",
            largest_dropped="largest singular value dropped, relative to the largest",
        ),
        *_ints(sequences="random input sequences of the float64 rank", tokens="tokens in a sequence"),
        *_CERTIFICATE,
        *_bools(agrees="closed form, float64 rank and certificate agree"),
    ),
)

INVARIANCES = Table(
    "invariances",
    "a layer's output before and after a transformation of its weights, float64, one row a random draw",
    (
        *_texts(
            name="transformation",
            description="what is done to the weights",
            layer="readable name of the layer",
            expected="unchanged or changed",
        ),
        *_ints(draw="index of the random draw"),
        Column("error_epsilons", FLOAT, "relative change of the output (Frobenius)", "float64 machine epsilon"),
        *_bools(holds="unchanged: below 1e4 epsilons; changed: above 1e6 epsilons"),
    ),
)

EQUIVALENTS = Table(
    "equivalents",
    "the single-head layer with as many identified parameters as a multi-head layer",
    (
        *_texts(model="model whose sizes are used"),
        *_ints(
            d_model="width of the multi-head model (E)",
            n_heads="heads (H)",
            width_formula="ceil(E sqrt(2 - 1/H))",
            width_search="smallest square single-head layer with at least as many identified parameters, by search",
        ),
        *_floats(
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
        *_ints(
            head_dim="width of a head (D = C)",
            d_model="width of the ablated model (E)",
            n_heads="heads (H)",
            n_layers="layers",
            attention="attention parameters, recomputed",
            unidentified="unidentified parameters, recomputed",
        ),
        *_floats(
            share_percent="unidentified share of the whole model, recomputed, in percent",
            printed_total="parameters of the model as printed, in millions",
            printed_attention="attention parameters as printed, in millions",
            printed_unidentified="unidentified parameters as printed, in millions",
            printed_share_percent="their share as printed, in percent",
            printed_implied_width="width that the printed unidentified count implies: attention x D / (2 x count)",
        ),
        *_optional(
            gain_f1="gain in F1 over the row before, as printed, in points",
            gain_em="gain in exact match over the row before, as printed, in points",
        ),
    ),
)

ARCHITECTURES = Table(
    "architectures",
    "unidentified attention parameters of published models, closed form, one row a kind of layer of a model",
    (
        *_texts(
            model="published name", role="where in the model these layers stand", layer="readable name of the layer"
        ),
        *_ints(layers="layers of this kind"),
        *_texts(position="position information"),
        *_LAYER_SIZES,
        *_COUNT,
        *_ints(
            parameters_model="attention parameters of all layers of this kind",
            unidentified_model="unidentified parameters of all layers of this kind",
        ),
        *_floats(
            paper_fraction="what the paper's rule for plain multi-head attention would say, 1 - 1/(2H)",
            model_parameters="parameters of the whole model, approximate, in millions",
            share_of_model="unidentified parameters of all layers of this kind / parameters of the whole model",
        ),
        *_texts(block_norm="norm before the layer: rms, layer (LayerNorm) or none"),
        *_ints(
            block_parameters="parameters of a layer and the norm before it",
            block_unidentified="unidentified of them",
        ),
        *_floats(block_identified_fraction="identified fraction of them"),
    ),
)

TRAP = Table(
    "trap",
    "stacked softmax layers with small query and key weights: the float64 Jacobian rank beside the proved one, one row "
    "a scale and cut-off",
    (
        *_floats(
            scale="standard deviation of the query and key weights",
            cutoff="singular values above it are counted, relative to the largest",
        ),
        *_ints(rank_float64="singular values counted in float64"),
        *_floats(
            smallest_kept="smallest singular value counted, relative to the largest",
            largest_dropped="largest singular value not counted, relative to the largest",
        ),
        *_ints(
            proved_lower="proved lower bound on the rank at the same weights, ball arithmetic",
            proved_upper="proved upper bound: weights less the exact rank of the directions that change nothing",
        ),
        Column("bits", INT, "precision of the ball arithmetic that gave the lower bound", "bit"),
    ),
)

# ---------------------------------------------------------------- training

CELLS = Table(
    "cells",
    "the settings of every training cell, and the null of a random step in its layers",
    (
        *_texts(
            cell="readable name with a hash of the settings",
            case="name of the case",
            optimizer="sgd, sign-sgd, adam, adamw or muon",
            rebalance="what is rebalanced every rebalance_every steps: none, qk, qk-vo; or state (only cleared)",
            moments="the optimiser's state at a rebalancing: clear, keep or transport",
            project="weights whose steps lose their part along unidentified directions: none, qk or qk-vo",
            precision="float32, bfloat16 or float64",
            corpus="name of the corpus",
        ),
        *_floats(
            lr="peak learning rate",
            lr_floor="learning rate at the end of the cosine",
            weight_decay="weight decay of the matrices",
            momentum="momentum of sgd, sign-sgd and muon",
            grad_clip="largest norm of the whole gradient; 0 for no clipping",
            dropout="dropout probability",
        ),
        *_ints(
            rebalance_every="steps between rebalancings; 0 for none",
            n_layers="layers",
            d_model="width (E)",
            n_heads="heads (H)",
            n_kv_heads="key/value heads (G)",
            qk_head_dim="width of a head (D = C = E/H)",
            rotary_dim="dimensions of a query/key head that RoPE rotates",
            context="tokens in a sequence (L)",
            batch_size="sequences in a batch",
            steps="optimiser steps",
        ),
        *_floats(
            rho_null_mean="mean of rho_qk for a random (isotropic) step; 1/(2H) in plain multi-head attention",
            rho_null_low="2.5 % quantile of rho_qk for a random step",
            rho_null_high="97.5 % quantile of rho_qk for a random step",
            rho_vo_null_mean="mean of rho_vo for a random step",
            rho_vo_null_low="2.5 % quantile of rho_vo for a random step",
            rho_vo_null_high="97.5 % quantile of rho_vo for a random step",
            rho_scaling_null_mean="mean of rho_qk_scaling for a random step",
            rho_rotation_null_mean="mean of rho_qk_rotation for a random step",
        ),
    ),
    version=2,
)

GROUPS = Table(
    "groups",
    "which cells each cell group of the configuration holds; a cell may be in several",
    _texts(group="cell group", cell="cell"),
)

_RUN = (*_texts(cell="training cell"), *_ints(seed="seed", step="optimiser step, from 1"))

STEPS = Table(
    "steps",
    "one row a run and measured step",
    (
        *_RUN,
        *_floats(
            lr="learning rate of the step",
            train_loss="loss of the step's batch before the step, nats a character",
            grad_norm="norm of the whole gradient before clipping",
            update_norm="norm of the change of all parameters",
        ),
    ),
    version=2,
)

EVALUATIONS = Table(
    "evaluations",
    "one row a run and validation",
    (*_RUN, *_floats(val_loss="loss on the fixed validation batches after the step, nats a character")),
)

PHASE_STEP, PHASE_REBALANCED = "step", "rebalanced"

HEADS = Table(
    "heads",
    "one row a run, measured step, layer and key/value head with all its query heads. Phase `step`: the step itself, "
    "and the weights after it; phase `rebalanced`: the weights after the rebalancing that followed, without the "
    "columns that describe a step",
    (
        *_RUN,
        *_texts(phase="step or rebalanced"),
        *_ints(layer="layer, from 0", head="key/value head, from 0"),
        *_optional(
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
        *_floats(
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
    ),
    version=2,
)
HEAD_MEASURES = tuple(column.name for column in HEADS.columns if column.type == FLOAT)

REBALANCES = Table(
    "rebalances",
    "one row a run, rebalancing and layer: what it did to the layer's function and to its weights",
    (
        *_RUN,
        *_ints(layer="layer, from 0"),
        Column(
            "output_error",
            FLOAT,
            "relative change of the layer's output on the step's batch, computed in float64 from the stored weights",
            "machine epsilon of the stored weights",
        ),
        *_floats(moved="relative change of the layer's attention weights and biases"),
    ),
    version=2,
)

SUMMARY = Table(
    "summary",
    "measures over layers and heads, then over seeds; one row a cell, measured step and measure",
    (
        *_texts(cell="training cell", measure="column of the table steps or heads (phase step)"),
        *_ints(step="optimiser step, from 1", seeds="runs"),
        *_floats(
            minimum="smallest over layers and heads, mean over seeds",
            median="median over layers and heads, mean over seeds",
            mean="mean over layers and heads, mean over seeds",
            maximum="largest over layers and heads, mean over seeds",
        ),
        *_optional(
            low="lower end of the 95 % t interval of the median over seeds; missing for one seed",
            high="upper end of the 95 % t interval of the median over seeds; missing for one seed",
        ),
    ),
)

# ---------------------------------------------------------------- verdicts

CLAIMS = Table(
    "claims",
    "every claim of arXiv 2609.01231v1 that a number can test, and the answers beyond it, each with its verdict",
    (
        *_texts(
            id="claim",
            at="section or figure of the paper",
            kind="count, invariance, training or table; beyond: a question that the paper leaves open",
            statement="what the paper says",
        ),
        Column("printed", TEXT, "the value the paper prints", nullable=True),
        *_optional(measured="the value measured", low="lower end of its interval", high="upper end of its interval"),
        Column("seeds", INT, "runs behind the value; 0 for exact arithmetic", nullable=False),
        *_texts(
            scale="scale at which the verdict was reached",
            verdict="reproduced, corrected, qualified, not reproduced or not run; supported, open or not supported",
            evidence="the numbers behind the verdict, in words",
        ),
    ),
)

ALL = (
    RANKS,
    VARIANTS,
    INVARIANCES,
    EQUIVALENTS,
    SQUAD,
    ARCHITECTURES,
    TRAP,
    CELLS,
    GROUPS,
    STEPS,
    EVALUATIONS,
    HEADS,
    REBALANCES,
    SUMMARY,
    CLAIMS,
)
BY_NAME = {table.name: table for table in ALL}
