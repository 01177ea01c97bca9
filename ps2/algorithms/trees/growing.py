"""A worker's rows as bins: histograms of nodes, and rows that move to the children of their node.

Rows are binned once (``DenseRows``, ``SparseRows``). An array ``order`` has the numbers of the rows that take part,
those of a node side by side, so a node is an interval of it: the root all of it; ``part`` puts the left child's rows
before the right one's. What a node costs depends on its own rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees import growing_kernels as kernels
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.layout import (
    LOWER,
    UPPER,
)
from ps2.algorithms.trees.routing import WORD_BITS, bins_left
from ps2.algorithms.trees.tree import Absent
from ps2.array_types import Int32s, Int64s
from ps2.errors import ConfigError
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]

# Cost of adding to a bin, in additions of array elements.
COST = 4
# Features of a block, at most: their histogram stays in the second cache.
BLOCK = 32
# The maximum number of pieces of a node's rows that threads add up, and the number of additions from which it pays.
MAX_PIECES, OF_PIECE = 8, 1 << 20
# Largest exponent of a scale: its inverse is no subnormal number.
MAX_EXPONENT = 1000


@dataclass(frozen=True, eq=False)
class Split:
    """The split of a node, by bins.

    Attributes:
        feature: its number.
        bin: the last one on the left; -1: the categories of ``words`` go left.
        default_left: whether missing values do.
        words: int64, a bit a category; none where the split is numeric.
    """

    feature: int
    bin: int
    default_left: bool
    words: Int64s

    def lefts(self, bins: Bins) -> Bools:
        """Return for each bin of the feature whether it goes left."""
        lefts = np.empty(int(bins.sizes[self.feature]), np.bool_)
        where = np.array([self.feature, self.bin, self.default_left], np.int64)
        bins_left(where, readable(self.words), bool(bins.missing[self.feature]), lefts)
        return lefts


@dataclass(frozen=True, eq=False)
class DenseRows:
    """Rows that have a bin in every feature.

    Attributes:
        bins: the bins of all features.
        columns: unsigned, shape (features, rows): ``Bins.bin_dense``.
    """

    bins: Bins
    columns: Array

    def add_histogram(self, order: Int32s, pairs: Array, out: Array) -> None:
        """Add the rows of a node to its histogram, shape (bins, channels); pairs: shape (rows, channels)."""
        pairs = readable(pairs)
        blocks, width = self.blocks, self.blocks.shape[2]
        pieces = min(MAX_PIECES // max(len(blocks), 1), len(order) * len(self.first) // OF_PIECE) or 1
        # Sums are whole numbers: the same, however many pieces there are.
        parts = [out, *np.zeros((pieces - 1, *out.shape), np.int64)]
        ends = [len(order) * i // pieces for i in range(pieces + 1)]

        def add(some: Int64s) -> None:
            for task in some.tolist():
                piece, block = divmod(task, len(blocks))
                mine, first = order[ends[piece] : ends[piece + 1]], self.first[block * width : (block + 1) * width]
                kernels.add_dense(readable(mine), blocks[block], first, pairs, parts[piece])

        if len(blocks):
            over_blocks(add, (np.arange(pieces * len(blocks)),), cost=COST * width * len(order) // pieces)
        for part in parts[1:]:
            out += part

    @cached_property
    def _features(self) -> Int64s:
        """Numbers of the features that have columns of a histogram."""
        return readable(np.flatnonzero(self.bins.columns))

    @cached_property
    def first(self) -> npt.NDArray[np.uint64]:
        """Where the columns of each of these begin."""
        return readable(self.bins.first[self._features].astype(np.uint64))

    @cached_property
    def blocks(self) -> Array:
        """The bins once more, of these features, by row: shape (blocks, rows, features of a block, or more)."""
        features, rows = self._features, self.columns.shape[1]
        count = -(-len(features) // BLOCK)
        out = np.empty((count, rows, -(-len(features) // max(count, 1))), self.columns.dtype)
        tiles = np.arange(-(-rows // kernels.TILE))
        over_blocks(kernels.to_rows, (tiles,), readable(self.columns), features, out, cost=kernels.TILE * len(features))
        return readable(out)

    def part(self, order: Int32s, split: Split, aside: Int32s) -> int:
        """Move the rows of a node that go left to the front, in place; return their number."""
        return int(kernels.part_dense(order, self.columns[split.feature], split.lefts(self.bins), aside))


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Sparse rows: one bin of each feature, of zeros or of missing values, is not stored.

    Attributes:
        bins: the bins of all features.
        begins: int64, shape (rows + 1,); columns: int32, of the histogram: ``Bins.bin_sparse``.
        absent: meaning of a value that a row does not hold.
    """

    bins: Bins
    begins: Int64s
    columns: Int32s
    absent: Absent

    def histogram(self, order: Int32s, pairs: Array, scratch: Scratch) -> tuple[Int64s, Array]:
        """Return the filled bins of a node's histogram, ascending, without implied ones, and their sums."""
        pairs = readable(pairs)
        kernels.add_sparse(
            readable(order), readable(self.begins), readable(self.columns), pairs, scratch.sums, scratch.touched
        )
        count = kernels.count_touched(scratch.touched)
        bins, found = np.empty(count, np.int64), np.empty((count, scratch.sums.shape[1]), np.int64)
        kernels.take_touched(scratch.touched, scratch.sums, bins, found)
        return bins, found

    def part(self, order: Int32s, split: Split, aside: Int32s) -> int:
        """Move the rows of a node that go left to the front, in place; return their number."""
        begins, columns, f = readable(self.begins), readable(self.columns), split.feature
        first, implied, lefts = int(self.bins.first[f]), int(self._implied[f]), split.lefts(self.bins)
        return int(kernels.part_sparse(order, begins, columns, first, implied, lefts, aside))

    @cached_property
    def _implied(self) -> Int32s:
        return self.bins.implied(self.absent)


class Scratch:
    """Memory for the histogram of one node of sparse rows; zeros between two uses."""

    def __init__(self, bins: int, channels: int) -> None:
        self.sums: Array = np.zeros((bins, channels), np.int64)
        self.touched = np.zeros(-(-bins // WORD_BITS), np.uint64)


def scales_of(below_h: float, below_g: float) -> tuple[float, float]:
    """Return powers of two by which hessians and gradients become whole numbers whose sums fit.

    A number is moved by less than 1 over its scale, by chance up or down: by 2^-60 of what all rows sum up to, or
    little more, so no total is less exact than additions of float64 would make it.

    Args:
        below_h, below_g: bounds of the sums of hessians, and of absolute gradients, of all rows of all workers.

    Raises:
        ConfigError: a gradient is not finite.
    """
    if not (np.isfinite(below_h) and np.isfinite(below_g)):
        raise ConfigError(
            f"gradients: expected finite numbers, but they sum up to {below_g}, hessians to {below_h}; a smaller "
            "stepSize, or a larger regLambda, keeps margins from running away"
        )
    # Half of int64's range, as each row may be rounded up.
    h, g = (2.0 ** min(62 - np.frexp(below)[1], MAX_EXPONENT) if below > 0 else 1.0 for below in (below_h, below_g))
    return float(h), float(g)


def child_bounds(w_left: float, w_right: float, sign: int, bounds: Array) -> tuple[Array, Array]:
    """Return the bounds of the weights below two children, whose feature has a constraint: 1, -1, or 0 for none."""
    left, right = bounds.copy(), bounds.copy()
    if sign:
        upper, lower = (left, right) if sign > 0 else (right, left)
        upper[UPPER] = lower[LOWER] = (w_left + w_right) / 2
    return left, right
