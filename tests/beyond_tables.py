"""Small tables for the questions beyond the paper: one set in which all are supported, and for each another one."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pandas as pd
from claim_tables import EVERY, Change, Frames, _both, _cell, _heads, _steps, loss, measured

from attnid import tables
from attnid.claims import NOT_REPRODUCED, QUALIFIED

OPTIMISERS = {
    "sgd": 2.5e-4,
    "sgd-unclipped": 2.5e-4,
    "sgd-decay": 5e-4,
    "sgd-momentum": 5e-3,
    "sign-sgd": 0.2,
    "sign-sgd-momentum": 0.22,
    "adam-no-momentum": 0.2,
    "adam": 0.22,
    "adamw": 0.24,
    "adamw-unclipped": 0.24,
    "muon": 0.1,
}
"""rho of each case of the group causes; its null is 0.25."""
STATES = ("", "-kept", "-moved")
INTERVALS = (1, 10, 50)


@cache
def base() -> Frames:
    """Tables in which every question is answered with `supported`."""
    groups = pd.DataFrame(list(_groups()))
    cells = pd.DataFrame(list({row["cell"]: row for row in groups["settings"]}.values()))
    steps = pd.DataFrame(list(_steps(cells)))
    frames = {
        "cells": cells[tables.CELLS.names],
        "groups": pd.DataFrame({"group": groups["group"], "cell": [row["cell"] for row in groups["settings"]]}),
        "steps": steps[tables.STEPS.names],
        "evaluations": steps.assign(val_loss=1.8 + 0.001 * steps["seed"])[tables.EVALUATIONS.names],
        "heads": pd.DataFrame(list(_heads(cells))).assign(state="regular").reindex(columns=tables.HEADS.names),
    }
    heads = frames["heads"]
    for name in ("norm_query_bias", "norm_key_bias", "rho_qk_scaling", "rho_qk_rotation", "drift_augmented_plain"):
        heads[name] = heads[name].astype(float).where(heads["phase"] != tables.PHASE_STEP, 1.0)
    changes = [
        *(measured("rho_qk", lambda rows, rho=rho: rho * _noise(rows), case=case) for case, rho in OPTIMISERS.items()),
        *(measured("rho_qk", lambda rows: 0.2 * _noise(rows), case=f"adamw-rebalanced{state}") for state in STATES),
        measured("norm_key_bias", 0.5, precision="float32"),
        measured("norm_key_bias", 1e-6, precision="float64"),
        measured("rho_qk_scaling", lambda rows: 0.3 * _noise(rows)),
        measured("rho_qk_rotation", lambda rows: 0.1 * _noise(rows)),
        measured("beta", lambda rows: 1 + 1e-3 * rows["step"] * _noise(rows), case="sgd"),
        measured("beta_augmented", lambda rows: 1 + 1e-6 * rows["step"] * _noise(rows), case="sgd"),
        measured("drift_augmented_plain", lambda rows: rows["drift_augmented"] * (1 + 1e-5 * _noise(rows))),
    ]
    return _both(*changes)(frames)


def _noise(rows: pd.DataFrame) -> pd.Series:
    return 1 + 0.01 * (rows["seed"] - 1)


def _groups() -> Iterator[dict[str, Any]]:
    for case in OPTIMISERS:
        yield {"group": "causes", "settings": _settings(case)}
    yield {"group": "cases", "settings": _settings("adamw")}
    rebalanced = {"rebalance": "qk", "rebalance_every": EVERY}
    for case in ("adamw", "adamw-projected", "adamw-both-projected"):
        yield {"group": "rebalancing", "settings": _settings(case)}
    for kind in ("adamw-rebalanced", "adamw-both"):
        for state in STATES:
            yield {"group": "rebalancing", "settings": _settings(kind + state, **rebalanced)}
    for state in ("", "-moved"):
        for every in INTERVALS:
            settings = rebalanced | {"rebalance_every": every}
            yield {
                "group": "intervals",
                "settings": _settings(f"adamw-rebalanced{state}", f"_every{every}", **settings),
            }
    for case in ("sgd", "adamw", "adamw-rebalanced"):
        for rotary in (0, 4):
            for groups in (2, 1):
                own = {"rotary_dim": rotary, "n_kv_heads": groups} | (rebalanced if "rebalanced" in case else {})
                yield {"group": "layers", "settings": _settings(case, f"_{rotary}_{groups}", **own)}
    for group, case in (("key_bias", "adamw"), ("conserved", "sgd")):
        for precision in ("float32", "float64"):
            yield {"group": group, "settings": _settings(case, precision=precision)}


def _settings(case: str, suffix: str = "", **settings: Any) -> dict[str, Any]:
    lr, optimizer = (0.25, "sgd") if case.startswith("sgd") else (1e-3, case.split("-")[0])
    cell = _cell(case, lr, **settings)
    return cell | {"cell": cell["cell"] + suffix, "optimizer": optimizer}


OTHER: dict[str, tuple[Change, str]] = {
    "overlap-by-momentum": (measured("rho_qk", 3e-4, case="sgd-momentum"), NOT_REPRODUCED),
    "overlap-by-division": (measured("rho_qk", 3e-4, case="adam-no-momentum"), NOT_REPRODUCED),
    "overlap-by-sign": (measured("rho_qk", 3e-4, case="sign-sgd"), NOT_REPRODUCED),
    "overlap-by-decay": (measured("rho_qk", 0.01, case="adam"), NOT_REPRODUCED),
    "overlap-by-clipping": (measured("rho_qk", 0.01, case="adamw-unclipped"), QUALIFIED),
    "overlap-of-muon": (measured("rho_qk", 0.5, case="muon"), NOT_REPRODUCED),
    "state-at-rebalancing": (loss("adamw-rebalanced-kept", 0.1), QUALIFIED),
    "state-at-rebalancing-both": (
        _both(*(loss(f"adamw-both{state}", 0.1) for state in STATES)),
        NOT_REPRODUCED,
    ),
    "projected-loss": (loss("adamw-projected", -0.1), QUALIFIED),
    "rebalanced-overlap": (measured("rho_qk", 0.24, case="adamw-rebalanced"), QUALIFIED),
    "rebalancing-interval-cleared": (loss("adamw-rebalanced", 0.1), NOT_REPRODUCED),
    "rebalancing-interval-moved": (loss("adamw-rebalanced-moved", 0.1), NOT_REPRODUCED),
    "layers-adamw-overlap": (measured("rho_qk", 0.01, case="adamw", rotary_dim=4), QUALIFIED),
    "layers-sgd-overlap": (measured("rho_qk", 0.2, case="sgd"), NOT_REPRODUCED),
    "layers-rebalancing": (measured("beta", 1.0, case="adamw-rebalanced"), QUALIFIED),
    "key-bias-wanders": (measured("norm_key_bias", 1e-6, precision="float32"), QUALIFIED),
    "scaling-against-rotation": (measured("rho_qk_scaling", 0.01, case="adamw"), NOT_REPRODUCED),
    "beta-augmented-conserved": (
        measured("beta_augmented", lambda rows: 1 + 1e-3 * rows["step"], case="sgd"),
        NOT_REPRODUCED,
    ),
    "plain-step-identity": (measured("drift_augmented", 1.0, case="sgd"), NOT_REPRODUCED),
}
