"""What the models of weights and biases have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from pyspark.ml.linalg import DenseMatrix, DenseVector, Matrix, SparseMatrix, Vector, Vectors

from ps2.algorithms.estimators.models import FleetModel
from ps2.algorithms.linear.files import read_weights, write_weights
from ps2.algorithms.linear.weights import Float64Array, Weights
from ps2.client.dcv import DCV
from ps2.errors import UsageError


class WeightsModel(FleetModel):
    """A trained model of weights and biases."""

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


def as_vector(values: Float64Array) -> Vector:
    """Return weights as the smaller of a dense and a sparse vector, as pyspark.ml does."""
    nonzero = np.flatnonzero(values)
    if 1.5 * (len(nonzero) + 1) < len(values):
        return Vectors.sparse(len(values), nonzero, values[nonzero])
    return DenseVector(values)


def as_matrix(rows: Float64Array) -> Matrix:
    """Return a matrix, row by row, as the smaller of a dense and a sparse one."""
    count, width = rows.shape
    at = np.nonzero(rows)
    if 1.5 * (len(at[0]) + count) < rows.size:
        starts = np.searchsorted(at[0], np.arange(count + 1))
        return SparseMatrix(count, width, starts, at[1], rows[at], isTransposed=True)
    return DenseMatrix(count, width, rows.reshape(-1), isTransposed=True)
