"""What the models of weights and biases have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from pyspark.ml.linalg import DenseMatrix, DenseVector, Matrix, SparseMatrix, Vector, Vectors

from ps2.algorithms.estimators.models import FleetModel
from ps2.algorithms.linear.files import read_weights, write_weights
from ps2.algorithms.linear.weights import Weights
from ps2.array_types import Float64s
from ps2.client.dcv import DCV
from ps2.errors import UsageError


class WeightsModel(FleetModel):
    """A trained model of weights and biases."""

    _LOADER = "ps2.algorithms.linear.model:LinearModel"

    @property
    def _weights(self) -> Weights:
        weights: Weights = self._fitted
        return weights

    @property
    def weightVector(self) -> DCV:
        """The weights of a model too large for the driver, on the servers, feature by feature.

        Raises:
            UsageError: the model is small, its weights are arrays in the driver.
        """
        weight = self._weights.weight
        if not isinstance(weight, DCV):
            raise UsageError(f"weightVector: the {self._weights.problem.size:,} weights are held in the driver")
        return weight

    def _write_content(self, url: str) -> dict[str, Any]:
        return write_weights(url, self._weights)

    @classmethod
    def _read_content(cls, path: str, url: str, content: Any) -> Weights:
        return read_weights(path, url, content)


def as_vector(values: Float64s) -> Vector:
    """Return weights as the smaller of a dense and a sparse vector, as pyspark.ml does."""
    nonzero = np.flatnonzero(values)
    if 1.5 * (len(nonzero) + 1) < len(values):
        return Vectors.sparse(len(values), nonzero, values[nonzero])
    return DenseVector(values)


def as_matrix(rows: Float64s, is_row: bool = False) -> Matrix:
    """Return a matrix in the form of the fewest bytes, as pyspark.ml does: dense, or sparse by rows or by columns.

    Args:
        is_row: it is a single row, and stays one if it is sparse.
    """
    count, width = rows.shape
    entries = np.count_nonzero(rows)
    starts = (count if is_row else min(count, width)) + 1
    # Of a double, and of an integer; there is more to a sparse matrix than to a dense one.
    if 8 * rows.size <= 12 * entries + 4 * starts + 24:
        return DenseMatrix(count, width, rows.reshape(-1), isTransposed=True)
    by_rows = is_row or count < width
    at = np.nonzero(rows if by_rows else rows.T)
    pointers = np.searchsorted(at[0], np.arange((count if by_rows else width) + 1))
    values = (rows if by_rows else rows.T)[at]
    return SparseMatrix(count, width, pointers, at[1], values, isTransposed=by_rows)
