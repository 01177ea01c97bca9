"""What a worker does while a random forest grows on servers: it parts its rows among the children of nodes, and adds
histograms."""

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
from ps2.algorithms.trees.forests import draw_kernels
from ps2.algorithms.trees.forests import forest_kernels as kernels
from ps2.algorithms.trees.forests.forest_rows import ForestRows
from ps2.algorithms.trees.forests.growth import NUMBER, PLACE, ROW, TREE, TURN
from ps2.algorithms.trees.forests.options import ForestOptions
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import CutPointTask, CutPointWork, Quantiles
from ps2.algorithms.trees.rows import NodeRows, rows_with_weight
from ps2.algorithms.trees.tree_kernels import BinColumns
from ps2.algorithms.trees.tree_matrices import read_bins
from ps2.array_types import Int64s
from ps2.client.batch import batch
from ps2.client.matrix import DCVMatrix
from ps2.data.rows import LocalRows
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

Array = npt.NDArray[Any]
UInt8s = npt.NDArray[np.uint8]

# Cost of a node's histogram, in additions: threads share nodes.
NODE_COST = 1 << 17


@dataclass(frozen=True)
class SumRows(Task):
    """Report how many rows there are, and how large their weights and labels are."""


@dataclass(frozen=True, eq=False)
class Grow(Task):
    """Part the rows of nodes, and add the histograms of others.

    Attributes:
        matrices: the numbers of the matrices on the servers: histograms, cut points, sizes of features.
        scales: factors of weights and labels.
        first, count, plants, splits, opened: see ``Orders``.
    """

    matrices: Sequence[int]
    scales: Sequence[float]
    first: int
    count: int
    plants: bool
    splits: Int64s
    opened: Int64s


@dataclass(frozen=True, eq=False)
class ForestWork:
    """Makes a worker of its rows; picklable."""

    problem: TreeProblem
    options: ForestOptions
    quantiles: Quantiles

    def __call__(self, reading: Reading) -> ForestWorker:
        rows = rows_with_weight(reading.training)
        return ForestWorker(self, rows)


class ForestWorker:
    """The rows of a worker, as far as trees have grown."""

    def __init__(self, work: ForestWork, rows: LocalRows) -> None:
        self._problem, self._options = work.problem, work.options
        self._cut_points = CutPointWork(work.quantiles, rows)
        self._rows = ForestRows(work.problem, work.options, rows)
        self._bins: BinColumns | None = None
        self._growing: list[tuple[NodeRows, UInt8s]] = []
        self._first = 0
        self._scratch: SimpleQueue[tuple[Array, Array]] = SimpleQueue()

    def __call__(self, worker: Any, task: CutPointTask | SumRows | Grow) -> None:
        """Do the task of a clock."""
        if isinstance(task, CutPointTask):
            self._cut_points(task)
            return
        report: dict[str, Any] = {"rows": len(self._rows)}
        if isinstance(task, SumRows):
            report["exponents"] = self._rows.exponents()
        else:
            report |= self._part(task)
            report["bytes"] = self._add(task.opened)
        worker.report(report)

    def catch_up(self, tasks: Sequence[CutPointTask | SumRows | Grow]) -> None:
        """Part the rows as an earlier attempt of this worker has done; finished trees need nothing."""
        missed = [task for task in tasks if isinstance(task, Grow)]
        begin = max((number for number, task in enumerate(missed) if task.plants), default=0)
        for task in missed[begin:]:
            self._part(task)

    def _part(self, task: Grow) -> dict[str, Any]:
        """Part the rows of nodes, or draw the rows of new trees; return the sums of the new roots."""
        if self._bins is None:
            self._begin(task)
        if task.plants:
            return self._plant(task.first, task.count)
        splits = task.splits
        for tree in np.unique(splits[:, TREE]).tolist():
            self._growing[tree][0].part(np.ascontiguousarray(splits[splits[:, TREE] == tree, 1:]))
        return {}

    def _begin(self, task: Grow) -> None:
        """Bin the rows."""
        bins = read_bins(self._problem, task.matrices)
        weight_scale, label_scale = task.scales
        scales = weight_scale, label_scale
        self._rows.begin(bins, self._cut_points.columns, scales)
        del self._cut_points
        self._bins, self._rules = bin_columns(bins, self._problem.absent), self._options.rules(scales)
        self._matrix = DCVMatrix.existing(task.matrices[0])

    def _plant(self, first: int, count: int) -> dict[str, Any]:
        """Draw the rows of some trees; return the sums of their roots."""
        assert self._rows.rows is not None
        options = self._options
        totals = np.zeros((count, options.channels), np.int64)
        self._growing, self._first = [], first
        for tree in range(count):
            order, draws = self._rows.drawn(first + tree)
            held = np.empty((len(order), 3), np.int64)
            kernels.gather(readable(order), draws, self._rows.whole, self._rules, held)
            kernels.sum_rows(held, self._rules, totals[tree])
            self._growing.append((NodeRows(self._rows.rows, order), draws))
        return {"totals": totals}

    def _add(self, opened: Int64s) -> int:
        """Add the histograms of open nodes to those on the servers; return how many bytes of sums that takes."""
        if not len(opened):
            return 0
        moved, channels = 0, self._options.channels
        made = over_blocks(lambda some: [self._histogram(node) for node in some], (opened,), cost=NODE_COST)
        with batch():
            for row, bins, sums in (one for some in made for one in some if one is not None):
                self._matrix.apply("trees.add", slots=bins * channels, sums=sums, row=row, marks=True)
                moved += sums.nbytes
        return moved

    def _histogram(self, node: Int64s) -> tuple[int, Int64s, Array] | None:
        """Return the row, bins and sums of the features that a node draws; None: it has no rows here."""
        assert self._bins is not None
        options, all_bins = self._options, self._bins
        rows, draws = self._growing[int(node[TREE])]
        order = readable(rows.of(int(node[NUMBER])))
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
        return int(node[ROW]), bins[:count], sums[:count]

    def _take_scratch(self) -> tuple[Array, Array]:
        """Return a flat histogram of zeros, and a flag a feature; threads have their own."""
        assert self._bins is not None
        with suppress(Empty):
            return self._scratch.get_nowait()
        zeros = np.zeros(len(self._bins.features) * self._options.channels, np.int64)
        return zeros, np.zeros(self._problem.dim, np.bool_)
