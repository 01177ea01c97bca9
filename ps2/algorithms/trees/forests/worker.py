"""Workers of random forests: they sample rows and features, and send histograms to servers or grow whole trees."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Task
from ps2.algorithms.training.reading import Reading, SpillableReading
from ps2.algorithms.trees import ops
from ps2.algorithms.trees.binning import Bins, bin_codes
from ps2.algorithms.trees.compiled_growing import allocate_nodes, bin_columns, kernel_rows
from ps2.algorithms.trees.cut_points import FeatureColumns
from ps2.algorithms.trees.driver_messages import HEAP_INDEX, NODE, ROW, TREE, TURN, GrowTask, PlantTrees, SumRows
from ps2.algorithms.trees.forests import forest_kernels as kernels
from ps2.algorithms.trees.forests.growth import ForestGrowth, ForestTree, without_unused_splits
from ps2.algorithms.trees.forests.impurity_kernels import ForestRules
from ps2.algorithms.trees.forests.plan import ForestPlan, min_rows_to_split
from ps2.algorithms.trees.gradients import exponent_counts, quantise_pairs, sum_bounds
from ps2.algorithms.trees.growth import LAYOUT, opened_roots
from ps2.algorithms.trees.layout import SUM_BYTES, Array, UInt8s
from ps2.algorithms.trees.nonempty_bins import marked_rows, rows_with_marks
from ps2.algorithms.trees.problem import TreeProblem, key_of
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.row_blocks import (
    AnyBinned,
    AnyNodeRows,
    BinnedFile,
    HistogramSum,
    bin_rows,
    node_rows,
    read_parts,
    root_order,
)
from ps2.algorithms.trees.rows import Histogram, NodeRows, row_ids, rows_with_weight
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.tree_kernels import BinColumns, GrowingTree, Rows
from ps2.algorithms.trees.tree_matrices import columns_of, layout_row
from ps2.algorithms.trees.worker import FleetWorker
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows, new_table, row_arrays
from ps2.ops import parallel
from ps2.ops.guards import readable
from ps2.ops.parallel import MAX_BLOCKS, MIN_BLOCK, MIN_BLOCKS, over_blocks

# The number that makes the random key for rounding labels and weights; trees have the numbers from 0 on.
ROUNDING = -1


class ForestRows:
    """A worker's rows; ids: ``row_ids``; rows: binned, None before ``begin``; integer_pairs: see ``forest_kernels``."""

    def __init__(self, problem: TreeProblem, plan: ForestPlan, unbinned: KeptRows) -> None:
        self._problem, self._plan, self._unbinned = problem, plan, unbinned
        self.ids = row_ids(unbinned, problem.absent)
        self.rows: AnyBinned | None = None
        self.integer_pairs: Array = np.empty((0, 2), np.int64)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _pairs(self) -> Float64s:
        """Weights, and weights times (labels minus the base), float64, shape (n, 2)."""

        def compute(block: LocalRows) -> dict[str, Array]:
            weights = np.ones(len(block)) if block.weights is None else block.weights
            assert block.y is not None
            labels = np.zeros(len(block)) if self._plan.classes else block.y - self._problem.base[0]
            return {"pairs": np.column_stack([weights, labels * weights])}

        return row_arrays(self._unbinned, compute)["pairs"]

    def exponents(self) -> Int64s:
        """Return the ``exponent_counts`` of weights and labels."""
        return exponent_counts(self._pairs[None], self._pairs[:, 0])

    def begin(self, bins: Bins, columns: FeatureColumns | None, scales: tuple[float, float]) -> None:
        """Bin the rows, and convert weights and labels to integers; scales: see ``PlantTrees``."""
        plan, integer_pairs = self._plan, new_table(self._unbinned, (len(self), 2), np.int64)
        if plan.sums_are_counts:
            integer_pairs[:, 0] = 1
        else:
            quantise_pairs(self._pairs, self.ids, key_of(plan.seed, ROUNDING % 2**63), scales, integer_pairs)
        self.__dict__.pop("_pairs", None)  # as large as the rows
        begin = 0

        def set_classes(block: LocalRows) -> None:
            nonlocal begin
            if plan.classes:
                integer_pairs[begin : begin + len(block), 1] = block.y
                begin += len(block)

        self.rows = bin_rows(self._unbinned, bins, self._problem.absent, columns, row_wise=False, visit=set_classes)
        self.integer_pairs = readable(integer_pairs)

    @cached_property
    def arrays(self) -> Rows:
        """The binned rows as an argument of kernels."""
        assert self.rows is not None
        assert not isinstance(self.rows, BinnedFile)
        return kernel_rows(self.rows, has_blocks=False)

    def sample(self, tree: int) -> UInt8s:
        """Return the number of times that a tree has each row."""
        draws = np.empty(len(self), np.uint8)
        plan = self._plan
        if not plan.settings.bootstrap and plan.settings.subsamplingRate == 1:
            draws[:] = 1
        else:
            kernels.count_draws(readable(self.ids), plan.keys(tree)[0], plan.draw_probabilities, draws)
        return draws

    def totals(self, order: Int32s, draws: UInt8s, rules: ForestRules, where: slice = slice(None)) -> Int64s:
        """Return the sums of rows ``order`` of an interval, the rows that ``draws`` has."""
        entries, totals = np.empty((len(order), 3), np.int64), np.zeros(self._plan.channels, np.int64)
        kernels.gather(readable(order), draws, self.integer_pairs[where], rules, entries)
        kernels.sum_rows(entries, rules, totals)
        return totals


# The cost of a node's histogram, in additions of array elements.
NODE_COST = 1 << 17


class GrowingTrees:
    """Trees that grow at once from a worker's rows; scales: see ``PlantTrees``."""

    def __init__(
        self, problem: TreeProblem, plan: ForestPlan, bins: Bins, rows: ForestRows, scales: tuple[float, float]
    ) -> None:
        self._plan, self._rows, self._rules = plan, rows, plan.rules(scales)
        self._histograms = NodeHistograms(plan, self._rules, bin_columns(bins, problem.absent))
        self._growing: list[tuple[AnyNodeRows, UInt8s]] = []
        self._first = 0

    def plant(self, first: int, count: int) -> Int64s:
        """Sample the rows of ``count`` trees from number ``first`` on; return the sums of their roots."""
        assert self._rows.rows is not None
        totals = np.zeros((count, self._plan.channels), np.int64)
        self._growing, self._first = [], first
        for tree in range(count):
            draws = self._rows.sample(first + tree)
            tree_rows = node_rows(self._rows.rows, len(draws), draws > 0)
            for where, part in tree_rows.groups():
                totals[tree] += self._rows.totals(part.rows_of(0), draws[where], self._rules, where)
            self._growing.append((tree_rows, draws))
        return totals

    def move(self, splits: Int64s) -> None:
        """Move the rows of nodes to their children; splits: see ``Moves``."""
        for tree in np.unique(splits[:, TREE]).tolist():
            self._growing[tree][0].partition(splits[splits[:, TREE] == tree])

    def histograms(self, opened: Int64s) -> list[Histogram | None]:
        """Return the histogram of each node, None if it has no rows; opened: see ``Moves``."""
        sums = [HistogramSum() for _ in opened]
        for where, rows, parts in read_parts([tree_rows for tree_rows, _ in self._growing] if len(opened) else []):
            arrays = kernel_rows(rows, has_blocks=False)
            for node_sum, part in zip(sums, self._parts(opened, parts, where, arrays), strict=True):
                if part is not None:
                    node_sum.add(*part)
        return [node_sum.sparse for node_sum in sums]

    def _parts(
        self, opened: Int64s, trees: Sequence[NodeRows], where: slice, arrays: Rows
    ) -> list[tuple[Int64s, Array] | None]:
        """Return the nodes' histograms of some rows; where: their interval among all rows."""
        pairs = readable(self._rows.integer_pairs[where])

        def build(nodes: Int64s) -> list[tuple[Int64s, Array] | None]:
            return [self._histogram(node, trees[int(node[TREE])], where, arrays, pairs) for node in nodes]

        blocks = over_blocks(build, (opened,), cost=NODE_COST)
        return [histogram for block in blocks for histogram in block]

    def _histogram(
        self, node: Int64s, tree_rows: NodeRows, where: slice, arrays: Rows, pairs: Array
    ) -> tuple[Int64s, Array] | None:
        """Return the histogram of a node, None if it has no rows; node: a row of ``Moves.opened``."""
        draws, key = self._growing[int(node[TREE])][1][where], self._plan.keys(self._first + int(node[TREE]))[1]
        order = readable(tree_rows.rows_of(int(node[NODE])))
        sampling = key, int(node[HEAP_INDEX]), int(node[TURN])
        return self._histograms.of(order, draws, sampling, arrays, pairs) if len(order) else None


class ForestWorker(FleetWorker):
    """A worker that sends histograms to servers. It samples each tree's rows and each node's features."""

    def __init__(
        self, problem: TreeProblem, plan: ForestPlan, quantiles: Quantiles, reading: Reading | SpillableReading
    ) -> None:
        rows = rows_with_weight(reading.training)
        super().__init__(problem, quantiles, lambda: rows)
        self._plan, self._rows = plan, ForestRows(problem, plan, rows)
        self._trees: GrowingTrees | None = None

    def _do(self, task: SumRows | GrowTask) -> dict[str, Any]:
        if isinstance(task, SumRows):
            return {"rows": len(self._rows), "exponents": self._rows.exponents()}
        report = self._grow(task)
        assert self._trees is not None
        return {**report, "bytes": self._add_histograms(task.opened, self._trees.histograms(task.opened))}

    def catch_up(self, worker: Any, tasks: Sequence[Task]) -> None:
        grow_tasks = [task for task in tasks if isinstance(task, GrowTask)]
        # Tasks for finished trees need not be repeated.
        begin = max((number for number, task in enumerate(grow_tasks) if isinstance(task, PlantTrees)), default=0)
        for task in grow_tasks[begin:]:
            self._grow(task)

    def _grow(self, task: GrowTask) -> dict[str, Any]:
        """Move the rows of nodes to their children, or sample the rows of new trees; return the sums of new roots."""
        if isinstance(task, PlantTrees):
            if self._trees is None:
                (weight_scale, label_scale), (bins, columns) = task.scales, self._open_matrices(task)
                scales = weight_scale, label_scale
                self._rows.begin(bins, columns, scales)
                self._trees = GrowingTrees(self._problem, self._plan, bins, self._rows, scales)
            return {"totals": self._trees.plant(task.first, task.count)}
        assert self._trees is not None
        self._trees.move(task.splits)
        return {}


class NodeHistograms:
    """Builds histograms of the features that nodes sample, also in several threads."""

    def __init__(self, plan: ForestPlan, rules: ForestRules, bins: BinColumns) -> None:
        self._plan, self._rules, self._bins = plan, rules, bins
        self._scratch: SimpleQueue[tuple[Array, Array]] = SimpleQueue()

    def of(
        self, order: Int32s, draws: UInt8s, node: tuple[int, int, int], rows: Rows, integer_pairs: Array
    ) -> tuple[Int64s, Array]:
        """Return the filled bins of the features that a node samples, and their sums.

        ``node`` has the tree's key, the node's heap index and its turn; for the other args, see ``forest_kernels``.
        """
        key, heap_index, turn = node
        bins, channels = self._bins, self._plan.channels
        histogram, is_sampled = self._scratch_memory()
        features = np.empty(len(bins.usable), np.int64)
        count = kernels.sample_features(bins.usable, key, heap_index, turn, self._plan.node_features, features)
        features, entries = features[:count], np.empty((len(order), 3), np.int64)
        kernels.gather(order, draws, integer_pairs, self._rules, entries)
        kernels.build(order, rows, bins, features, is_sampled, entries, self._rules, channels, histogram)
        size = int(bins.num_bins[features].sum())
        columns, sums = np.empty(size, np.int64), np.empty((size, channels), np.int64)
        count = kernels.extract_filled(features, bins, histogram, columns, sums)
        self._scratch.put((histogram, is_sampled))
        return columns[:count], sums[:count]

    def _scratch_memory(self) -> tuple[Array, Array]:
        """Return a flat histogram of zeros, and a False flag for each feature, which no other thread uses."""
        with suppress(Empty):
            return self._scratch.get_nowait()
        zeros = np.zeros(len(self._bins.column_features) * self._plan.channels, np.int64)
        return zeros, np.zeros(len(self._bins.num_bins), np.bool_)


# A clock grows trees until this time has passed, or until its reply has this size: a message has at most 64 MB.
CLOCK_TIME_S, MAX_REPLY_BYTES = 0.5, 1 << 24


@dataclass(frozen=True)
class GrowTrees(Task):
    """Grow trees, from number ``first`` on, until the time of a clock is over."""

    first: int


class LocalForestWorker:
    """A worker that has all rows: it grows whole trees in each clock, several at once in threads."""

    def __init__(
        self, problem: TreeProblem, plan: ForestPlan, mean_weight: float | None, reading: Reading | SpillableReading
    ) -> None:
        rows = rows_with_weight(reading.training)
        quantiles = Quantiles.in_process(problem, plan.settings.maxBins, mean_weight, min_rows_to_split(plan))
        bins, columns = quantiles.find_bins(rows)
        forest_rows = ForestRows(problem, plan, rows)
        self._scales = plan.scales(sum_bounds(forest_rows.exponents()))
        forest_rows.begin(bins, columns, self._scales)
        self._grower: ForestGrower | FileForestGrower
        if isinstance(forest_rows.rows, BinnedFile):
            self._grower = FileForestGrower(problem, plan, bins, forest_rows, self._scales)
        else:
            histogram_columns = bin_columns(bins, problem.absent)
            self._grower = ForestGrower(plan, histogram_columns, forest_rows, self._scales, problem.words)
        self._bins, self._plan, self._rows = bins, plan, forest_rows

    def __call__(self, worker: Any, task: GrowTrees) -> None:
        worker.report({"replies": [self._grow(task.first)]}, merge="concat")

    def _grow(self, first: int) -> dict[str, Any]:
        """Grow trees from number ``first`` on; return a reply."""
        trees: list[ForestTree] = []
        start_s, reply_bytes = time.monotonic(), 0
        is_file = isinstance(self._grower, FileForestGrower)
        group_size = self._plan.trees_at_once if is_file else parallel.cores()
        num_trees, num_next_trees = self._plan.settings.numTrees, group_size
        end_s = start_s + CLOCK_TIME_S
        while (begin := first + len(trees)) < num_trees and time.monotonic() < end_s and reply_bytes < MAX_REPLY_BYTES:
            trees += self._grower.grow(range(begin, min(begin + num_next_trees, num_trees)))
            reply_bytes = sum(tree.gains.nbytes * 10 for tree in trees)
            # Threads wait for each other after each call, so a call grows as many trees as half of the time allows.
            tree_s = (time.monotonic() - start_s) / len(trees)
            remaining_s = end_s - time.monotonic()
            num_next_trees = int(min(max(remaining_s / 2 / tree_s, group_size), parallel.MAX_BLOCKS))
        reply: dict[str, Any] = {"trees": [tree.as_data() for tree in trees], "rows": len(self._rows)}
        reply["tree_s"] = (time.monotonic() - start_s) / max(len(trees), 1)
        if first == 0:
            reply |= {"scales": np.array(self._scales), "cuts": self._bins.cuts, "shapes": bin_codes(self._bins)}
        return reply


class ForestGrower:
    """Grows trees on the rows of one worker; scales: see ``PlantTrees``; words: see ``TreeProblem``."""

    def __init__(
        self, plan: ForestPlan, bins: BinColumns, rows: ForestRows, scales: tuple[float, float], words: int
    ) -> None:
        self._plan, self._bins, self._rows, self._words = plan, bins, rows, words
        self._rules = plan.rules(scales)

    def grow(self, trees: Sequence[int]) -> list[ForestTree]:
        assert len(trees) <= MAX_BLOCKS
        numbers = np.array(trees, np.int64)
        # Each tree is a block for ``over_blocks``.
        blocks = over_blocks(
            lambda block: [self._grow_tree(tree) for tree in block.tolist()], (numbers,), cost=MIN_BLOCKS * MIN_BLOCK
        )
        return [tree for block in blocks for tree in block]

    def _grow_tree(self, tree: int) -> ForestTree:
        plan = self._plan
        draws = self._rows.sample(tree)
        order = root_order(draws > 0, len(draws))
        totals = self._rows.totals(order, draws, self._rules)
        nodes = allocate_nodes(2 * min(1 << plan.settings.maxDepth, max(len(order), 1)) - 1, plan.channels, self._words)
        nodes.ends[0, 1], nodes.totals[0] = len(order), totals
        growing = GrowingTree(order, np.empty_like(order), self._rows.arrays, self._bins, nodes)
        feature_sampling = kernels.FeatureSampling(plan.keys(tree)[1], plan.node_features, plan.turns)
        search = kernels.forest_search(growing, draws, self._rows.integer_pairs, feature_sampling, self._rules)
        count = kernels.grow_forest_tree(search, growing)
        best = Splits._make(array[:count] for array in nodes.best)
        children, sums = nodes.children[:count].copy(), nodes.totals[:count].copy()
        return without_unused_splits(ForestTree(children, best.conditions, best.sets, best.gains, sums))


# The maximum bytes, and the maximum number, of histograms of trees that grow from rows in a file.
MAX_FILE_BYTES, MAX_FILE_HISTOGRAMS = 1 << 27, 1024


class FileForestGrower:
    """Grows trees on the rows of one worker, which are in a file: all their nodes of a level in one pass."""

    def __init__(
        self, problem: TreeProblem, plan: ForestPlan, bins: Bins, rows: ForestRows, scales: tuple[float, float]
    ) -> None:
        self._problem, self._plan, self._scales = problem, plan, scales
        self._trees = GrowingTrees(problem, plan, bins, rows, scales)
        self._num_usable = int((bins.num_columns > 0).sum())
        columns = columns_of(bins, plan.channels)
        count = min(MAX_FILE_HISTOGRAMS, max(MAX_FILE_BYTES // (columns * SUM_BYTES), plan.trees_at_once))
        self._m = np.zeros((rows_with_marks(1 + count), columns), np.int64)
        layout = layout_row(bins, problem.absent, plan.channels)
        self._m[LAYOUT, : len(layout)] = layout

    def grow(self, trees: Sequence[int]) -> list[ForestTree]:
        grown, group_size = list[ForestTree](), self._plan.trees_at_once
        for begin in range(0, len(trees), group_size):
            grown += self._grow_together(trees[begin : begin + group_size])
        return grown

    def _grow_together(self, trees: Sequence[int]) -> list[ForestTree]:
        plan, slots = self._plan, [row for row in marked_rows(len(self._m)) if row != LAYOUT]
        totals = self._trees.plant(trees[0], len(trees))
        growth = ForestGrowth(plan, self._scales, totals, slots, self._num_usable)
        opened = opened_roots(slots[: len(trees)] if growth.open else [])
        while True:
            best = None
            if growth.open:
                self._add(opened)
                operands = growth.operands()
                best = Splits(*ops.purest_splits(self._m, **operands, layout=LAYOUT, words=self._problem.words))
                ops.clear(self._m, operands["rows"], channels=plan.channels)
            moves = growth.advance(best)
            if growth.is_over:
                return growth.trees
            self._trees.move(moves.splits)
            opened = moves.opened

    def _add(self, opened: Int64s) -> None:
        for row, histogram in zip(opened[:, ROW].tolist(), self._trees.histograms(opened), strict=True):
            if histogram is not None:
                bins, sums = histogram
                assert bins is not None
                ops.add(self._m, bins * sums.shape[1], sums, row=row, marks=True)
