"""What a worker does while a random forest grows on servers: it draws each tree's rows, and each node's features."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.frame.program import Task
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.trees.compiled_growing import bin_columns
from ps2.algorithms.trees.driver_messages import NODE, PLACE, TREE, TURN, GrowTask, PlantTrees, SumRows
from ps2.algorithms.trees.fleet_worker import FleetWorker, Histogram
from ps2.algorithms.trees.forests import draw_kernels
from ps2.algorithms.trees.forests import forest_kernels as kernels
from ps2.algorithms.trees.forests.forest_rows import ForestRows
from ps2.algorithms.trees.forests.options import ForestOptions
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.rows import NodeRows, rows_with_weight
from ps2.algorithms.trees.tree_kernels import BinColumns
from ps2.array_types import Int64s
from ps2.data.rows import LocalRows
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

Array = npt.NDArray[Any]
UInt8s = npt.NDArray[np.uint8]

# Cost of a node's histogram, in additions: threads share nodes.
NODE_COST = 1 << 17


@dataclass(frozen=True, eq=False)
class ForestWork:
    """Makes a worker of its rows; picklable."""

    problem: TreeProblem
    options: ForestOptions
    quantiles: Quantiles

    def __call__(self, reading: Reading) -> ForestWorker:
        rows = rows_with_weight(reading.training)
        return ForestWorker(self, rows)


class ForestWorker(FleetWorker):
    """The rows of a worker, as far as trees have grown."""

    def __init__(self, work: ForestWork, rows: LocalRows) -> None:
        super().__init__(work.problem, work.quantiles, rows)
        self._options = work.options
        self._rows = ForestRows(work.problem, work.options, rows)
        self._bins: BinColumns | None = None
        self._growing: list[tuple[NodeRows, UInt8s]] = []
        self._first = 0
        self._scratch: SimpleQueue[tuple[Array, Array]] = SimpleQueue()

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
        options, (weight_scale, label_scale) = self._options, task.scales
        if self._bins is None:
            bins, columns = self._open_matrices(task)
            self._rows.begin(bins, columns, (weight_scale, label_scale))
            self._bins = bin_columns(bins, self._problem.absent)
            self._rules = options.rules((weight_scale, label_scale))
        assert self._rows.rows is not None
        totals = np.zeros((task.count, options.channels), np.int64)
        self._growing, self._first = [], task.first
        for tree in range(task.count):
            order, draws = self._rows.drawn(task.first + tree)
            held = np.empty((len(order), 3), np.int64)
            kernels.gather(readable(order), draws, self._rows.whole, self._rules, held)
            kernels.sum_rows(held, self._rules, totals[tree])
            self._growing.append((NodeRows(self._rows.rows, order), draws))
        return totals

    def _histogram(self, node: Int64s) -> Histogram | None:
        """Return the bins and sums of the features that a node draws; node: a row of ``opened``."""
        assert self._bins is not None
        options, all_bins = self._options, self._bins
        rows, draws = self._growing[int(node[TREE])]
        order = readable(rows.of(int(node[NODE])))
        if not len(order):
            return None
        histogram, is_drawn = self._take_scratch()
        key = options.keys(self._first + int(node[TREE]))[1]
        features = np.empty(len(all_bins.usable), np.int64)
        given = all_bins.usable, key, int(node[PLACE]), int(node[TURN]), options.features, features
        features = features[: draw_kernels.draw_features(*given)]
        held = np.empty((len(order), 3), np.int64)
        kernels.gather(order, draws, self._rows.whole, self._rules, held)
        how = held, self._rules, options.channels, histogram
        kernels.build(order, self._rows.arrays, all_bins, features, is_drawn, *how)
        most = int(all_bins.sizes[features].sum())
        bins, sums = np.empty(most, np.int64), np.empty((most, options.channels), np.int64)
        count = kernels.take_filled(features, all_bins, histogram, bins, sums)
        self._scratch.put((histogram, is_drawn))
        return bins[:count], sums[:count]

    def _take_scratch(self) -> tuple[Array, Array]:
        """Return a flat histogram of zeros, and a flag a feature; threads have their own."""
        assert self._bins is not None
        with suppress(Empty):
            return self._scratch.get_nowait()
        zeros = np.zeros(len(self._bins.features) * self._options.channels, np.int64)
        return zeros, np.zeros(self._problem.dim, np.bool_)
