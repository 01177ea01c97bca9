"""Operations of factorizations: a server copies vectors, or adds up the workers' Gram matrices."""

from __future__ import annotations

from ps2.errors import OutOfRangeError
from ps2.ops.table import FLOATS, Block, Blocks, Partition, op


@op(writes=("m",), dtypes=FLOATS)
def copy_blocks(m: Blocks, source: Blocks, partition: Partition, *, begin: int, end: int) -> None:
    """Copy the columns in [begin, end) from ``source``, a matrix with the same partitioning."""
    window = slice(max(begin - partition.begin, 0), max(end - partition.begin, 0))
    m[window] = source[window]


@op(writes=("m",), dtypes=("float64",))
def add_rows(m: Block, *, first: int, count: int, into: int) -> None:
    """Set a row to the sum of other rows, added in a fixed order, so that rounding is the same in all runs.

    Args:
        first, count: the first row to add up, and the number of rows.
        into: the row that is set.

    Raises:
        OutOfRangeError: a row is not in the matrix.
    """
    for begin, length in ((first, count), (into, 1)):
        if begin < 0 or length < 1 or begin + length > m.shape[0]:
            raise OutOfRangeError(f"m: expected rows in [0, {m.shape[0]}), got {length} rows from {begin} on")
    m[into] = m[first]
    for row in range(first + 1, first + count):
        m[into] += m[row]
