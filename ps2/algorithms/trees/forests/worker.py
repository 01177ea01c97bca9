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
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.trees.binning import Bins, bin_codes
from ps2.algorithms.trees.compiled_growing import allocate_nodes, bin_columns, kernel_rows
from ps2.algorithms.trees.cut_points import FeatureColumns
from ps2.algorithms.trees.driver_messages import HEAP_INDEX, NODE, TREE, TURN, GrowTask, PlantTrees, SumRows
from ps2.algorithms.trees.forests import forest_kernels as kernels
from ps2.algorithms.trees.forests.growth import ForestTree, without_unused_splits
from ps2.algorithms.trees.forests.impurity_kernels import ForestRules
from ps2.algorithms.trees.forests.plan import ForestPlan, min_rows_to_split
from ps2.algorithms.trees.gradients import exponent_counts, quantise_pairs, sum_bounds
from ps2.algorithms.trees.layout import Array, UInt8s
from ps2.algorithms.trees.problem import TreeProblem, key_of
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.rows import Binned, NodeRows, binned, row_ids, rows_with_weight
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.tree_kernels import BinColumns, GrowingTree, Rows
from ps2.algorithms.trees.worker import FleetWorker, Histogram
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.data.rows import LocalRows
from ps2.ops import parallel
from ps2.ops.guards import readable
from ps2.ops.parallel import MAX_BLOCKS, MIN_BLOCK, MIN_BLOCKS, over_blocks

# The number that makes the random key for rounding labels and weights; trees have the numbers from 0 on.
ROUNDING = -1


class ForestRows:
    """A worker's rows; ids: ``row_ids``; rows: binned, None before ``begin``; integer_pairs: see ``forest_kernels``."""

    def __init__(self, problem: TreeProblem, plan: ForestPlan, unbinned: LocalRows) -> None:
        self._problem, self._plan, self._unbinned = problem, plan, unbinned
        self.ids = row_ids(unbinned, problem.absent)
        self.rows: Binned | None = None
        self.integer_pairs: Array = np.empty((0, 2), np.int64)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _pairs(self) -> Float64s:
        """Weights, and weights times (labels minus the base), float64, shape (n, 2)."""
        assert self._unbinned.y is not None
        weights = np.ones(len(self)) if self._unbinned.weights is None else self._unbinned.weights
        labels = np.zeros(len(self)) if self._plan.classes else self._unbinned.y - self._problem.base[0]
        return np.column_stack([weights, labels * weights])

    def exponents(self) -> Int64s:
        """Return the ``exponent_counts`` of weights and labels."""
        return exponent_counts(self._pairs[None], self._pairs[:, 0])

    def begin(self, bins: Bins, columns: FeatureColumns | None, scales: tuple[float, float]) -> None:
        """Bin the rows, and convert weights and labels to integers; scales: see ``PlantTrees``."""
        self.rows = binned(self._unbinned, bins, self._problem.absent, columns)
        assert self._unbinned.y is not None
        plan = self._plan
        if plan.sums_are_counts:
            integer_pairs = np.column_stack([np.ones(len(self)), self._unbinned.y])
        else:
            integer_pairs = quantise_pairs(self._pairs, self.ids, key_of(plan.seed, ROUNDING % 2**63), scales)
            if plan.classes:
                integer_pairs[:, 1] = self._unbinned.y
        self.integer_pairs = readable(integer_pairs.astype(np.int64))
        self.__dict__.pop("_pairs", None)  # as large as the rows

    @cached_property
    def arrays(self) -> Rows:
        """The binned rows as an argument of kernels."""
        assert self.rows is not None
        return kernel_rows(self.rows, has_blocks=False)

    def sample(self, tree: int, rules: ForestRules) -> tuple[Int32s, UInt8s, Int64s]:
        """Sample the rows of a tree; return their numbers, ascending, the draws of all rows, and the root's sums."""
        draws = np.empty(len(self), np.uint8)
        plan = self._plan
        if not plan.settings.bootstrap and plan.settings.subsamplingRate == 1:
            draws[:] = 1
        else:
            kernels.count_draws(readable(self.ids), plan.keys(tree)[0], plan.draw_probabilities, draws)
        order = np.flatnonzero(draws).astype(np.int32)
        entries, totals = np.empty((len(order), 3), np.int64), np.zeros(plan.channels, np.int64)
        kernels.gather(readable(order), draws, self.integer_pairs, rules, entries)
        kernels.sum_rows(entries, rules, totals)
        return order, draws, totals


# The cost of a node's histogram, in additions of array elements.
NODE_COST = 1 << 17


class ForestWorker(FleetWorker):
    """A worker that sends histograms to servers. It samples each tree's rows and each node's features."""

    def __init__(self, problem: TreeProblem, plan: ForestPlan, quantiles: Quantiles, reading: Reading) -> None:
        rows = rows_with_weight(reading.training)
        super().__init__(problem, quantiles, lambda: rows)
        self._plan, self._rows = plan, ForestRows(problem, plan, rows)
        self._growing: list[tuple[NodeRows, UInt8s]] = []
        self._first = 0

    def _do(self, task: SumRows | GrowTask) -> dict[str, Any]:
        if isinstance(task, SumRows):
            return {"rows": len(self._rows), "exponents": self._rows.exponents()}
        report = self._grow(task)
        blocks = over_blocks(lambda nodes: [self._histogram(node) for node in nodes], (task.opened,), cost=NODE_COST)
        histograms = [histogram for block in blocks for histogram in block]
        return {**report, "bytes": self._add_histograms(task.opened, histograms)}

    def catch_up(self, worker: Any, tasks: Sequence[Task]) -> None:
        grow_tasks = [task for task in tasks if isinstance(task, GrowTask)]
        # Tasks for finished trees need not be repeated.
        begin = max((number for number, task in enumerate(grow_tasks) if isinstance(task, PlantTrees)), default=0)
        for task in grow_tasks[begin:]:
            self._grow(task)

    def _grow(self, task: GrowTask) -> dict[str, Any]:
        """Move the rows of nodes to their children, or sample the rows of new trees; return the sums of new roots."""
        if isinstance(task, PlantTrees):
            return {"totals": self._plant(task)}
        splits = task.splits
        for tree in np.unique(splits[:, TREE]).tolist():
            self._growing[tree][0].partition(splits[splits[:, TREE] == tree])
        return {}

    def _plant(self, task: PlantTrees) -> Int64s:
        """Sample the rows of the task's trees; return the sums of their roots."""
        plan, (weight_scale, label_scale) = self._plan, task.scales
        if self._rows.rows is None:
            bins, columns = self._open_matrices(task)
            self._rows.begin(bins, columns, (weight_scale, label_scale))
            self._rules = plan.rules((weight_scale, label_scale))
            histogram_columns = bin_columns(bins, self._problem.absent)
            self._histograms = NodeHistograms(plan, self._rules, histogram_columns, self._rows)
        assert self._rows.rows is not None
        totals = np.zeros((task.count, plan.channels), np.int64)
        self._growing, self._first = [], task.first
        for tree in range(task.count):
            order, draws, totals[tree] = self._rows.sample(task.first + tree, self._rules)
            self._growing.append((NodeRows(self._rows.rows, order), draws))
        return totals

    def _histogram(self, node: Int64s) -> Histogram | None:
        """Return the histogram of a node, None if it has no rows; node: a row of ``Moves.opened``."""
        rows, draws = self._growing[int(node[TREE])]
        order, key = readable(rows.rows_of(int(node[NODE]))), self._plan.keys(self._first + int(node[TREE]))[1]
        return self._histograms.of(order, draws, key, int(node[HEAP_INDEX]), int(node[TURN])) if len(order) else None


class NodeHistograms:
    """Builds histograms of the features that nodes sample, also in several threads."""

    def __init__(self, plan: ForestPlan, rules: ForestRules, bins: BinColumns, rows: ForestRows) -> None:
        self._plan, self._rules, self._bins, self._rows = plan, rules, bins, rows
        self._scratch: SimpleQueue[tuple[Array, Array]] = SimpleQueue()

    def of(self, order: Int32s, draws: UInt8s, key: int, heap_index: int, turn: int) -> tuple[Int64s, Array]:
        """Return the filled bins of the features that a node samples, and their sums; for args, see ``Moves``."""
        bins, channels = self._bins, self._plan.channels
        histogram, is_sampled = self._scratch_memory()
        features = np.empty(len(bins.usable), np.int64)
        count = kernels.sample_features(bins.usable, key, heap_index, turn, self._plan.node_features, features)
        features, entries = features[:count], np.empty((len(order), 3), np.int64)
        kernels.gather(order, draws, self._rows.integer_pairs, self._rules, entries)
        kernels.build(order, self._rows.arrays, bins, features, is_sampled, entries, self._rules, channels, histogram)
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

    def __init__(self, problem: TreeProblem, plan: ForestPlan, mean_weight: float | None, reading: Reading) -> None:
        rows = rows_with_weight(reading.training)
        quantiles = Quantiles.in_process(problem, plan.settings.maxBins, mean_weight, min_rows_to_split(plan))
        bins, columns = quantiles.find_bins(rows)
        forest_rows = ForestRows(problem, plan, rows)
        self._scales = plan.scales(sum_bounds(forest_rows.exponents()))
        forest_rows.begin(bins, columns, self._scales)
        histogram_columns = bin_columns(bins, problem.absent)
        self._grower = ForestGrower(plan, histogram_columns, forest_rows, self._scales, problem.words)
        self._bins, self._plan, self._rows = bins, plan, forest_rows

    def __call__(self, worker: Any, task: GrowTrees) -> None:
        worker.report({"replies": [self._grow(task.first)]}, merge="concat")

    def _grow(self, first: int) -> dict[str, Any]:
        """Grow trees from number ``first`` on; return a reply."""
        trees: list[ForestTree] = []
        start_s, threads, reply_bytes = time.monotonic(), parallel.cores(), 0
        num_trees, num_next_trees = self._plan.settings.numTrees, threads
        end_s = start_s + CLOCK_TIME_S
        while (begin := first + len(trees)) < num_trees and time.monotonic() < end_s and reply_bytes < MAX_REPLY_BYTES:
            trees += self._grower.grow(range(begin, min(begin + num_next_trees, num_trees)))
            reply_bytes = sum(tree.gains.nbytes * 10 for tree in trees)
            # Threads wait for each other after each call, so a call grows as many trees as half of the time allows.
            tree_s = (time.monotonic() - start_s) / len(trees)
            remaining_s = end_s - time.monotonic()
            num_next_trees = int(min(max(remaining_s / 2 / tree_s, threads), parallel.MAX_BLOCKS))
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
        order, draws, totals = self._rows.sample(tree, self._rules)
        nodes = allocate_nodes(2 * min(1 << plan.settings.maxDepth, max(len(order), 1)) - 1, plan.channels, self._words)
        nodes.ends[0, 1], nodes.totals[0] = len(order), totals
        growing = GrowingTree(order, np.empty_like(order), self._rows.arrays, self._bins, nodes)
        feature_sampling = kernels.FeatureSampling(plan.keys(tree)[1], plan.node_features, plan.turns)
        search = kernels.forest_search(growing, draws, self._rows.integer_pairs, feature_sampling, self._rules)
        count = kernels.grow_forest_tree(search, growing)
        best = Splits._make(array[:count] for array in nodes.best)
        children, sums = nodes.children[:count].copy(), nodes.totals[:count].copy()
        return without_unused_splits(ForestTree(children, best.conditions, best.sets, best.gains, sums))
