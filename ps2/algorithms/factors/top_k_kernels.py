"""Compiled selection of the largest dot products of each of many left vectors with all right vectors.

A matrix product by BLAS gives approximate scores: how BLAS rounds depends on the sizes of its blocks and on the
machine. The selection uses them only to skip. A score that may belong among the k largest is computed again by ``dot``,
which always rounds alike. So results are equal to the last bit however the work is cut.

The k largest so far of each left vector are a binary heap with the smallest at its root. Of two equal scores, the one
of the lower place is the smaller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float32s, Int64s
from ps2.ops.kernels import inline, kernel, reduction

Array = npt.NDArray[Any]

# Scores that are compared with the least of the k largest at once, by SIMD instructions.
RUN = 64


@inline
def dot(a: Float32s, b: Float32s) -> np.float32:
    """Return the dot product, added up in float32 from the first element on, as pyspark.ml's ALSModel does."""
    total = np.float32(0.0)
    for at in range(a.size):
        total += a[at] * b[at]
    return total


@reduction
def approximate_row(left: Float32s, right: Float32s, out: Float32s) -> None:
    """Set ``out`` to the dot products of one vector with all rows of ``right``, added up in any order."""
    for at in range(right.shape[0]):
        total = np.float32(0.0)
        for element in range(left.size):
            total += left[element] * right[at, element]
        out[at] = total


@kernel
def dot_pairs(left: Float32s, right: Float32s, at_left: Int64s, at_right: Int64s, out: Float32s) -> None:
    """Set ``out`` to the dot products of pairs of rows; NaN where one of the two places is -1.

    Args:
        left: shape (m, d).
        right: shape (n, d).
        at_left, at_right: rows, shape (pairs,).
        out: shape (pairs,).
    """
    for pair in range(out.size):
        row, other = at_left[pair], at_right[pair]
        if row < 0 or other < 0:
            out[pair] = np.nan
        else:
            out[pair] = dot(left[row], right[other])


@inline
def _is_less(score: Any, place: int, other: Any, other_place: int) -> Any:
    return score < other or (score == other and place < other_place)


@inline
def _sink(scores: Float32s, places: Int64s, size: int, score: np.float32, place: int) -> None:
    """Replace the root of a heap of ``size`` entries."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _is_less(scores[child + 1], places[child + 1], scores[child], places[child]):
            child += 1
        if not _is_less(scores[child], places[child], score, place):
            break
        scores[at], places[at] = scores[child], places[child]
        at = child
    scores[at], places[at] = score, place


@inline
def _rise(scores: Float32s, places: Int64s, size: int, score: np.float32, place: int) -> None:
    """Add an entry to a heap of ``size`` entries."""
    at = size
    while at > 0:
        parent = (at - 1) // 2
        if not _is_less(score, place, scores[parent], places[parent]):
            break
        scores[at], places[at] = scores[parent], places[parent]
        at = parent
    scores[at], places[at] = score, place


@kernel
def select(
    approximate: Float32s,
    left: Float32s,
    right: Float32s,
    first: int,
    slack: Float32s,
    scores: Float32s,
    places: Int64s,
    sizes: Int64s,
) -> None:
    """Let the dot products of a block take part in the selection.

    Args:
        approximate: dot products as BLAS rounds them, shape (m, n).
        left: shape (m, d).
        right: shape (n, d): the rows from ``first`` on of all right vectors.
        first: place of the first of these.
        slack: for each left vector, the largest difference between approximate and exact scores, shape (m,).
        scores, places: the heaps, shape (m, k).
        sizes: how many entries each heap has, shape (m,).
    """
    most = scores.shape[1]
    n = right.shape[0]
    for row in range(left.shape[0]):
        size = sizes[row]
        bound = np.float32(-np.inf)
        if size == most:
            bound = scores[row, 0] - slack[row]
        for begin in range(0, n, RUN):
            end = min(begin + RUN, n)
            # No early exit: only then does LLVM turn this loop into SIMD instructions.
            reached = 0
            for at in range(begin, end):
                reached |= approximate[row, at] >= bound
            if not reached:
                continue
            for at in range(begin, end):
                if approximate[row, at] < bound:
                    continue
                score, place = dot(left[row], right[at]), first + at
                if size < most:
                    _rise(scores[row], places[row], size, score, place)
                    size += 1
                elif _is_less(scores[row, 0], places[row, 0], score, place):
                    _sink(scores[row], places[row], size, score, place)
                else:
                    continue
                if size == most:
                    bound = scores[row, 0] - slack[row]
        sizes[row] = size


@kernel
def order(scores: Float32s, places: Int64s, sizes: Int64s) -> None:
    """Sort each heap, the largest score first; of equal ones, the higher place first."""
    for row in range(sizes.size):
        for size in range(sizes[row] - 1, 0, -1):
            score, place = scores[row, size], places[row, size]
            scores[row, size], places[row, size] = scores[row, 0], places[row, 0]
            _sink(scores[row], places[row], size, score, place)
