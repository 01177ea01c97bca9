"""Many rows of a matrix in one request: the batched row access and column access of ``DCVMatrix``.

Values of ``n`` rows travel as one flat array, row after row. Rows may be named more than once: updates go in the order
given. Everything is checked before anything is written.
"""

from __future__ import annotations

import numpy as np

from ps2.ops import kernels
from ps2.ops.guards import check_length, check_row_ids, check_slots, readable
from ps2.ops.kernels import Float64s
from ps2.ops.table import FLOATS, Array, Block, Floats, RowIds, Slots, Values, op


@op()
def rows_pull(m: Block, rows: RowIds) -> Array:
    """Return the rows, shape (n, width), in the order given.

    Raises:
        OutOfRangeError: a row is not in the matrix.
    """
    return m.take(check_row_ids(rows, m.shape[0]), axis=0)


@op()
def rows_gather(m: Block, rows: RowIds, slots: Slots) -> Array:
    """Return the rows at the slots, shape (n, len(slots)); 0 at slot -1.

    Raises:
        OutOfRangeError: a row is not in the matrix, or a slot not in the shard.
    """
    out = np.empty((rows.size, slots.size), dtype=m.dtype)
    kernels.rows_gather(readable(m), check_row_ids(rows, m.shape[0]), check_slots(slots, m.shape[1]), out)
    return out


@op(writes=("m",))
def rows_push(m: Block, rows: RowIds, values: Values) -> None:
    """Overwrite the rows with values of n * width elements; of several writes to one row the last wins.

    Raises:
        ShapeError: there are not n * width values.
        OutOfRangeError: a row is not in the matrix.
    """
    check_length("values", values, rows.size * m.shape[1])
    kernels.rows_set(m, check_row_ids(rows, m.shape[0]), readable(values))


@op(writes=("m",))
def rows_add(m: Block, rows: RowIds, values: Values) -> None:
    """Add values of n * width elements to the rows; duplicates accumulate; raises as ``rows_push`` does."""
    check_length("values", values, rows.size * m.shape[1])
    kernels.rows_add(m, check_row_ids(rows, m.shape[0]), readable(values))


@op(writes=("m",), creates=True)
def rows_scatter_add(m: Block, rows: RowIds, slots: Slots, values: Values) -> None:
    """Add values of n * len(slots) elements to the rows at the slots; duplicates accumulate.

    Raises:
        ShapeError: there are not n * len(slots) values.
        OutOfRangeError: a row is not in the matrix, or a slot not in the shard.
    """
    check_length("values", values, rows.size * slots.size)
    row_ids = check_row_ids(rows, m.shape[0])
    kernels.rows_scatter_add(m, row_ids, check_slots(slots, m.shape[1]), readable(values))


@op(reduce="sum")
def rows_dot(m: Block, rows_a: RowIds, rows_b: RowIds) -> Float64s:
    """Return the inner products of pairs of rows, float64 of shape (n,) (paper, Equation 2).

    Raises:
        ShapeError: the two lists of rows differ in length.
        OutOfRangeError: a row is not in the matrix.
    """
    check_length("rows_b", rows_b, rows_a.size)
    out = np.empty(rows_a.size, dtype=np.float64)
    kernels.rows_dot(readable(m), check_row_ids(rows_a, m.shape[0]), check_row_ids(rows_b, m.shape[0]), out)
    return out


@op(writes=("m",), dtypes=FLOATS)
def rows_axpy(m: Block, rows_y: RowIds, rows_x: RowIds, alphas: Floats) -> None:
    """Set ``y += alpha * x`` for each pair of rows, one after the other in the order given (paper, Equation 2).

    Args:
        rows_y: rows that change.
        rows_x: rows that are added; a row changed by an earlier pair is read as changed.
        alphas: float64, one a pair; rounded to the matrix's dtype first.

    Raises:
        ShapeError: the three lists differ in length.
        OutOfRangeError: a row is not in the matrix.
    """
    check_length("rows_x", rows_x, rows_y.size)
    check_length("alphas", alphas, rows_y.size)
    with np.errstate(all="ignore"):
        scales = readable(alphas.astype(m.dtype))
    kernels.rows_axpy(m, check_row_ids(rows_y, m.shape[0]), check_row_ids(rows_x, m.shape[0]), scales)
