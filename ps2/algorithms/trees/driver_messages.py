"""What workers do clock by clock while trees grow; a worker that begins again catches up with all earlier tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.frame.program import Task
from ps2.array_types import Float64s, Int64s

Bools = npt.NDArray[np.bool_]

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


NO_SPLITS = np.empty((0, FIELDS), np.int64)
NO_NODES = FinalNodes(np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0))


@dataclass(frozen=True, eq=False)
class Moves:
    """How rows move before a task.

    Attributes:
        splits: int64, shape (n, FIELDS + words): nodes whose rows are to be parted. LEFT is the left child's number,
            and the right child has the next one. BUILT names the child (0: left, 1: right, NONE) whose histogram
            workers add to ROW. The tree may come to have these splits, or not.
        nodes: the nodes of a finished tree; empty until then.
    """

    splits: Int64s = field(default_factory=lambda: NO_SPLITS)
    nodes: FinalNodes = NO_NODES

    def fields(self) -> dict[str, Any]:
        """Return the fields of a ``GrowTask``."""
        return {"splits": self.splits, **vars(self.nodes)}


@dataclass(frozen=True, eq=False, kw_only=True)
class GrowTask(Task):
    """What workers do in a clock: they move their rows (``Moves``), then do the task.

    Attributes:
        matrices: the numbers of the matrices on the servers: histograms, cut points, sizes of features.
        splits, numbers, is_leaf, values: see ``Moves`` and ``FinalNodes``.
    """

    matrices: Sequence[int]
    splits: Int64s = field(default_factory=lambda: NO_SPLITS)
    numbers: Int64s = field(default_factory=lambda: NO_NODES.numbers)
    is_leaf: Bools = field(default_factory=lambda: NO_NODES.is_leaf)
    values: Float64s = field(default_factory=lambda: NO_NODES.values)

    @property
    def nodes(self) -> FinalNodes:
        """The nodes of a finished tree; empty until then."""
        return FinalNodes(self.numbers, self.is_leaf, self.values)


@dataclass(frozen=True, eq=False, kw_only=True)
class SumGradients(GrowTask):
    """Report the loss, and how large the gradients are: before the first round, and after the last one."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PlantTree(GrowTask):
    """Begin a tree with all rows in its root: report their totals, and add the root's histogram.

    Attributes:
        tree: the tree's number, from 0.
        scales: factors of hessians and gradients.
        begins_round: the tree is the first of a round after the first one. Workers do what ``SumGradients`` says, too.
    """

    tree: int
    scales: Sequence[float]
    begins_round: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class AddHistograms(GrowTask):
    """Add the histograms of the nodes that ``splits`` say."""


@dataclass(frozen=True, eq=False, kw_only=True)
class AddResiduals(GrowTask):
    """Add the residuals in the leaves of a grown tree, whose values are not known yet.

    Attributes:
        cells: int64: the coarse cell that has the quantile of each leaf; None: add to the coarse cells.
    """

    cells: Int64s | None
