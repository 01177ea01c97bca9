"""The workers' part of solver "sap": each worker keeps its rows in column form (CSC), and their margins.

Each task contains the latest changes of the weights, which the worker first adds to its margins. A restarted worker
computes its margins from the weights on the servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import DoTask, Task
from ps2.algorithms.linear.coordinate_kernels import describe_columns, loss_derivatives
from ps2.algorithms.linear.coordinates import DENSE, NO_COLUMNS, NO_VALUES, LocalColumns
from ps2.algorithms.linear.loss_kernels import summed_loss
from ps2.algorithms.linear.losses import MARGIN_CODES
from ps2.algorithms.linear.parameters import ModelView, Parameters
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.linear.solvers.solver import Data
from ps2.algorithms.training.table import Facts
from ps2.array_types import Float64s, Int64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.data.rows import LocalRows
from ps2.ops.table import Array


@dataclass(frozen=True)
class Describe(Task):
    """Add the statistics of features (``ColumnVectors``) to the sums on the servers."""


@dataclass(frozen=True, eq=False)
class MarginTask(Task):
    """A computation after ``changes`` of the weights of ``columns`` since the last task; ``bias`` is the intercept."""

    columns: Int64s
    changes: Float64s
    bias: float


@dataclass(frozen=True, eq=False)
class AddGradients(MarginTask):
    """Add the gradient of all features to the sum on the servers; report the loss."""


@dataclass(frozen=True, eq=False)
class ComputeBlock(MarginTask):
    """Report the gradient of a block of features, and the products of its first ``new`` features with the block."""

    block: Int64s
    new: int


@dataclass(frozen=True, eq=False)
class TryLengths(MarginTask):
    """Report the losses after steps of several lengths along a direction.

    Attributes:
        direction: the features whose weights the step changes.
        slopes, bias_slope: the changes of these weights, and of the intercept, by a step of length 1.
        lengths: the factors of the changes, float64, descending.
    """

    direction: Int64s
    slopes: Float64s
    bias_slope: float
    lengths: Float64s


@dataclass(frozen=True, eq=False)
class ColumnVectors:
    """Statistics of each feature on the servers, co-located with the weights; picklable.

    Attributes:
        share: the fraction of the rows' weight where the feature is not 0.
        curvature: the mean square of the feature; later an upper bound of the loss's second derivative.
        gradient: the sum of the workers' negative gradients of the loss.
        change: the weight's predicted or last change times the root of the objective's second derivative.
    """

    share: DCV
    mean: DCV
    curvature: DCV
    gradient: DCV
    change: DCV

    def dense_means(self, problem: Problem) -> tuple[Int64s, Float64s]:
        """Return the features to centre and their means; both are empty without an intercept."""
        if not problem.fit_intercept:
            return NO_COLUMNS, NO_VALUES
        dense: tuple[Int64s, Float64s] = self.share.zip(self.mean).apply("linear.dense_columns", least=DENSE)
        return dense


@dataclass(frozen=True, eq=False)
class SapWork:
    """The workers' part of the solver; picklable."""

    problem: Problem
    facts: Facts
    model: Parameters
    vectors: ColumnVectors

    def __call__(self, data: Data) -> DoTask:
        return _SapWorker(self, data.local_rows).do


class _SapWorker:
    """One worker's rows in column form, their margins ``_z`` (without intercept), and the losses' derivatives."""

    def __init__(self, work: SapWork, rows: LocalRows) -> None:
        assert rows.y is not None
        self._problem, self._facts, self._model, self._vectors = work.problem, work.facts, work.model, work.vectors
        self._rows, self._y = rows, rows.y
        self._weights: Array = NO_VALUES if rows.weights is None else rows.weights
        self._columns: LocalColumns | None = None  # before the first MarginTask
        self._z, self._slope, self._curvature = np.zeros(len(rows)), np.empty(len(rows)), np.empty(len(rows))

    def do(self, worker: Any, task: Describe | MarginTask) -> None:
        view = ModelView(worker)
        if isinstance(task, Describe):
            self._describe(view)
            return
        if self._columns is None:
            self._columns = self._make_margins(view)
        else:
            self._columns.add_to(self._z, task.columns, task.changes)
        if isinstance(task, TryLengths):
            self._try_lengths(task, self._columns, view)
        else:
            self._differentiate(task, self._columns, view)

    def _describe(self, view: ModelView) -> None:
        rows, factor = self._rows, 1.0 / self._facts.weight
        x, vectors = rows.x, self._vectors
        c = np.full(len(rows), factor) if rows.weights is None else rows.weights * factor
        sums = np.zeros((len(rows.keys), 3))
        describe_columns(x.indptr, x.indices, x.data, c, sums)
        with batch():
            for vector, values in zip((vectors.share, vectors.mean, vectors.curvature), sums.T.copy(), strict=True):
                vector.add(values, rows.keys)
        view.moved_bytes += sums.nbytes
        view.report()

    def _make_margins(self, view: ModelView) -> LocalColumns:
        columns = LocalColumns.from_rows(self._rows, *self._vectors.dense_means(self._problem))
        w, _ = view.pull(self._model, columns.keys)
        used = np.flatnonzero(w)
        columns.add_to(self._z, columns.keys[used], w[used])
        return columns

    def _try_lengths(self, task: TryLengths, columns: LocalColumns, view: ModelView) -> None:
        slope, code = np.full(len(self._rows), task.bias_slope), MARGIN_CODES[self._problem.loss]
        columns.add_to(slope, task.direction, task.slopes)
        losses = np.zeros((len(task.lengths), 2))
        for length, sums in zip(task.lengths, losses, strict=True):
            summed_loss(self._z + task.bias + length * slope, self._y, self._weights, code, 1.0, 1.0, sums)
        view.report(rows=len(self._rows), losses=losses[:, 0].copy())

    def _differentiate(self, task: MarginTask, columns: LocalColumns, view: ModelView) -> None:
        center = self._facts.label_mean if self._problem.fit_intercept else 0.0
        code, margins, factor = MARGIN_CODES[self._problem.loss], self._z + task.bias, 1.0 / self._facts.weight
        slope, curvature = self._slope, self._curvature
        loss, dual = loss_derivatives(code, margins, self._y, self._weights, center, factor, slope, curvature)
        # The sums are the negative first and the second derivative with respect to the intercept.
        rows, report = 0, dict[str, Any](dual=dual, down=slope.sum(), curved=curvature.sum())
        if isinstance(task, ComputeBlock):
            report["gradient"] = columns.dot(task.block, self._slope)
            report["entries"] = columns.dot(task.block, self._curvature)
            report["products"] = columns.products(task.block, task.new, self._curvature)
            view.moved_bytes += report["products"].nbytes + report["gradient"].nbytes + report["entries"].nbytes
        else:
            gradient = columns.dot(columns.keys, self._slope)
            self._vectors.gradient.add(gradient, columns.keys)
            view.moved_bytes += gradient.nbytes
            rows = len(self._rows)
        view.report((loss, 0.0), rows=rows, **report)
