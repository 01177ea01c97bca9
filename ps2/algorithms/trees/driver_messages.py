"""The tasks of workers while trees grow on servers; a worker that begins again catches up with all earlier tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Task
from ps2.algorithms.trees.layout import Bools
from ps2.array_types import Float64s, Int64s

# Columns of ``splits``; the words of a set of categories follow.
TREE, NODE, FEATURE, BIN, DEFAULT_LEFT, LEFT = range(6)
FIELDS = 6
# Columns of ``opened``, after the tree and the node.
PLACE, TURN, ROW = range(2, 5)
OPENED_FIELDS = 5
# Stands for a missing number.
NONE = -1


class CutPointTask(Task):
    """A task of the clocks that find cut points."""


@dataclass(frozen=True)
class CountRows(CutPointTask):
    """Count the rows that hold each feature."""


@dataclass(frozen=True)
class AddValues(CutPointTask):
    """Add the weights of values by the upper half of their bits."""


@dataclass(frozen=True)
class AddLowerHalves(CutPointTask):
    """Add the weights of the values that the upper half does not tell apart."""


@dataclass(frozen=True)
class AddCells(CutPointTask):
    """Add weights by the cells of a turn."""

    turn: int


@dataclass(frozen=True, eq=False)
class FinalNodes:
    """The final nodes of a tree, in its order; numbers: those that workers know; values: of leaves, else 0."""

    numbers: Int64s
    is_leaf: Bools
    values: Float64s

    @property
    def leaves(self) -> Int64s:
        """The numbers that workers know the leaves by."""
        return self.numbers[self.is_leaf]


NO_SPLITS = np.empty((0, FIELDS), np.int64)
NO_NODES = FinalNodes(np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0))
NO_OPENED = np.empty((0, OPENED_FIELDS), np.int64)


@dataclass(frozen=True, eq=False)
class Moves:
    """How rows move before a task.

    Attributes:
        splits: int64, shape (n, FIELDS + words): nodes whose rows are to be parted. TREE counts from 0 among the trees
            that grow at once. LEFT is the left child's number, and the right child has the next one. The tree may come
            to have these splits, or not.
        nodes: the nodes of a finished tree; empty until then.
        opened: int64, shape (n, OPENED_FIELDS): nodes whose histograms workers add to ROW. TURN counts from 0 how often
            the node has drawn features.
    """

    splits: Int64s = field(default_factory=lambda: NO_SPLITS)
    nodes: FinalNodes = NO_NODES
    opened: Int64s = field(default_factory=lambda: NO_OPENED)

    def fields(self) -> dict[str, Any]:
        """Return the fields of a ``GrowTask``."""
        return {"splits": self.splits, "opened": self.opened, **vars(self.nodes)}


@dataclass(frozen=True, eq=False, kw_only=True)
class GrowTask(Task):
    """A task while trees grow: workers move their rows, do the task, and add the histograms of the opened nodes.

    Attributes:
        matrices: the numbers of the matrices on the servers: histograms, cut points, sizes of features.
        splits, opened, numbers, is_leaf, values: see ``Moves`` and ``FinalNodes``.
    """

    matrices: Sequence[int]
    splits: Int64s = field(default_factory=lambda: NO_SPLITS)
    opened: Int64s = field(default_factory=lambda: NO_OPENED)
    numbers: Int64s = field(default_factory=lambda: NO_NODES.numbers)
    is_leaf: Bools = field(default_factory=lambda: NO_NODES.is_leaf)
    values: Float64s = field(default_factory=lambda: NO_NODES.values)

    @property
    def nodes(self) -> FinalNodes:
        """The nodes of a finished tree; empty until then."""
        return FinalNodes(self.numbers, self.is_leaf, self.values)


@dataclass(frozen=True, eq=False, kw_only=True)
class AddHistograms(GrowTask):
    """Add the histograms of the opened nodes: of boosted trees and of random forests."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SumGradients(GrowTask):
    """Report the loss, and how large the gradients are: before the first round, and after the last one."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PlantTrees(GrowTask):
    """Begin trees: report the totals of their roots. The rows of a random forest's tree are drawn.

    Attributes:
        first: the number of the first of these trees.
        count: the number of trees.
        scales: factors that make hessians and gradients, or weights and labels, whole numbers.
        begins_round: the boosted tree is the first of a round after the first one. Workers do what ``SumGradients``
            says, too.
    """

    first: int
    scales: Sequence[float]
    count: int = 1
    begins_round: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class AddResiduals(GrowTask):
    """Add the residuals in a grown tree's leaves; cells: the coarse cell of each; None: add to coarse cells."""

    cells: Int64s | None


@dataclass(frozen=True)
class SumRows(Task):
    """Report the number of a random forest's rows, and the size of their weights and labels."""
