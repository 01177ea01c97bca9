"""Histograms in the process of the only worker: what lies on the servers else, changed by the same operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import psutil

from ps2 import cgroups
from ps2.algorithms.frame.memory import check_worker
from ps2.algorithms.trees import ops
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.boosted_growth import ROOT, BoostedGrowth
from ps2.algorithms.trees.growing import COST, DenseRows, SparseRows
from ps2.algorithms.trees.growing_kernels import add_sparse_marked
from ps2.algorithms.trees.growth import LAYOUT
from ps2.algorithms.trees.layout import SUM_BYTES, Array
from ps2.algorithms.trees.nonempty_bins import check_rows, rows_with_marks
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.rows import Binned
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.tree_matrices import columns_of, layout_row
from ps2.array_types import Int32s, Int64s
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

# Bytes of the matrix at the beginning, at most: memory that is not written to is not taken.
MAX_BYTES = 1 << 31
# Cost of adding a stored value, in additions of array elements.
ADDITION = 4


class LocalHistograms:
    """A matrix like that of ``HistogramMatrices``, and the rows that it is filled from.

    Bins are marked where rows are sparse only: histograms of dense rows have few empty bins.
    """

    def __init__(self, problem: TreeProblem, plan: BoostingPlan, bins: Bins, rows: Binned) -> None:
        self._problem, self._plan, self._bins, self._rows = problem, plan, bins, rows
        self._is_dense = isinstance(rows, DenseRows)
        self._count = int(bins.first[-1])
        columns = columns_of(bins, plan.channels)
        count = rows_with_marks(1 + min(1 << max(plan.settings.maxDepth - 1, 0), plan.max_leaves))
        limit = max(MAX_BYTES // (columns * SUM_BYTES), ROOT + 1)
        self._m = np.zeros((min(max(count, ROOT + 1), limit), columns), np.int64)
        layout = layout_row(bins, problem.absent, plan.channels, plan.monotone)
        self._m[LAYOUT, : len(layout)] = layout

    def make_room(self, rows: int) -> None:
        """Grow the matrix to at least this number of rows; LimitError if this process lacks the memory."""
        if rows > len(self._m):
            row_bytes = self._m[0].nbytes
            what = f"a tree that grows needs {rows:,} histograms of {row_bytes:,} bytes at a time,"
            advice = "expected via='servers', or trees of less depth or leaves"
            check_worker(what, rows * row_bytes, _free_bytes(), advice)
            # Memory that is not written to is not taken.
            grown = np.zeros((max(rows, 2 * len(self._m)), self._m.shape[1]), self._m.dtype)
            grown[: len(self._m)] = self._m
            self._m = grown

    def clear(self, rows: Sequence[int]) -> None:
        """Zero histograms."""
        if self._is_dense:
            self._m[rows] = 0
        else:
            ops.clear(self._m, np.array(rows), channels=self._plan.channels)

    def add(self, nodes: Sequence[tuple[int, Int32s]], pairs: Array) -> None:
        """Add the rows of nodes to their histograms; pairs: see ``DenseRows.add_histogram``."""
        if isinstance(self._rows, DenseRows):
            self._add_dense(self._rows, nodes, pairs)
        elif nodes:
            self._add_sparse(self._rows, nodes, pairs)

    def _add_dense(self, rows: DenseRows, nodes: Sequence[tuple[int, Int32s]], pairs: Array) -> None:
        """Let threads share the nodes, the largest first, and the rows of a large one."""
        ordered = sorted(nodes, key=lambda node: -len(node[1]))

        def add(some: Int64s) -> None:
            for row, order in (ordered[number] for number in some.tolist()):
                out = self._m[row].reshape(-1, self._plan.channels)
                rows.add_histogram(order, pairs, out[: self._count])

        if nodes:
            cost = COST * len(rows.first) * sum(len(order) for _, order in nodes) // len(nodes)
            over_blocks(add, (np.arange(len(nodes)),), cost=cost)

    def _add_sparse(self, sparse: SparseRows, nodes: Sequence[tuple[int, Int32s]], pairs: Array) -> None:
        channels, orders = self._plan.channels, [order for _, order in nodes]
        rows = np.array([row for row, _ in nodes])
        check_rows(self._m, channels, rows)
        pairs, sums = readable(pairs), self._m.reshape(len(self._m), -1, channels)
        ends = readable(np.append(0, np.cumsum([len(order) for order in orders])))
        node_rows = readable(rows), ends, readable(np.concatenate(orders))
        values = readable(sparse.begins), readable(sparse.columns), pairs, self._m, sums, channels
        cost = int(ends[-1]) * ADDITION * len(sparse.columns) // (max(len(sparse.begins) - 1, 1) * len(nodes)) + 1
        over_blocks(add_sparse_marked, (np.arange(len(nodes)),), *node_rows, *values, cost=cost)

    def best_splits(self, growth: BoostedGrowth) -> Splits:
        """Subtract histograms, and find the best split of each open node."""
        form = {"marks": not self._is_dense, "channels": self._plan.channels}
        if growth.subtract:
            whole, part = np.array(growth.subtract).T.copy()
            ops.subtract(self._m, whole, part, **form)
        operands = {**growth.operands(), **form, "words": self._problem.words, "full": self._is_dense}
        return Splits(*ops.best_splits(self._m, **operands, layout=LAYOUT))


def _free_bytes() -> int:
    """Return the bytes of memory that are free for this process."""
    free, in_group = int(psutil.virtual_memory().available), cgroups.free_memory_bytes()
    return free if in_group is None else min(free, in_group)
