import math

import pytest
import torch
from settings import cell

from attnid.optim import clip_gradients, learning_rate, make_optimizer, member_norms


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
    assert clip_gradients([a, b], 1.0).tolist() == pytest.approx([5.0, 0.1])
    assert a.grad[:, 0].tolist() == pytest.approx([0.6, 0.1], abs=1e-6)
    assert member_norms([a.grad, b.grad]).tolist() == pytest.approx([1.0, 0.1], abs=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weight_decay_acts_on_matrices_only(optimizer: str) -> None:
    parameters = {
        name: torch.ones(1, 4, requires_grad=True) for name in ("W_Q", "token_embedding", "b_Q", "final_norm_weight")
    }
    settings = cell(optimizer=optimizer, lr=0.1, weight_decay=0.5)
    stepper = make_optimizer(settings, parameters)
    for tensor in parameters.values():
        tensor.grad = torch.zeros_like(tensor)
    stepper.step()
    values = {name: tensor[0, 0].item() for name, tensor in parameters.items()}
    assert values == pytest.approx({"W_Q": 0.95, "token_embedding": 0.95, "b_Q": 1.0, "final_norm_weight": 1.0})
