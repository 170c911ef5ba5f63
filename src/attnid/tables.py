"""All tables by name, and those over all cells; each stage's own are in a module that it reads alone."""

from attnid.analysis_tables import ANALYSIS, ARCHITECTURES, EQUIVALENTS, INVARIANCES, RANKS, SQUAD, TRAP, VARIANTS
from attnid.schema import INT, TEXT, Column, Table, floats, ints, optional, read, read_all, texts, write
from attnid.training_tables import (
    EVALUATIONS,
    HEAD_MEASURES,
    HEADS,
    NOT_FINITE,
    PHASE_REBALANCED,
    PHASE_STEP,
    RANK_DEFICIENT,
    REBALANCES,
    STEPS,
    TRAINING,
)

__all__ = ["ALL", "BY_NAME", "CELLS", "CLAIMS", "EVIDENCE", "GROUPS", "METRICS", "SUMMARY"]
__all__ += ["ANALYSIS", "ARCHITECTURES", "EQUIVALENTS", "INVARIANCES", "RANKS", "SQUAD", "TRAP", "VARIANTS"]
__all__ += ["EVALUATIONS", "HEADS", "HEAD_MEASURES", "NOT_FINITE", "PHASE_REBALANCED", "PHASE_STEP", "RANK_DEFICIENT"]
__all__ += ["REBALANCES", "STEPS", "TRAINING", "Column", "Table", "read", "read_all", "write"]

CELLS = Table(
    "cells",
    "the settings of every training cell, and the null of a random step in its layers",
    (
        *texts(
            cell="readable name with a hash of the settings",
            case="name of the case",
            optimizer="optimiser: a module of attnid.optimisers",
            rebalance="what is rebalanced every rebalance_every steps: none, qk, qk-vo; or state (only cleared)",
            moments="the optimiser's state at a rebalancing: clear, keep or transport",
            project="weights whose steps lose their part along unidentified directions: none, qk or qk-vo",
            precision="float32, bfloat16 or float64",
            corpus="name of the corpus",
        ),
        *floats(
            lr="peak learning rate",
            lr_floor="learning rate at the end of the cosine",
            weight_decay="weight decay of the matrices",
            momentum="momentum, of optimisers that take one",
            grad_clip="largest norm of the whole gradient; 0 for no clipping",
            dropout="dropout probability",
        ),
        *ints(
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
        *floats(
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
    key=("cell",),
)

GROUPS = Table(
    "groups",
    "which cells each cell group of the configuration holds; a cell may be in several",
    texts(group="cell group", cell="cell"),
)

SUMMARY = Table(
    "summary",
    "measures over layers and heads, then over seeds; one row a cell, measured step and measure",
    (
        *texts(cell="training cell", measure="column of the table steps or heads (phase step)"),
        *ints(step="optimiser step, from 1", seeds="runs"),
        *floats(
            minimum="smallest over layers and heads, mean over seeds",
            median="median over layers and heads, mean over seeds",
            mean="mean over layers and heads, mean over seeds",
            maximum="largest over layers and heads, mean over seeds",
        ),
        *optional(
            low="lower end of the 95 % t interval of the median over seeds; missing for one seed",
            high="upper end of the 95 % t interval of the median over seeds; missing for one seed",
        ),
    ),
    key=("cell", "measure", "step"),
)

CLAIMS = Table(
    "claims",
    "every claim of arXiv 2609.01231v1 that a number can test, and the answers beyond it, each with its verdict",
    (
        *texts(
            id="claim",
            at="section or figure of the paper",
            kind="count, invariance, training or table; beyond: a question that the paper leaves open",
            statement="what the paper says",
        ),
        Column("printed", TEXT, "the value the paper prints", nullable=True),
        *optional(measured="the value measured", low="lower end of its interval", high="upper end of its interval"),
        Column("seeds", INT, "runs behind the value; 0 for exact arithmetic", nullable=False),
        *texts(
            scale="scale at which the verdict was reached",
            verdict="reproduced, corrected, qualified, not reproduced or not run; supported, open or not supported",
            evidence="the numbers behind the verdict, in words",
        ),
    ),
    key=("id",),
)

EVIDENCE = Table(
    "evidence",
    "the numbers behind every verdict, one by one: a layer, model, draw or run each",
    (
        *texts(
            id="claim", part="what is measured, in the words of the claim's evidence", item="layer, model, draw or seed"
        ),
        *optional(
            value="the value measured",
            lower="smallest value that the rule wants of the claim; missing where it sets none",
            upper="largest value that the rule wants; equal to `lower` where a formula gives the number",
        ),
        Column(
            "average",
            TEXT,
            "mean over runs that the rule judges: arithmetic or geometric; missing for none",
            nullable=True,
        ),
    ),
)

METRICS = (CELLS, GROUPS, *TRAINING, SUMMARY)
ALL = (*ANALYSIS, *METRICS, CLAIMS, EVIDENCE)
BY_NAME = {table.name: table for table in ALL}
