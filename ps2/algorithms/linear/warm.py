"""Compile all kernels of linear models before their first use (``python -m ps2.algorithms.linear.warm``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.linear import coordinate_kernels, ops
from ps2.algorithms.linear.coordinates import NO_PRODUCTS, LocalColumns, Strengths, minimise
from ps2.algorithms.linear.loss_kernels import HALF_SQUARED
from ps2.algorithms.linear.losses import SoftmaxLoss, loss_of
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.linear.scaling import column_sums, scaled, shrink_factors, squared_distances
from ps2.algorithms.linear.solvers.averaging import LocalSteps, local_sgd
from ps2.algorithms.training.table import Facts
from ps2.data.row_spill import RowSpill
from ps2.data.rows import Float, LocalRows, Rows
from ps2.data.spilling import Spill
from ps2.matrix.partition import Partition

DTYPES: tuple[Float, ...] = ("float64", "float32")
# The logistic problem compiles the kernels of all losses of one margin.
PROBLEMS = Problem("logistic", 2), Problem("softmax", 2, width=2), Problem("fmSquared", 2, width=2)


def warm() -> None:
    """Call all kernels on two rows, with the array types that workers, servers and models use."""
    for dtype in DTYPES:
        rows = _rows(dtype)
        for problem in PROBLEMS:
            loss = loss_of(problem)
            w = np.zeros(len(rows.keys) * problem.width, dtype)
            b = np.zeros(problem.biases)
            loss.gradient(rows, w, b)
            loss.loss(rows, w, b)
            loss.margins(rows.x, w, b)
            loss.initial_weights(rows.keys, 0)
            if isinstance(loss, SoftmaxLoss):
                loss.factors(rows, w, b)
            if problem.loss == "logistic":
                local_sgd(loss, rows, w, b, np.arange(2), LocalSteps(1, 0.1))
        sums = column_sums(rows, Facts(2, 2.0, 2.0, (), 0.0, 0.0))
        scaled(rows, squared_distances(rows, sums.means, shrink_factors(sums.sizes)))
        rows.take([0])
        _read_from_file(dtype)
        change, operands = np.zeros(2, dtype), [np.ones(2, dtype) for _ in range(3)]
        ops.predict_changes(change, *operands, l1=0.1, l2=0.1, screen=0.1)
        ops.draw_coordinates(change, Partition(0, 0, 2), count=1, seed=0, round=0, dim=2, schedule=0)
    for problem in PROBLEMS:
        _predict(problem)
    _descend()


def _read_from_file(dtype: Float) -> None:
    spill = RowSpill(Spill("always", 1), 0, 1)
    for columns in ([0, 2], [0, 0]):
        x = sp.csr_array((np.ones(2, dtype), np.array(columns, np.int32), np.array([0, 1, 2], np.int32)), shape=(2, 4))
        spill.append(Rows(x, np.ones(2)))
    rows, _ = spill.finish()
    rows.take([0, 2, 3])


def _predict(problem: Problem) -> None:
    """Compute margins as ``transform`` does: column indices are int64, and values from Arrow may be read-only."""
    w, b = np.zeros(2 * problem.width), np.zeros(problem.biases)
    for writeable in (True, False):
        values = np.ones(2)
        values.flags.writeable = writeable
        x = sp.csr_array((values, np.arange(2), np.array([0, 1, 2])), shape=(2, 2))
        loss_of(problem).margins(x, w, b)


def _descend() -> None:
    rows, features, empty = _rows("float64", np.int32), np.arange(2), np.empty(0)
    columns, slope, curvature = LocalColumns.from_rows(rows, empty.astype(np.int64), empty), np.empty(2), np.empty(2)
    for weights in (empty, np.ones(2)):
        rows_arguments = np.zeros(2), np.array([0.0, 1.0]), weights
        coordinate_kernels.loss_derivatives(HALF_SQUARED, *rows_arguments, 0.0, 0.5, slope, curvature)
    coordinate_kernels.describe_columns(rows.x.indptr, rows.x.indices, rows.x.data, np.ones(2), np.zeros((2, 3)))
    columns.add_to(slope, features, np.ones(2))
    products = NO_PRODUCTS.extended(
        features, columns.products(features, 2, curvature), columns.dot(features, curvature), 1.0
    )
    minimise(products, np.ones(2), np.zeros(2), (0.0, 1.0), Strengths(0.1, 0.1), 0.0)


def _rows(dtype: Float, indptr_dtype: Any = np.int64) -> LocalRows:
    indptr = np.array([0, 1, 2], indptr_dtype)
    x = sp.csr_array((np.ones(2, dtype), np.array([0, 1], np.int32), indptr), shape=(2, 2))
    return Rows(x, np.array([0.0, 1.0])).localize()


if __name__ == "__main__":
    warm()
