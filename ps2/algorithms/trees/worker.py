"""What a worker does while trees grow: it parts its rows among the children of nodes, and adds histograms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ps2.algorithms.training.reading import Reading
from ps2.algorithms.trees.boosted_rows import BoostedRows
from ps2.algorithms.trees.driver_messages import (
    BUILT,
    LEFT,
    NONE,
    ROW,
    AddHistograms,
    AddResiduals,
    GrowTask,
    PlantTree,
    SumGradients,
)
from ps2.algorithms.trees.growth import ROOT
from ps2.algorithms.trees.leaf_quantiles import LeafQuantiles
from ps2.algorithms.trees.problem import BoostingOptions, TreeProblem
from ps2.algorithms.trees.quantiles import CutPointTask, CutPointWork, Quantiles
from ps2.algorithms.trees.rows import Histograms, NodeRows, row_ids, rows_with_weight
from ps2.algorithms.trees.tree_matrices import add_histograms, read_bins
from ps2.array_types import Int32s, Int64s
from ps2.client.batch import batch
from ps2.client.matrix import DCVMatrix
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


class TreeWorker:
    """The rows of a worker, as far as trees have grown."""

    def __init__(self, work: TreeWork, rows: LocalRows, held_out: LocalRows | None) -> None:
        self._work = work
        self._unbinned = rows, held_out
        self._cut_points = CutPointWork(work.quantiles, rows)
        self._ids = row_ids(rows, work.problem.absent)
        self._moved_bytes = 0
        self._rows: BoostedRows | None = None

    def __call__(self, worker: Any, task: CutPointTask | GrowTask) -> None:
        """Do the task of a clock."""
        if isinstance(task, CutPointTask):
            self._cut_points(task)
        elif report := self._grow(task, is_missed=False):
            worker.report(report)

    def catch_up(self, tasks: Sequence[CutPointTask | GrowTask]) -> None:
        """Do what an earlier attempt of this worker has done; its reports and histograms count already."""
        for task in tasks:
            if isinstance(task, GrowTask):
                self._grow(task, is_missed=True)

    def _grow(self, task: GrowTask, is_missed: bool) -> dict[str, Any]:
        """Move the rows, and do a task; return the report."""
        if self._rows is None:
            self._rows = self._bin_rows(task.matrices)
        rows, nodes = self._rows, task.nodes
        for moving, _ in rows.moving:
            moving.part(task.splits)
        if isinstance(task, AddResiduals):
            if not is_missed:
                self._add_residuals(rows, task)
            return {}
        report: dict[str, Any] = {}
        for moving, margins in rows.moving:
            moving.end(nodes, margins)
        if len(nodes.numbers):
            assert rows.grown is not None
            report["counts"] = rows.grown.counts(nodes)
            rows.grown, rows.moving = None, []
            rows.note_leaves(nodes.values[nodes.is_leaf])
        if isinstance(task, SumGradients) or (isinstance(task, PlantTree) and task.begins_round):
            moved, self._moved_bytes = self._moved_bytes, 0
            report |= {**rows.compute_gradients(), "bytes": moved}
        if isinstance(task, PlantTree):
            h_scale, g_scale = task.scales
            report["totals"] = rows.plant(task.tree, (h_scale, g_scale))
        if not is_missed:
            self._add_histograms(rows, task)
        return report

    def _bin_rows(self, matrices: Sequence[int]) -> BoostedRows:
        problem, options = self._work.problem, self._work.options
        bins, columns = read_bins(problem, matrices), self._cut_points.columns
        rows = BoostedRows(problem, options, bins, self._unbinned, columns, self._ids)
        del self._cut_points
        self._histograms = Histograms(rows.training.rows, options.channels)
        self._matrix = DCVMatrix.existing(matrices[0])
        return rows

    def _add_histograms(self, rows: BoostedRows, task: GrowTask) -> None:
        """Add histograms to those on the servers."""
        nodes: list[tuple[int, Int32s]] = []
        if isinstance(task, PlantTree) and self._work.options.depth:
            assert rows.grown is not None
            nodes = [(ROOT, rows.grown.of(0))]
        elif isinstance(task, AddHistograms):
            nodes = list(built(rows.grown, task.splits))
        histograms = [(row, *self._histograms.of(order, rows.summed)) for row, order in nodes if len(order)]
        if nodes and max(row for row, _ in nodes) >= self._matrix.rows:
            self._matrix = DCVMatrix.existing(self._matrix.number)  # it has grown
        with batch():
            self._moved_bytes += add_histograms(self._matrix, histograms)

    def _add_residuals(self, rows: BoostedRows, task: AddResiduals) -> None:
        """Let the driver find the leaves' quantiles."""
        assert rows.grown is not None
        assert self._work.leaf_quantiles is not None
        leaves = [rows.grown.of(leaf) for leaf in task.nodes.leaves.tolist()]
        self._work.leaf_quantiles.add(leaves, rows.residuals, rows.training.weights, task.cells)


def built(grown: NodeRows | None, splits: Int64s) -> Iterator[tuple[int, Int32s]]:
    """Yield the matrix rows of the histograms to build, and the data rows of their nodes."""
    assert grown is not None
    for split in splits[splits[:, BUILT] != NONE]:
        yield int(split[ROW]), grown.of(int(split[LEFT] + split[BUILT]))
