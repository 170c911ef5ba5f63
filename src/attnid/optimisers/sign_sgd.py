"""Sign-SGD (Bernstein et al. 2018), plain where the momentum is 0."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from attnid.cell import Cell
from attnid.optim import Optimizers, OptimizerWithMomentum, parameter_groups, running_mean

SETTINGS = ("momentum",)
MOMENTS_MOVE = True


def make(cell: Cell, parameters: Mapping[str, Tensor]) -> Optimizers:
    """Make one for all parameters."""
    return [SignSGD(parameter_groups(cell, parameters), cell.lr, cell.momentum)]


class SignSGD(OptimizerWithMomentum):
    """Steps of one length in every entry: the sign of the gradient or of its running mean (Bernstein et al. 2018)."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """p <- (1 - lr decay) p - lr sign(m), with m <- momentum m + (1 - momentum) gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                mean = running_mean(self.state[p], p.grad, group["momentum"])
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(mean.sign(), alpha=group["lr"])
