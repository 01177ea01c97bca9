"""Operations of factorizations: vectors are copied, and items' coordinates solved, where they lie.

A column is a user or an item. In coordinate descent, a matrix of vectors has a row for each rank, twice: those of the
iteration before, and those of this one. A matrix of sums has rows for each worker: numerators of a block of ranks, and
the upper triangle of sums of products. They are added in the order of the workers, so the result does not depend on the
order of arrival.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.errors import OutOfRangeError
from ps2.ops.kernels import Float64s, kernel, reduction
from ps2.ops.operands import along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import FLOATS, Array, Block, Blocks, Floats, Partition, op

# Ranks that are solved together, and the sums that they need.
BLOCK = 4
SUMS = BLOCK + BLOCK * (BLOCK + 1) // 2
# How often each coordinate of a block is solved, given the others.
SWEEPS = 3
# Columns whose sums are in a processor's cache.
TILE = 256


@op(writes=("m",), dtypes=FLOATS)
def copy_blocks(m: Blocks, source: Blocks, partition: Partition, *, begin: int, end: int) -> None:
    """Copy the blocks of the columns from one to another, which is left out, from a matrix that is cut alike."""
    some = slice(max(begin - partition.begin, 0), max(end - partition.begin, 0))
    m[some] = source[some]


@kernel
def _solve_tiles(
    columns: Array,
    all_sums: Array,
    gram: Float64s,
    places: tuple[int, int, int, int, int, int, int, int],
    nonnegative: bool,
) -> None:
    rank, width, ranks, old, new, first, workers, ridge = places
    m, s = columns.T, all_sums.T
    count = width + width * (width + 1) // 2
    total = np.empty((count, TILE))
    above, below, x = np.empty(width), np.empty((width, width)), np.empty(width)
    for begin in range(0, m.shape[1], TILE):
        n = min(TILE, m.shape[1] - begin)
        total[:] = 0.0
        for w in range(workers):
            for k in range(count):
                _add(s[first + SUMS * w + k, begin : begin + n], 1.0, total[k])
        for f in range(len(gram)):
            for g in range(ranks):
                if not rank <= g < rank + width:
                    _add(m[(new if g < rank else old) + g, begin : begin + n], -gram[f, g], total[f])
        for i in range(n):
            at = width
            for f in range(width):
                above[f], x[f] = total[f, i], m[old + rank + f, begin + i]
                for g in range(f, width):
                    below[f, g] = total[at, i] + (gram[f, rank + g] if len(gram) else 0.0)
                    at += 1
                below[f, f] += s[ridge, begin + i]
            solve_block(above, below, x, width, nonnegative)
            for f in range(width):
                m[new + rank + f, begin + i] = x[f]


@kernel
def solve_block(above: Float64s, below: Float64s, x: Float64s, width: int, nonnegative: bool) -> None:
    """Minimise ``x.B x / 2 - above.x`` by coordinate descent from ``x`` on, where ``below`` has B's upper triangle."""
    for _ in range(SWEEPS if width > 1 else 1):
        for f in range(width):
            value = above[f]
            for g in range(width):
                if g != f:
                    value -= below[min(f, g), max(f, g)] * x[g]
            value = value / below[f, f] if below[f, f] > 0 else 0.0
            x[f] = max(value, 0.0) if nonnegative else value


@reduction
def _add(row: Array, scale: float, out: Float64s) -> None:
    for i in range(len(row)):
        out[i] += scale * row[i]


def _check_rows(name: str, matrix: Array, *intervals: tuple[int, int]) -> None:
    """Raise OutOfRangeError unless the intervals of rows, each a first row and a length, are in the matrix."""
    for first, length in intervals:
        if first < 0 or length < 0 or first + length > matrix.shape[0]:
            raise OutOfRangeError(f"{name}: expected rows in [0, {matrix.shape[0]}), got {length} rows from {first} on")


@op(writes=("m", "sums"), dtypes=("float32",))
def solve(
    m: Block,
    sums: Block,
    gram: Annotated[Floats, along("products")],
    *,
    rank: int,
    width: int,
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
    """Solve the coordinates of a block of ranks of all items, from the sums of all workers.

    Every worker calls it for each step; the first call solves.

    Args:
        m: vectors.
        sums: of the workers; and rows with the items' ridge and with the step that was done last.
        gram: all cells: the products of the users' coordinates of each of these ranks with those of every rank, shape
            (width, ranks), from which the shares of the items' other coordinates follow; empty: given ratings alone
            count.
        rank: the first coordinate.
        width: how many, at most BLOCK.
        ranks: coordinates of a vector.
        old, new: rows of m from which on the vectors lie, before and in this iteration.
        first: the row of the first worker's first numerators; the other workers' begin SUMS rows later each.
        workers: how many there are.
        ridge, done: rows of ``sums``.
        step: the number of the step, from 1; another one than that of the step before.
        nonnegative: no coordinate is negative.

    Raises:
        OutOfRangeError: a row is not in its matrix, the block is wider than BLOCK, or ``gram`` has another length.
    """
    _check_rows("m", m, (old, ranks), (new, ranks))
    _check_rows("sums", sums, (first, SUMS * workers), (ridge, 1), (done, 1))
    if not (rank >= 0 and 1 <= width <= BLOCK and rank + width <= ranks and gram.size in (0, width * ranks)):
        raise OutOfRangeError(
            f"expected at most {BLOCK} of {ranks} ranks, and {width * ranks} products or none, got {width} ranks from "
            f"{rank} on, and {gram.size} products"
        )
    if not m.shape[1] or sums[done, 0] == step:
        return
    places = (rank, width, ranks, old, new, first, workers, ridge)
    products = np.array(gram).reshape(-1, ranks)
    over_blocks(_solve_tiles, (m.T, sums.T), products, places, nonnegative, cost=gram.size + SUMS * workers)
    sums[done] = step
