"""Every cell's tables as one dataset, and its summary over seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from attnid import statistics, tables
from attnid.cell import Cell
from attnid.null import random_step_nulls


def collect(groups: Mapping[str, Sequence[Cell]], blocks: Mapping[str, Sequence[Path]]) -> dict[str, pd.DataFrame]:
    """The tables cells, groups, steps, evaluations, heads, rebalances and summary.

    Args:
        groups: the cells of every group.
        blocks: for the tables of training, the files of all training jobs.
    """
    frames = {name: tables.read_all(tables.BY_NAME[name], paths) for name, paths in blocks.items()}
    members = {cell.id: cell for cells in groups.values() for cell in cells}
    return {
        "cells": pd.DataFrame([cell_row(cell) for cell in members.values()]),
        "groups": pd.DataFrame(
            [{"group": group, "cell": cell.id} for group, cells in groups.items() for cell in cells]
        ),
        **frames,
        "summary": statistics.summarise(frames["steps"], frames["evaluations"], frames["heads"]),
    }


def cell_row(cell: Cell) -> dict[str, object]:
    """A cell's row of the table of cells: its settings, and the null of a random step in its layers."""
    nulls = random_step_nulls(cell.layer)
    known = {name: value for name, value in cell.model_dump().items() if name in tables.CELLS.names}
    return known | {
        "cell": cell.id,
        "qk_head_dim": cell.layer.qk_head_dim,
        "rotary_dim": cell.layer.rotary_dim,
        **{f"rho_null_{name}": value for name, value in nulls["qk"]._asdict().items()},
        **{f"rho_vo_null_{name}": value for name, value in nulls["vo"]._asdict().items()},
        "rho_scaling_null_mean": nulls["qk_scaling"].mean,
        "rho_rotation_null_mean": nulls["qk_rotation"].mean,
    }
