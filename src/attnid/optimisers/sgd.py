"""Stochastic gradient descent, plain where the momentum is 0."""

from collections.abc import Mapping

from torch import Tensor
from torch.optim import SGD

from attnid.cell import Cell
from attnid.optim import Optimizers, parameter_groups

SETTINGS = ("momentum",)
MOMENTS_MOVE = True


def make(cell: Cell, parameters: Mapping[str, Tensor]) -> Optimizers:
    """Make torch's own."""
    return [SGD(parameter_groups(cell, parameters), lr=cell.lr, momentum=cell.momentum)]
