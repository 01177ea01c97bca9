"""Lazy optimiser steps whose penalties are made up for later.

A step with a penalty changes every weight, whatever its gradient. Here it visits the columns alone whose gradient is
not 0, and ``at``, a row of the weight's dtype, holds the last step up to which a column's penalty has been applied: 0
before the first, as steps count from 1. A column that is visited first catches up on the penalties of the steps that
it missed, then takes its own; ``settle_plain`` and ``settle_scaled`` let columns catch up without a step. So weights
that have been settled are those of a proximal step at every step, with moments that stand still where the gradient is
0: to rounding, the weights of ``sgd`` and ``adagrad``.

The learning rate and the penalties must be the same at all steps, as those that were missed are made up for by the ones
that the call is given. Steps count exactly up to 2**24 in float32 and 2**53 in float64. A column that is ahead of
``step`` has missed nothing.
"""

from __future__ import annotations

from ps2.errors import ConfigError
from ps2.ops import proximal, steps
from ps2.ops.guards import check_same_width, readable
from ps2.ops.lazy import over_nonzero
from ps2.ops.optimizers import Decay, NonNegative, Positive, Step
from ps2.ops.table import FLOATS, Array, Columns, Nonzero, Row, op

GRADIENT = Nonzero("gradient", when=lambda scalars: True)
# Up to which whole numbers are exact.
LAST_STEP = {"float32": 2**24, "float64": 2**53}


@op(writes=("weight", "at"), dtypes=FLOATS, nonzero=GRADIENT)
def lazy_sgd(
    weight: Row,
    at: Row,
    gradient: Row,
    *,
    lr: Positive,
    step: Step,
    l1: NonNegative = 0.0,
    l2: NonNegative = 0.0,
    columns: Columns = None,
) -> None:
    """Take a step of ``sgd`` where the gradient is not 0, with the penalties that these columns have missed.

    Args:
        weight: changed.
        at: the last step up to which a column's penalty is applied, changed; zeros before the first step.
        gradient: read.
        lr: the learning rate, the same at all steps.
        step: the number of this step, from 1.
        l1: strength of the L1 penalty, the same at all steps.
        l2: strength of the L2 penalty, the same at all steps.

    Raises:
        ConfigError: the dtype of ``at`` cannot count to ``step``.
    """
    check_same_width(weight, at, gradient)
    own = (*steps.in_dtype_of(weight, lr), *proximal.constant(weight, lr, l1, l2))
    scalars = (own, floats(lr, l1, l2), countable(at, step))
    over_nonzero(proximal.sgd_at, (weight, at, readable(gradient)), scalars, columns)


@op(writes=("weight", "velocity", "at"), dtypes=FLOATS, nonzero=GRADIENT)
def lazy_momentum(
    weight: Row,
    velocity: Row,
    at: Row,
    gradient: Row,
    *,
    lr: Positive,
    momentum: Decay = 0.9,
    step: Step,
    l1: NonNegative = 0.0,
    l2: NonNegative = 0.0,
    columns: Columns = None,
) -> None:
    """Take a step of ``momentum`` where the gradient is not 0, with the penalties that these columns have missed.

    Elsewhere the velocity stands still, and the weight with it. Arguments and errors are those of ``momentum`` and
    ``lazy_sgd``.
    """
    check_same_width(weight, velocity, at, gradient)
    rate = lr / (1 - momentum)
    own = (*steps.in_dtype_of(weight, lr, momentum), *proximal.constant(weight, rate, l1, l2))
    scalars = (own, floats(rate, l1, l2), countable(at, step))
    over_nonzero(proximal.momentum_at, (weight, velocity, at, readable(gradient)), scalars, columns)


@op(writes=("weight", "square", "at"), dtypes=FLOATS, nonzero=GRADIENT)
def lazy_adagrad(
    weight: Row,
    square: Row,
    at: Row,
    gradient: Row,
    *,
    lr: Positive,
    eps: Positive = 1e-8,
    step: Step,
    l1: NonNegative = 0.0,
    l2: NonNegative = 0.0,
    columns: Columns = None,
) -> None:
    """Take a step of ``adagrad`` where the gradient is not 0, with the penalties that these columns have missed.

    Arguments and errors are those of ``adagrad`` and ``lazy_sgd``.
    """
    check_same_width(weight, square, at, gradient)
    own = (*steps.in_dtype_of(weight, lr, eps), *proximal.scaled(weight, l1, l2))
    scalars = (own, scaled(lr, 0.0, eps, l1, l2, step), countable(at, step))
    over_nonzero(proximal.adagrad_at, (weight, square, at, readable(gradient)), scalars, columns)


@op(writes=("weight", "square", "at"), dtypes=FLOATS, nonzero=GRADIENT)
def lazy_rmsprop(
    weight: Row,
    square: Row,
    at: Row,
    gradient: Row,
    *,
    lr: Positive,
    rho: Decay = 0.9,
    eps: Positive = 1e-8,
    step: Step,
    l1: NonNegative = 0.0,
    l2: NonNegative = 0.0,
    columns: Columns = None,
) -> None:
    """Take a step of ``rmsprop`` where the gradient is not 0, with the penalties that these columns have missed.

    Elsewhere the squares stand still. Arguments and errors are those of ``rmsprop`` and ``lazy_sgd``.
    """
    check_same_width(weight, square, at, gradient)
    own = (*steps.in_dtype_of(weight, lr, rho, 1 - rho, eps), *proximal.scaled(weight, l1, l2))
    scalars = (own, scaled(lr, 0.0, eps, l1, l2, step), countable(at, step))
    over_nonzero(proximal.rmsprop_at, (weight, square, at, readable(gradient)), scalars, columns)


@op(writes=("weight", "velocity", "square", "at"), dtypes=FLOATS, nonzero=GRADIENT)
def lazy_adam(
    weight: Row,
    velocity: Row,
    square: Row,
    at: Row,
    gradient: Row,
    *,
    lr: Positive,
    beta1: Decay = 0.999,
    beta2: Decay = 0.9,
    eps: Positive = 1e-8,
    step: Step,
    l1: NonNegative = 0.0,
    l2: NonNegative = 0.0,
    columns: Columns = None,
) -> None:
    """Take a step of ``adam`` where the gradient is not 0, with the penalties that these columns have missed.

    Elsewhere the moments stand still; without penalties it is ``adam`` with ``lazy=True``. What a step divides by
    changes with its number, so missed steps are made up for one by one, save those of weights that are 0. Arguments
    and errors are those of ``adam`` and ``lazy_sgd``.
    """
    check_same_width(weight, velocity, square, at, gradient)
    own = (*steps.adam_scalars(weight, lr, beta1, beta2, eps, step), *proximal.scaled(weight, l1, l2))
    scalars = (own, scaled(lr, beta1, eps, l1, l2, step), countable(at, step))
    over_nonzero(proximal.adam_at, (weight, velocity, square, at, readable(gradient)), scalars, columns)


def floats(*values: float) -> steps.Scalars:
    """Return the numbers as floats: kernels are compiled anew for whole ones."""
    return tuple(map(float, values))


def scaled(lr: float, beta1: float, eps: float, l1: float, l2: float, step: int) -> steps.Scalars:
    """Return what the penalties of missed steps depend on, where the metric does on the column."""
    return (float(lr), proximal.growth(beta1, step), *floats(eps, l1, l2))


def countable(at: Array, step: int) -> int:
    """Return the step, if the row can hold its number."""
    if step > LAST_STEP[at.dtype.name]:
        raise ConfigError(f"step: {at.dtype} counts exactly up to {LAST_STEP[at.dtype.name]}, got {step}")
    return step
