"""What a worker does while boosted trees grow on servers: gradients, histograms, residuals of leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ps2.algorithms.frame.program import Task
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.trees.boosted_rows import BoostedRows
from ps2.algorithms.trees.driver_messages import NODE, AddResiduals, GrowTask, PlantTree, SumGradients
from ps2.algorithms.trees.fleet_worker import FleetWorker, Histogram
from ps2.algorithms.trees.leaf_quantiles import LeafQuantiles
from ps2.algorithms.trees.problem import BoostingOptions, TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.rows import Histograms, row_ids, rows_with_weight
from ps2.data.rows import LocalRows


@dataclass(frozen=True, eq=False)
class TreeWork:
    """Makes a worker of its rows; picklable.

    Attributes:
        leaf_quantiles: for losses whose leaves are quantiles of their rows' residuals.
    """

    problem: TreeProblem
    options: BoostingOptions
    quantiles: Quantiles
    leaf_quantiles: LeafQuantiles | None = None

    def __call__(self, reading: Reading) -> TreeWorker:
        rows = rows_with_weight(reading.training)
        return TreeWorker(self, rows, reading.held_out)


class TreeWorker(FleetWorker):
    """The rows of a worker, as far as trees have grown."""

    def __init__(self, work: TreeWork, rows: LocalRows, held_out: LocalRows | None) -> None:
        super().__init__(work.problem, work.quantiles, rows)
        self._work = work
        self._unbinned = rows, held_out
        self._ids = row_ids(rows, work.problem.absent)
        self._moved_bytes = 0
        self._rows: BoostedRows | None = None

    def _do(self, task: GrowTask) -> dict[str, Any]:
        if isinstance(task, AddResiduals):
            self._add_residuals(self._move(task), task)
            return {}
        report = self._grow(task)
        rows = self._rows
        assert rows is not None
        nodes = [] if rows.grown is None else [rows.grown.of(node) for node in task.opened[:, NODE].tolist()]
        histograms: list[Histogram | None] = [
            self._histograms.of(order, rows.summed) if len(order) else None for order in nodes
        ]
        self._moved_bytes += self._add_histograms(task.opened, histograms)
        return report

    def catch_up(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if isinstance(task, AddResiduals):
                self._move(task)
            elif isinstance(task, GrowTask):
                self._grow(task)

    def _move(self, task: GrowTask) -> BoostedRows:
        """Part the rows of nodes among their children."""
        if self._rows is None:
            bins, columns = self._open_matrices(task)
            self._rows = BoostedRows(self._problem, self._work.options, bins, self._unbinned, columns, self._ids)
            self._histograms = Histograms(self._rows.training.rows, self._work.options.channels)
        for moving, _ in self._rows.moving:
            moving.part(task.splits)
        return self._rows

    def _grow(self, task: GrowTask) -> dict[str, Any]:
        """Move the rows, end the tree that is finished, and begin the next one; return the report."""
        rows, nodes, report = self._move(task), task.nodes, dict[str, Any]()
        if len(nodes.numbers):
            assert rows.grown is not None
            report["counts"] = rows.grown.counts(nodes)
            rows.end(nodes)
        if isinstance(task, SumGradients) or (isinstance(task, PlantTree) and task.begins_round):
            moved, self._moved_bytes = self._moved_bytes, 0
            report |= {**rows.compute_gradients(), "bytes": moved}
        if isinstance(task, PlantTree):
            h_scale, g_scale = task.scales
            report["totals"] = rows.plant(task.tree, (h_scale, g_scale))
        return report

    def _add_residuals(self, rows: BoostedRows, task: AddResiduals) -> None:
        """Let the driver find the leaves' quantiles."""
        assert rows.grown is not None
        assert self._work.leaf_quantiles is not None
        leaves = [rows.grown.of(leaf) for leaf in task.nodes.leaves.tolist()]
        self._work.leaf_quantiles.add(leaves, rows.residuals, rows.training.weights, task.cells)
