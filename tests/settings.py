"""Small settings that tests share."""

from pathlib import Path
from typing import Any

import yaml

from attnid.cell import Cell
from attnid.config_files import lay_over

ROOT = Path(__file__).resolve().parent.parent

_CELL: dict[str, Any] = {
    "case": "adamw",
    "optimizer": "adamw",
    "lr": 1e-2,
    "lr_floor": 1e-3,
    "weight_decay": 0.1,
    "rebalance": "none",
    "rebalance_every": 0,
    "precision": "float64",
    "corpus": "text",
    "n_layers": 2,
    "d_model": 16,
    "n_heads": 2,
    "context": 12,
    "dropout": 0.0,
    "steps": 12,
    "warmup_steps": 2,
    "batch_size": 3,
    "grad_clip": 1.0,
    "adam_betas": (0.9, 0.99),
    "measure_every": 4,
    "evaluate_every": 4,
    "eval_batches": 1,
}


def cell(**changes: Any) -> Cell:
    """A cell that trains in a blink."""
    settings = _CELL | changes
    derived = {"decay_steps": settings["steps"], "n_kv_heads": settings["n_heads"]}
    return Cell.model_validate(derived | settings)


def default_settings() -> dict[str, Any]:
    """The tracked config.yaml."""
    settings: dict[str, Any] = yaml.safe_load((ROOT / "config.yaml").read_text())
    return settings


def overlaid_settings(overlay: str) -> dict[str, Any]:
    """config.yaml with an overlay of config/ on it, as `snakemake --configfile` lays it."""
    settings = default_settings()
    lay_over(settings, yaml.safe_load((ROOT / "config" / overlay).read_text()))
    return settings
