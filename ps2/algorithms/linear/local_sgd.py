"""Stochastic gradient descent on a worker's own rows, between two averages of the models (MLlib*, Algorithm 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ps2.algorithms.linear.losses.loss import Array, Loss, checked_rows
from ps2.algorithms.linear.losses.margin import CODES
from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.linear.sgd_kernels import sgd_pass
from ps2.array_types import Float64s, Int64s
from ps2.data.rows import LocalRows
from ps2.errors import ConfigError, OutOfRangeError


@dataclass(frozen=True)
class LocalSteps:
    """How a pass steps.

    Attributes:
        batch: rows that a step averages; 0 or more than there are: all of them, so that there is one step.
        step_size: of step 0; that of step t is step_size / (1 + step_size l2 t) (Bottou 2012, equation 13).
        l2: strength of the L2 penalty; it shrinks the weights by 1 - (step size) l2 at each step.
        l1: strength of the L1 penalty; after that, weights are brought nearer to 0 by (step size) l1, and not beyond.
        first_step: number of the first step, from 0; a later pass goes on counting.
    """

    batch: int
    step_size: float
    l2: float = 0.0
    first_step: int = 0
    l1: float = 0.0


@dataclass(frozen=True, eq=False)
class LocalModel:
    """The result of a pass.

    Attributes:
        w: float64, shape (k,).
        b: float64, shape (1,).
        shrink, threshold: of all steps: a weight v of a feature that no row uses becomes shrink soft(v, threshold).
        next_step: number of the step that comes next.
    """

    w: Float64s
    b: Float64s
    shrink: float
    next_step: int
    threshold: float = 0.0

    def unused(self, w: Array) -> Float64s:
        """Return what the pass makes of weights that no row uses."""
        w = np.asarray(w, np.float64)
        if self.threshold == 0.0:
            return self.shrink * w
        return self.shrink * np.sign(w) * np.maximum(np.abs(w) - self.threshold, 0.0)


def takes(loss: str) -> bool:
    """Return whether ``local_sgd`` takes a loss: of a linear model, and without a scale of its own."""
    return loss in CODES and loss != "huber"


def check_loss(problem: Problem) -> None:
    """Raise ConfigError unless ``local_sgd`` takes the loss."""
    if not takes(problem.loss):
        raise ConfigError(f"local SGD: expected a linear model's loss other than huber, got {problem.loss!r}")


def local_sgd(loss: Loss, rows: LocalRows, w: Array, b: Float64s, order: Int64s, steps: LocalSteps) -> LocalModel:
    """Pass over rows once, in time that depends on their entries, not on how many weights the penalty shrinks.

    Args:
        loss: of a linear model; not Huber's, whose scale is no intercept.
        rows: of k keys.
        w: float32 or float64, shape (k,); not changed.
        b: float64, shape (1,); not changed.
        order: int64, shape (m,): numbers of the rows to pass, possibly not all, or some more than once.
        steps: batch and step size.

    Raises:
        ConfigError: the loss is of another kind, or a number of ``steps`` is negative.
        ShapeError: an array has another shape.
        OutOfRangeError: there is no row of some number.
    """
    problem = loss.problem
    check_loss(problem)
    if steps.batch < 0 or not steps.step_size > 0.0 or min(steps.l1, steps.l2) < 0.0 or steps.first_step < 0:
        raise ConfigError(f"local SGD: expected a positive step size, and no negative number, got {steps}")
    y, weights = checked_rows(problem, rows, w, b)
    order = np.asarray(order, np.int64)
    if len(order) and not 0 <= order.min() <= order.max() < len(rows):
        raise OutOfRangeError(f"order: expected rows in [0, {len(rows)}), got {order.min()} to {order.max()}")
    batch = min(steps.batch or len(order), len(order)) or 1
    u, intercept, x = w.astype(np.float64), b.astype(np.float64), rows.x
    shrink, threshold = sgd_pass(
        x.indptr, x.indices, x.data, y, weights, order, u, intercept, CODES[problem.loss],
        problem.fit_intercept, batch, float(steps.step_size), float(steps.l1), float(steps.l2), steps.first_step,
    )  # fmt: skip
    return LocalModel(u, intercept, shrink, steps.first_step - (-len(order) // batch), threshold)
