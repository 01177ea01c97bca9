"""Compiled selection of the largest dot products of each of many left vectors with all right vectors.

A matrix product by BLAS gives approximate scores: how BLAS rounds depends on the sizes of its blocks and on the
machine. The selection uses them only to skip. A score that may belong among the k largest is computed again by ``dot``,
which always rounds alike. So results are equal to the last bit however the work is cut.

The k largest so far of each left vector are a binary heap with the smallest at its root. Of two equal scores, that of
the lower position is the smaller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float32s, Int64s
from ps2.ops.kernels import inline, kernel, reduction

Array = npt.NDArray[Any]

# The number of scores that are compared with the smallest of the k largest at once, by SIMD instructions.
RUN = 64


@inline
def dot(a: Float32s, b: Float32s) -> np.float32:
    """Return the dot product, added up in float32 from the first element on, as pyspark.ml's ALSModel does."""
    total = np.float32(0.0)
    for k in range(a.size):
        total += a[k] * b[k]
    return total


@reduction
def approximate_row(left: Float32s, right: Float32s, out: Float32s) -> None:
    """Set ``out`` to the dot products of one vector with all rows of ``right``, added up in any order."""
    for row in range(right.shape[0]):
        total = np.float32(0.0)
        for k in range(left.size):
            total += left[k] * right[row, k]
        out[row] = total


@kernel
def dot_pairs(left: Float32s, right: Float32s, left_rows: Int64s, right_rows: Int64s, out: Float32s) -> None:
    """Set ``out`` to the dot products of pairs of rows; NaN where one of the two row numbers is -1."""
    for pair in range(out.size):
        row, other = left_rows[pair], right_rows[pair]
        if row < 0 or other < 0:
            out[pair] = np.nan
        else:
            out[pair] = dot(left[row], right[other])


@inline
def _is_less(score: Any, position: int, other: Any, other_position: int) -> Any:
    return score < other or (score == other and position < other_position)


@inline
def _sink(scores: Float32s, positions: Int64s, size: int, score: np.float32, position: int) -> None:
    """Replace the root of a heap of ``size`` entries."""
    node = 0
    while True:
        child = 2 * node + 1
        if child >= size:
            break
        if child + 1 < size and _is_less(scores[child + 1], positions[child + 1], scores[child], positions[child]):
            child += 1
        if not _is_less(scores[child], positions[child], score, position):
            break
        scores[node], positions[node] = scores[child], positions[child]
        node = child
    scores[node], positions[node] = score, position


@inline
def _rise(scores: Float32s, positions: Int64s, size: int, score: np.float32, position: int) -> None:
    """Add an entry to a heap of ``size`` entries."""
    node = size
    while node > 0:
        parent = (node - 1) // 2
        if not _is_less(score, position, scores[parent], positions[parent]):
            break
        scores[node], positions[node] = scores[parent], positions[parent]
        node = parent
    scores[node], positions[node] = score, position


@kernel
def select(
    approximate: Float32s,
    left: Float32s,
    right: Float32s,
    first: int,
    slack: Float32s,
    scores: Float32s,
    positions: Int64s,
    sizes: Int64s,
) -> None:
    """Select among the dot products of a block.

    Args:
        approximate: the dot products as BLAS rounds them, shape (m, n).
        right: shape (n, d): all right vectors from position ``first`` on.
        slack: for each left vector, the largest difference between approximate and exact scores.
        scores, positions: the heaps, shape (m, k).
        sizes: the number of entries of each heap.
    """
    limit = scores.shape[1]
    n = right.shape[0]
    for row in range(left.shape[0]):
        size = sizes[row]
        bound = np.float32(-np.inf)
        if size == limit:
            bound = scores[row, 0] - slack[row]
        for begin in range(0, n, RUN):
            end = min(begin + RUN, n)
            # No early exit: only then does LLVM turn this loop into SIMD instructions.
            reached = 0
            for other in range(begin, end):
                reached |= approximate[row, other] >= bound
            if not reached:
                continue
            for other in range(begin, end):
                if approximate[row, other] < bound:
                    continue
                score, position = dot(left[row], right[other]), first + other
                if size < limit:
                    _rise(scores[row], positions[row], size, score, position)
                    size += 1
                elif _is_less(scores[row, 0], positions[row, 0], score, position):
                    _sink(scores[row], positions[row], size, score, position)
                else:
                    continue
                if size == limit:
                    bound = scores[row, 0] - slack[row]
        sizes[row] = size


@kernel
def order(scores: Float32s, positions: Int64s, sizes: Int64s) -> None:
    """Sort each heap, the largest score first; of equal ones, the higher position first."""
    for row in range(sizes.size):
        for size in range(sizes[row] - 1, 0, -1):
            score, position = scores[row, size], positions[row, size]
            scores[row, size], positions[row, size] = scores[row, 0], positions[row, 0]
            _sink(scores[row], positions[row], size, score, position)
