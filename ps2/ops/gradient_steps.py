"""Optimizer steps whose gradient travels with the request, for workers that take steps independently.

A step is atomic on each partition, so steps of several workers at once all count. The formulas are those of
``ps2.ops.optimizers``.
"""

from __future__ import annotations

from typing import Annotated

from ps2.ops import steps
from ps2.ops.guards import check_length, check_same_width, readable
from ps2.ops.operands import along
from ps2.ops.optimizers import STEP_COST, Decay, Positive
from ps2.ops.parallel import over_blocks
from ps2.ops.table import FLOATS, Row, Values, op

Gradient = Annotated[Values, along("columns")]


@op(writes=("weight",), dtypes=FLOATS)
def sgd_step(weight: Row, gradient: Gradient, *, lr: Positive) -> None:
    """Take one step of gradient descent with a gradient that travels: w <- w - lr g."""
    check_length("gradient", gradient, weight.size)
    over_blocks(steps.sgd, (weight, readable(gradient)), steps.in_row_dtype(weight, lr))


@op(writes=("weight", "velocity"), dtypes=FLOATS)
def momentum_step(weight: Row, velocity: Row, gradient: Gradient, *, lr: Positive, momentum: Decay = 0.9) -> None:
    """Take one step of ``momentum`` with a gradient that travels: v <- momentum v + g; w <- w - lr v."""
    check_same_width(weight, velocity)
    check_length("gradient", gradient, weight.size)
    over_blocks(steps.momentum, (weight, velocity, readable(gradient)), steps.in_row_dtype(weight, lr, momentum))


@op(writes=("weight", "square"), dtypes=FLOATS)
def adagrad_step(weight: Row, square: Row, gradient: Gradient, *, lr: Positive, eps: Positive = 1e-8) -> None:
    """Take one step of ``adagrad`` with a gradient that travels: s <- s + g^2; w <- w - lr g / (sqrt(s) + eps)."""
    check_same_width(weight, square)
    check_length("gradient", gradient, weight.size)
    scalars = steps.in_row_dtype(weight, lr, eps)
    over_blocks(steps.adagrad, (weight, square, readable(gradient)), scalars, cost=STEP_COST)


@op(writes=("weight", "velocity", "square", "count"), dtypes=FLOATS)
def adam_step(
    weight: Row,
    velocity: Row,
    square: Row,
    count: Row,
    gradient: Gradient,
    *,
    lr: Positive,
    beta1: Decay = 0.9,
    beta2: Decay = 0.999,
    eps: Positive = 1e-8,
) -> None:
    """Take one step of ``adam`` with a gradient that travels; t is the number of steps that the servers have taken.

    Args:
        weight, velocity, square: see ``adam``.
        count: steps so far, the same number in all columns; changed. Zeros before the first step. Up to 2**24.
        gradient: one number for each column, in the matrix's dtype.
        lr, beta1, beta2, eps: see ``adam``.
    """
    check_same_width(weight, velocity, square, count)
    check_length("gradient", gradient, weight.size)
    if weight.size:
        count += 1
        scalars = steps.adam_scalars(weight, lr, beta1, beta2, eps, int(count[0]))
        over_blocks(steps.adam, (weight, velocity, square, readable(gradient)), scalars, cost=STEP_COST)
