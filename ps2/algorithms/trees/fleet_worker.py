"""A worker while trees grow on servers: it helps to find cut points, then bins its rows and adds histograms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from ps2.algorithms.frame.program import Task
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.driver_messages import ROW, GrowTask
from ps2.algorithms.trees.feature_columns import FeatureColumns
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import CutPointTask, CutPointWork, Quantiles
from ps2.algorithms.trees.tree_matrices import add_histograms, read_bins
from ps2.array_types import Int64s
from ps2.client.batch import batch
from ps2.client.matrix import DCVMatrix
from ps2.data.rows import LocalRows

# The bins of a histogram that are not empty, None: all; and their sums.
Histogram = tuple[Int64s | None, npt.NDArray[Any]]


class FleetWorker(ABC):
    """What the workers of boosted trees and of random forests have in common."""

    def __init__(self, problem: TreeProblem, quantiles: Quantiles, rows: LocalRows) -> None:
        self._problem = problem
        self._cut_points = CutPointWork(quantiles, rows)

    def __call__(self, worker: Any, task: Task) -> None:
        """Do the task of a clock."""
        if isinstance(task, CutPointTask):
            self._cut_points(task)
        elif report := self._do(task):
            worker.report(report)

    @abstractmethod
    def _do(self, task: Any) -> dict[str, Any]:
        """Do a task after the cut points are known; return the report."""

    @abstractmethod
    def catch_up(self, tasks: Sequence[Task]) -> None:
        """Do what an earlier attempt of this worker has done; its reports and histograms count already."""

    def _open_matrices(self, task: GrowTask) -> tuple[Bins, FeatureColumns | None]:
        """Return the bins that the driver has made, and the columns of dense rows, if the worker has them."""
        bins, columns = read_bins(self._problem, task.matrices), self._cut_points.columns
        del self._cut_points
        self._matrix = DCVMatrix.existing(task.matrices[0])
        return bins, columns

    def _add_histograms(self, opened: Int64s, histograms: Sequence[Histogram | None]) -> int:
        """Add histograms to those on the servers; return the bytes of their sums.

        Args:
            opened: see ``Moves``; histograms: of each node; None: none of its rows is here.
        """
        if len(opened) and opened[:, ROW].max() >= self._matrix.rows:
            self._matrix = DCVMatrix.existing(self._matrix.number)  # it has grown
        rows = opened[:, ROW].tolist()
        built = [(row, *one) for row, one in zip(rows, histograms, strict=True) if one is not None]
        with batch():
            return add_histograms(self._matrix, built)
