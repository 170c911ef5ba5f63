"""Muon (Jordan et al. 2024) for the matrices inside blocks, with AdamW for what it is not made for."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from attnid.cell import Cell
from attnid.optim import Optimizers, OptimizerWithMomentum, parameter_groups, running_mean

SETTINGS = ("momentum", "adam_betas")
LAYOUTS = {"W_Q": "heads", "W_K": "heads", "W_V": "heads", "W_O": "outputs"}
"""How a parameter holds the matrix of a projection: `heads` (..., H, D, E) of (H D, E), `outputs` (..., H, E, C) of
(E, H C)."""


def make(cell: Cell, parameters: Mapping[str, Tensor]) -> Optimizers:
    """Make Muon for the matrices called W_..., and AdamW for the rest."""
    orthogonalised = {name: p for name, p in parameters.items() if name.startswith("W_")}
    rest = {name: p for name, p in parameters.items() if name not in orthogonalised}
    matrices: list[dict[str, object]] = [
        {"params": [p], "layout": LAYOUTS.get(name, "matrix"), "weight_decay": cell.weight_decay}
        for name, p in orthogonalised.items()
    ]
    adamw = torch.optim.AdamW(parameter_groups(cell, rest), lr=cell.lr, betas=cell.adam_betas)
    return [Muon(matrices, cell.lr, cell.momentum), adamw]


class Muon(OptimizerWithMomentum):
    """Muon for matrices that lie stacked in one parameter, each orthogonalised by itself.

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
                mean = running_mean(self.state[p], p.grad, group["momentum"])
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
