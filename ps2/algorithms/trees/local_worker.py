"""Boosting in a worker that has all rows: it finds cut points, and grows whole rounds of trees in each clock.

It finds the same splits as servers do, by the same kernels.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil

from ps2 import cgroups
from ps2.algorithms.frame.memory import check_worker
from ps2.algorithms.frame.program import Task
from ps2.algorithms.training.reading import Reading, SpillableReading
from ps2.algorithms.trees import ops
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.boosted_growth import ROOT, BoostedGrowth
from ps2.algorithms.trees.boosted_rows import BoostedRows, UnbinnedRows
from ps2.algorithms.trees.boosting_record import next_scales, scales_of_round, sums_gradients_first
from ps2.algorithms.trees.compiled_growing import CompiledGrower, is_compiled
from ps2.algorithms.trees.driver_messages import NODE, ROW, FinalNodes
from ps2.algorithms.trees.goss import top_rows
from ps2.algorithms.trees.gradients import sum_bounds
from ps2.algorithms.trees.growing_kernels import add_sparse_marked
from ps2.algorithms.trees.growth import LAYOUT, opened_roots
from ps2.algorithms.trees.layout import SUM_BYTES, Array
from ps2.algorithms.trees.leaf_quantiles import local_quantiles, unit_of_weights
from ps2.algorithms.trees.nonempty_bins import check_rows, rows_with_marks
from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.row_blocks import AnyBinned, BinnedFile, read_parts
from ps2.algorithms.trees.rows import (
    BIN_COST,
    Binned,
    DenseRows,
    NodeRows,
    SparseRows,
    rows_with_weight,
    with_all_columns,
)
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.statistic_sums import StatisticSums, StatisticTask
from ps2.algorithms.trees.tree import Forest, Tree, tree_as_data
from ps2.algorithms.trees.tree_matrices import columns_of, layout_row
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

# A clock grows rounds for this time: longer than the overhead of a clock, but short, as a restarted worker repeats it.
CLOCK_TIME_S = 0.5
# The number of trees that a restarted worker adds to the margins in one call of ``Predictor``.
TREES_PER_CALL = 16


@dataclass(frozen=True, eq=False)
class GrowRounds(Task):
    """Grow whole rounds until the time of a clock is over.

    Attributes:
        first: the number of trees before ``trees``.
        trees: the trees of the previous clock (``tree_as_data``), which a restarted worker does not have.
        scales: the factors that make hessians and gradients integers after these trees; None: there are no trees.
    """

    first: int
    trees: list[Any]
    scales: Float64s | None


class LocalTreeWorker:
    """A worker that grows boosted trees on all rows; min_rows: see ``Quantiles``."""

    def __init__(
        self,
        problem: TreeProblem,
        plan: BoostingPlan,
        statistics: StatisticSums | None,
        min_rows: int,
        mean_weight: float | None,
        reading: Reading | SpillableReading,
    ) -> None:
        self._problem, self._plan, self._min_rows, self._mean_weight = problem, plan, min_rows, mean_weight
        rows = rows_with_weight(reading.training)
        self._unbinned = UnbinnedRows(problem, statistics, rows, reading.held_out)
        self._is_binned = False
        self._num_trees = 0
        self._last_trees: list[Tree] = []  # the trees of the last round, or of the last call of ``_add``
        self._scales = (1.0, 1.0)
        self._lap_began_s = time.monotonic()

    def _bin_rows(self) -> None:
        problem, plan, mean_weight = self._problem, self._plan, self._mean_weight
        training, held_out = self._unbinned.training, self._unbinned.held_out
        quantiles = Quantiles.in_process(problem, plan.settings.maxBins, mean_weight, self._min_rows)
        bins, columns = quantiles.find_bins(training)
        self._rows = BoostedRows(problem, plan, bins, (training, held_out), columns, self._unbinned.ids)
        self._grower = LocalGrower(problem, plan, bins, self._rows, unit_of_weights(mean_weight))

    def __call__(self, worker: Any, task: Task) -> None:
        if isinstance(task, StatisticTask):
            self._unbinned.do(task)
            return
        self.catch_up(worker, [task])
        worker.report({"rounds": self._grow_rounds()}, merge="concat")

    def catch_up(self, worker: Any, tasks: Sequence[Task]) -> None:
        """Add the trees that an earlier attempt of this worker has grown."""
        trees: list[Tree] = []
        if not self._is_binned:
            self._bin_rows()
            self._is_binned = True
        for task in tasks:
            if not isinstance(task, GrowRounds):
                continue
            num_known = self._num_trees + len(trees) - task.first
            if num_known < len(task.trees):
                assert task.scales is not None
                trees += [Tree(*data) for data in task.trees[num_known:]]
                h_scale, g_scale = task.scales.tolist()
                self._scales = h_scale, g_scale
        step = TREES_PER_CALL if self._plan.dropout is None else self._problem.objective.width
        for begin in range(0, len(trees), step):
            self._add(trees[begin : begin + step])
        self._unbinned.forget_statistics()

    def _add(self, trees: list[Tree]) -> None:
        """Add trees to the margins of all rows; with DART, those of one round."""
        self._rows.begin_round(self._last_trees)
        self._last_trees = trees
        problem, width = self._problem, self._problem.objective.width
        forest = Forest(tuple(trees), np.zeros(1), problem.dim, absent=problem.absent)
        unbinned = self._unbinned.training, self._unbinned.held_out
        for rows, row_set in zip(unbinned, (self._rows.training, self._rows.held_out), strict=True):
            if rows is None or row_set is None or not len(rows):
                continue
            predictor, begin = Predictor(forest), 0
            for block in rows.blocks():
                leaves, margins = predictor.leaves(with_all_columns(block, problem.dim)), row_set.margins[begin:]
                for number, tree in enumerate(trees, self._num_trees):
                    values = tree.value[leaves[:, number - self._num_trees]]
                    margins[: len(block), number % width] += values
                begin += len(block)
        for tree in trees:
            self._rows.widen_span(tree.value[tree.is_leaf])
        self._num_trees += len(trees)

    def _grow_rounds(self) -> list[dict[str, Any]]:
        """Grow rounds for the time of a clock; return a reply for each, and one without trees after the last round."""
        ends_s, replies = time.monotonic() + CLOCK_TIME_S, []
        width = self._problem.objective.width
        while True:
            round_number = self._num_trees // width
            sums = self._rows.compute_gradients(self._last_trees)
            # The duration of the round, which ends when its losses are known.
            sums["lap_s"], self._lap_began_s = time.monotonic() - self._lap_began_s, time.monotonic()
            bounds, cells = sum_bounds(sums.pop("exponents")), sums.pop("cells", None)
            if "held" in sums:
                sums["held"] = [self._rows.metric.value(set_sums) for set_sums in sums["held"]]
            top: Sequence[float] = ()
            if cells is not None and self._plan.samples_by_gradient(round_number):
                top = top_rows(cells, self._plan.settings.topRate)
            trees = self._grow_round(bounds, top) if round_number < self._plan.settings.maxIter else []
            reply = {**sums, "bytes": 0, "round": round_number, "trees": [tree_as_data(tree) for tree in trees]}
            replies.append({**reply, "scales": np.array(self._scales)})
            if not trees or time.monotonic() > ends_s:
                return replies

    def _grow_round(self, bounds: Float64s, top: Sequence[float]) -> list[Tree]:
        """Grow the trees of a round; bounds: ``sum_bounds`` of its gradients; top: see ``PlantTrees``."""
        if not self._num_trees or sums_gradients_first(self._problem, self._plan):
            self._scales = scales_of_round(self._plan, bounds)
        trees = []
        for _ in range(self._problem.objective.width):
            trees.append(self._grower.grow(self._num_trees, self._scales, top))
            self._num_trees += 1
        self._last_trees = trees
        if not sums_gradients_first(self._problem, self._plan):
            self._scales = next_scales(self._problem, self._plan, bounds, trees)
        return trees


class LocalGrower:
    """Grows trees from the rows of one worker; weight_unit: see ``LeafQuantiles``."""

    def __init__(
        self, problem: TreeProblem, plan: BoostingPlan, bins: Bins, rows: BoostedRows, weight_unit: float
    ) -> None:
        self._problem, self._plan, self._bins, self._rows = problem, plan, bins, rows
        self._weight_unit = weight_unit
        self._compiled: CompiledGrower | None = None
        binned_rows = rows.training.rows
        if not isinstance(binned_rows, BinnedFile) and is_compiled(plan, binned_rows):
            self._compiled = CompiledGrower(problem, plan, binned_rows)
        else:
            self._histograms = LocalHistograms(problem, plan, bins, binned_rows)

    def grow(self, number: int, scales: tuple[float, float], top: Sequence[float] = ()) -> Tree:
        """Grow a tree from the computed gradients, and add it to the margins; scales, top: see ``PlantTrees``."""
        plan, rows = self._plan, self._rows
        totals = rows.plant(number, scales, top)
        rate = plan.rate_of(number, self._problem.objective.width)
        if self._compiled is not None:
            tree, moves = self._compiled.grow(rows, number, scales, totals, rate)
            nodes = moves.nodes
            for node_rows, _ in rows.moving_rows:
                if node_rows is not rows.tree_rows:
                    assert isinstance(node_rows, NodeRows)
                    node_rows.partition_one_by_one(moves.splits)
        else:
            growth = BoostedGrowth(plan, self._bins, scales, totals, number, rate)
            if not isinstance(rows.training.rows, BinnedFile):  # one pass over a file for many nodes
                growth.nodes_per_clock = 1
            nodes = self._grow_in_steps(growth)
            tree = growth.tree
        assert rows.tree_rows is not None
        tree.count[:] = rows.tree_rows.counts(nodes)
        level = self._problem.objective.leaf_quantile_level
        # Monotone constraints hold only for leaves whose values come from gradients.
        if level is not None and not plan.monotone:
            leaves = nodes.leaves
            values = local_quantiles(level, self._weight_unit, len(leaves), lambda: rows.leaf_rows(leaves))
            tree.value[nodes.is_leaf] = values * rate
            nodes = replace(nodes, values=np.where(nodes.is_leaf, tree.value, 0.0))
        rows.end(nodes)
        return tree

    def _grow_in_steps(self, growth: BoostedGrowth) -> FinalNodes:
        """Grow a tree by ``BoostedGrowth``, and move rows to the leaves; return the tree's nodes."""
        rows, histograms, opened = self._rows, self._histograms, opened_roots([ROOT])
        assert rows.tree_rows is not None
        while True:
            best = None
            if growth.open:
                for where, part_rows, (part,) in read_parts([rows.tree_rows]):
                    nodes = [(row, part.rows_of(node)) for node, row in opened[:, [NODE, ROW]].tolist()]
                    histograms.add(part_rows, nodes, rows.channel_values[where])
                best = histograms.best_splits(growth)
            moves = growth.advance(best)
            histograms.reserve_rows(growth.num_rows)
            if growth.clear:
                histograms.clear(growth.clear)
            for node_rows, _ in rows.moving_rows:
                node_rows.partition(moves.splits)
            if growth.is_over:
                return moves.nodes
            opened = moves.opened


# The maximum initial bytes of the matrix. The operating system allocates only the pages that are written.
MAX_BYTES = 1 << 31
# The cost of adding a stored value, in additions of array elements.
ADD_COST = 4


class LocalHistograms:
    """A matrix of histograms in this process, like that of ``HistogramMatrices``.

    Only histograms of sparse rows have marks: those of dense rows have few empty bins.
    """

    def __init__(self, problem: TreeProblem, plan: BoostingPlan, bins: Bins, rows: AnyBinned) -> None:
        self._problem, self._plan, self._bins = problem, plan, bins
        self._is_dense = rows.is_dense if isinstance(rows, BinnedFile) else isinstance(rows, DenseRows)
        self._count = int(bins.first_columns[-1])
        columns = columns_of(bins, plan.channels)
        count = rows_with_marks(1 + min(1 << max(plan.settings.maxDepth - 1, 0), plan.max_leaves))
        limit = max(MAX_BYTES // (columns * SUM_BYTES), ROOT + 1)
        self._m = np.zeros((min(max(count, ROOT + 1), limit), columns), np.int64)
        layout = layout_row(bins, problem.absent, plan.channels, plan.monotone)
        self._m[LAYOUT, : len(layout)] = layout

    def reserve_rows(self, rows: int) -> None:
        """Grow the matrix to at least this number of rows; LimitError if this process lacks the memory."""
        if rows > len(self._m):
            row_bytes = self._m[0].nbytes
            what = f"a tree that grows needs {rows:,} histograms of {row_bytes:,} bytes at a time,"
            advice = "expected via='servers', or trees of less depth or leaves"
            check_worker(what, rows * row_bytes, _free_bytes(), advice)
            grown = np.zeros((max(rows, 2 * len(self._m)), self._m.shape[1]), self._m.dtype)
            grown[: len(self._m)] = self._m
            self._m = grown

    def clear(self, rows: Sequence[int]) -> None:
        if self._is_dense:
            self._m[rows] = 0
        else:
            ops.clear(self._m, np.array(rows), channels=self._plan.channels)

    def add(self, rows: Binned, nodes: Sequence[tuple[int, Int32s]], pairs: Array) -> None:
        """Add the rows of nodes to their histograms; pairs: see ``DenseRows.add_histogram``."""
        if isinstance(rows, DenseRows):
            self._add_dense(rows, nodes, pairs)
        elif nodes:
            self._add_sparse(rows, nodes, pairs)

    def _add_dense(self, rows: DenseRows, nodes: Sequence[tuple[int, Int32s]], pairs: Array) -> None:
        """Divide the nodes among threads, the largest first; ``add_histogram`` divides the rows of a large node."""
        ordered = sorted(nodes, key=lambda node: -len(node[1]))

        def add(indices: Int64s) -> None:
            for row, order in (ordered[index] for index in indices.tolist()):
                out = self._m[row].reshape(-1, self._plan.channels)
                rows.add_histogram(order, pairs, out[: self._count])

        if nodes:
            cost = BIN_COST * len(rows.first) * sum(len(order) for _, order in nodes) // len(nodes)
            over_blocks(add, (np.arange(len(nodes)),), cost=cost)

    def _add_sparse(self, sparse: SparseRows, nodes: Sequence[tuple[int, Int32s]], pairs: Array) -> None:
        channels, orders = self._plan.channels, [order for _, order in nodes]
        rows = np.array([row for row, _ in nodes])
        check_rows(self._m, channels, rows)
        pairs, sums = readable(pairs), self._m.reshape(len(self._m), -1, channels)
        ends = readable(np.append(0, np.cumsum([len(order) for order in orders])))
        node_rows = readable(rows), ends, readable(np.concatenate(orders))
        values = readable(sparse.begins), readable(sparse.columns), pairs, self._m, sums, channels
        cost = int(ends[-1]) * ADD_COST * len(sparse.columns) // (max(len(sparse.begins) - 1, 1) * len(nodes)) + 1
        over_blocks(add_sparse_marked, (np.arange(len(nodes)),), *node_rows, *values, cost=cost)

    def best_splits(self, growth: BoostedGrowth) -> Splits:
        """Subtract histograms, and find the best split of each open node."""
        options = {"marks": not self._is_dense, "channels": self._plan.channels}
        if growth.subtract:
            parents, children = np.array(growth.subtract).T.copy()
            ops.subtract(self._m, parents, children, **options)
        operands = {**growth.operands(), **options, "words": self._problem.words, "full": self._is_dense}
        return Splits(*ops.best_splits(self._m, **operands, layout=LAYOUT))


def _free_bytes() -> int:
    free, in_group = int(psutil.virtual_memory().available), cgroups.free_memory_bytes()
    return free if in_group is None else min(free, in_group)
