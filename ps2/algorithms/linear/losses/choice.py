"""The loss of a problem, by its name."""

from __future__ import annotations

from ps2.algorithms.linear.losses import factorization, margin
from ps2.algorithms.linear.losses.factorization import MachineLoss
from ps2.algorithms.linear.losses.loss import Loss
from ps2.algorithms.linear.losses.margin import MarginLoss
from ps2.algorithms.linear.losses.softmax import SoftmaxLoss
from ps2.algorithms.linear.problem import Problem
from ps2.errors import ConfigError


def loss_of(problem: Problem) -> Loss:
    """Make the loss of a problem.

    Raises:
        ConfigError: there is no loss of this name, or its width or epsilon is not one that it can have.
    """
    if problem.loss in margin.CODES:
        return MarginLoss(problem)
    if problem.loss in factorization.CODES:
        return MachineLoss(problem)
    if problem.loss == "softmax":
        return SoftmaxLoss(problem)
    known = [*margin.CODES, "softmax", *factorization.CODES]
    raise ConfigError(f"loss: expected one of {', '.join(known)}, got {problem.loss!r}")
