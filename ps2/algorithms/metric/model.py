"""A trained metric, usable without Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.frame.array_files import ArrayModel, ModelFiles
from ps2.algorithms.frame.row_matrices import finite_row_or_rows, finite_rows
from ps2.array_types import Float64s
from ps2.errors import LimitError, ShapeError

# The maximum number of features for which ``matrix`` is computed: a matrix of 2 GiB.
MAX_FEATURES = 1 << 14


class Metric(ArrayModel):
    """A Mahalanobis metric: the distance of x and y is ``|L x - L y|``; picklable.

    Attributes:
        components: L, float64, shape (rank, features).
    """

    _MODEL_CLASS = "ps2.algorithms.feature.MetricLearningModel"
    _FILES = ModelFiles("ps2.metric.v1", "a metric", {"components": "f"})

    def __init__(self, components: Any) -> None:
        """Raises:
        ShapeError, DTypeError: ``components`` are not a numeric matrix.
        InputError: a component is not finite.
        """
        self.components = finite_rows("components", components)

    @property
    def rank(self) -> int:
        """Number of rows of L."""
        return int(self.components.shape[0])

    @property
    def dim(self) -> int:
        """Number of features."""
        return int(self.components.shape[1])

    @property
    def classes(self) -> None:
        """None, because a metric predicts no classes."""

    def transform(self, x: Any) -> Float64s:
        """Return L x for each row x, float64, shape (n, rank); their Euclidean distances are the metric's distances.

        Args:
            x: scipy sparse or an array, shape (n, features).

        Raises:
            ShapeError, DTypeError: the rows are not numeric, or have a wrong number of features.
            InputError: a value is not finite.
        """
        return np.asarray(finite_row_or_rows("x", x, self.dim) @ self.components.T)

    def margins(self, x: sp.csr_array) -> Float64s:
        """Return ``transform(x)``, the raw output that the column of L x is made from."""
        return self.transform(x)

    def distances(self, x: Any, y: Any) -> Float64s:
        """Return the distances between rows of x and y with the same index, float64, shape (n,).

        Raises:
            ShapeError, DTypeError: the rows are not numeric, have a wrong number of features, or x and y differ in
                their number of rows.
            InputError: a value is not finite.
        """
        left, right = finite_row_or_rows("x", x, self.dim), finite_row_or_rows("y", y, self.dim)
        if left.shape != right.shape:
            raise ShapeError(f"expected as many rows of y as of x, got {right.shape[0]} and {left.shape[0]}")
        # L is applied to differences: with a large offset common to all rows, differences of L x would lose digits.
        return np.asarray(np.linalg.norm(np.asarray((left - right) @ self.components.T), axis=1))

    def matrix(self) -> Float64s:
        """Return M = L'L, float64, shape (features, features): distances are sqrt((x - y)' M (x - y)).

        Raises:
            LimitError: there are more than 16,384 features.
        """
        if self.dim > MAX_FEATURES:
            raise LimitError(
                f"matrix: {self.dim:,} features make {self.dim**2:,} values, and at most {MAX_FEATURES:,} features are "
                "allowed; components is the same metric in fewer values"
            )
        return self.components.T @ self.components
