import math
from typing import Any

import pytest
import torch
from settings import cell

from attnid import optimisers
from attnid.optim import clip_gradients, learning_rate, make_optimizers, member_norms
from attnid.symmetry import MOMENTS


def nanogpt_rate(it: int, lr: float, min_lr: float, warmup: int, decay_iters: int) -> float:
    if it < warmup:
        return lr * (it + 1) / (warmup + 1)
    ratio = (it - warmup) / (decay_iters - warmup)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (lr - min_lr)


def test_the_schedule_is_nanogpts_ending_at_the_last_step() -> None:
    settings = cell(steps=50, warmup_steps=5, lr=0.2, lr_floor=0.02)
    ours = [learning_rate(settings, step) for step in range(1, 51)]
    assert ours == pytest.approx([nanogpt_rate(it, 0.2, 0.02, 5, 49) for it in range(50)])
    assert ours[-1] == pytest.approx(0.02)
    assert max(ours) == pytest.approx(0.2)


def test_no_warmup_starts_at_the_peak() -> None:
    assert learning_rate(cell(steps=2, warmup_steps=0, lr=0.3, lr_floor=0.1), 1) == pytest.approx(0.3)
    assert learning_rate(cell(steps=1, warmup_steps=0, lr=0.3, lr_floor=0.1), 1) == pytest.approx(0.3)


def test_each_member_is_clipped_to_its_own_norm() -> None:
    a, b = torch.zeros(2, 3, requires_grad=True), torch.zeros(2, 2, 2, requires_grad=True)
    a.grad = torch.tensor([[3.0, 0, 0], [0.1, 0, 0]])
    b.grad = torch.zeros(2, 2, 2)
    b.grad[0, 0, 0] = 4.0
    assert clip_gradients([a, b], 1.0)[0].tolist() == pytest.approx([5.0, 0.1])
    assert a.grad[:, 0].tolist() == pytest.approx([0.6, 0.1], abs=1e-6)
    assert member_norms([a.grad, b.grad]).tolist() == pytest.approx([1.0, 0.1], abs=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weight_decay_acts_on_matrices_only(optimizer: str) -> None:
    parameters = {
        name: torch.ones(1, 4, requires_grad=True) for name in ("W_Q", "token_embedding", "b_Q", "final_norm_weight")
    }
    settings = cell(optimizer=optimizer, lr=0.1, weight_decay=0.5)
    (stepper,) = make_optimizers(settings, parameters)
    for tensor in parameters.values():
        tensor.grad = torch.zeros_like(tensor)
    stepper.step()
    values = {name: tensor[0, 0].item() for name, tensor in parameters.items()}
    assert values == pytest.approx({"W_Q": 0.95, "token_embedding": 0.95, "b_Q": 1.0, "final_norm_weight": 1.0})


def stacked(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


SHAPES = {"W_Q": (2, 3, 2, 4, 8), "W_O": (2, 3, 2, 8, 4), "W_up": (2, 3, 32, 8), "W_down": (2, 3, 8, 32)}
AS_MATRIX = {
    "W_Q": lambda W: W.reshape(8, 8),
    "W_O": lambda W: torch.cat(list(W), dim=1),
    "W_up": lambda W: W,
    "W_down": lambda W: W,
}


@pytest.mark.parametrize("name", SHAPES)
def test_muon_steps_each_stacked_matrix_as_torchs_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's orthogonalises in bfloat16, here in float32."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor)
    weights = {name: stacked(*SHAPES[name]).requires_grad_()}
    settings = cell(optimizer="muon", momentum=0.9, weight_decay=0.1, lr=0.05)
    (own, _) = make_optimizers(settings, weights)
    single = {
        (member, layer): torch.nn.Parameter(AS_MATRIX[name](weights[name][member, layer].detach()).clone())
        for member in range(2)
        for layer in range(3)
    }
    theirs = torch.optim.Muon(single.values(), lr=0.05, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw")
    before = weights[name].detach().clone()
    for step in range(3):
        weights[name].grad = stacked(*SHAPES[name], seed=step + 1)
        for (member, layer), p in single.items():
            p.grad = AS_MATRIX[name](weights[name].grad[member, layer]).clone()
        own.step()
        theirs.step()
    for (member, layer), p in single.items():
        moved = AS_MATRIX[name]((weights[name] - before)[member, layer].detach())
        expected = p.detach() - AS_MATRIX[name](before[member, layer])
        assert (moved - expected).norm() < 1e-4 * expected.norm()


def test_muon_leaves_embeddings_biases_and_norms_to_adamw() -> None:
    weights = {name: stacked(2, 3, 4, seed=len(name)).requires_grad_() for name in ("W_up", "b_up", "token_embedding")}
    muon, adamw = make_optimizers(cell(optimizer="muon", momentum=0.9, weight_decay=0.1), weights)
    held = [[p for group in optimizer.param_groups for p in group["params"]] for optimizer in (muon, adamw)]
    assert held[0] == [weights["W_up"]]
    assert [group["weight_decay"] for group in adamw.param_groups] == [0.1, 0.0]
    assert {id(p) for p in held[1]} == {id(weights["b_up"]), id(weights["token_embedding"])}


def test_sign_sgd_by_hand() -> None:
    weights = {"W_up": torch.tensor([[[1.0, -2.0]]], requires_grad=True)}
    (optimizer,) = make_optimizers(cell(optimizer="sign-sgd", momentum=0.5, weight_decay=0.1, lr=0.2), weights)
    for gradient in ([4.0, -1.0], [-1.0, 3.0]):
        weights["W_up"].grad = torch.tensor([[gradient]])
        optimizer.step()
    first = [0.98 * 1.0 - 0.2, 0.98 * -2.0 + 0.2]
    expected = [0.98 * first[0] - 0.2, 0.98 * first[1] - 0.2]  # means 2, -0.5, then 0.5, 1.25
    assert weights["W_up"].flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"optimizer": "sgd", "momentum": 0.9}, torch.optim.SGD),
        ({"optimizer": "adam", "adam_betas": (0.0, 0.99)}, torch.optim.Adam),
        ({"optimizer": "adamw"}, torch.optim.AdamW),
    ],
)
def test_well_known_optimisers_are_torchs_own(settings: dict[str, Any], kind: type) -> None:
    weights = {"W_up": stacked(2, 3, 4).requires_grad_(), "b_up": stacked(2, 3).requires_grad_()}
    (optimizer,) = make_optimizers(cell(**settings), weights)
    assert type(optimizer) is kind
    for key in ("momentum", "betas"):
        wanted = settings.get({"betas": "adam_betas"}.get(key, key))
        assert wanted is None or optimizer.param_groups[0][key] == wanted


def test_no_clipping_leaves_the_gradient_alone() -> None:
    p = stacked(2, 3).requires_grad_()
    p.grad = 100 * stacked(2, 3, seed=1)
    norms, factors = clip_gradients([p], 0)
    assert torch.equal(p.grad, 100 * stacked(2, 3, seed=1))
    assert factors.tolist() == [1.0, 1.0]
    assert norms.tolist() == pytest.approx(p.grad.norm(dim=1).tolist())


def test_the_cosine_ends_at_decay_steps_and_stays_at_its_floor() -> None:
    settings = cell(steps=30, decay_steps=12, lr=1.0, lr_floor=0.1, warmup_steps=2)
    assert [learning_rate(settings, step) for step in (12, 13, 30)] == pytest.approx([0.1] * 3)
    same = cell(steps=12, lr=1.0, lr_floor=0.1, warmup_steps=2)
    assert [learning_rate(settings, step) for step in range(1, 13)] == [learning_rate(same, n) for n in range(1, 13)]


def trained(name: str, shapes: dict[str, tuple[int, ...]], members: list[int]) -> Any:
    """Three steps of an optimiser for some of two members: the weights, and the optimisers."""
    weights = {name: stacked(*shape)[members].requires_grad_() for name, shape in shapes.items()}
    taken = {key: value for key, value in SETTINGS.items() if key in optimisers.settings(name)}
    made = make_optimizers(cell(optimizer=name, lr=0.1, weight_decay=0.1, **taken), weights)
    for step in range(3):
        for weight, shape in zip(weights.values(), shapes.values(), strict=True):
            weight.grad = stacked(*shape, seed=step + 1)[members]
        for optimizer in made:
            optimizer.step()
    return weights, made


SETTINGS: dict[str, Any] = {"momentum": 0.9, "adam_betas": (0.8, 0.9)}
ALL_SHAPES = SHAPES | {"b_up": (2, 3, 32), "token_embedding": (2, 5, 8)}


@pytest.mark.parametrize("name", optimisers.NAMES)
def test_every_optimiser_moves_every_parameter_and_no_member_by_another(name: str) -> None:
    together, _ = trained(name, ALL_SHAPES, [0, 1])
    alone, _ = trained(name, ALL_SHAPES, [1])
    for parameter, weights in together.items():
        torch.testing.assert_close(weights[1:], alone[parameter])
        assert (weights.detach() != stacked(*ALL_SHAPES[parameter])).all(), parameter


@pytest.mark.parametrize("name", [name for name in optimisers.NAMES if optimisers.moments_move(name)])
def test_state_that_moves_with_the_weights_is_all_moments(name: str) -> None:
    weights, made = trained(name, ALL_SHAPES, [0, 1])
    for optimizer in made:
        for weight in weights.values():
            entries = {key: value for key, value in optimizer.state[weight].items() if torch.is_tensor(value)}
            assert {key for key, value in entries.items() if value.numel() > 1} <= set(MOMENTS)


@pytest.mark.parametrize("name", optimisers.NAMES)
def test_the_settings_that_an_optimiser_takes_change_its_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, _ = trained(name, ALL_SHAPES, [0, 1])
    for key in optimisers.settings(name):
        with monkeypatch.context() as changed:
            changed.setitem(SETTINGS, key, {"momentum": 0.1, "adam_betas": (0.1, 0.2)}[key])
            after, _ = trained(name, ALL_SHAPES, [0, 1])
        assert any(not torch.equal(before[parameter], after[parameter]) for parameter in before), key
