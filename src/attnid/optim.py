"""Optimisers as nanoGPT sets them up, for members that train side by side without mixing."""

from collections.abc import Iterable, Mapping
from math import cos, pi

import torch
from torch import Tensor

from attnid.config import Cell
from attnid.gpt import is_matrix


def make_optimizer(cell: Cell, parameters: Mapping[str, Tensor]) -> torch.optim.Optimizer:
    """torch's SGD or AdamW, with weight decay on matrices only. Both act entry by entry, so members stay apart."""
    groups = [
        {"params": [p for name, p in parameters.items() if is_matrix(name)], "weight_decay": cell.weight_decay},
        {"params": [p for name, p in parameters.items() if not is_matrix(name)], "weight_decay": 0.0},
    ]
    if cell.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=cell.lr)
    return torch.optim.AdamW(groups, lr=cell.lr, betas=cell.adam_betas)


def learning_rate(cell: Cell, step: int) -> float:
    """Learning rate of a step, from 1: linear warm-up, then a cosine to the floor at the last step."""
    if step <= cell.warmup_steps:
        return cell.lr * step / (cell.warmup_steps + 1)
    progress = (step - 1 - cell.warmup_steps) / max(1, cell.steps - 1 - cell.warmup_steps)
    return cell.lr_floor + (cell.lr - cell.lr_floor) * (1 + cos(pi * progress)) / 2


def clip_gradients(parameters: Iterable[Tensor], largest: float) -> Tensor:
    """Scale each member's whole gradient down to the norm `largest`; return the norms before, shape (M,)."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms = member_norms(gradients)
    factors = (largest / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *[1] * (gradient.ndim - 1)))
    return norms


def member_norms(tensors: Iterable[Tensor]) -> Tensor:
    """Norm over all tensors of each member, shape (M,)."""
    result: Tensor = torch.stack([tensor.flatten(1).norm(dim=1) for tensor in tensors]).norm(dim=0)
    return result
