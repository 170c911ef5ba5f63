"""From training to verdicts and figures at odd sizes: nothing crashes, nothing warns, every claim has a verdict."""

import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import synthetic
import torch
from settings import default_settings, overlaid_settings

from attnid import claims, config, corpus, figures, metrics, style, tables
from attnid.config_files import lay_over
from attnid.training import train

TINY: dict[str, Any] = {
    "model": {"d_model": 8, "n_heads": 2, "context": 8},
    "training": {
        "steps": 10, "warmup_steps": 2, "batch_size": 2, "measure_every": 2, "rebalance_every": 4,
        "eval_batches": 1, "evaluate_every": 10, "seeds": 2, "seeds_per_job": 2,
    },
    "groups": {
        "learning_rates": {"lr": [0.5, 0.25]},
        "learning_rates_float64": {"lr": [0.5, 0.25]},
        "heads": {"n_heads": [2, 8]},
    },
}  # fmt: skip

ODD: dict[str, dict[str, Any]] = {
    "one step": {"training": {"steps": 1, "warmup_steps": 0, "measure_every": 1, "evaluate_every": 1}},
    "heads of width one": {"model": {"n_heads": 8}},
    "one head": {"model": {"n_heads": 1}},
    "two tokens": {"model": {"context": 2}},
    "one layer": {"model": {"n_layers": 1}},
    "one seed": {"training": {"seeds": 1, "seeds_per_job": 1}},
    "half dropped": {"model": {"dropout": 0.5}},
    "no rebalancing in time": {"training": {"rebalance_every": 1000}},
    "rebalancing at every step": {"training": {"rebalance_every": 1, "measure_every": 5}},
    "rotary and grouped": {"model": {"rope": True, "n_kv_heads": 1}, "groups": {"heads": {"n_heads": [2, 4]}}},
    "bfloat16": {"training": {"precision": "bfloat16"}},
    "diverging": {
        "cases": {name: {"lr": 1e20} for name in ("sgd", "sgd-decay", "adamw", "adamw-rebalanced")},
        "training": {"grad_clip": 1e30},
    },
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog; the dog sleeps. " * 100)
    return path


def ledger_of(chosen: config.Config, text: Path, tmp_path: Path) -> pd.DataFrame:
    """The verdicts of a configuration, trained, written, read and drawn."""
    seeds = range(chosen.training.seeds)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written: dict[str, list[Path]] = {table.name: [] for table in tables.TRAINING}
        loaded = corpus.load(text, chosen.model.context)
        for name, cell in config.cells(chosen).items():
            for table, frame in train(cell, loaded, seeds, torch.device("cpu")).items():
                written[table].append(tmp_path / name / f"{table}.parquet")
                tables.write(tables.BY_NAME[table], frame, written[table][-1])
        collected = metrics.collect(config.grouped_cells(chosen), written)
        for name, frame in collected.items():
            tables.write(tables.BY_NAME[name], frame, tmp_path / f"{name}.parquet")
        frames = synthetic.all_tables() | {
            name: tables.read(tables.BY_NAME[name], tmp_path / f"{name}.parquet") for name in collected
        }
        ledger = claims.judge(frames)
        tables.write(tables.CLAIMS, ledger, tmp_path / "claims.parquet")
        studies = filter(figures.group, figures.NAMES)
        for name in ("paper_figure_2", "paper_figure_4", "rho_heads", "tau_layers", *studies):
            style.save(figures.load(name).draw(frames), tmp_path / f"{name}.png")
    return ledger


@pytest.mark.parametrize("oddity", ODD)
def test_a_run_at_an_odd_size_reaches_its_verdicts(oddity: str, text: Path, tmp_path: Path) -> None:
    settings = default_settings() | {"corpus": str(text)}
    lay_over(settings, TINY)
    lay_over(settings, ODD[oddity])
    ledger = ledger_of(config.parse(settings), text, tmp_path)
    assert set(ledger.verdict) <= set(claims.VERDICTS)
    training = ledger[ledger.kind == "training"].set_index("id")
    if oddity == "diverging":
        assert training.verdict["adamw-overlap"] == claims.NOT_REPRODUCED
        assert "not finite" in training.evidence["adamw-overlap"]
    if oddity == "one seed":
        reproduced = training.index[training.verdict == claims.REPRODUCED]
        assert set(reproduced) <= {"no-rank-deficiency"}, "one run has no interval"


def test_all_questions_are_answered_by_a_tiny_run(text: Path, tmp_path: Path) -> None:
    settings = overlaid_settings("full.yaml") | {"corpus": str(text)}
    lay_over(settings, TINY)
    lay_over(settings, {"groups": {"layers": {"n_kv_heads": [2, 1]}, "intervals": {"rebalance_every": [1, 5]}}})
    ledger = ledger_of(config.parse(settings), text, tmp_path)
    questions = ledger[ledger.kind == "beyond"].set_index("id")
    assert list(questions.index) == [claim.id for claim in claims.all_claims() if claim.kind == "beyond"]
    assert set(questions.verdict) <= {"supported", "open", "not supported"}
    assert questions.measured["plain-step-identity"] < 0.01
