"""Adam, with weight decay as part of the gradient."""

from collections.abc import Mapping

from torch import Tensor
from torch.optim import Adam

from attnid.cell import Cell
from attnid.optim import Optimizers, parameter_groups

SETTINGS = ("adam_betas",)
MOMENTS_MOVE = True


def make(cell: Cell, parameters: Mapping[str, Tensor]) -> Optimizers:
    """Make torch's own."""
    return [Adam(parameter_groups(cell, parameters), lr=cell.lr, betas=cell.adam_betas)]
