"""Row access (PS2 paper, Table 1): read and write intervals (pull, push, ...) or slots (gather, scatter, ...) of a row.

Operations check lengths and indices before they write anything. Slots can be in any order, with duplicates: additions
accumulate, and of several overwrites the last one counts. Slot -1 stands for an absent sparse key: it reads as 0, and
is never written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np

from ps2.errors import OutOfRangeError, ShapeError
from ps2.ops import kernels
from ps2.ops.guards import check_length, check_slots, check_targets, readable
from ps2.ops.kernels import Int64s
from ps2.ops.operands import along
from ps2.ops.parallel import SLOT_COST, assign, over_blocks, update
from ps2.ops.table import FLOATS, Array, Row, Slots, Values, op

SlotValues = Annotated[Values, along("slots")]


def _target(u: Array, values: Array, start: int) -> Array:
    """Return the view of ``u`` to which the values are written."""
    if not 0 <= start <= u.size:
        raise OutOfRangeError(f"start: expected 0 to {u.size}, the row's width, got {start}")
    if values.size > u.size - start:
        raise ShapeError(f"values: expected at most {u.size - start} elements from column {start}, got {values.size}")
    return u[start : start + values.size]


def _scatter(kernel: Callable[[Array, Int64s, Array], None], u: Array, slots: Int64s, values: Array) -> None:
    """Call ``kernel(u, slots, values)``, in parallel if the slots are distinct."""
    check_length("values", values, slots.size)
    slots, ascending = check_targets(slots, u.size)
    values = readable(values)
    if ascending:
        # The slots are distinct, so no two threads write to the same column.
        over_blocks(lambda slots, values: kernel(u, slots, values), (slots, values), cost=SLOT_COST)
    else:
        kernel(u, slots, values)


@op()
def pull(u: Row, *, start: int = 0, stop: int = -1) -> Array:
    """Return a copy of columns ``[start, stop)`` of ``u``; stop -1: the end of the row.

    Raises:
        OutOfRangeError: the interval is not inside the row.
    """
    end = u.size if stop == -1 else stop
    if not 0 <= start <= end <= u.size:
        raise OutOfRangeError(f"start and stop: expected 0 <= start <= stop <= {u.size}, got {start} and {stop}")
    out = np.empty(end - start, dtype=u.dtype)
    assign(out, u[start:end])
    return out


@op(initial=True)
def gather(u: Row, slots: Slots) -> Annotated[Array, along("slots")]:
    """Return ``u`` at the slots, in their order; 0 at slot -1.

    Raises:
        OutOfRangeError: a slot is not inside the row.
    """
    out = np.empty(slots.size, dtype=u.dtype)
    row = readable(u)
    over_blocks(lambda s, o: kernels.gather(row, s, o), (check_slots(slots, u.size), out), cost=SLOT_COST)
    return out


@op(writes=("u",))
def push(u: Row, values: Values, *, start: int = 0) -> None:
    """Overwrite columns ``[start, start + len(values))`` of ``u``.

    Raises:
        OutOfRangeError: ``start`` is not inside the row.
        ShapeError: there are more values than columns from ``start`` on.
    """
    assign(_target(u, values, start), values)


@op(writes=("u",))
def push_add(u: Row, values: Values, *, start: int = 0) -> None:
    """Add the values to columns ``[start, start + len(values))`` of ``u``; raises like ``push``."""
    update(np.add, _target(u, values, start), values)


@op(writes=("u",))
def push_sub(u: Row, values: Values, *, start: int = 0) -> None:
    """Subtract the values from columns ``[start, start + len(values))`` of ``u``; raises like ``push``."""
    update(np.subtract, _target(u, values, start), values)


@op(writes=("u",))
def push_mul(u: Row, values: Values, *, start: int = 0) -> None:
    """Multiply columns ``[start, start + len(values))`` of ``u`` by the values; raises like ``push``."""
    update(np.multiply, _target(u, values, start), values)


@op(writes=("u",), dtypes=FLOATS)
def push_div(u: Row, values: Values, *, start: int = 0) -> None:
    """Divide columns ``[start, start + len(values))`` of ``u`` by the values; raises like ``push``."""
    update(np.divide, _target(u, values, start), values)


@op(writes=("u",), creates=True)
def scatter(u: Row, slots: Slots, values: SlotValues) -> None:
    """Overwrite ``u`` at the slots; the last of several values for a slot counts.

    Raises:
        ShapeError: the number of values differs from the number of slots.
        OutOfRangeError: a slot is not inside the row.
    """
    _scatter(kernels.scatter_set, u, slots, values)


@op(writes=("u",), creates=True)
def scatter_add(u: Row, slots: Slots, values: SlotValues) -> None:
    """Add the values to ``u`` at the slots; duplicates accumulate; raises like ``scatter``."""
    _scatter(kernels.scatter_add, u, slots, values)


@op(writes=("u",), creates=True)
def scatter_sub(u: Row, slots: Slots, values: SlotValues) -> None:
    """Subtract the values from ``u`` at the slots; duplicates accumulate; raises like ``scatter``."""
    _scatter(kernels.scatter_sub, u, slots, values)


@op(writes=("u",))
def scatter_mul(u: Row, slots: Slots, values: SlotValues) -> None:
    """Multiply ``u`` by the values at the slots; absent keys stay absent; raises like ``scatter``."""
    _scatter(kernels.scatter_mul, u, slots, values)


@op(writes=("u",), dtypes=FLOATS)
def scatter_div(u: Row, slots: Slots, values: SlotValues) -> None:
    """Divide ``u`` by the values at the slots; absent keys stay absent; raises like ``scatter``."""
    _scatter(kernels.scatter_div, u, slots, values)
