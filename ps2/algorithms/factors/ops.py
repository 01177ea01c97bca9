"""Operations of factorizations: vectors are copied, and items' coordinates solved, where they lie.

A column is a user or an item. In coordinate descent, a matrix of vectors has a row for each rank, twice: those of the
iteration before, and those of this one. A matrix of sums has two rows for each worker, its numerators and its
denominators. They are added in the order of the workers, so the result does not depend on the order of arrival.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.errors import OutOfRangeError
from ps2.ops.kernels import Float64s, kernel, reduction
from ps2.ops.operands import along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import FLOATS, Array, Block, Blocks, Floats, Partition, op

# Columns whose sums are in a processor's cache.
TILE = 1024

OfRanks = Annotated[Floats, along("ranks")]


@op(writes=("m",), dtypes=FLOATS)
def copy_blocks(m: Blocks, source: Blocks, partition: Partition, *, begin: int, end: int) -> None:
    """Copy the blocks of the columns from one to another, which is left out, from a matrix that is cut alike."""
    some = slice(max(begin - partition.begin, 0), max(end - partition.begin, 0))
    m[some] = source[some]


@op(writes=("m", "sums"), dtypes=("float32",))
def solve(
    m: Block,
    sums: Block,
    gram: OfRanks,
    *,
    rank: int,
    ranks: int,
    old: int,
    new: int,
    first: int,
    workers: int,
    ridge: int,
    done: int,
    step: int,
    nonnegative: bool,
) -> None:
    """Solve one coordinate of all items: numerator / (denominator + ridge), from the sums of all workers.

    Every worker calls it for each step; the first call solves.

    Args:
        m: vectors.
        sums: of the workers; and rows with the items' ridge and with the step that was done last.
        gram: all cells: the products of the users' coordinates of this rank and of every rank, from which the shares of
            the items' other coordinates follow; empty: only given ratings count.
        rank: the coordinate.
        ranks: coordinates of a vector.
        old, new: rows of m from which on the vectors lie, before and in this iteration.
        first: the row of the first worker's numerators; its denominators, and the other workers' sums, follow.
        workers: how many there are.
        ridge, done: rows of ``sums``.
        step: the number of the step, from 1; another one than that of the step before.
        nonnegative: a coordinate below 0 becomes 0.

    Raises:
        OutOfRangeError: a row is not in its matrix, or ``gram`` has another length than ``ranks``.
    """
    _check_rows("m", m, (old, ranks), (new, ranks))
    _check_rows("sums", sums, (first, 2 * workers), (ridge, 1), (done, 1))
    if not 0 <= rank < ranks or gram.size not in (0, ranks):
        raise OutOfRangeError(
            f"expected a rank below {ranks} and {ranks} products, got {rank} and {gram.size} products"
        )
    if not m.shape[1] or sums[done, 0] == step:
        return
    places = (rank, ranks, old, new, first, workers, ridge)
    over_blocks(_solve_tiles, (m.T, sums.T), np.array(gram), places, nonnegative, cost=gram.size + 4 * workers)
    sums[done] = step


@kernel
def _solve_tiles(
    columns: Array, sums: Array, gram: Float64s, places: tuple[int, int, int, int, int, int, int], nonnegative: bool
) -> None:
    rank, ranks, old, new, first, workers, ridge = places
    m, s = columns.T, sums.T
    above, below = np.empty(TILE), np.empty(TILE)
    for begin in range(0, m.shape[1], TILE):
        end = min(begin + TILE, m.shape[1])
        for i in range(begin, end):
            above[i - begin], below[i - begin] = 0.0, s[ridge, i]
        for w in range(workers):
            for i in range(begin, end):
                above[i - begin] += s[first + 2 * w, i]
                below[i - begin] += s[first + 2 * w + 1, i]
        if len(gram):
            for i in range(begin, end):
                below[i - begin] += gram[rank]
            for f in range(ranks):
                if f != rank:
                    _subtract(m[(new if f < rank else old) + f, begin:end], gram[f], above)
        for i in range(begin, end):
            value = np.float32(above[i - begin] / below[i - begin]) if below[i - begin] > 0 else np.float32(0)
            m[new + rank, i] = max(value, np.float32(0)) if nonnegative else value


@reduction
def _subtract(row: Array, scale: float, out: Float64s) -> None:
    for i in range(len(row)):
        out[i] -= scale * row[i]


def _check_rows(name: str, matrix: Array, *intervals: tuple[int, int]) -> None:
    """Raise OutOfRangeError unless the intervals of rows, each a first row and a length, are in the matrix."""
    for first, length in intervals:
        if first < 0 or length < 0 or first + length > matrix.shape[0]:
            raise OutOfRangeError(f"{name}: expected rows in [0, {matrix.shape[0]}), got {length} rows from {first} on")
