"""Operations for quasi-Newton steps with an L1 penalty (OWL-QN; Andrew & Gao, 2007) or with bounds on weights.

In OWL-QN, no weight changes its sign in a step. With bounds, gradients are projected, and steps are clipped.
"""

from __future__ import annotations

from ps2.ops import steps
from ps2.ops.guards import check_same_width, readable
from ps2.ops.kernels import kernel
from ps2.ops.optimizers import NonNegative
from ps2.ops.parallel import over_blocks
from ps2.ops.table import FLOATS, Array, Row, op


@kernel
def _pseudo_gradient(out: Array, w: Array, g: Array, scalars: steps.Scalars) -> None:
    l1, zero = scalars
    for i in range(w.size):
        right, left = g[i] + l1, g[i] - l1
        # At 0 the subgradients of the penalty are the interval [-l1, l1], which reduces abs(g) by at most l1.
        at_zero = right if right < zero else (left if left > zero else zero)
        out[i] = right if w[i] > zero else (left if w[i] < zero else at_zero)


@kernel
def _align(d: Array, p: Array, scalars: steps.Scalars) -> None:
    (zero,) = scalars
    for i in range(d.size):
        # Compare the signs, because the product could underflow.
        is_ascent = ((d[i] >= zero) & (p[i] >= zero)) | ((d[i] <= zero) & (p[i] <= zero))
        d[i] = zero if is_ascent else d[i]


@kernel
def _orthant_step(trial: Array, w: Array, d: Array, p: Array, scalars: steps.Scalars) -> None:
    t, zero = scalars
    for i in range(w.size):
        new_weight = w[i] + t * d[i]
        sign = w[i] if w[i] != zero else -p[i]
        is_inside = (
            ((new_weight > zero) & (sign > zero))
            | ((new_weight < zero) & (sign < zero))
            | (new_weight != new_weight)  # NaN
        )
        trial[i] = new_weight if is_inside else zero


@op(writes=("out",), dtypes=FLOATS)
def pseudo_gradient(out: Row, weight: Row, gradient: Row, *, l1: NonNegative) -> None:
    """Set ``out`` to the pseudo-gradient of loss + l1 |w|_1 (Andrew & Gao, 2007, Equation 4).

    It is g + l1 where w > 0, and g - l1 where w < 0. Where w = 0, it is g + l1 if g + l1 < 0, g - l1 if g - l1 > 0,
    and otherwise 0.

    Args:
        out: the pseudo-gradient; changed.
        weight: w.
        gradient: g, the gradient of the loss without the L1 penalty.
        l1: strength of the L1 penalty.
    """
    check_same_width(out, weight, gradient)
    over_blocks(_pseudo_gradient, (out, readable(weight), readable(gradient)), steps.in_row_dtype(weight, l1, 0))


@op(writes=("direction",), dtypes=FLOATS)
def align(direction: Row, pseudo: Row) -> None:
    """Set ``direction`` to 0 in columns in which it is no descent direction: where direction * pseudo >= 0."""
    check_same_width(direction, pseudo)
    over_blocks(_align, (direction, readable(pseudo)), steps.in_row_dtype(direction, 0))


@op(writes=("trial",), dtypes=FLOATS)
def orthant_step(trial: Row, weight: Row, direction: Row, pseudo: Row, *, t: float) -> None:
    """Set ``trial`` to weight + t * direction, but to 0 in columns in which this leaves the weight's orthant.

    The orthant has the signs of the weight, or of -pseudo where the weight is 0 (Andrew & Gao, 2007, Equation 6).

    Args:
        trial: the new point; changed.
        weight: the current point.
        direction: the search direction, after ``align``.
        pseudo: the pseudo-gradient at ``weight``.
        t: step length.
    """
    check_same_width(trial, weight, direction, pseudo)
    rows = (trial, readable(weight), readable(direction), readable(pseudo))
    over_blocks(_orthant_step, rows, steps.in_row_dtype(weight, t, 0))


@kernel
def _box_gradient(out: Array, w: Array, g: Array, lower: Array, upper: Array, scalars: steps.Scalars) -> None:
    (zero,) = scalars
    for i in range(w.size):
        is_blocked = ((w[i] <= lower[i]) & (g[i] > zero)) | ((w[i] >= upper[i]) & (g[i] < zero))
        out[i] = zero if is_blocked else g[i]


@kernel
def _clip(u: Array, lower: Array, upper: Array) -> None:
    for i in range(u.size):
        u[i] = lower[i] if u[i] < lower[i] else (upper[i] if u[i] > upper[i] else u[i])


@kernel
def _mask(u: Array, by: Array, scalars: steps.Scalars) -> None:
    (zero,) = scalars
    for i in range(u.size):
        u[i] = zero if by[i] == zero else u[i]


@op(writes=("out",), dtypes=FLOATS)
def box_gradient(out: Row, weight: Row, gradient: Row, lower: Row, upper: Row) -> None:
    """Set ``out`` to the projected gradient: 0 where a descent step would leave the bounds, else the gradient.

    Args:
        out: the projected gradient; changed.
        weight: w, within the bounds.
        gradient: g.
        lower: lower bounds; -inf: no bound.
        upper: upper bounds; inf: no bound.
    """
    check_same_width(out, weight, gradient, lower, upper)
    rows = (out, readable(weight), readable(gradient), readable(lower), readable(upper))
    over_blocks(_box_gradient, rows, steps.in_row_dtype(out, 0))


@op(writes=("u",), dtypes=FLOATS)
def clip(u: Row, lower: Row, upper: Row) -> None:
    """Clip ``u`` to the bounds; NaN stays NaN."""
    check_same_width(u, lower, upper)
    over_blocks(_clip, (u, readable(lower), readable(upper)))


@op(writes=("u",), dtypes=FLOATS)
def mask(u: Row, by: Row) -> None:
    """Set ``u`` to 0 where ``by`` is 0."""
    check_same_width(u, by)
    over_blocks(_mask, (u, readable(by)), steps.in_row_dtype(u, 0))
