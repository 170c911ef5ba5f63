"""How optimisers are set up as nanoGPT does it, for members that train side by side without mixing."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from math import cos, pi
from typing import Protocol, cast

import torch
from torch import Tensor

from attnid import optimisers
from attnid.cell import Cell
from attnid.gpt import is_matrix

Optimizers = list[torch.optim.Optimizer]
ParameterGroups = list[dict[str, object]]


class OptimiserModule(Protocol):
    """What a module of `attnid.optimisers` offers beside its constants."""

    def make(self, cell: Cell, parameters: Mapping[str, Tensor]) -> Optimizers:
        """Make one optimiser or several, each parameter in one of them.

        Parameters are stacked, shape (M, ...), members first; those inside blocks have the layer next. Every optimiser
        has to act member by member: entry by entry for one, or matrix by matrix. `training` sets the `lr` of every
        group before every step.
        """


def make_optimizers(cell: Cell, parameters: Mapping[str, Tensor]) -> Optimizers:
    """The cell's optimiser, or several that share the parameters."""
    module = cast(OptimiserModule, import_module(optimisers.module(cell.optimizer)))
    return module.make(cell, parameters)


def parameter_groups(cell: Cell, parameters: Mapping[str, Tensor]) -> ParameterGroups:
    """Parameters as torch's optimisers take them, with the cell's weight decay on matrices only."""
    return [
        {
            "params": [p for name, p in parameters.items() if is_matrix(name) == decayed],
            "weight_decay": cell.weight_decay if decayed else 0.0,
        }
        for decayed in (True, False)
    ]


class OptimizerWithMomentum(torch.optim.Optimizer):
    """An optimiser whose groups have a learning rate, a momentum and a weight decay."""

    def __init__(self, groups: ParameterGroups, lr: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum})


def running_mean(state: dict[str, Tensor], gradient: Tensor, decay: float) -> Tensor:
    """The mean of gradients in the state of a parameter, m <- decay m + (1 - decay) gradient, from 0 on."""
    mean = state.setdefault("momentum_buffer", torch.zeros_like(gradient))
    return mean.lerp_(gradient, 1 - decay)


def learning_rate(cell: Cell, step: int) -> float:
    """Learning rate of a step, from 1: linear warm-up, then a cosine to the floor at the step `decay_steps`."""
    if step <= cell.warmup_steps:
        return cell.lr * step / (cell.warmup_steps + 1)
    progress = min(1.0, (step - 1 - cell.warmup_steps) / max(1, cell.decay_steps - 1 - cell.warmup_steps))
    return cell.lr_floor + (cell.lr - cell.lr_floor) * (1 + cos(pi * progress)) / 2


def clip_gradients(parameters: Iterable[Tensor], largest: float) -> tuple[Tensor, Tensor]:
    """Scale each member's whole gradient down to the norm `largest`; 0 leaves every gradient as it is.

    Returns:
        The norms before and the factors, shape (M,) each.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms = member_norms(gradients)
    if largest == 0:
        return norms, torch.ones_like(norms)
    factors = (largest / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *[1] * (gradient.ndim - 1)))
    return norms, factors


def member_norms(tensors: Iterable[Tensor]) -> Tensor:
    """Norm over all tensors of each member, shape (M,)."""
    result: Tensor = torch.stack([tensor.flatten(1).norm(dim=1) for tensor in tensors]).norm(dim=0)
    return result
