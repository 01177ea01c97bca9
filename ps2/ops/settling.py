"""Penalties that lazy steps have left for later, applied without a step: to all columns, or to those at slots."""

from __future__ import annotations

from typing import Annotated, Any

from ps2.ops import proximal, steps
from ps2.ops.deferred import countable, floats, scaled
from ps2.ops.guards import check_same_width, check_targets, readable
from ps2.ops.optimizers import STEP_COST, Decay, NonNegative, Positive
from ps2.ops.parallel import SLOT_COST, over_blocks
from ps2.ops.table import FLOATS, Array, Range, Row, Slots, op

StepsTaken = Annotated[int, Range(at_least=0)]

# What a power and a logarithm cost, for ``over_blocks``.
POWER_COST = 16


@op(writes=("weight", "at"), dtypes=FLOATS)
def settle_plain(
    weight: Row, at: Row, *, lr: Positive, momentum: Decay = 0.0, step: StepsTaken, l1: NonNegative, l2: NonNegative
) -> None:
    """Apply the penalties of the steps up to ``step`` that columns of ``lazy_sgd`` or ``lazy_momentum`` have missed.

    Args:
        weight: changed.
        at: the last step up to which a column's penalty is applied, changed.
        lr: that of the steps.
        momentum: that of the steps; 0 for ``lazy_sgd``.
        step: the number of the last step, 0 if there was none.
        l1: that of the steps.
        l2: that of the steps.

    Raises:
        ConfigError: the dtype of ``at`` cannot count to ``step``.
    """
    check_same_width(weight, at)
    missed = floats(lr / (1 - momentum), l1, l2)
    over_blocks(proximal.settle_plain, (weight, at), missed, countable(at, step), cost=POWER_COST)


@op(writes=("weight", "at"), dtypes=FLOATS)
def settle_plain_at(
    weight: Row,
    at: Row,
    slots: Slots,
    *,
    lr: Positive,
    momentum: Decay = 0.0,
    step: StepsTaken,
    l1: NonNegative,
    l2: NonNegative,
) -> None:
    """Do as ``settle_plain`` at the slots only.

    Raises:
        ConfigError: the dtype of ``at`` cannot count to ``step``.
        OutOfRangeError: a slot is not inside the rows.
    """
    check_same_width(weight, at)
    missed = floats(lr / (1 - momentum), l1, l2)
    _over_slots(proximal.settle_plain_at, slots, weight, at, missed, countable(at, step))


@op(writes=("weight", "at"), dtypes=FLOATS)
def settle_scaled(
    weight: Row,
    square: Row,
    at: Row,
    *,
    lr: Positive,
    beta1: Decay = 0.0,
    eps: Positive = 1e-8,
    step: StepsTaken,
    l1: NonNegative,
    l2: NonNegative,
) -> None:
    """Apply the penalties of the steps up to ``step`` that columns of the other lazy optimisers have missed.

    Args:
        weight: changed.
        square: read; stands still.
        at: the last step up to which a column's penalty is applied, changed.
        lr: that of the steps.
        beta1: that of the steps of ``lazy_adam``; 0 for ``lazy_adagrad`` and ``lazy_rmsprop``.
        eps: that of the steps.
        step: the number of the last step, 0 if there was none.
        l1: that of the steps.
        l2: that of the steps.

    Raises:
        ConfigError: the dtype of ``at`` cannot count to ``step``.
    """
    check_same_width(weight, square, at)
    missed = scaled(lr, beta1, eps, l1, l2, step)
    over_blocks(proximal.settle_scaled, (weight, readable(square), at), missed, countable(at, step), cost=POWER_COST)


@op(writes=("weight", "at"), dtypes=FLOATS)
def settle_scaled_at(
    weight: Row,
    square: Row,
    at: Row,
    slots: Slots,
    *,
    lr: Positive,
    beta1: Decay = 0.0,
    eps: Positive = 1e-8,
    step: StepsTaken,
    l1: NonNegative,
    l2: NonNegative,
) -> None:
    """Do as ``settle_scaled`` at the slots only; raises as ``settle_plain_at`` does."""
    check_same_width(weight, square, at)
    missed = scaled(lr, beta1, eps, l1, l2, step)
    _over_slots(proximal.settle_scaled_at, slots, weight, readable(square), at, missed, countable(at, step))


@op(writes=("weight",), dtypes=FLOATS)
def settle_ftrl(
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
        z: that of ``ftrl``.
        square: that of ``ftrl``.
        alpha: that of the steps.
        beta: that of the steps.
        l1: strength of the L1 penalty.
        l2: strength of the L2 penalty.
    """
    check_same_width(weight, z, square)
    scalars = steps.in_dtype_of(weight, alpha, beta, l1, l2, 0)
    over_blocks(steps.settle_ftrl, (weight, readable(z), readable(square)), scalars, cost=STEP_COST)


@op(writes=("weight",), dtypes=FLOATS)
def settle_ftrl_at(
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
    """Do as ``settle_ftrl`` at the slots only.

    Raises:
        OutOfRangeError: a slot is not inside the rows.
    """
    check_same_width(weight, z, square)
    scalars = steps.in_dtype_of(weight, alpha, beta, l1, l2, 0)
    _over_slots(steps.settle_ftrl_at, slots, weight, readable(z), readable(square), scalars)


def _over_slots(loop: Any, slots: Array, weight: Array, *rest: Any) -> None:
    slots, ascending = check_targets(slots, weight.size)
    if ascending:
        # Blocks of these touch different columns.
        over_blocks(loop, (slots,), weight, *rest, cost=SLOT_COST)
    else:
        loop(slots, weight, *rest)
