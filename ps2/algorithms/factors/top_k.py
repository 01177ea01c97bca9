"""The right vectors with the largest dot products, for each of many left vectors: blocks by BLAS, then a selection."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ps2.algorithms.factors.top_k_kernels import approximate_row, dot_pairs, order, select
from ps2.array_types import Float32s, Float64s, Int64s
from ps2.ops.guards import readable

# Left and right vectors of a block, whose scores (512 KiB) stay in the second-level cache until the selection reads
# them.
LEFT, RIGHT = 256, 512
# Rounding error of one float32 operation, relative.
UNIT = 2.0**-24


@dataclass(frozen=True, eq=False)
class Candidates:
    """Vectors that may be recommended, shape (n, d), C-contiguous."""

    vectors: Float32s

    @cached_property
    def _longest(self) -> Float64s:
        """The largest Euclidean length among the vectors of each ``RIGHT``."""
        all_lengths = lengths(self.vectors)
        return np.array([all_lengths[begin : begin + RIGHT].max() for begin in range(0, len(all_lengths), RIGHT)])

    def best(self, left: Float32s, k: int) -> tuple[Float32s, Int64s]:
        """Return the largest dot products of each left vector, and the positions of the vectors that they are with.

        Both have shape (m, min(k, n)). The largest is first; of equal ones, the higher position is first. The result is
        that of ``dot`` for all pairs, to the last bit.
        """
        k = min(k, len(self.vectors))
        scores, positions = np.empty((len(left), k), np.float32), np.empty((len(left), k), np.int64)
        left = readable(left)
        for begin in range(0, len(left), LEFT):
            block = slice(begin, begin + LEFT)
            self._select(left[block], scores[block], positions[block])
        return scores, positions

    def _select(self, left: Float32s, scores: Float32s, positions: Int64s) -> None:
        """Fill ``scores`` and ``positions`` of one block of left vectors."""
        sizes = np.zeros(len(left), np.int64)
        left_lengths = lengths(left)
        # Few left vectors meet as many more right ones at once.
        blocks = max(1, LEFT // max(len(left), 1))
        products = np.empty(len(left) * min(blocks * RIGHT, len(self.vectors)), np.float32)
        for block in range(0, len(self._longest), blocks):
            first, longest = block * RIGHT, self._longest[block : block + blocks].max()
            right = readable(self.vectors[first : first + blocks * RIGHT])
            approximate = products[: len(left) * len(right)].reshape(len(left), len(right))
            if len(left) == 1:  # for one, threads of BLAS cost more than they bring where others use the cores
                approximate_row(left[0], right, approximate[0])
            else:
                np.matmul(left, right.T, out=approximate)
            slack = rounding_slack(left_lengths * longest, left.shape[1])
            select(approximate, left, right, first, slack, scores, positions, sizes)
        order(scores, positions, sizes)

    def __getstate__(self) -> dict[str, Float32s]:
        return {"vectors": self.vectors}


def pair_products(left: Float32s, right: Float32s, left_rows: Int64s, right_rows: Int64s) -> Float32s:
    """Return the dot products of pairs of rows, float32; NaN where one of the two row numbers is -1."""
    out = np.empty(len(left_rows), np.float32)
    dot_pairs(readable(left), readable(right), readable(left_rows), readable(right_rows), out)
    return out


def rounding_slack(products: Float64s, dim: int) -> Float32s:
    """Bound the difference of two float32 dot products of the same vectors, added up in different orders.

    Each differs from the true one by at most dim * u / (1 - dim * u) times the product of the two lengths (Higham,
    Accuracy and Stability of Numerical Algorithms, section 3.1, and Cauchy-Schwarz); u is ``UNIT``. Products below the
    normal numbers add at most the smallest of these each.

    Args:
        products: the products of the two Euclidean lengths.
    """
    error = dim * UNIT / (1 - dim * UNIT)
    bound = 2 * (error * products + dim * float(np.finfo(np.float32).tiny))
    # Comparisons round as well: of the bound, and of the difference from a score, which is no larger than the lengths.
    return np.nextafter((bound + 2 * UNIT * products).astype(np.float32), np.float32(np.inf))


def lengths(vectors: Float32s) -> Float64s:
    """Return the Euclidean lengths of vectors."""
    return np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
