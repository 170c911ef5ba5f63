from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from settings import cell

from attnid import tables
from attnid.cell import Cell
from attnid.corpus import Corpus
from attnid.gpt import generator, initial_parameters, logits, losses
from attnid.head_measures import StepMeasures, states, weight_measures
from attnid.optim import learning_rate
from attnid.training import Progress, architecture_of, train

CPU = torch.device("cpu")
TEXT = Corpus.of("The quick brown fox jumps over the lazy dog; the dog sleeps on. " * 40)
SHAKESPEARE = Path(__file__).parents[2] / "shared" / "data" / "tinyshakespeare.txt"


def heads_at(frames: dict[str, pd.DataFrame], step: int, phase: str = "step") -> pd.DataFrame:
    heads = frames["heads"]
    return heads[(heads.step == step) & (heads.phase == phase)]


def plain_loop(settings: Cell, seed: int) -> tuple[dict[str, torch.Tensor], list[float]]:
    """One member trained by the plainest loop there is, with torch's own clipping."""
    architecture = architecture_of(settings, TEXT.vocabulary_size)
    parameters = initial_parameters(architecture, [seed], torch.float64, CPU)
    decayed = [p for name, p in parameters.items() if name.startswith("W_") or "embedding" in name]
    others = [p for p in parameters.values() if not any(p is q for q in decayed)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}],
        betas=settings.adam_betas,
    )
    draws, data, history = generator(seed, "batches"), torch.from_numpy(TEXT.train), []
    for step in range(1, settings.steps + 1):
        starts = torch.randint(len(data) - settings.context, (settings.batch_size,), generator=draws)
        batch = torch.stack([data[start : start + settings.context + 1] for start in starts])[None]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step)
        loss = losses(logits(architecture, parameters, batch[..., :-1]), batch[..., 1:]).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(parameters.values()), settings.grad_clip)
        optimizer.step()
        history.append(loss.item())
    return parameters, history


def test_training_is_a_plain_loop_with_torchs_own_parts() -> None:
    settings = cell(measure_every=1)
    frames = train(settings, TEXT, [3, 5], CPU)
    for seed in (3, 5):
        parameters, history = plain_loop(settings, seed)
        steps = frames["steps"][frames["steps"].seed == seed]
        assert steps.train_loss.tolist() == pytest.approx(history, rel=1e-9)
        last = heads_at(frames, settings.steps)
        last = last[last.seed == seed].set_index(["layer", "head"])
        for (layer, head), row in last.iterrows():
            W_Q, W_K = (parameters[name][0, layer, head].detach() for name in ("W_Q", "W_K"))
            imbalance = W_Q @ W_Q.T - W_K @ W_K.T
            assert row.beta == pytest.approx(imbalance.norm().item(), rel=1e-7)
            assert row.tau == pytest.approx(imbalance.trace().item(), rel=1e-7)
            least = [torch.linalg.eigvalsh(W @ W.T)[0].item() for W in (W_Q, W_K)]
            assert row.mu == pytest.approx(sum(least), rel=1e-6)


def test_a_seed_trains_the_same_alone_and_among_others() -> None:
    settings = cell(dropout=0.2, rebalance="qk", rebalance_every=5)
    together, alone = train(settings, TEXT, [0, 1, 2], CPU), train(settings, TEXT, [1], CPU)
    for name in ("steps", "evaluations", "heads", "rebalances"):
        among = together[name][together[name].seed == 1].reset_index(drop=True)
        numbers = among.select_dtypes("number").columns.difference(["output_error", *NOISE])
        assert np.allclose(among[numbers], alone[name][numbers], rtol=1e-6, atol=1e-12, equal_nan=True), name


NOISE = [
    "rho_qk_augmented_gradient",
    "rho_vo_augmented_gradient",
    "imbalance_rate_augmented",
    "grad_norm_key_bias",
]
"""Measures that are zero up to rounding."""


def test_the_same_run_twice_gives_the_same_bytes() -> None:
    first, second = (train(cell(precision="float32"), TEXT, [0, 1], CPU) for _ in range(2))
    for name, frame in first.items():
        pd.testing.assert_frame_equal(frame, second[name], check_exact=True)


def test_rows_cover_every_measured_step_layer_head_and_seed(tmp_path: Path) -> None:
    frames = train(cell(rebalance="qk", rebalance_every=5), TEXT, [0, 1], CPU)
    steps = [1, 4, 5, 8, 10, 12]
    assert frames["steps"].groupby("seed").step.apply(list).tolist() == [steps, steps]
    assert len(heads_at(frames, 4)) == 2 * 2 * 2
    assert sorted(frames["heads"].query("phase == 'rebalanced'").step.unique()) == [5, 10]
    assert frames["rebalances"][["step", "layer"]].drop_duplicates().values.tolist() == [
        [5, 0],
        [5, 1],
        [10, 0],
        [10, 1],
    ]
    for name, frame in frames.items():
        tables.write(tables.BY_NAME[name], frame, tmp_path / f"{name}.parquet")
        assert len(tables.read(tables.BY_NAME[name], tmp_path / f"{name}.parquet")) == len(frame)


def test_rebalancing_keeps_the_function_and_brings_beta_to_zero() -> None:
    frames = train(cell(rebalance="qk", rebalance_every=5, steps=10), TEXT, [0, 1], CPU)
    before, after = heads_at(frames, 5), heads_at(frames, 5, "rebalanced")
    assert (before.beta > 1e-3).all()
    assert (after.beta < 1e-14).all()
    assert (after.tau.abs() < 1e-14).all()
    assert np.allclose(after.trace, 2 * np.sqrt(before.trace**2 / 4), rtol=0.2)
    assert (frames["rebalances"].output_error < 1e3).all()
    assert (frames["rebalances"].moved > 1e-4).all()
    assert after[["rho_qk", "drift"]].isna().all().all()


KINDS: list[dict[str, Any]] = [
    {"rope": True},
    {"n_heads": 4, "n_kv_heads": 2},
    {"n_heads": 4, "n_kv_heads": 1, "rope": True},
]


@pytest.mark.parametrize("changes", KINDS, ids=str)
@pytest.mark.parametrize("moments", ["clear", "keep", "transport"])
def test_rebalancing_both_sides_of_any_layer_keeps_its_function(changes: dict[str, Any], moments: str) -> None:
    settings = cell(rebalance="qk-vo", rebalance_every=5, steps=10, moments=moments, **changes)
    frames = train(settings, TEXT, [0, 1], CPU)
    after = heads_at(frames, 5, "rebalanced")
    assert len(after) == 2 * 2 * settings.n_kv_heads
    assert (after.beta < 1e-14).all()
    assert (frames["rebalances"].output_error < 1e3).all()
    augmented = frames["heads"][["rho_qk_augmented_gradient", "rho_vo_augmented_gradient"]].dropna()
    assert (augmented < 1e-20).all(axis=None)


def test_a_rotary_model_has_no_table_of_positions() -> None:
    shapes = [architecture_of(cell(rope=rope), TEXT.vocabulary_size).shapes for rope in (False, True)]
    assert set(shapes[0]) - set(shapes[1]) == {"position_embedding"}
    assert set(shapes[1]) <= set(shapes[0])


@pytest.mark.parametrize("sides", ["qk", "qk-vo"])
def test_projected_steps_have_no_part_along_the_gauge_and_leave_the_rest(sides: str) -> None:
    plain, projected = (train(cell(steps=4, project=kind), TEXT, [0], CPU) for kind in ("none", sides))
    before, after = (heads_at(frames, 1) for frames in (plain, projected))
    assert (after.rho_qk_augmented < 1e-24).all()
    assert (before.rho_qk_augmented > 1e-3).all()
    if sides == "qk-vo":
        assert (after.rho_vo_augmented < 1e-24).all()
    else:
        assert after.rho_vo.tolist() == before.rho_vo.tolist()
    kept = (1 - before.rho_qk_augmented) * before.update_norm**2
    assert (after.update_norm**2).tolist() == pytest.approx(kept.tolist(), rel=0.1)


def test_kept_moments_go_on_and_cleared_ones_begin_anew() -> None:
    kept, cleared = (
        train(cell(rebalance="qk", rebalance_every=4, moments=moments), TEXT, [0], CPU)["steps"].set_index("step")
        for moments in ("keep", "clear")
    )
    assert kept.train_loss[4] == cleared.train_loss[4]
    assert kept.update_norm[8] != cleared.update_norm[8]


def test_bfloat16_is_float32_with_a_coarser_pass() -> None:
    single, half = (train(cell(precision=precision), TEXT, [0], CPU)["steps"] for precision in ("float32", "bfloat16"))
    assert half.train_loss.tolist() == pytest.approx(single.train_loss.tolist(), rel=0.02)
    assert half.train_loss.tolist() != single.train_loss.tolist()


@pytest.mark.slow
def test_a_compiled_pass_trains_as_the_plain_one() -> None:
    plain, compiled = (train(cell(compile=kind, steps=4, n_layers=1), TEXT, [0, 1], CPU) for kind in (False, True))
    assert compiled["steps"].train_loss.tolist() == pytest.approx(plain["steps"].train_loss.tolist(), rel=1e-9)
    numbers = heads_at(plain, 4)[["beta", "tau", "trace", "rho_qk"]]
    assert np.allclose(numbers, heads_at(compiled, 4)[numbers.columns], rtol=1e-6)


def test_until_the_first_rebalancing_all_cases_are_the_same_run() -> None:
    plain, rebalanced, cleared = (
        train(cell(rebalance=kind, rebalance_every=8 if kind != "none" else 0), TEXT, [0], CPU)
        for kind in ("none", "qk", "state")
    )
    for other in (rebalanced, cleared):
        pd.testing.assert_frame_equal(
            plain["heads"].query("step <= 8").drop(columns="cell"),
            other["heads"].query("step <= 8 and phase == 'step'").drop(columns="cell"),
        )
    at_end = [frames["steps"].train_loss.iloc[-1] for frames in (plain, rebalanced, cleared)]
    assert len(set(at_end)) == 3
    assert cleared["rebalances"].empty


def test_a_step_measured_is_a_step_not_disturbed() -> None:
    often, seldom = (train(cell(measure_every=every), TEXT, [0], CPU) for every in (1, 12))
    assert heads_at(often, 12).beta.tolist() == heads_at(seldom, 12).beta.tolist()


def test_sgd_without_decay_keeps_the_augmented_imbalance_to_second_order() -> None:
    """One plain step: augmented drift = lr^2 |g_Q g_Q^T - g_K g_K^T|, so a tenth of the rate drifts a hundredth."""
    first = [
        train(cell(optimizer="sgd", lr=lr, lr_floor=lr, weight_decay=0.0, warmup_steps=0, steps=1), TEXT, [0], CPU)
        for lr in (1e-1, 1e-2)
    ]
    large, small = (frames["heads"].drift_augmented.to_numpy() for frames in first)
    assert large / small == pytest.approx(100, rel=1e-5)


def test_the_plain_gradient_never_points_along_the_augmented_gauge() -> None:
    heads = train(cell(), TEXT, [0], CPU)["heads"]
    assert (heads.rho_qk_augmented_gradient < 1e-20).all()
    assert (heads.rho_vo_augmented_gradient < 1e-20).all()
    assert (heads.query("step > 4").rho_qk_gradient > 1e-12).all()
    assert (heads.grad_norm_key_bias < 1e-14).all()
    assert (heads.grad_norm_query_bias > 1e-9).all()


def test_a_diverging_run_is_recorded_to_its_end() -> None:
    settings = cell(optimizer="sgd", lr=1e30, lr_floor=1e30, grad_clip=1e30, rebalance="qk", rebalance_every=4)
    frames = train(settings, TEXT, [0], CPU)
    assert frames["steps"].step.tolist() == [1, 4, 8, 12]
    assert not np.isfinite(frames["steps"].train_loss.iloc[-1])


@pytest.mark.parametrize("changes", [{}, {"rope": True}, {"n_kv_heads": 1}], ids=str)
@pytest.mark.parametrize("moments", ["clear", "keep", "transport"])
def test_weights_that_vanish_are_flagged_and_the_run_goes_on(moments: str, changes: dict[str, Any]) -> None:
    """AdamW with lr x weight decay = 1 takes every weight away and leaves one update of size lr."""
    settings = cell(
        optimizer="adamw", lr=1.0, lr_floor=1.0, weight_decay=1.0, warmup_steps=0, grad_clip=0.0, rebalance="qk-vo",
        rebalance_every=1, moments=moments, precision="float64", **changes,
    )  # fmt: skip
    frames = train(settings, TEXT, [0], CPU)
    heads, rebalances = frames["heads"], frames["rebalances"]
    flagged = heads[(heads["state"] != "regular") & (heads["phase"] == "rebalanced")]
    if not changes and moments != "keep":
        assert len(flagged)
    left = rebalances.groupby("step")["left_alone"].sum()
    assert set(flagged["step"]) <= set(left.index[left > 0])
    assert np.isfinite(heads["beta"]).all()
    assert np.isfinite(frames["steps"]["train_loss"]).all()


def test_states_are_told_in_a_word() -> None:
    columns = {
        "beta": [1.0, 1.0, 1.0, np.nan],
        "smallest_q": [0.5, 0.0, 0.5, 0.5],
        "smallest_k": [0.1, 0.1, 1e-16, 1.0],
    }
    assert states(pd.DataFrame(columns), 4).tolist() == ["regular", *["rank-deficient"] * 2, "not finite"]


def test_measures_of_a_batch_of_heads_are_those_of_each_head() -> None:
    architecture = architecture_of(cell(), TEXT.vocabulary_size)
    before = {name: t.detach() for name, t in initial_parameters(architecture, [0, 1], torch.float64, CPU).items()}
    draws = torch.Generator().manual_seed(1)
    after = {name: t + 0.1 * torch.randn(t.shape, generator=draws, dtype=t.dtype) for name, t in before.items()}
    spec = architecture.layer
    whole = StepMeasures(spec, before).of_update(after) | weight_measures(spec, after)
    one = {name: t[1:2, 1:2] for name, t in before.items() if name in architecture.layer.parameter_shapes}
    other = {name: after[name][1:2, 1:2] for name in one}
    part = StepMeasures(spec, one).of_update(other) | weight_measures(spec, other)
    for name, values in whole.items():
        assert torch.allclose(values[1, 1], part[name][0, 0], rtol=1e-9), name


def test_progress_reaches_the_end() -> None:
    seen: list[Progress] = []
    train(cell(), TEXT, [0], CPU, seen.append)
    assert [progress.step for progress in seen] == [1, 4, 8, 12]
    assert seen[-1].steps == 12


@pytest.mark.slow
@pytest.mark.skipif(not SHAKESPEARE.exists(), reason="no copy of tiny Shakespeare at hand")
def test_two_steps_at_the_papers_scale() -> None:
    from settings import overlaid_settings

    from attnid import corpus
    from attnid.config import cells, parse

    settings = overlaid_settings("paper.yaml") | {"corpus": str(SHAKESPEARE)}
    config = parse(settings)
    full = next(c for c in cells(config).values() if c.case == "adamw-rebalanced" and c.n_heads == 6)
    assert (full.n_layers, full.d_model, full.context, full.dropout, full.steps) == (6, 384, 256, 0.2, 5000)
    short = full.model_copy(update={"steps": 2, "warmup_steps": 1, "batch_size": 4, "rebalance_every": 2})
    frames = train(short, corpus.load(SHAKESPEARE, short.context), [0], CPU)
    assert frames["steps"].train_loss.iloc[0] == pytest.approx(np.log(65), abs=0.1)
    assert len(heads_at(frames, 2)) == 36
    assert (frames["rebalances"].output_error < 100).all()
    assert heads_at(frames, 2, "rebalanced").beta.max() < 1e-5
