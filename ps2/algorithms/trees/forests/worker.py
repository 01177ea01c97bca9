"""A worker's part while a random forest grows on servers: it draws each tree's rows, and each node's features."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Task
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.trees.compiled_growing import bin_columns
from ps2.algorithms.trees.driver_messages import NODE, PLACE, TREE, TURN, GrowTask, PlantTrees, SumRows
from ps2.algorithms.trees.forests import forest_kernels as kernels
from ps2.algorithms.trees.forests.forest_rows import ForestRows
from ps2.algorithms.trees.forests.impurity_kernels import ForestRules
from ps2.algorithms.trees.forests.plan import ForestPlan
from ps2.algorithms.trees.layout import Array, UInt8s
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.rows import NodeRows, rows_with_weight
from ps2.algorithms.trees.tree_kernels import BinColumns
from ps2.algorithms.trees.worker import FleetWorker, Histogram
from ps2.array_types import Int32s, Int64s
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

# Cost of a node's histogram, in additions: threads share nodes.
NODE_COST = 1 << 17


class ForestWorker(FleetWorker):
    """The rows of a worker, as far as trees have grown."""

    def __init__(self, problem: TreeProblem, plan: ForestPlan, quantiles: Quantiles, reading: Reading) -> None:
        rows = rows_with_weight(reading.training)
        super().__init__(problem, quantiles, rows)
        self._plan, self._rows = plan, ForestRows(problem, plan, rows)
        self._growing: list[tuple[NodeRows, UInt8s]] = []
        self._first = 0

    def _do(self, task: SumRows | GrowTask) -> dict[str, Any]:
        if isinstance(task, SumRows):
            return {"rows": len(self._rows), "exponents": self._rows.exponents()}
        report = self._grow(task)
        blocks = over_blocks(lambda some: [self._histogram(node) for node in some], (task.opened,), cost=NODE_COST)
        histograms = [histogram for block in blocks for histogram in block]
        return {**report, "bytes": self._add_histograms(task.opened, histograms)}

    def catch_up(self, tasks: Sequence[Task]) -> None:
        missed = [task for task in tasks if isinstance(task, GrowTask)]
        # Finished trees need nothing.
        begin = max((number for number, task in enumerate(missed) if isinstance(task, PlantTrees)), default=0)
        for task in missed[begin:]:
            self._grow(task)

    def _grow(self, task: GrowTask) -> dict[str, Any]:
        """Part the rows of nodes, or draw the rows of new trees; return the sums of the new roots."""
        if isinstance(task, PlantTrees):
            return {"totals": self._plant(task)}
        splits = task.splits
        for tree in np.unique(splits[:, TREE]).tolist():
            self._growing[tree][0].part(splits[splits[:, TREE] == tree])
        return {}

    def _plant(self, task: PlantTrees) -> Int64s:
        """Draw the rows of some trees; return the sums of their roots."""
        plan, (weight_scale, label_scale) = self._plan, task.scales
        if self._rows.rows is None:
            bins, columns = self._open_matrices(task)
            self._rows.begin(bins, columns, (weight_scale, label_scale))
            self._rules = plan.rules((weight_scale, label_scale))
            of_bins = bin_columns(bins, self._problem.absent)
            self._histograms = NodeHistograms(plan, self._rules, of_bins, self._rows)
        assert self._rows.rows is not None
        totals = np.zeros((task.count, plan.channels), np.int64)
        self._growing, self._first = [], task.first
        for tree in range(task.count):
            order, draws, totals[tree] = self._rows.sample(task.first + tree, self._rules)
            self._growing.append((NodeRows(self._rows.rows, order), draws))
        return totals

    def _histogram(self, node: Int64s) -> Histogram | None:
        """Return the histogram of a node; node: a row of ``opened``."""
        rows, draws = self._growing[int(node[TREE])]
        order, key = readable(rows.rows_of(int(node[NODE]))), self._plan.keys(self._first + int(node[TREE]))[1]
        return self._histograms.of(order, draws, key, int(node[PLACE]), int(node[TURN])) if len(order) else None


class NodeHistograms:
    """Builds histograms of the features that nodes draw; threads may share it."""

    def __init__(self, plan: ForestPlan, rules: ForestRules, bins: BinColumns, rows: ForestRows) -> None:
        self._plan, self._rules, self._bins, self._rows = plan, rules, bins, rows
        self._scratch: SimpleQueue[tuple[Array, Array]] = SimpleQueue()

    def of(self, order: Int32s, draws: UInt8s, key: int, place: int, turn: int) -> tuple[Int64s, Array]:
        """Return the filled bins of a node's drawn features, and their sums; place, turn: see ``draw_features``."""
        bins, channels = self._bins, self._plan.channels
        histogram, is_drawn = self._take_scratch()
        features = np.empty(len(bins.usable), np.int64)
        count = kernels.draw_features(bins.usable, key, place, turn, self._plan.node_features, features)
        features, entries = features[:count], np.empty((len(order), 3), np.int64)
        kernels.gather(order, draws, self._rows.whole, self._rules, entries)
        how = entries, self._rules, channels, histogram
        kernels.build(order, self._rows.arrays, bins, features, is_drawn, *how)
        size = int(bins.sizes[features].sum())
        columns, sums = np.empty(size, np.int64), np.empty((size, channels), np.int64)
        count = kernels.take_filled(features, bins, histogram, columns, sums)
        self._scratch.put((histogram, is_drawn))
        return columns[:count], sums[:count]

    def _take_scratch(self) -> tuple[Array, Array]:
        """Return a flat histogram of zeros, and a flag a feature; threads have their own."""
        with suppress(Empty):
            return self._scratch.get_nowait()
        zeros = np.zeros(len(self._bins.features) * self._plan.channels, np.int64)
        return zeros, np.zeros(len(self._bins.sizes), np.bool_)
