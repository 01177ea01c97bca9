"""Column access, element by element, in place: the add, sub, mul, div, copy and axpy of the paper's Table 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from ps2.ops import kernels
from ps2.ops.guards import check_same_width, readable
from ps2.ops.table import FLOATS, Array, Row, op


def _in_place(ufunc: np.ufunc, u: Array, v: Any) -> None:
    """Set ``u`` to ``ufunc(u, v)`` with IEEE results: overflow and division by zero are values, not warnings."""
    if isinstance(v, np.ndarray):
        check_same_width(u, v)
    with np.errstate(all="ignore"):
        ufunc(u, v, out=u)


@op(writes=("u",))
def add(u: Row, v: Row) -> None:
    """Add ``v`` to ``u``."""
    _in_place(np.add, u, v)


@op(writes=("u",))
def sub(u: Row, v: Row) -> None:
    """Subtract ``v`` from ``u``."""
    _in_place(np.subtract, u, v)


@op(writes=("u",))
def mul(u: Row, v: Row) -> None:
    """Multiply ``u`` by ``v``."""
    _in_place(np.multiply, u, v)


@op(writes=("u",), dtypes=FLOATS)
def div(u: Row, v: Row) -> None:
    """Divide ``u`` by ``v``; x/0 is infinite and 0/0 is NaN."""
    _in_place(np.divide, u, v)


@op(writes=("u",))
def copy(u: Row, v: Row) -> None:
    """Overwrite ``u`` with ``v``."""
    check_same_width(u, v)
    u[:] = v


@op(writes=("u",))
def axpy(u: Row, v: Row, *, alpha: float) -> None:
    """Add ``alpha * v`` to ``u``; alpha is rounded to the rows' dtype first."""
    check_same_width(u, v)
    with np.errstate(all="ignore"):
        scale = u.dtype.type(alpha)
    kernels.axpy(u, readable(v), scale)


@op(writes=("u",))
def fill(u: Row, *, value: float) -> None:
    """Set every column of ``u`` to the value."""
    with np.errstate(all="ignore"):
        u[:] = value


@op(writes=("u",))
def add_scalar(u: Row, *, value: float) -> None:
    """Add the value to every column of ``u``."""
    _in_place(np.add, u, value)


@op(writes=("u",))
def sub_scalar(u: Row, *, value: float) -> None:
    """Subtract the value from every column of ``u``."""
    _in_place(np.subtract, u, value)


@op(writes=("u",))
def mul_scalar(u: Row, *, value: float) -> None:
    """Multiply every column of ``u`` by the value."""
    _in_place(np.multiply, u, value)


@op(writes=("u",), dtypes=FLOATS)
def div_scalar(u: Row, *, value: float) -> None:
    """Divide every column of ``u`` by the value; x/0 is infinite and 0/0 is NaN."""
    _in_place(np.divide, u, value)
