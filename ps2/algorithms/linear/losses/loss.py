"""Losses of rows in a worker's own columns: pure functions of arrays, without Spark or servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.training.table import Facts
from ps2.array_types import Float64s, Int64s
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows
from ps2.errors import ShapeError

Array = npt.NDArray[Any]

_NO_WEIGHTS = np.empty(0)


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A loss and its gradient, summed over rows, each times its weight; penalties are not in it.

    Attributes:
        loss: the sum.
        weight: the sum of the rows' weights.
        dw: float64, shape (k * width,): by the weights of the rows' keys, feature by feature.
        db: float64, shape (biases,): 0 for intercepts that are not trained.
    """

    loss: float
    weight: float
    dw: Float64s
    db: Float64s


class Loss(Protocol):
    """A loss of rows that use k keys; picklable.

    Arguments are ``w``, float32 or float64, shape (k * width,): the weights of the rows' keys, feature by feature; and
    ``b``, float64, shape (biases,). Sums are taken in float64 whatever the arrays hold. Arrays of another shape are a
    ShapeError.
    """

    @property
    def problem(self) -> Problem:
        """The objective that the loss is part of."""

    def gradient(self, rows: KeptRows, w: Array, b: Float64s) -> Evaluated:
        """Compute loss and gradient, block by block; the blocks make no difference to the result."""

    def loss(self, rows: KeptRows, w: Array, b: Float64s) -> tuple[float, float]:
        """Compute the summed loss, and the summed weight of the rows."""

    def margins(self, x: sp.csr_array, w: Array, b: Float64s) -> Float64s:
        """Compute what the model says of rows, float64, before any link function.

        Args:
            x: float32 or float64, shape (n, k).
            w: weights of its columns.
            b: biases.

        Returns:
            Shape (n,); "softmax": (n, width).
        """

    def beginning(self, keys: Int64s, seed: int) -> Float64s | None:
        """Return the weights of features to begin with, float64 of shape (len(keys) * width,), the same for a feature
        in whichever worker; None: zeros."""

    def first_biases(self, facts: Facts) -> Float64s:
        """Return the biases to begin with: those of a model without features, where they are known."""


def check_matrix(problem: Problem, x: sp.csr_array, w: Array, b: Float64s) -> None:
    """Raise ShapeError unless the weights are those of the matrix's columns; compiled loops check nothing."""
    expected = x.shape[1] * problem.width
    if w.shape != (expected,):
        raise ShapeError(f"w: expected shape ({expected},), {problem.width} a key of {x.shape[1]}, got {w.shape}")
    if b.shape != (problem.biases,):
        raise ShapeError(f"b: expected shape ({problem.biases},), got {b.shape}")


def checked_rows(problem: Problem, rows: LocalRows, w: Array, b: Float64s) -> tuple[Float64s, Float64s]:
    """Return labels and weights of rows, after ``check_matrix``; no weights, an empty array, mean 1 for every row.

    Raises:
        ShapeError: a shape does not fit, or there are no labels.
    """
    check_matrix(problem, rows.x, w, b)
    if rows.y is None or rows.y.shape != (len(rows),):
        came = "none" if rows.y is None else f"{rows.y.shape}"
        raise ShapeError(f"y: expected shape ({len(rows)},), a label for each row, got {came}")
    weights = _NO_WEIGHTS if rows.weights is None else rows.weights
    if rows.weights is not None and weights.shape != (len(rows),):
        raise ShapeError(f"weights: expected shape ({len(rows)},), one for each row, got {weights.shape}")
    return rows.y, weights


def log_odds(facts: Facts) -> float:
    """Return the logarithm of the odds of class 1; 0 unless there are two classes."""
    logs = log_priors(facts, 2)
    return float(logs[1] - logs[0])


def log_priors(facts: Facts, classes: int) -> Float64s:
    """Return the logarithm of each class's weight, of mean 0; a class without rows counts as half a row."""
    weights = np.zeros(classes)
    given = np.array(facts.class_weights[:classes], np.float64)
    weights[: len(given)] = given
    if facts.rows == 0 or not facts.weight > 0.0:
        return np.zeros(classes)
    logs = np.log(np.where(weights > 0.0, weights, 0.5 * facts.weight / facts.rows))
    return logs - logs.mean()
