"""Small made-up tables with the columns of `attnid.tables`, for the tests of what reads tables."""

from collections.abc import Iterable
from itertools import product

import numpy as np
import pandas as pd

from attnid import tables
from attnid.counting import Count, count
from attnid.layer import LayerSpec, layer_name

STEPS = 60
SEEDS = (1, 2, 3)
LAYERS = 2
WIDTH = 64
MEASURED = (1, *range(10, STEPS + 1, 10))


def all_tables() -> dict[str, pd.DataFrame]:
    """Every table that a figure reads, by name."""
    cells = _cells()
    frames = {"ranks": _ranks(), "architectures": _architectures(), "squad": _squad(), "trap": _trap()}
    frames |= {"cells": cells, "groups": _groups(cells)}
    steps = _steps(cells)
    frames |= {"steps": steps[tables.STEPS.names], "evaluations": steps[tables.EVALUATIONS.names]}
    frames["heads"] = _heads(cells)
    frames["summary"] = _summary(steps, frames["heads"])
    return frames


def empty_tables() -> dict[str, pd.DataFrame]:
    """The same tables without a row."""
    return {table.name: table.schema.empty_table().to_pandas() for table in tables.ALL}


def claims() -> pd.DataFrame:
    """One claim of each verdict."""
    rows = [
        ("qk-fraction", "count", "identified fraction of a query/key pair", "1 - D/(2E)", 0.875, None, 0, "reproduced"),
        ("six-heads", "count", "identified with 6 heads", "11/12, about 83%", 0.9167, None, 0, "corrected"),
        (
            "key-bias-dead",
            "invariance",
            "any key bias leaves the layer as it is",
            "HD per layer",
            1.0,
            None,
            0,
            "qualified",
        ),
        ("adamw-overlap", "training", "AdamW: rho close to 1/(2H)", None, 0.04, 0.01, 5, "not reproduced"),
        ("mu-stable-sgd", "training", "mu stable under SGD, not under AdamW", None, None, None, 0, "not run"),
    ]
    return pd.DataFrame(
        [
            {
                "id": name,
                "at": "4.2",
                "kind": kind,
                "statement": statement,
                "printed": printed,
                "measured": measured,
                "low": measured - reach if reach else None,
                "high": measured + reach if reach else None,
                "seeds": seeds,
                "scale": "exact" if kind == "count" else "2 layers, width 64, 600 steps",
                "verdict": verdict,
                "evidence": f"what was found about {name}",
            }
            for name, kind, statement, printed, measured, reach, seeds, verdict in rows
        ]
    )[tables.CLAIMS.names]


def _layer(**sizes: int) -> LayerSpec:
    return LayerSpec.model_validate({"d_model": 24, "qk_head_dim": 4, "v_head_dim": 4} | sizes)


def _ranks() -> pd.DataFrame:
    layers: list[tuple[str, LayerSpec]] = []
    for heads in (1, 2, 4, 6, 12):
        width, groups = 24 // heads, max(1, heads // 2)
        sizes = {"n_heads": heads, "qk_head_dim": width, "v_head_dim": width}
        layers += [
            ("heads", _layer(**sizes, n_kv_heads=heads)),
            ("heads-rope", _layer(**sizes, n_kv_heads=heads, rotary_dim=width)),
            ("heads-gqa", _layer(**sizes, n_kv_heads=groups)),
            ("heads-rope-gqa", _layer(**sizes, n_kv_heads=groups, rotary_dim=width)),
        ]
    for width in (1, 2, 4, 6, 8, 12, 16, 24):
        layers.append(("head-width", _layer(n_heads=3, n_kv_heads=3, qk_head_dim=width, v_head_dim=width)))
    return pd.DataFrame([_rank_row(group, layer) for group, layer in layers])[tables.RANKS.names]


def certificate(counted: Count) -> dict[str, object]:
    """Columns of a proof that meets the closed form."""
    of_sides = {"_qk": counted.identified_query_key, "_vo": counted.identified_value_output}
    bounds = {
        f"exact_{bound}{side}": rank
        for side, rank in {"": counted.identified, **of_sides}.items()
        for bound in ("lower", "upper")
    }
    conditions = {"prime": 8_388_587, "seed": 0, "certified": True, "assumed": "generic weights", "failed": ""}
    return bounds | conditions


def _rank_row(group: str, layer: LayerSpec) -> dict[str, object]:
    counted = count(layer)
    return layer.model_dump() | counted.sources | {
        "group": group,
        "layer": f"{group} H {layer.n_heads} D {layer.qk_head_dim}",
        "parameters": counted.parameters,
        "parameters_qk": counted.query_key,
        "parameters_vo": counted.value_output,
        "unidentified": counted.unidentified,
        "identified": counted.identified,
        "identified_fraction": counted.identified_fraction,
        "rank": counted.identified,
        "rank_qk": counted.identified_query_key,
        "rank_vo": counted.identified_value_output,
        "smallest_kept": 1e-3,
        "largest_dropped": 1e-16,
        **certificate(counted),
        "sequences": 8,
        "tokens": 6,
        "agrees": True,
    }  # fmt: skip


def _squad() -> pd.DataFrame:
    printed = {
        "printed_total": [130.0, 142.0, 168.0, 218.0],
        "printed_attention": [12.6, 25.2, 50.4, 100.9],
        "printed_unidentified": [0.26, 1.05, 4.20, 16.82],
        "printed_share_percent": [0.20, 0.74, 2.50, 7.71],
        "gain_f1": [None, 0.98, 0.09, 0.73],
        "gain_em": [None, 1.22, 0.32, 0.63],
    }
    frame = pd.DataFrame({"head_dim": [32, 64, 128, 256], "d_model": 512, "n_heads": 8, "n_layers": 24} | printed)
    frame["attention"] = 24 * 4 * 512 * 8 * frame["head_dim"]
    frame["unidentified"] = 24 * 2 * 8 * frame["head_dim"] ** 2
    frame["share_percent"] = 100 * frame["unidentified"] / (1e6 * frame["printed_total"])
    frame["printed_implied_width"] = 768.0
    return frame[tables.SQUAD.names]


def architecture_row(model: str, role: str, layers: int, spec: LayerSpec) -> dict[str, object]:
    """A row of the table architectures whose model has a billion parameters."""
    counted = count(spec)
    return spec.model_dump() | counted.columns | {
        "model": model,
        "role": role,
        "layers": layers,
        "layer": layer_name(spec),
        "position": "",
        "parameters_model": layers * counted.parameters,
        "unidentified_model": layers * counted.unidentified,
        "paper_fraction": 1 - 1 / (2 * spec.n_heads),
        "model_parameters": 1000.0,
        "share_of_model": layers * counted.unidentified / 1e9,
        "block_norm": "none",
        "block_parameters": counted.parameters,
        "block_unidentified": counted.unidentified,
        "block_identified_fraction": counted.identified_fraction,
    }  # fmt: skip


def _architectures() -> pd.DataFrame:
    layers = [
        ("a decoder", "decoder self", 3, _layer(n_heads=6, n_kv_heads=6)),
        ("a decoder", "cross", 2, _layer(n_heads=6, n_kv_heads=6, context_dim=12, causal=False)),
        ("a rotary model", "self", 4, _layer(n_heads=6, n_kv_heads=2, rotary_dim=4)),
    ]
    return pd.DataFrame([architecture_row(*layer) for layer in layers])[tables.ARCHITECTURES.names]


def _trap() -> pd.DataFrame:
    gaps = {1.0: (52, 4e-5, 2e-16, 128), 0.03: (40, 2e-8, 4e-16, 256)}
    return pd.DataFrame(
        [
            {
                "scale": scale,
                "cutoff": cutoff,
                "rank_float64": rank,
                "smallest_kept": kept,
                "largest_dropped": dropped,
                "proved_lower": 52,
                "proved_upper": 52,
                "bits": bits,
            }
            for (scale, (rank, kept, dropped, bits)), cutoff in product(gaps.items(), (1e-8, 1e-12))
        ]
    )[tables.TRAP.names]


def _cells() -> pd.DataFrame:
    settings = [
        *((case, 4, 0.25, "float32") for case in ("sgd", "sgd-decay", "sgd-floor")),
        ("sgd-floor", 4, 0.25, "float64"),
        *(("sgd", 4, lr, "float32") for lr in (0.5, 0.125, 0.0625)),
        *(("sgd", 4, lr, "float64") for lr in (0.5, 0.25, 0.125, 0.0625)),
        *((case, heads, 1e-3, "float32") for case in ("adamw", "adamw-rebalanced") for heads in (1, 2, 4, 8, 16)),
        ("adamw-cleared", 4, 1e-3, "float32"),
    ]
    return pd.DataFrame([_cell_row(*setting) for setting in settings])[tables.CELLS.names]


def _cell_row(case: str, heads: int, lr: float, precision: str) -> dict[str, object]:
    moved = {"adamw-rebalanced": "qk", "adamw-cleared": "state"}.get(case, "none")
    null = 1 / (2 * heads)
    return {
        "cell": f"{case}_h{heads}_{lr:g}_{precision}",
        "case": case,
        "optimizer": case.split("-")[0],
        "rebalance": moved,
        "moments": "clear",
        "project": "none",
        "momentum": 0.0,
        "grad_clip": 1.0,
        "n_kv_heads": heads,
        "rotary_dim": 0,
        "precision": precision,
        "corpus": "king-james",
        "lr": lr,
        "lr_floor": 1e-4 if case == "sgd-floor" else lr / 10,
        "weight_decay": {"sgd-decay": 4e-4, "sgd": 0.0, "sgd-floor": 0.0}.get(case, 0.1),
        "dropout": 0.0,
        "rebalance_every": 20 if moved != "none" else 0,
        "n_layers": LAYERS,
        "d_model": WIDTH,
        "n_heads": heads,
        "qk_head_dim": WIDTH // heads,
        "context": 64,
        "batch_size": 8,
        "steps": STEPS,
        "rho_null_mean": null,
        "rho_null_low": 0.9 * null,
        "rho_null_high": 1.1 * null,
        "rho_vo_null_mean": null,
        "rho_vo_null_low": 0.9 * null,
        "rho_vo_null_high": 1.1 * null,
        "rho_scaling_null_mean": 0.6 * null,
        "rho_rotation_null_mean": 0.4 * null,
    }


def _groups(cells: pd.DataFrame) -> pd.DataFrame:
    base = cells["precision"].eq("float32") & cells["n_heads"].eq(4)
    members = {
        "cases": base
        & (cells["case"].str.startswith("adamw") | cells["lr"].eq(0.25))
        & ~cells["case"].isin(["adamw-cleared", "sgd-floor"]),
        "learning_rates": cells["case"].eq("sgd") & cells["precision"].eq("float32"),
        "learning_rates_float64": cells["case"].eq("sgd") & cells["precision"].eq("float64"),
        "heads": cells["case"].isin(["adamw", "adamw-rebalanced"]),
        "control": cells["case"].eq("adamw-cleared"),
        "floor": cells["case"].eq("sgd-floor"),
    }
    rows = [{"group": group, "cell": cell} for group, mask in members.items() for cell in cells.loc[mask, "cell"]]
    return pd.DataFrame(rows)


def _schedule(cell: pd.Series, step: int) -> float:
    """Share of the peak learning rate."""
    floor = cell["lr_floor"] / cell["lr"]
    return float(floor + (1 - floor) * 0.5 * (1 + np.cos(np.pi * step / STEPS)))


def _steps(cells: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for (_, cell), seed, step in product(cells.iterrows(), SEEDS, MEASURED):
        loss = 2.0 + (1.5 if cell["optimizer"] == "adamw" else 2.0) * np.exp(-step / 25) + 0.02 * seed
        rows.append(
            {
                "cell": cell["cell"],
                "seed": seed,
                "step": step,
                "lr": cell["lr"] * _schedule(cell, step),
                "train_loss": loss,
                "val_loss": loss + 0.1,
                "grad_norm": 1.0,
                "update_norm": cell["lr"] * _schedule(cell, step),
            }
        )
    return pd.DataFrame(rows)


def _heads(cells: pd.DataFrame) -> pd.DataFrame:
    random = np.random.default_rng(1)
    rows = []
    for (_, cell), seed, step in product(cells.iterrows(), SEEDS, MEASURED):
        for layer, head in product(range(LAYERS), range(int(cell["n_heads"]))):
            key = {"cell": cell["cell"], "seed": seed, "step": step, "layer": layer, "head": head}
            values = _head_measures(cell, step, layer, head, random)
            rows.append(key | values | {"phase": tables.PHASE_STEP})
            if cell["rebalance"] != "none" and step % cell["rebalance_every"] == 0:
                state = {name: values[name] for name in ("trace", "mu", "smallest_q", "smallest_k")}
                balanced = dict.fromkeys(("beta", "tau", "beta_augmented", "tau_augmented"), 0.0)
                rows.append(key | state | balanced | {"phase": tables.PHASE_REBALANCED})
    return pd.DataFrame(rows).assign(state="regular").reindex(columns=tables.HEADS.names)


def _head_measures(cell: pd.Series, step: int, layer: int, head: int, random: np.random.Generator) -> dict[str, float]:
    adam = cell["optimizer"] == "adamw"
    noise = float(np.exp(0.2 * random.standard_normal()))
    rate = cell["lr"] * _schedule(cell, step)
    rho = (0.8 / (2 * cell["n_heads"]) if adam else 2e-4 * rate) * noise
    since = step % cell["rebalance_every"] if cell["rebalance"] == "qk" else step
    beta = 0.3 + (0.01 * since if adam else 0.0)
    values = dict.fromkeys(tables.HEAD_MEASURES, 1e-3)
    return values | {
        "rho_qk": rho,
        "rho_qk_augmented": 0.8 * rho,
        "update_norm": 0.1 * rate * noise,
        "drift": 1e-3 * rate**2 * noise,
        "drift_augmented": 5e-4 * rate**2 * noise,
        "grad_norm_query_bias": 3e-4 * noise,
        "grad_norm_key_bias": 2e-10 * noise,
        "beta": beta * noise,
        "tau": (0.02 * since * (-1) ** head / (1 + layer) if adam else 0.0) * noise,
        "mu": 0.1 + 1e-3 * step,
    }


def _summary(steps: pd.DataFrame, heads: pd.DataFrame) -> pd.DataFrame:
    heads = heads[heads["phase"] == tables.PHASE_STEP]
    losses = [_summarised(steps, measure) for measure in ("train_loss", "val_loss", "lr", "grad_norm")]
    return pd.concat([*losses, *(_summarised(heads, measure) for measure in tables.HEAD_MEASURES)], ignore_index=True)


def _summarised(frame: pd.DataFrame, measure: str) -> pd.DataFrame:
    key = ["cell", "step"]
    runs = frame.groupby([*key, "seed"])[measure].agg(minimum="min", median="median", mean="mean", maximum="max")
    summary = runs.groupby(key).mean().reset_index()
    median = runs.reset_index().groupby(key)["median"]
    reach = 4.303 * median.sem().to_numpy() if len(SEEDS) == 3 else np.nan
    added = {
        "measure": measure,
        "seeds": len(SEEDS),
        "low": summary["median"] - reach,
        "high": summary["median"] + reach,
    }
    return summary.assign(**added)[tables.SUMMARY.names]


def without_cells(frames: dict[str, pd.DataFrame], cases: Iterable[str]) -> dict[str, pd.DataFrame]:
    """The tables as they are when these cases were never trained."""
    gone = set(frames["cells"].loc[frames["cells"]["case"].isin(list(cases)), "cell"])
    return {name: frame[~frame["cell"].isin(gone)] if "cell" in frame else frame for name, frame in frames.items()}
