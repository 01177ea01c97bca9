"""What the driver tells the workers for each clock; a worker that is started again reads all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float64s, Int64s

Bools = npt.NDArray[np.bool_]


class Task(IntEnum):
    """What workers do in a clock, after their rows have moved."""

    BEGIN = 0  # before the training, and at its end: losses, gradients, and how large they are
    ROOT = 1  # the first histogram of a tree; for the first tree of a round, what BEGIN does as well
    NODES = 2  # the histograms of more nodes
    STOP = 3
    COARSE = 4  # residuals in the leaves of a tree that has grown
    FINE = 5  # residuals in the cells that hold the leaves' quantiles


def has_gradients(task: Task, tree: int, width: int) -> bool:
    """Return whether workers compute losses and gradients in a clock: once before each round of ``width`` trees."""
    return task == Task.BEGIN or (task == Task.ROOT and tree > 0 and tree % width == 0)


# Columns of ``splits``; the words of a set of categories follow.
NODE, FEATURE, BIN, DEFAULT_LEFT, LEFT, BUILT, ROW = range(7)
FIELDS = 7
# Stands for a missing number.
NONE = -1


@dataclass(frozen=True, eq=False)
class FinalNodes:
    """The nodes of a tree whose splits are final, in the tree's order.

    Attributes:
        numbers: int64: the numbers that workers know the nodes by.
        is_leaf: bool.
        values: float64: what each leaf adds to its rows' margins; 0 for inner nodes.
    """

    numbers: Int64s
    is_leaf: Bools
    values: Float64s

    @property
    def leaves(self) -> Int64s:
        """The numbers that workers know the leaves by."""
        return self.numbers[self.is_leaf]


NO_SPLITS, NO_CELLS = np.empty((0, FIELDS), np.int64), np.empty(0, np.int64)
NO_NODES = FinalNodes(np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0))


@dataclass(frozen=True, eq=False)
class DriverMessage:
    """What workers do in one clock: first move their rows, then a task.

    Attributes:
        clock: of the run.
        tree: which one it is about, from 0.
        scales: factors of hessians and gradients (ROOT).
        matrices: numbers of the matrices on the servers: histograms; cut points; sizes of features.
        splits: int64, shape (n, FIELDS + words): nodes whose rows are to be parted. LEFT is the left child's number,
            and the right child has the next one. BUILT names the child (0: left, 1: right, NONE) whose histogram
            workers add to ROW. The tree may come to have these splits, or not.
        nodes: of a tree that is over; empty until then. (COARSE and FINE: leaves have no values yet.)
        cells: int64 (FINE): the coarse cell of each leaf.
    """

    clock: int
    task: Task
    tree: int
    scales: tuple[float, float] = (1.0, 1.0)
    matrices: tuple[int, int, int] = (0, 0, 0)
    splits: Int64s = field(default_factory=lambda: NO_SPLITS)
    nodes: FinalNodes = NO_NODES
    cells: Int64s = field(default_factory=lambda: NO_CELLS)

    def as_data(self) -> dict[str, Any]:
        """Return it as plain data, without empty arrays."""
        data: dict[str, Any] = {"clock": self.clock, "task": int(self.task), "tree": self.tree}
        data |= {"scales": np.array(self.scales), "matrices": np.array(self.matrices)}
        if len(self.splits):
            data["splits"] = self.splits
        if len(self.nodes.numbers):
            data["nodes"] = list(vars(self.nodes).values())
        return {**data, "cells": self.cells} if len(self.cells) else data

    @staticmethod
    def of_data(data: Mapping[str, Any]) -> DriverMessage:
        """Undo ``as_data``."""
        (h, g), (first, second, third) = data["scales"].tolist(), data["matrices"].tolist()
        given = data["clock"], Task(data["task"]), data["tree"], (h, g), (first, second, third)
        nodes = FinalNodes(*data["nodes"]) if "nodes" in data else NO_NODES
        return DriverMessage(*given, data.get("splits", NO_SPLITS), nodes, data.get("cells", NO_CELLS))
