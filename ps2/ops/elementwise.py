"""Element-wise operations in place: add, sub, mul, div, copy and axpy (PS2 paper, Table 1), also with scalars."""

from __future__ import annotations

from collections.abc import Mapping
from math import copysign
from typing import Any

import numpy as np

from ps2.errors import OutOfRangeError
from ps2.ops import kernels
from ps2.ops.guards import check_same_width, readable
from ps2.ops.parallel import SLOT_COST, assign, over_blocks, update
from ps2.ops.table import FLOATS, Array, Columns, Nonzero, Row, op


def _update(ufunc: np.ufunc, u: Array, v: Array) -> None:
    check_same_width(u, v)
    update(ufunc, u, v)


def _in_dtype(value: float, u: Array) -> Any:
    """Return the value in the dtype of ``u``."""
    with np.errstate(all="ignore"):
        return u.dtype.type(value)


@op(writes=("u",))
def add(u: Row, v: Row) -> None:
    """Add ``v`` to ``u``."""
    _update(np.add, u, v)


@op(writes=("u",))
def sub(u: Row, v: Row) -> None:
    """Subtract ``v`` from ``u``."""
    _update(np.subtract, u, v)


@op(writes=("u",))
def mul(u: Row, v: Row) -> None:
    """Multiply ``u`` by ``v``."""
    _update(np.multiply, u, v)


@op(writes=("u",), dtypes=FLOATS)
def div(u: Row, v: Row) -> None:
    """Divide ``u`` by ``v``; x/0 is infinite and 0/0 is NaN."""
    _update(np.divide, u, v)


@op(writes=("u",))
def copy(u: Row, v: Row) -> None:
    """Overwrite ``u`` with ``v``."""
    check_same_width(u, v)
    assign(u, v)


@op(writes=("u",))
def axpy(u: Row, v: Row, *, alpha: float) -> None:
    """Add ``alpha * v`` to ``u``; alpha is rounded to the rows' dtype first."""
    check_same_width(u, v)
    over_blocks(kernels.axpy, (u, readable(v)), _in_dtype(alpha, u))


def _fills_with_zero(scalars: Mapping[str, Any]) -> bool:
    """Return True if the value is 0, but not -0.0."""
    return scalars["value"] == 0 and copysign(1, scalars["value"]) > 0


@op(writes=("u",), nonzero=Nonzero("u", when=_fills_with_zero))
def fill(u: Row, *, value: float, columns: Columns = None) -> None:
    """Set every column of ``u`` to the value."""
    rounded = _in_dtype(value, u)
    if columns is None:
        assign(u, rounded)
    else:
        over_blocks(lambda block: u.__setitem__(block, rounded), (columns,), cost=SLOT_COST)


@op(writes=("u",))
def add_scalar(u: Row, *, value: float) -> None:
    """Add the value to every column of ``u``."""
    update(np.add, u, value)


@op(writes=("u",))
def sub_scalar(u: Row, *, value: float) -> None:
    """Subtract the value from every column of ``u``."""
    update(np.subtract, u, value)


@op(writes=("u",))
def mul_scalar(u: Row, *, value: float) -> None:
    """Multiply every column of ``u`` by the value."""
    update(np.multiply, u, value)


@op(writes=("u",), dtypes=FLOATS)
def div_scalar(u: Row, *, value: float) -> None:
    """Divide every column of ``u`` by the value; x/0 is infinite and 0/0 is NaN."""
    if value and not _in_dtype(value, u):
        raise OutOfRangeError(f"value: {value} is 0 in {u.dtype}, and x/0 is infinite")
    update(np.divide, u, value)
