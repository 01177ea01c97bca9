"""Find the k right vectors with the largest dot products (scores) for each left vector: items for users, or vice versa.

BLAS computes approximate scores: its rounding depends on block sizes and on the machine. The compiled selection uses
them only to skip right vectors. A score that can be among the k largest is computed again by ``dot``, which always
rounds in the same way. So results are equal to the last bit for all block sizes and machines.

The k largest scores of each left vector are stored in a binary heap with the smallest score at its root. Of equal
scores, the one with the lower position counts as smaller. Excluded right vectors have the approximate score minus
infinity, which no heap takes: so k others are selected, however many are excluded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ps2.array_types import Float32s, Float64s, Int64s
from ps2.ops.guards import readable
from ps2.ops.kernels import inline, kernel, reduction

# The numbers of left and of right vectors in a block, whose scores (512 KiB) fit into the second-level cache.
LEFT, RIGHT = 256, 512
# The largest relative rounding error of a float32 operation.
UNIT = 2.0**-24
# The number of approximate scores that are compared with the smallest of the k largest scores before a branch.
CHUNK_SCORES = 64
# The approximate score of an excluded right vector, and the smallest one that a heap takes.
EXCLUDED, LOWEST = np.float32(-np.inf), np.finfo(np.float32).min


class Excluded(NamedTuple):
    """The right vectors that a left vector may not get: those of row i are ``positions[indptr[i] : indptr[i + 1]]``.

    Both are int64; the positions of a row ascend, and may be repeated.
    """

    indptr: Int64s
    positions: Int64s

    @staticmethod
    def from_pairs(rows: Int64s, positions: Int64s, num_rows: int) -> Excluded:
        """Return the exclusions of ``num_rows`` left vectors from pairs in any order, without negative positions."""
        rows, positions = rows[positions >= 0], positions[positions >= 0]
        order = np.lexsort((positions, rows))
        indptr = np.searchsorted(rows[order], np.arange(num_rows + 1))
        return Excluded(indptr, positions[order])

    def cut(self, begin: int, end: int) -> Excluded:
        """Return the exclusions of consecutive left vectors."""
        indptr = self.indptr[begin : end + 1]
        return Excluded(indptr - indptr[0], self.positions[indptr[0] : indptr[-1]])


@dataclass(frozen=True, eq=False)
class Candidates:
    """The right vectors: float32, shape (n, d), C-contiguous."""

    vectors: Float32s

    @cached_property
    def _max_norms(self) -> Float64s:
        """The largest Euclidean norm of each ``RIGHT`` consecutive vectors."""
        norms = norms_of(self.vectors)
        return np.array([norms[begin : begin + RIGHT].max() for begin in range(0, len(norms), RIGHT)])

    def best(self, left: Float32s, k: int, excluded: Excluded | None = None) -> tuple[Float32s, Int64s]:
        """Return the k largest dot products of each left vector, and the positions of their right vectors.

        Both have shape (m, min(k, n)). The largest is first; of equal products, the higher position is first. The
        products are those of ``dot``, to the last bit. Where fewer than k right vectors are not excluded, the last
        products are NaN, and their positions -1.
        """
        k = min(k, len(self.vectors))
        scores, positions = np.full((len(left), k), np.nan, np.float32), np.full((len(left), k), -1, np.int64)
        left = readable(left)
        for begin in range(0, len(left), LEFT):
            block = slice(begin, begin + LEFT)
            hidden = None if excluded is None else excluded.cut(begin, min(begin + LEFT, len(left)))
            self._select(left[block], hidden, scores[block], positions[block])
        return scores, positions

    def _select(self, left: Float32s, excluded: Excluded | None, scores: Float32s, positions: Int64s) -> None:
        """Fill ``scores`` and ``positions`` of one block of left vectors."""
        cursors = None if excluded is None else excluded.indptr[:-1].copy()
        sizes = np.zeros(len(left), np.int64)
        left_norms = norms_of(left)
        # With few left vectors, several blocks of right vectors are multiplied at once.
        blocks = max(1, LEFT // max(len(left), 1))
        products = np.empty(len(left) * min(blocks * RIGHT, len(self.vectors)), np.float32)
        for block in range(0, len(self._max_norms), blocks):
            first, max_norm = block * RIGHT, self._max_norms[block : block + blocks].max()
            right = readable(self.vectors[first : first + blocks * RIGHT])
            approximate = products[: len(left) * len(right)].reshape(len(left), len(right))
            if len(left) == 1:  # starting the threads of BLAS would take longer than the product
                approximate_row(left[0], right, approximate[0])
            else:
                np.matmul(left, right.T, out=approximate)
            if excluded is not None and cursors is not None:
                hide(approximate, first, excluded.indptr, excluded.positions, cursors)
            slack = rounding_slack(left_norms * max_norm, left.shape[1])
            select(approximate, left, right, first, slack, scores, positions, sizes)
        order(scores, positions, sizes)


def pair_products(left: Float32s, right: Float32s, left_rows: Int64s, right_rows: Int64s) -> Float32s:
    """Return the dot products of pairs of rows, float32; NaN for a pair in which a row is -1."""
    out = np.empty(len(left_rows), np.float32)
    dot_pairs(readable(left), readable(right), readable(left_rows), readable(right_rows), out)
    return out


def rounding_slack(products: Float64s, dim: int) -> Float32s:
    """Return bounds on the difference of two float32 dot products of the same vectors, added up in different orders.

    ``products`` are the products of the two vectors' Euclidean norms. Each dot product differs from the exact one by at
    most dim * u / (1 - dim * u) times this product; u is ``UNIT`` (Higham, Accuracy and Stability of Numerical
    Algorithms, section 3.1, and Cauchy-Schwarz). Each subnormal product adds at most the smallest normal number.
    """
    error = dim * UNIT / (1 - dim * UNIT)
    bound = 2 * (error * products + dim * float(np.finfo(np.float32).tiny))
    # The last term: the bound, and its difference from a score (at most ``products``), are rounded, too.
    return np.nextafter((bound + 2 * UNIT * products).astype(np.float32), np.float32(np.inf))


def norms_of(vectors: Float32s) -> Float64s:
    """Return the Euclidean norms of vectors."""
    return np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))


@inline
def dot(a: Float32s, b: Float32s) -> np.float32:
    """Return the dot product, summed in float32 in the order of elements, as in pyspark.ml's ALSModel."""
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
def hide(approximate: Float32s, first: int, indptr: Int64s, positions: Int64s, cursors: Int64s) -> None:
    """Set the approximate scores of excluded right vectors in a block to ``EXCLUDED``.

    Args:
        first: the position of the block's first right vector; calls have ascending blocks.
        indptr, positions: see ``Excluded``.
        cursors: the index of each row's next exclusion, which moves past those of the block.
    """
    for row in range(approximate.shape[0]):
        cursor = cursors[row]
        while cursor < indptr[row + 1] and positions[cursor] < first + approximate.shape[1]:
            approximate[row, positions[cursor] - first] = EXCLUDED
            cursor += 1
        cursors[row] = cursor


@kernel
def dot_pairs(left: Float32s, right: Float32s, left_rows: Int64s, right_rows: Int64s, out: Float32s) -> None:
    """Set ``out`` to the dot products of pairs of rows; NaN for a pair in which a row is -1."""
    for pair in range(out.size):
        row, other = left_rows[pair], right_rows[pair]
        if row < 0 or other < 0:
            out[pair] = np.nan
        else:
            out[pair] = dot(left[row], right[other])


@inline
def _is_less(score: Any, position: int, other_score: Any, other_position: int) -> Any:
    return score < other_score or (score == other_score and position < other_position)


@inline
def _sink(scores: Float32s, positions: Int64s, size: int, score: np.float32, position: int) -> None:
    """Replace the root of a heap of ``size`` entries by this score, and restore the heap."""
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
def select(  # noqa: PLR0913 - arrays that numba takes as separate arguments
    approximate: Float32s,
    left: Float32s,
    right: Float32s,
    first: int,
    slack: Float32s,
    scores: Float32s,
    positions: Int64s,
    sizes: Int64s,
) -> None:
    """Update each left vector's heap of the largest scores with the right vectors of a block.

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
        bound = np.float32(LOWEST)
        if size == limit:
            bound = scores[row, 0] - slack[row]
        for begin in range(0, n, CHUNK_SCORES):
            end = min(begin + CHUNK_SCORES, n)
            # LLVM turns this loop into SIMD instructions only if it has no early exit.
            has_candidate = 0
            for other in range(begin, end):
                has_candidate |= approximate[row, other] >= bound
            if not has_candidate:
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
    """Sort each heap, the largest score first; of equal scores, the higher position is first."""
    for row in range(sizes.size):
        for size in range(sizes[row] - 1, 0, -1):
            score, position = scores[row, size], positions[row, size]
            scores[row, size], positions[row, size] = scores[row, 0], positions[row, 0]
            _sink(scores[row], positions[row], size, score, position)
