"""The tasks that workers get from the driver while trees grow on servers. A restarted worker redoes earlier tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Task
from ps2.algorithms.trees.layout import Bools
from ps2.array_types import Float64s, Int64s

# The columns of ``Moves.splits``; the set of categories that go left follows, as bits.
TREE, NODE, FEATURE, BIN, DEFAULT_LEFT, LEFT = range(6)
FIELDS = 6
# The columns of ``Moves.opened`` after TREE and NODE.
HEAP_INDEX, TURN, ROW = range(2, 5)
OPENED_FIELDS = 5
# Stands for the number of a node, or of a matrix row, that does not exist.
NONE = -1


class CutPointTask(Task):
    """A task of the clocks that find cut points; see ``quantiles``."""


@dataclass(frozen=True)
class CountRows(CutPointTask):
    """Count the rows that store each feature."""


@dataclass(frozen=True)
class AddValues(CutPointTask):
    """Add the weights of values, by the upper half of their bits."""


@dataclass(frozen=True)
class AddLowerHalves(CutPointTask):
    """Add the weights of values that share their upper half, by the lower half of their bits."""


@dataclass(frozen=True)
class AddCells(CutPointTask):
    """Add the weights of values, by the cells of a turn."""

    turn: int


@dataclass(frozen=True, eq=False)
class FinalNodes:
    """The nodes of a finished tree; numbers: the workers' numbers of nodes; values: of leaves; inner nodes have 0."""

    numbers: Int64s
    is_leaf: Bools
    values: Float64s

    @property
    def leaves(self) -> Int64s:
        return self.numbers[self.is_leaf]


NO_SPLITS = np.empty((0, FIELDS), np.int64)
NO_NODES = FinalNodes(np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0))
NO_OPENED = np.empty((0, OPENED_FIELDS), np.int64)


@dataclass(frozen=True, eq=False)
class Moves:
    """What workers do with their rows before a task.

    Attributes:
        splits: nodes whose rows move to their children, int64, shape (n, FIELDS + words). TREE is an index among the
            trees that grow at once. LEFT is the left child's number; the right child has the next number. Some of these
            splits may not be in the finished tree.
        nodes: the nodes of the finished tree; empty: the tree still grows.
        opened: nodes whose histograms workers build, int64, shape (n, OPENED_FIELDS). HEAP_INDEX: see ``growth.Node``.
            ROW is the matrix row of the histogram. TURN is the number of times that the node has already sampled
            features.
    """

    splits: Int64s = field(default_factory=lambda: NO_SPLITS)
    nodes: FinalNodes = NO_NODES
    opened: Int64s = field(default_factory=lambda: NO_OPENED)

    def fields(self) -> dict[str, Any]:
        """Return these moves as keyword arguments of a ``GrowTask``."""
        return {"splits": self.splits, "opened": self.opened, **vars(self.nodes)}


@dataclass(frozen=True, eq=False, kw_only=True)
class GrowTask(Task):
    """A task while trees grow: workers move their rows, do the task, and send the histograms of the opened nodes.

    Attributes:
        matrices: the ids of three matrices on the servers: histograms, cut points, and ``bin_codes``.
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
        """The nodes of the finished tree; empty: the tree still grows."""
        return FinalNodes(self.numbers, self.is_leaf, self.values)


@dataclass(frozen=True, eq=False, kw_only=True)
class AddHistograms(GrowTask):
    """Send the histograms of the opened nodes, and do nothing else."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SumGradients(GrowTask):
    """Compute gradients and report losses: before the first round, and after the last one.

    Attributes:
        last_trees: with DART, the trees of the last round (``tree_as_data``); empty: there is no round.
    """

    last_trees: Sequence[Any] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class PlantTrees(GrowTask):
    """Begin trees: sample their rows, and report the sums over the rows of their roots.

    Attributes:
        first: the number of the first of these trees.
        scales: two factors that make hessians and gradients (of a random forest: weights and labels) integers.
        top: the fields of ``goss.TopRows``; empty: trees do not sample rows by their gradients.
        begins_round: whether the tree is the first of a round other than the first round. Then workers do the task
            ``SumGradients``, too.
    """

    first: int
    scales: Sequence[float]
    count: int = 1
    top: Sequence[float] = ()
    begins_round: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class AddResiduals(GrowTask):
    """Add the residuals of leaves to the fine cells in each leaf's coarse cell; cells None: to coarse cells."""

    cells: Int64s | None


@dataclass(frozen=True)
class SumRows(Task):
    """Report the number of rows, and ``exponent_counts`` of their weights and labels, for a random forest."""
