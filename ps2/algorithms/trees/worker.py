"""Workers while trees grow on servers: they do tasks for cut points, gradients, histograms and residuals of leaves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from ps2.algorithms.frame.memory import fitting_servers
from ps2.algorithms.frame.program import Task
from ps2.algorithms.training.reading import Reading, SpillableReading
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.boosted_rows import BoostedRows, UnbinnedRows
from ps2.algorithms.trees.cut_points import FeatureColumns
from ps2.algorithms.trees.driver_messages import (
    NODE,
    ROW,
    AddResiduals,
    CountRows,
    CutPointTask,
    GrowTask,
    PlantTrees,
    SumGradients,
)
from ps2.algorithms.trees.leaf_quantiles import LeafQuantiles
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles, RowsByFeature
from ps2.algorithms.trees.row_blocks import build_histograms
from ps2.algorithms.trees.rows import Histogram, Histograms, rows_with_weight
from ps2.algorithms.trees.statistic_sums import StatisticSums, StatisticTask
from ps2.algorithms.trees.tree import Tree
from ps2.algorithms.trees.tree_matrices import add_histograms, read_bins
from ps2.array_types import Int64s
from ps2.client.batch import batch
from ps2.client.matrix import DCVMatrix
from ps2.data.spilled_rows import KeptRows


class CutPointWork:
    """Does a worker's tasks in the clocks that find cut points."""

    def __init__(self, quantiles: Quantiles, rows: KeptRows) -> None:
        self._quantiles, self._rows = quantiles, rows
        self._by_feature: RowsByFeature | None = None
        self._used = rows
        quantiles.forget_cells()

    def __call__(self, task: CutPointTask) -> None:
        """Do a task; LimitError if values or cells cannot fit the servers."""
        features = self._quantiles.problem.dim
        with fitting_servers(f"the values of {features:,} features, for cut points,"):
            self._do(task)

    @property
    def columns(self) -> FeatureColumns | None:
        """The columns of dense rows, if they have all features; None: sparse rows, or rows without rare features."""
        return None if self._by_feature is None else self._by_feature.dense_columns(self._rows, self._used)

    def _do(self, task: CutPointTask) -> None:
        if isinstance(task, CountRows):
            self._quantiles.count(self._rows)
            return
        if self._by_feature is None:
            self._used = self._quantiles.without_rare_features(self._rows)
            self._by_feature = RowsByFeature.make(self._quantiles, self._used)
        self._by_feature.do(task)


class FleetWorker(ABC):
    """Base class of the workers of boosted trees and of random forests."""

    def __init__(self, problem: TreeProblem, quantiles: Quantiles, rows: Callable[[], KeptRows]) -> None:
        self._problem, self._quantiles, self._training_rows = problem, quantiles, rows
        self._cut_points: CutPointWork | None = None

    def __call__(self, worker: Any, task: Task) -> None:
        if isinstance(task, CutPointTask):
            if self._cut_points is None:
                self._cut_points = CutPointWork(self._quantiles, self._training_rows())
            self._cut_points(task)
        elif report := self._do(task):
            worker.report(report)

    @abstractmethod
    def _do(self, task: Any) -> dict[str, Any]:
        """Do a task other than a ``CutPointTask``; return the report."""

    @abstractmethod
    def catch_up(self, worker: Any, tasks: Sequence[Task]) -> None:
        """Redo the tasks of an earlier attempt, but send no reports and histograms: those of the attempt count."""

    def _open_matrices(self, task: GrowTask) -> tuple[Bins, FeatureColumns | None]:
        """Return the bins that the driver has made, and the columns of dense rows, if the worker has them."""
        columns = None if self._cut_points is None else self._cut_points.columns
        bins, self._cut_points = read_bins(self._problem, task.matrices), None
        self._matrix = DCVMatrix.existing(task.matrices[0])
        return bins, columns

    def _add_histograms(self, opened: Int64s, histograms: Sequence[Histogram | None]) -> int:
        """Add the histograms of nodes (None: no rows of this worker) to the servers'; return their bytes."""
        if len(opened) and opened[:, ROW].max() >= self._matrix.rows:
            self._matrix = DCVMatrix.existing(self._matrix.number)  # it has grown
        rows = opened[:, ROW].tolist()
        built = [(row, *pair) for row, pair in zip(rows, histograms, strict=True) if pair is not None]
        with batch():
            return add_histograms(self._matrix, built)


class TreeWorker(FleetWorker):
    """A worker of boosted trees; leaf_quantiles: None unless leaf values are quantiles of residuals."""

    def __init__(
        self,
        problem: TreeProblem,
        plan: BoostingPlan,
        quantiles: Quantiles,
        statistics: StatisticSums | None,
        leaf_quantiles: LeafQuantiles | None,
        reading: Reading | SpillableReading,
    ) -> None:
        rows = rows_with_weight(reading.training)
        super().__init__(problem, quantiles, lambda: self._unbinned.training)
        self._plan, self._leaf_quantiles = plan, leaf_quantiles
        self._unbinned = UnbinnedRows(problem, statistics, rows, reading.held_out)
        self._sent_bytes = 0
        self._rows: BoostedRows | None = None

    def __call__(self, worker: Any, task: Task) -> None:
        self._unbinned.rank = worker.rank
        super().__call__(worker, task)

    def _do(self, task: GrowTask | StatisticTask) -> dict[str, Any]:
        if isinstance(task, AddResiduals):
            assert self._leaf_quantiles is not None
            self._leaf_quantiles.add(self._move(task).leaf_rows(task.nodes.leaves), task.cells)
            return {}
        if isinstance(task, StatisticTask):
            self._unbinned.do(task)
            return {}
        report = self._grow(task)
        rows = self._rows
        assert rows is not None
        histograms: list[Histogram | None] = []
        if rows.tree_rows is not None:
            nodes = task.opened[:, NODE].tolist()
            histograms = build_histograms(self._histograms, rows.tree_rows, nodes, rows.channel_values)
        self._sent_bytes += self._add_histograms(task.opened, histograms)
        return report

    def catch_up(self, worker: Any, tasks: Sequence[Task]) -> None:
        self._unbinned.rank = worker.rank
        for task in tasks:
            if isinstance(task, AddResiduals):
                self._move(task)
            elif isinstance(task, GrowTask):
                self._grow(task)

    def _move(self, task: GrowTask) -> BoostedRows:
        """Move the rows of nodes to their children, after binning the rows for the first task."""
        if self._rows is None:
            bins, columns = self._open_matrices(task)
            rows = self._unbinned.training, self._unbinned.held_out
            self._rows = BoostedRows(self._problem, self._plan, bins, rows, columns, self._unbinned.ids)
            self._histograms = Histograms(bins, self._plan.channels)
            self._unbinned.forget_statistics()
        for moving_rows, _ in self._rows.moving_rows:
            moving_rows.partition(task.splits)
        return self._rows

    def _grow(self, task: GrowTask) -> dict[str, Any]:
        """Move rows, end a finished tree, and begin the next tree; return the report."""
        rows, nodes, report = self._move(task), task.nodes, dict[str, Any]()
        if len(nodes.numbers):
            assert rows.tree_rows is not None
            report["counts"] = rows.tree_rows.counts(nodes)
            rows.end(nodes)
        if isinstance(task, SumGradients) or (isinstance(task, PlantTrees) and task.begins_round):
            sent_bytes, self._sent_bytes = self._sent_bytes, 0
            last_trees = [Tree(*data) for data in task.last_trees] if isinstance(task, SumGradients) else ()
            report |= {**rows.compute_gradients(last_trees), "bytes": sent_bytes}
        if isinstance(task, PlantTrees):
            h_scale, g_scale = task.scales
            report["totals"] = rows.plant(task.first, (h_scale, g_scale), task.top)
        return report
