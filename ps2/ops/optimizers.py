"""Optimiser steps, each fused into one pass over its rows (paper, section 3 and Figure 4).

The maths runs in the rows' dtype; what does not change from column to column is computed once, in float64. Ranges of
hyperparameters are part of their types, and are checked by ``Op.check`` on the caller's side.

``l1`` and ``l2`` are strengths of penalties that are not part of the gradient: the step is then followed by their
proximal step, w <- sign(w) max(abs(w) - lr l1 / h, 0) / (1 + lr l2 / h), h being what the step divides by. Steps that
stand still are at the optimum of loss + l1 |w|_1 + l2/2 |w|^2.
"""

from __future__ import annotations

from typing import Annotated

from ps2.errors import ConfigError
from ps2.ops import proximal, steps
from ps2.ops.guards import check_same_width, check_slots, readable
from ps2.ops.lazy import over_nonzero
from ps2.ops.parallel import SLOT_COST, over_blocks
from ps2.ops.table import FLOATS, Columns, Nonzero, Optimizer, Range, Row, Slots, op

Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(at_least=0)]
Decay = Annotated[float, Range(at_least=0, below=1)]
Step = Annotated[int, Range(at_least=1)]

# What a root and two divisions cost, for ``over_blocks``.
STEP_COST = 4
LAZY = Nonzero("gradient", when=lambda scalars: bool(scalars["lazy"]))


@op(writes=("weight", "velocity", "square"), dtypes=FLOATS, nonzero=LAZY, optimizer=Optimizer())
def adam(
    weight: Row,
    velocity: Row,
    square: Row,
    gradient: Row,
    *,
    lr: Positive,
    beta1: Decay = 0.9,
    beta2: Decay = 0.999,
    eps: Positive = 1e-8,
    step: Step,
    l1: NonNegative = 0.0,
    l2: NonNegative = 0.0,
    lazy: bool = False,
    columns: Columns = None,
) -> None:
    """Take one step of Adam (Kingma & Ba, 2015; the paper's Equation 1, which prints the betas the other way round).

    v <- beta1 v + (1 - beta1) g;  s <- beta2 s + (1 - beta2) g^2;  v' = v / (1 - beta1^t);  s' = s / (1 - beta2^t);
    w <- w - lr / (sqrt(s') + eps) v'.

    Args:
        weight: w, changed.
        velocity: v, changed; zeros before the first step.
        square: s, changed; zeros before the first step.
        gradient: g.
        lr: the learning rate, eta.
        beta1: decay of the mean of the gradients.
        beta2: decay of the mean of their squares.
        eps: added outside the root.
        step: t, which starts at 1.
        l1: strength of the L1 penalty; h = sqrt(s') + eps.
        l2: strength of the L2 penalty.
        lazy: leave columns whose gradient is 0 alone, at the cost of reading the gradient there. Their moments stand
            still, where the full step lets them decay and moves the weight on by them; t counts all steps still. So
            the results differ, save at columns whose gradient is never 0.

    Raises:
        ConfigError: lazy, with a penalty.
    """
    check_same_width(weight, velocity, square, gradient)
    rows = (weight, velocity, square, readable(gradient))
    scalars = steps.adam_scalars(weight, lr, beta1, beta2, eps, step)
    if lazy:
        _check_unpenalised("adam", l1, l2)
        over_nonzero(steps.adam_at, rows, scalars, columns)
    elif l1 or l2:
        over_blocks(proximal.adam, rows, (*scalars, *proximal.scaled(weight, l1, l2)), cost=STEP_COST)
    else:
        over_blocks(steps.adam, rows, scalars, cost=STEP_COST)


@op(writes=("weight",), dtypes=FLOATS, optimizer=Optimizer())
def sgd(weight: Row, gradient: Row, *, lr: Positive, l1: NonNegative = 0.0, l2: NonNegative = 0.0) -> None:
    """Take one step of gradient descent: w <- w - lr g.

    Args:
        weight: w, changed.
        gradient: g.
        lr: the learning rate.
        l1: strength of the L1 penalty; h = 1.
        l2: strength of the L2 penalty.
    """
    check_same_width(weight, gradient)
    rows = (weight, readable(gradient))
    scalars = steps.in_dtype_of(weight, lr)
    if l1 or l2:
        over_blocks(proximal.sgd, rows, (*scalars, *proximal.constant(weight, lr, l1, l2)))
    else:
        over_blocks(steps.sgd, rows, scalars)


@op(writes=("weight", "velocity"), dtypes=FLOATS, optimizer=Optimizer())
def momentum(
    weight: Row,
    velocity: Row,
    gradient: Row,
    *,
    lr: Positive,
    momentum: Decay = 0.9,
    l1: NonNegative = 0.0,
    l2: NonNegative = 0.0,
) -> None:
    """Take one step of gradient descent with momentum: v <- momentum v + g; w <- w - lr v.

    Args:
        weight: w, changed.
        velocity: v, changed; zeros before the first step.
        gradient: g.
        lr: the learning rate.
        momentum: decay of the velocity.
        l1: strength of the L1 penalty; h = 1 - momentum, as a gradient that lasts is added 1 / h times.
        l2: strength of the L2 penalty.
    """
    check_same_width(weight, velocity, gradient)
    rows = (weight, velocity, readable(gradient))
    scalars = steps.in_dtype_of(weight, lr, momentum)
    if l1 or l2:
        over_blocks(proximal.momentum, rows, (*scalars, *proximal.constant(weight, lr / (1 - momentum), l1, l2)))
    else:
        over_blocks(steps.momentum, rows, scalars)


@op(writes=("weight", "square"), dtypes=FLOATS, nonzero=LAZY, optimizer=Optimizer())
def adagrad(
    weight: Row,
    square: Row,
    gradient: Row,
    *,
    lr: Positive,
    eps: Positive = 1e-8,
    l1: NonNegative = 0.0,
    l2: NonNegative = 0.0,
    lazy: bool = False,
    columns: Columns = None,
) -> None:
    """Take one step of Adagrad (Duchi et al., 2011): s <- s + g^2; w <- w - lr g / (sqrt(s) + eps).

    Args:
        weight: w, changed.
        square: s, changed; zeros before the first step.
        gradient: g.
        lr: the learning rate.
        eps: added outside the root.
        l1: strength of the L1 penalty; h = sqrt(s) + eps.
        l2: strength of the L2 penalty.
        lazy: only read the gradient at columns where it is 0. The result is the same: there nothing changes anyway.

    Raises:
        ConfigError: lazy, with a penalty.
    """
    check_same_width(weight, square, gradient)
    rows = (weight, square, readable(gradient))
    scalars = steps.in_dtype_of(weight, lr, eps)
    if lazy:
        _check_unpenalised("adagrad", l1, l2)
        over_nonzero(steps.adagrad_at, rows, scalars, columns)
    elif l1 or l2:
        over_blocks(proximal.adagrad, rows, (*scalars, *proximal.scaled(weight, l1, l2)), cost=STEP_COST)
    else:
        over_blocks(steps.adagrad, rows, scalars, cost=STEP_COST)


@op(writes=("weight", "square"), dtypes=FLOATS, optimizer=Optimizer())
def rmsprop(
    weight: Row,
    square: Row,
    gradient: Row,
    *,
    lr: Positive,
    rho: Decay = 0.9,
    eps: Positive = 1e-8,
    l1: NonNegative = 0.0,
    l2: NonNegative = 0.0,
) -> None:
    """Take one step of RMSProp: s <- rho s + (1 - rho) g^2; w <- w - lr g / (sqrt(s) + eps).

    Args:
        weight: w, changed.
        square: s, changed; zeros before the first step.
        gradient: g.
        lr: the learning rate.
        rho: decay of the squares.
        eps: added outside the root.
        l1: strength of the L1 penalty; h = sqrt(s) + eps.
        l2: strength of the L2 penalty.
    """
    check_same_width(weight, square, gradient)
    rows = (weight, square, readable(gradient))
    scalars = steps.in_dtype_of(weight, lr, rho, 1 - rho, eps)
    if l1 or l2:
        over_blocks(proximal.rmsprop, rows, (*scalars, *proximal.scaled(weight, l1, l2)), cost=STEP_COST)
    else:
        over_blocks(steps.rmsprop, rows, scalars, cost=STEP_COST)


@op(
    writes=("weight", "z", "square"), dtypes=FLOATS, nonzero=LAZY, optimizer=Optimizer("alpha", catch_up="ftrl_weights")
)
def ftrl(
    weight: Row,
    z: Row,
    square: Row,
    gradient: Row,
    *,
    alpha: Positive,
    beta: NonNegative = 1.0,
    l1: NonNegative = 0.0,
    l2: NonNegative = 0.0,
    lazy: bool = False,
    columns: Columns = None,
) -> None:
    """Take one step of FTRL-Proximal with per-coordinate learning rates (McMahan et al., 2013, Algorithm 1).

    sigma = (sqrt(n + g^2) - sqrt(n)) / alpha;  z <- z + g - sigma w;  n <- n + g^2;
    w <- 0 if abs(z) <= l1, else -(z - sign(z) l1) / ((beta + sqrt(n)) / alpha + l2).

    Args:
        weight: w, changed; zeros before the first step.
        z: changed; zeros before the first step.
        square: n, the sum of squared gradients, changed; zeros before the first step.
        gradient: g, taken at the present weight.
        alpha: the learning rate's scale.
        beta: the learning rate's offset.
        l1: strength of the L1 penalty.
        l2: strength of the L2 penalty.
        lazy: only read the gradient at columns where it is 0. The result is the same for weights that FTRL itself has
            made, by the same hyperparameters: there z and n stand still, and the full step computes the same w from
            them once more. It overwrites other weights too; the lazy step keeps them until their gradient is not 0.
            With penalties that grow with the steps: ``ftrl_weights`` before weights are read.
    """
    check_same_width(weight, z, square, gradient)
    rows = (weight, z, square, readable(gradient))
    scalars = steps.in_dtype_of(weight, alpha, beta, l1, l2, 0)
    if lazy:
        over_nonzero(steps.ftrl_at, rows, scalars, columns)
    else:
        over_blocks(steps.ftrl, rows, scalars, cost=STEP_COST)


@op(writes=("weight",), dtypes=FLOATS)
def ftrl_weights(
    weight: Row,
    z: Row,
    square: Row,
    *,
    alpha: Positive,
    beta: NonNegative = 1.0,
    l1: NonNegative,
    l2: NonNegative,
) -> None:
    """Set the weights to what ``ftrl`` makes of its sums with these penalties, which may have grown since its step.

    With strengths in proportion to the number of steps, a lazy step leaves weights whose gradient is 0 as the penalties
    of an earlier step made them.

    Args:
        weight: w, changed: also where FTRL has not made it.
        z, square, alpha, beta: those of ``ftrl``.
        l1: strength of the L1 penalty.
        l2: strength of the L2 penalty.
    """
    check_same_width(weight, z, square)
    scalars = steps.in_dtype_of(weight, alpha, beta, l1, l2, 0)
    over_blocks(steps.ftrl_weights, (weight, readable(z), readable(square)), scalars, cost=STEP_COST)


@op(writes=("weight",), dtypes=FLOATS)
def ftrl_weights_at(
    weight: Row,
    z: Row,
    square: Row,
    slots: Slots,
    *,
    alpha: Positive,
    beta: NonNegative = 1.0,
    l1: NonNegative,
    l2: NonNegative,
) -> None:
    """Do as ``ftrl_weights`` at the slots only.

    Raises:
        OutOfRangeError: a slot is not inside the rows.
    """
    check_same_width(weight, z, square)
    rest = (weight, readable(z), readable(square), steps.in_dtype_of(weight, alpha, beta, l1, l2, 0))
    # A column that two blocks have becomes the same in both.
    over_blocks(steps.ftrl_weights_at, (check_slots(slots, weight.size),), *rest, cost=SLOT_COST)


def _check_unpenalised(name: str, l1: float, l2: float) -> None:
    if l1 or l2:
        raise ConfigError(
            f"operation {name!r}: lazy=True takes no l1 or l2, which change columns without a gradient too: "
            f"use 'ftrl'; got l1={l1:g}, l2={l2:g}"
        )
