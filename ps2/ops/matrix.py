"""Operations on many rows of a matrix in one request, for ``DCVMatrix``.

The values of ``n`` rows are sent as one flat array, row after row. A row may occur several times: updates are applied
in the order of the request. Operations check all arguments before they write.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.errors import LimitError
from ps2.ops import kernels
from ps2.ops.guards import check_length, check_row_ids, check_slots, readable, rounded
from ps2.ops.kernels import Float64s, Int64s
from ps2.ops.operands import along
from ps2.ops.parallel import SLOT_COST, over_blocks
from ps2.ops.table import FLOATS, Array, Block, Floats, Row, RowIds, Slots, Values, op

PairRows = Annotated[RowIds, along("pair")]
PairFloats = Annotated[Floats, along("pair")]

# The bytes of old values that ``rows_pair_update`` copies at a time. They fit in a processor's L2 cache.
MAX_COPY_BYTES = 2 << 20
# Size of a cache line.
LINE_BYTES = 64
# ``gram`` processes tiles of columns: the values of all rows in a tile take this many bytes, and fit in the cache.
TILE_BYTES = 256 << 10
# The number of columns that ``combine`` sums at a time.
COMBINED_COLUMNS = 2048
# The maximum number of inner products of a ``gram`` call: each thread has an array with all of them.
MAX_PRODUCTS = 1 << 16


@op()
def rows_pull(m: Block, rows: RowIds) -> Annotated[Array, along("rows", "columns")]:
    """Return the rows, shape (n, width), in the requested order.

    Raises:
        OutOfRangeError: a row is not in the matrix.
    """
    rows = check_row_ids(rows, m.shape[0])
    out = np.empty((rows.size, m.shape[1]), dtype=m.dtype)
    # Mode "clip" avoids a copy of the result that ``take`` makes in mode "raise". The rows have been checked.
    over_blocks(lambda r, o: m.take(r, axis=0, out=o, mode="clip"), (rows, out), cost=m.shape[1])
    return out


@op(initial=True)
def rows_gather(m: Block, rows: RowIds, slots: Slots) -> Annotated[Array, along("rows", "slots")]:
    """Return the rows at the slots, shape (n, len(slots)); 0 at slot -1.

    Raises:
        OutOfRangeError: a row is not in the matrix, or a slot not in the shard.
    """
    out = np.empty((rows.size, slots.size), dtype=m.dtype)
    block, rows, slots = readable(m), check_row_ids(rows, m.shape[0]), check_slots(slots, m.shape[1])
    over_blocks(lambda r, o: kernels.rows_gather(block, r, slots, o), (rows, out), cost=SLOT_COST * slots.size)
    return out


@op(writes=("m",))
def rows_push(m: Block, rows: RowIds, values: Values) -> None:
    """Overwrite the rows with n * width values; the last of several values for a row counts.

    Raises:
        ShapeError: the number of values is not n * width.
        OutOfRangeError: a row is not in the matrix.
    """
    check_length("values", values, rows.size * m.shape[1])
    kernels.rows_set(m, check_row_ids(rows, m.shape[0]), readable(values))


@op(writes=("m",))
def rows_fill(m: Block, rows: RowIds, *, value: float) -> None:
    """Set every column of the rows to the value.

    Raises:
        OutOfRangeError: a row is not in the matrix.
    """
    with np.errstate(all="ignore"):
        rounded = m.dtype.type(value)
    over_blocks(lambda r: m.__setitem__(r, rounded), (check_row_ids(rows, m.shape[0]),), cost=m.shape[1])


@op(writes=("m",))
def rows_add(m: Block, rows: RowIds, values: Values) -> None:
    """Add n * width values to the rows; duplicates accumulate; raises like ``rows_push``."""
    check_length("values", values, rows.size * m.shape[1])
    kernels.rows_add(m, check_row_ids(rows, m.shape[0]), readable(values))


@op(writes=("m",), creates=True)
def rows_scatter_add(m: Block, rows: RowIds, slots: Slots, values: Values) -> None:
    """Add n * len(slots) values to the rows at the slots; duplicates accumulate.

    Raises:
        ShapeError: the number of values is not n * len(slots).
        OutOfRangeError: a row is not in the matrix, or a slot not in the shard.
    """
    check_length("values", values, rows.size * slots.size)
    row_ids = check_row_ids(rows, m.shape[0])
    kernels.rows_scatter_add(m, row_ids, check_slots(slots, m.shape[1]), readable(values))


@op(reduce="sum", blocks="pair")
def rows_dot(m: Block, rows_a: PairRows, rows_b: PairRows) -> Annotated[Float64s, along("pair")]:
    """Return the inner products of pairs of rows, float64 of shape (n,) (PS2 paper, Equation 2).

    Raises:
        ShapeError: the two lists of rows differ in length.
        OutOfRangeError: a row is not in the matrix.
    """
    check_length("rows_b", rows_b, rows_a.size)
    out = np.empty(rows_a.size, dtype=np.float64)
    block, rows_a, rows_b = readable(m), check_row_ids(rows_a, m.shape[0]), check_row_ids(rows_b, m.shape[0])
    over_blocks(lambda a, b, o: kernels.rows_dot(block, a, b, o), (rows_a, rows_b, out), cost=m.shape[1])
    return out


@op(reduce="sum")
def gram(m: Block, rows_u: RowIds, rows_v: RowIds) -> Annotated[Float64s, along("rows_u", "rows_v")]:
    """Return the inner products of all pairs of ``rows_u`` and ``rows_v``, float64 of shape (n, k), in one pass.

    Raises:
        LimitError: there are more than 65,536 pairs.
        OutOfRangeError: a row is not in the matrix.
    """
    pairs = rows_u.size * rows_v.size
    if pairs > MAX_PRODUCTS:
        raise LimitError(f"gram: at most {MAX_PRODUCTS:,} inner products in one call, got {pairs:,}")
    block, u, v = readable(m), check_row_ids(rows_u, m.shape[0]), check_row_ids(rows_v, m.shape[0])
    tile = _tile(TILE_BYTES // (max(u.size + v.size, 1) * m.itemsize))
    starts = readable(np.arange(0, m.shape[1], tile))
    sums = over_blocks(kernels.gram, (starts,), block, u, v, tile, cost=tile * max(pairs, 1))
    return np.sum(sums, axis=0).reshape(u.size, v.size)


@op(writes=("u",), dtypes=FLOATS)
def combine(u: Row, m: Block, rows: RowIds, alphas: Annotated[Floats, along("rows")]) -> None:
    """Set ``u`` to the sum of ``alphas[i] * row i`` in one pass; ``u`` may be one of the rows.

    Args:
        rows: the rows to add up.
        alphas: float64, one for each row; each column's sum is rounded to the rows' dtype once.

    Raises:
        ShapeError: ``rows`` and ``alphas`` differ in length.
        OutOfRangeError: a row is not in the matrix.
    """
    check_length("alphas", alphas, rows.size)
    rows = check_row_ids(rows, m.shape[0])
    starts = readable(np.arange(0, u.size, COMBINED_COLUMNS))
    arguments = u, readable(m), rows, readable(alphas), COMBINED_COLUMNS
    over_blocks(kernels.combine, (starts,), *arguments, cost=COMBINED_COLUMNS * (rows.size + 1))


def _tile(columns: int) -> int:
    """Return a number of columns rounded down to a multiple of 64; at least 64."""
    return max(columns // LINE_BYTES, 1) * LINE_BYTES


@op(writes=("m",), dtypes=FLOATS, blocks="pair")
def rows_axpy(m: Block, rows_y: PairRows, rows_x: PairRows, alphas: PairFloats) -> None:
    """Set ``y += alpha * x`` for each pair of rows, one after the other (PS2 paper, Equation 2).

    Args:
        rows_y: the rows that change.
        rows_x: the rows that are added, after the changes of earlier pairs.
        alphas: float64, one for each pair; rounded to the matrix's dtype first.

    Raises:
        ShapeError: the three lists differ in length.
        OutOfRangeError: a row is not in the matrix.
    """
    check_length("rows_x", rows_x, rows_y.size)
    check_length("alphas", alphas, rows_y.size)
    scales = rounded("alphas", alphas, m.dtype)
    kernels.rows_axpy(m, check_row_ids(rows_y, m.shape[0]), check_row_ids(rows_x, m.shape[0]), scales)


@op(writes=("m",), dtypes=FLOATS)
def rows_pair_update(m: Block, rows_a: PairRows, rows_b: PairRows, coefficients: PairFloats) -> None:
    """Set ``a += c * b`` and ``b += c * a`` for all pairs of rows at once, from the values of a and b before the call.

    A row in several pairs accumulates all its changes (PS2 paper, Equation 2, for a batch of pairs).

    Args:
        coefficients: float64, one for each pair; rounded to the matrix's dtype first.

    Raises:
        ShapeError: the three lists differ in length.
        OutOfRangeError: a row is not in the matrix.
    """
    check_length("rows_b", rows_b, rows_a.size)
    check_length("coefficients", coefficients, rows_a.size)
    a, b = check_row_ids(rows_a, m.shape[0]), check_row_ids(rows_b, m.shape[0])
    scales = rounded("coefficients", coefficients, m.dtype)
    distinct, positions_a, positions_b = index_pairs(a, b)
    width = max(MAX_COPY_BYTES // max(distinct.size, 1), LINE_BYTES) // m.itemsize
    for begin in range(0, m.shape[1], width):
        old = readable(m[distinct, begin : begin + width])
        kernels.rows_pair_update(m, begin, a, b, old, positions_a, positions_b, scales)


def index_pairs(rows_a: Int64s, rows_b: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return the distinct rows of all pairs, and the positions of ``rows_a`` and of ``rows_b`` among them."""
    rows = readable(np.concatenate((rows_a, rows_b)))
    distinct, positions = np.empty_like(rows), np.empty_like(rows)
    # Cells of a hash table, of which at most half are occupied.
    cells = np.full(1 << (2 * rows.size).bit_length(), -1, dtype=np.int32)
    count = kernels.index_rows(rows, distinct, positions, cells)
    positions = readable(positions)
    return distinct[:count], positions[: rows_a.size], positions[rows_a.size :]


def pair_changes(old: Array, positions_a: Int64s, positions_b: Int64s, coefficients: Float64s) -> Array:
    """Return the changes that ``rows_pair_update`` adds to distinct rows with values ``old``. Checks no positions."""
    changes = np.zeros_like(old)
    scales = rounded("coefficients", coefficients, old.dtype)
    kernels.rows_pair_update(changes, 0, positions_a, positions_b, readable(old), positions_a, positions_b, scales)
    return changes
