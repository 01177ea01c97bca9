"""Compile the kernels of coordinate descent (``python -m ps2.algorithms.linear.coordinates.warm``)."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.linear import ops
from ps2.algorithms.linear.coordinates import kernels
from ps2.algorithms.linear.coordinates.columns import LocalColumns
from ps2.algorithms.linear.coordinates.subproblem import NO_PRODUCTS, Strengths, minimise
from ps2.algorithms.linear.losses.margin_kernels import HALF_SQUARED
from ps2.data.rows import Rows
from ps2.matrix.partition import Partition


def warm() -> None:
    """Call every kernel on two rows, and the operations of the schedule on two columns."""
    x = sp.csr_array((np.ones(2), np.array([0, 1], np.int32), np.array([0, 1, 2], np.int32)), shape=(2, 2))
    rows, both, none = Rows(x, np.array([0.0, 1.0])).localize(), np.arange(2), np.empty(0)
    columns, slope, curvature = LocalColumns.of(rows, none.astype(np.int64), none), np.empty(2), np.empty(2)
    for weights in (none, np.ones(2)):
        kernels.slopes(HALF_SQUARED, np.zeros(2), np.array([0.0, 1.0]), weights, 0.0, 0.5, slope, curvature)
    kernels.describe_columns(rows.x.indptr, rows.x.indices, rows.x.data, np.ones(2), np.zeros((2, 3)))
    columns.dot(slope)
    columns.add_to(slope, both, np.ones(2))
    products = NO_PRODUCTS.extended(both, columns.products(both, 2, curvature), columns.dot_at(both, curvature), 1.0)
    minimise(products, np.ones(2), np.zeros(2), (0.0, 1.0), Strengths(0.1, 0.1), 0.0)
    for dtype in ("float32", "float64"):
        change, others = np.zeros(2, dtype), [np.ones(2, dtype) for _ in range(3)]
        ops.predict_changes(change, *others, l1=0.1, l2=0.1, screen=0.1)
        ops.draw_coordinates(change, Partition(0, 0, 2), count=1, seed=0, round=0, dim=2, schedule=0)


if __name__ == "__main__":
    warm()
