"""Optimizer steps, each fused into one pass over its rows (PS2 paper, section 3 and Figure 4).

Steps compute in the rows' dtype. Values that are the same for all columns are computed once, in float64. The types of
hyperparameters include their ranges, which the client checks (``Op.check``).

``l1`` and ``l2`` are strengths of penalties that are not part of the gradient. With them, a proximal step follows each
optimizer step: w <- sign(w) max(abs(w) - lr l1 / h, 0) / (1 + lr l2 / h), where h is the factor by which the optimizer
divides lr. The fixed points of these steps minimize loss + l1 |w|_1 + l2/2 |w|^2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from ps2.errors import ConfigError
from ps2.ops import steps
from ps2.ops.guards import check_length, check_same_width, check_slots, readable
from ps2.ops.kernels import Int64s
from ps2.ops.nonzero import nonzero
from ps2.ops.operands import along
from ps2.ops.parallel import SLOT_COST, over_blocks
from ps2.ops.table import FLOATS, Array, Columns, Nonzero, Optimizer, Range, Row, Slots, Values, op

Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(at_least=0)]
Decay = Annotated[float, Range(at_least=0, below=1)]
Step = Annotated[int, Range(at_least=1)]

# The cost per column of a root and two divisions, in element additions; see ``ps2.ops.parallel``.
STEP_COST = 4
# The number of columns that a lazy step scans at a time. Its list of nonzero columns then takes at most 8 MiB per core.
SCAN_COLUMNS = 1 << 20
# A lazy step needs only the nonzero columns of its gradient.
LAZY = Nonzero("gradient", when=lambda scalars: bool(scalars["lazy"]))


@op(writes=("weight", "velocity", "square"), dtypes=FLOATS, nonzero=LAZY, optimizer=Optimizer(damping=1.0))
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
    """Take one step of Adam (Kingma & Ba, 2015). Equation 1 of the PS2 paper swaps the two betas.

    v <- beta1 v + (1 - beta1) g;  s <- beta2 s + (1 - beta2) g^2;  v' = v / (1 - beta1^t);  s' = s / (1 - beta2^t);
    w <- w - lr / (sqrt(s') + eps) v'.

    Args:
        weight: w, changed.
        velocity: v, changed; zeros before the first step.
        square: s, changed; zeros before the first step.
        gradient: g.
        lr: the learning rate.
        beta1: decay of the gradients' mean.
        beta2: decay of the squared gradients' mean.
        eps: a constant that is added to the root.
        step: t, which starts at 1.
        l1: strength of the L1 penalty; h = sqrt(s') + eps.
        l2: strength of the L2 penalty.
        lazy: True: skip columns whose gradient is 0. In such columns a full step decays the moments and changes the
            weight, but a lazy step changes nothing, although t counts the step. So results are equal only in columns
            whose gradient is never 0.

    Raises:
        ConfigError: ``lazy`` is combined with a penalty.
    """
    check_same_width(weight, velocity, square, gradient)
    rows = (weight, velocity, square, readable(gradient))
    scalars = steps.adam_scalars(weight, lr, beta1, beta2, eps, step)
    if lazy:
        _check_no_penalty("adam", l1, l2)
        _over_nonzero(steps.adam_at, rows, scalars, columns)
    elif l1 or l2:
        over_blocks(steps.proximal_adam, rows, (*scalars, *steps.scaled_penalties(weight, l1, l2)), cost=STEP_COST)
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
    scalars = steps.in_row_dtype(weight, lr)
    if l1 or l2:
        over_blocks(steps.proximal_sgd, rows, (*scalars, *steps.constant_penalties(weight, lr, l1, l2)))
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
        l1: strength of the L1 penalty; h = 1 - momentum, because v converges to g / h for a constant gradient g.
        l2: strength of the L2 penalty.
    """
    check_same_width(weight, velocity, gradient)
    rows = (weight, velocity, readable(gradient))
    scalars = steps.in_row_dtype(weight, lr, momentum)
    if l1 or l2:
        penalties = steps.constant_penalties(weight, lr / (1 - momentum), l1, l2)
        over_blocks(steps.proximal_momentum, rows, (*scalars, *penalties))
    else:
        over_blocks(steps.momentum, rows, scalars)


@op(writes=("weight", "square"), dtypes=FLOATS, nonzero=LAZY, optimizer=Optimizer(damping=0.5))
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
        eps: a constant that is added to the root.
        l1: strength of the L1 penalty; h = sqrt(s) + eps.
        l2: strength of the L2 penalty.
        lazy: True: skip columns whose gradient is 0. The result is the same, because Adagrad does not change them.

    Raises:
        ConfigError: ``lazy`` is combined with a penalty.
    """
    check_same_width(weight, square, gradient)
    rows = (weight, square, readable(gradient))
    scalars = steps.in_row_dtype(weight, lr, eps)
    if lazy:
        _check_no_penalty("adagrad", l1, l2)
        _over_nonzero(steps.adagrad_at, rows, scalars, columns)
    elif l1 or l2:
        over_blocks(steps.proximal_adagrad, rows, (*scalars, *steps.scaled_penalties(weight, l1, l2)), cost=STEP_COST)
    else:
        over_blocks(steps.adagrad, rows, scalars, cost=STEP_COST)


@op(writes=("weight", "square"), dtypes=FLOATS, optimizer=Optimizer(damping=1.0))
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
        rho: decay of the mean of squared gradients.
        eps: a constant that is added to the root.
        l1: strength of the L1 penalty; h = sqrt(s) + eps.
        l2: strength of the L2 penalty.
    """
    check_same_width(weight, square, gradient)
    rows = (weight, square, readable(gradient))
    scalars = steps.in_row_dtype(weight, lr, rho, 1 - rho, eps)
    if l1 or l2:
        over_blocks(steps.proximal_rmsprop, rows, (*scalars, *steps.scaled_penalties(weight, l1, l2)), cost=STEP_COST)
    else:
        over_blocks(steps.rmsprop, rows, scalars, cost=STEP_COST)


@op(
    writes=("weight", "z", "square"),
    dtypes=FLOATS,
    nonzero=LAZY,
    optimizer=Optimizer("alpha", catch_up="ftrl_weights", damping=0.5),
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
        z: the sum of g - sigma w over all steps, changed; zeros before the first step.
        square: n, the sum of squared gradients, changed; zeros before the first step.
        gradient: g, computed with the present weight.
        alpha: scale of the learning rate.
        beta: offset of the learning rate.
        l1: strength of the L1 penalty.
        l2: strength of the L2 penalty.
        lazy: True: skip columns whose gradient is 0. In such columns z and n do not change, and a full step recomputes
            w from them. So the result is the same if earlier steps of FTRL with the same hyperparameters have computed
            w. Other weights are overwritten by a full step, but not by a lazy step until their gradient is not 0. If
            penalties grow with the steps, apply ``ftrl_weights`` before weights are read.
    """
    check_same_width(weight, z, square, gradient)
    rows = (weight, z, square, readable(gradient))
    scalars = steps.in_row_dtype(weight, alpha, beta, l1, l2, 0)
    if lazy:
        _over_nonzero(steps.ftrl_at, rows, scalars, columns)
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
    """Recompute all weights from FTRL's sums z and n with these penalties.

    If penalties grow with the steps, lazy steps do not apply the later penalties to weights whose gradient is 0. This
    operation does.

    Args:
        weight: w, overwritten in all columns, including weights that FTRL has not computed.
        z, square, alpha, beta: see ``ftrl``.
        l1: strength of the L1 penalty.
        l2: strength of the L2 penalty.
    """
    check_same_width(weight, z, square)
    scalars = steps.in_row_dtype(weight, alpha, beta, l1, l2, 0)
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
    """Do the same as ``ftrl_weights``, but only at the slots.

    Raises:
        OutOfRangeError: a slot is not inside the rows.
    """
    check_same_width(weight, z, square)
    scalars = steps.in_row_dtype(weight, alpha, beta, l1, l2, 0)
    # Slots may repeat: two threads then write the same value to the column.
    over_blocks(
        steps.ftrl_weights_at,
        (check_slots(slots, weight.size),),
        weight,
        readable(z),
        readable(square),
        scalars,
        cost=SLOT_COST,
    )


def _check_no_penalty(name: str, l1: float, l2: float) -> None:
    if l1 or l2:
        raise ConfigError(
            f"operation {name!r}: lazy=True requires l1=0 and l2=0, because penalties also change columns without a "
            f"gradient; use 'ftrl'; got l1={l1:g}, l2={l2:g}"
        )


def _over_nonzero(
    loop: Callable[..., None], rows: Sequence[Array], scalars: steps.Scalars, columns: Int64s | None
) -> None:
    """Take an optimizer step in the nonzero columns of the gradient, which is the last of ``rows``.

    ``columns``: distinct columns that include all nonzero columns; None: scan all columns. ``loop``: the kernel.
    """
    if columns is None:
        over_blocks(lambda *block: _scan(loop, block, scalars), rows)
    else:
        over_blocks(loop, (readable(columns),), *rows, scalars, cost=SLOT_COST)


def _scan(loop: Callable[..., None], rows: Sequence[Array], scalars: steps.Scalars) -> None:
    """Find the nonzero columns of the gradient, and take the step in them, for ``SCAN_COLUMNS`` columns at a time."""
    for start in range(0, rows[-1].size, SCAN_COLUMNS):
        block = [row[start : start + SCAN_COLUMNS] for row in rows]
        loop(readable(nonzero(block[-1])), *block, scalars)


# A gradient that is sent with the request, for all columns.
Gradient = Annotated[Values, along("columns")]


@op(writes=("weight",), dtypes=FLOATS)
def sgd_step(weight: Row, gradient: Gradient, *, lr: Positive) -> None:
    """Take one step of gradient descent with a gradient from the request: w <- w - lr g."""
    check_length("gradient", gradient, weight.size)
    over_blocks(steps.sgd, (weight, readable(gradient)), steps.in_row_dtype(weight, lr))


@op(writes=("weight", "velocity"), dtypes=FLOATS)
def momentum_step(weight: Row, velocity: Row, gradient: Gradient, *, lr: Positive, momentum: Decay = 0.9) -> None:
    """Take one step of ``momentum`` with a gradient from the request: v <- momentum v + g; w <- w - lr v."""
    check_same_width(weight, velocity)
    check_length("gradient", gradient, weight.size)
    over_blocks(steps.momentum, (weight, velocity, readable(gradient)), steps.in_row_dtype(weight, lr, momentum))


@op(writes=("weight", "square"), dtypes=FLOATS)
def adagrad_step(weight: Row, square: Row, gradient: Gradient, *, lr: Positive, eps: Positive = 1e-8) -> None:
    """Take one step of ``adagrad`` with a gradient from the request: s <- s + g^2; w <- w - lr g / (sqrt(s) + eps)."""
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
    """Take one step of ``adam`` with a gradient from the request; the servers count the steps t.

    Args:
        weight, velocity, square: see ``adam``.
        count: the number of steps, the same in all columns, at most 2**24 (float32); changed. Zeros before the first
            step.
        gradient: one value for each column.
        lr, beta1, beta2, eps: see ``adam``.
    """
    check_same_width(weight, velocity, square, count)
    check_length("gradient", gradient, weight.size)
    if weight.size:
        count += 1
        scalars = steps.adam_scalars(weight, lr, beta1, beta2, eps, int(count[0]))
        over_blocks(steps.adam, (weight, velocity, square, readable(gradient)), scalars, cost=STEP_COST)
