"""The meter against weights taken apart by hand, and against the null of a random step."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from found_models import of_family, of_torch, runnable
from torch import nn

from attnid import schema
from attnid.errors import UserError
from attnid.models.meter import OverlapMeter
from attnid.models.modules import find_attention
from attnid.models.tables import OVERLAPS
from attnid.null import random_step_nulls


def nudge(model: nn.Module, size: float = 1e-3, seed: int = 0) -> None:
    """An isotropic random step."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=draws, dtype=parameter.dtype))


def by_hand(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    """Measures of one head from its query and key weights, (2, D, E) before and after, by least squares."""
    (Q, K), (new_Q, new_K) = before, after
    D = len(Q)
    units = np.eye(D * D).reshape(D * D, D, D)
    directions = np.stack([np.concatenate([(S @ Q).ravel(), -(S.T @ K).ravel()]) for S in units], axis=1)
    change = np.concatenate([(new_Q - Q).ravel(), (new_K - K).ravel()])
    along = directions @ np.linalg.lstsq(directions, change, rcond=None)[0]
    imbalance, old = new_Q @ new_Q.T - new_K @ new_K.T, Q @ Q.T - K @ K.T
    smallest = [np.linalg.eigvalsh(W @ W.T)[0] for W in (new_Q, new_K)]
    return {
        "rho_qk": along @ along / (change @ change),
        "beta": np.linalg.norm(imbalance),
        "tau": np.trace(imbalance),
        "mu": sum(smallest),
        "drift": np.linalg.norm(imbalance - old),
        "update_norm": np.linalg.norm(change),
    }


def test_measures_are_those_by_hand_from_the_models_own_tensors() -> None:
    model = of_family("GPT-2").model
    weight = model.h[0].attn.c_attn.weight  # (in, out) as transformers stores it
    before = weight.detach().numpy().copy()
    meter = OverlapMeter(model)
    with meter:
        nudge(model, 0.1)
    frame = meter.frame()
    assert list(frame.layer) == ["h.0.attn"] * 3
    for head, row in frame.iterrows():
        rows = slice(8 * head, 8 * head + 8)
        pairs = [np.stack([W[:, :24].T[rows], W[:, 24:48].T[rows]]) for W in (before, weight.detach().numpy())]
        for name, value in by_hand(*pairs).items():
            assert row[name] == pytest.approx(value, rel=1e-9), name


@pytest.mark.parametrize(
    ("name", "mean_qk", "mean_vo"),
    [
        # D^2 / 2DE; RoPE: D directions; grouping by 2: (m + 1) E D numbers a group
        ("GPT-2", 8 * 8 / (2 * 8 * 24), 8 * 8 / (2 * 8 * 24)),
        ("Llama", 6 / (3 * 6 * 12), 6 * 6 / (3 * 6 * 12)),
        ("GPT-NeoX", (4 + 4 * 4) / (2 * 8 * 24), 8 / 48),
        ("T5, cross", 5 / 24, 5 / 24),
        ("torch, other widths", 4 * 4 / (4 * (12 + 7)), 4 * 4 / (4 * (12 + 9))),
    ],
)
def test_a_random_step_lies_in_the_null_band_of_its_layer(name: str, mean_qk: float, mean_vo: float) -> None:
    model = runnable(name).model
    meter = OverlapMeter(model, every=1)
    for seed in range(200):
        with meter:
            nudge(model, 1e-6, seed)
    frame = meter.frame()
    for pair, prefix, mean in (("qk", "rho_null", mean_qk), ("vo", "rho_vo_null", mean_vo)):
        rho, null = frame[f"rho_{pair}"], frame[f"{prefix}_mean"]
        assert null.to_numpy() == pytest.approx(mean)
        assert rho.mean() == pytest.approx(mean, rel=0.05)
        inside = (rho > frame[f"{prefix}_low"]) & (rho < frame[f"{prefix}_high"])
        assert 0.92 < inside.mean() < 0.98


def test_only_some_steps_are_measured_and_each_is_told() -> None:
    model, told = of_torch().model, []
    meter = OverlapMeter(model, every=3, callback=told.append)
    for _ in range(7):
        with meter:
            nudge(model)
    assert sorted(set(meter.frame().step)) == [1, 3, 6]
    pd.testing.assert_frame_equal(pd.concat(told, ignore_index=True), meter.frame())


def test_attached_to_an_optimiser_every_step_counts_until_it_is_detached() -> None:
    one = of_torch()
    optimizer = torch.optim.SGD(one.model.parameters(), lr=1e-3)
    meter = OverlapMeter(one.model, every=1)
    detach = meter.attach(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        one.run().square().mean().backward()
        optimizer.step()
    detach()
    optimizer.step()
    assert list(meter.frame().step.unique()) == [1, 2]
    assert meter.frame().rho_qk_augmented.max() < 1e-6, "a plain gradient has no part along the gauge"


def test_adam_moves_along_the_gauge_and_a_failed_step_is_no_step() -> None:
    one = of_torch()
    optimizer = torch.optim.Adam(one.model.parameters(), lr=1e-3)
    one.run().square().mean().backward()
    meter = OverlapMeter(one.model)
    with pytest.raises(RuntimeError, match="lost"), meter:
        raise RuntimeError("lost")
    assert meter.step == 0
    with meter:
        optimizer.step()
    assert meter.frame().rho_qk_augmented.min() > 0.01


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_step_that_failed_under_a_hook_is_no_step(wrapped: bool) -> None:
    class Accelerated:
        """As accelerate wraps an optimiser."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    one = of_torch()
    optimizer = torch.optim.SGD(one.model.parameters(), lr=1e-3)
    meter = OverlapMeter(one.model, every=1)
    meter.attach(Accelerated(optimizer) if wrapped else optimizer)  # type: ignore[arg-type]

    def fail() -> torch.Tensor:
        raise RuntimeError("lost")

    one.run().square().mean().backward()
    with pytest.raises(RuntimeError, match="lost"):
        optimizer.step(fail)
    optimizer.step()
    optimizer.step()
    assert list(meter.frame().step.unique()) == [1, 2]


def test_what_is_normalised_has_no_value_and_latent_attention_no_row() -> None:
    model = of_family("Qwen3").model
    meter = OverlapMeter(model)
    with meter:
        nudge(model)
    frame = meter.frame()
    assert frame[["rho_qk", "rho_null_mean", "beta", "mu"]].isna().all(axis=None)
    assert (frame.rho_vo > 0).all()
    latent = OverlapMeter(of_family("DeepSeek V3").model)
    assert latent.left_out == {"layers.0.self_attn": "keys and values come from a normalised latent"}
    with latent:
        pass
    assert latent.frame().empty


def test_states_and_steps_of_length_zero() -> None:
    model = of_family("GPT-2").model
    (layer,) = find_attention(model)
    layer.views()["W_K"][1] = 0
    meter = OverlapMeter(model)
    with meter:
        layer.views()["W_Q"][2] = torch.nan
    frame = meter.frame()
    assert list(frame.state) == ["regular", "rank-deficient", "not finite"]
    assert frame.rho_qk.isna().all()


def test_rows_are_written_with_their_units(tmp_path: Path) -> None:
    model = of_torch().model
    meter = OverlapMeter(model)
    assert list(meter.frame().columns) == OVERLAPS.names
    with meter:
        nudge(model)
    meter.write(tmp_path / "overlap.parquet")
    pd.testing.assert_frame_equal(schema.read(OVERLAPS, tmp_path / "overlap.parquet"), meter.frame())


def test_every_has_to_be_a_step() -> None:
    for every in (0, 2.5, "10", True):
        with pytest.raises(UserError, match=f"every is {every!r}; allowed: whole numbers from 1"):
            OverlapMeter(of_torch().model, every=every)


def test_the_null_of_a_layer_whose_keys_and_values_read_other_widths() -> None:
    (layer,) = find_attention(of_torch(kdim=7, vdim=9).model)
    nulls = random_step_nulls(layer.spec, value_width=9)
    assert nulls["qk"].mean == pytest.approx(16 / (4 * 19))
    assert nulls["vo"].mean == pytest.approx(16 / (4 * 21))
