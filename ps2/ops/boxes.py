"""Operations for quasi-Newton with bounds on weights: projected gradients, and steps clipped to the bounds."""

from __future__ import annotations

from ps2.ops import steps
from ps2.ops.guards import check_same_width, readable
from ps2.ops.kernels import kernel
from ps2.ops.parallel import over_blocks
from ps2.ops.table import FLOATS, Array, Row, op


@kernel
def _box_gradient(out: Array, w: Array, g: Array, lower: Array, upper: Array, scalars: steps.Scalars) -> None:
    (zero,) = scalars
    for i in range(w.size):
        held = ((w[i] <= lower[i]) & (g[i] > zero)) | ((w[i] >= upper[i]) & (g[i] < zero))
        out[i] = zero if held else g[i]


@kernel
def _clip(u: Array, lower: Array, upper: Array, scalars: steps.Scalars) -> None:
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
        out: changed.
        weight: w, within the bounds.
        gradient: g.
        lower: lower bounds; -inf for none.
        upper: upper bounds; inf for none.
    """
    check_same_width(out, weight, gradient, lower, upper)
    rows = (out, readable(weight), readable(gradient), readable(lower), readable(upper))
    over_blocks(_box_gradient, rows, steps.in_row_dtype(out, 0))


@op(writes=("u",), dtypes=FLOATS)
def clip(u: Row, lower: Row, upper: Row) -> None:
    """Clip ``u`` to the bounds; NaN stays NaN."""
    check_same_width(u, lower, upper)
    over_blocks(_clip, (u, readable(lower), readable(upper)), steps.in_row_dtype(u, 0))


@op(writes=("u",), dtypes=FLOATS)
def mask(u: Row, by: Row) -> None:
    """Set ``u`` to 0 where ``by`` is 0."""
    check_same_width(u, by)
    over_blocks(_mask, (u, readable(by)), steps.in_row_dtype(u, 0))
