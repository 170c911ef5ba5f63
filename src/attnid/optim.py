"""Optimisers as nanoGPT sets them up, for members that train side by side without mixing."""

from collections.abc import Callable, Iterable, Mapping
from math import cos, pi

import torch
from torch import Tensor

from attnid.cell import Cell
from attnid.gpt import is_matrix

Optimizers = list[torch.optim.Optimizer]

LAYOUTS = {"W_Q": "heads", "W_K": "heads", "W_V": "heads", "W_O": "outputs"}
"""How a parameter holds the matrix of a projection: `heads` (..., H, D, E) of (H D, E), `outputs` (..., H, E, C) of
(E, H C)."""


def make_optimizers(cell: Cell, parameters: Mapping[str, Tensor]) -> Optimizers:
    """The cell's optimiser, with weight decay on matrices only; Muon comes with AdamW for what it is not made for.

    All act member by member: entry by entry, Muon matrix by matrix.
    """
    orthogonalised = {name for name in parameters if name.startswith("W_")} if cell.optimizer == "muon" else set()
    groups = [
        {
            "params": [
                p for name, p in parameters.items() if is_matrix(name) == decayed and name not in orthogonalised
            ],
            "weight_decay": cell.weight_decay if decayed else 0.0,
        }
        for decayed in (True, False)
    ]
    if cell.optimizer == "sgd":
        return [torch.optim.SGD(groups, lr=cell.lr, momentum=cell.momentum)]
    if cell.optimizer == "sign-sgd":
        return [SignSGD(groups, cell.lr, cell.momentum)]
    if cell.optimizer == "adam":
        return [torch.optim.Adam(groups, lr=cell.lr, betas=cell.adam_betas)]
    adamw = torch.optim.AdamW(groups, lr=cell.lr, betas=cell.adam_betas)
    if cell.optimizer == "adamw":
        return [adamw]
    matrices = [
        {"params": [parameters[name]], "layout": LAYOUTS.get(name, "matrix"), "weight_decay": cell.weight_decay}
        for name in parameters
        if name in orthogonalised
    ]
    return [Muon(matrices, cell.lr, cell.momentum), adamw]


class _WithMomentum(torch.optim.Optimizer):
    """An optimiser whose groups have a learning rate, a momentum and a weight decay."""

    def __init__(self, groups: list[dict[str, object]], lr: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum})


class SignSGD(_WithMomentum):
    """Steps of one length in every entry: the sign of the gradient or of its running mean (Bernstein et al. 2018)."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """p <- (1 - lr decay) p - lr sign(m), with m <- momentum m + (1 - momentum) gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                mean = _running_mean(self.state[p], p.grad, group["momentum"])
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(mean.sign(), alpha=group["lr"])


class Muon(_WithMomentum):
    """Muon (Jordan et al. 2024) for matrices that lie stacked in one parameter, each orthogonalised by itself.

    As `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"`, which takes single matrices; the steps of the
    Newton-Schulz iteration are computed in the weights' own precision.
    """

    COEFFICIENTS = (3.4445, -4.7750, 2.0315)
    ITERATIONS = 5

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """p <- (1 - lr decay) p - 0.2 sqrt(larger side) lr U V^T of the Nesterov mean U S V^T of the gradients."""
        for group in self.param_groups:
            for p in group["params"]:
                mean = _running_mean(self.state[p], p.grad, group["momentum"])
                ahead = p.grad.lerp(mean, group["momentum"])
                direction = self._orthogonal(_as_matrices(ahead, group["layout"]))
                size = 0.2 * max(direction.shape[-2:]) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(_as_stacked(direction, group["layout"], p.shape), alpha=group["lr"] * size)

    def _orthogonal(self, matrices: Tensor) -> Tensor:
        """Newton-Schulz towards U V^T of each matrix U S V^T, shape (..., rows, columns)."""
        tall = matrices.shape[-2] > matrices.shape[-1]
        X: Tensor = matrices.mT if tall else matrices
        X = X / X.flatten(-2).norm(dim=-1).clamp(min=1e-7)[..., None, None]
        a, b, c = self.COEFFICIENTS
        for _ in range(self.ITERATIONS):
            gram = X @ X.mT
            X = a * X + (b * gram + c * gram @ gram) @ X
        return X.mT if tall else X


def _as_matrices(stacked: Tensor, layout: str) -> Tensor:
    if layout == "heads":
        return stacked.flatten(-3, -2)
    matrices: Tensor = stacked.transpose(-3, -2).flatten(-2) if layout == "outputs" else stacked
    return matrices


def _as_stacked(matrices: Tensor, layout: str, shape: torch.Size) -> Tensor:
    if layout == "outputs":
        return torch.transpose(matrices.unflatten(-1, (shape[-3], shape[-1])), -3, -2)
    return matrices.reshape(shape)


def _running_mean(state: dict[str, Tensor], gradient: Tensor, decay: float) -> Tensor:
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
