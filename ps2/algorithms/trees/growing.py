"""A worker's rows as bins: histograms of nodes, and rows that move to the children of their node.

Rows are binned once (``DenseRows``, ``SparseRows``). An array ``order`` has the numbers of the rows that take part,
those of a node side by side, so a node is an interval of it: the root all of it; ``part`` puts the left child's rows
before the right one's. What a node costs depends on its own rows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees import growing_kernels as kernels
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.layout import (
    WORD_BITS,
    Array,
    Bools,
    bins_left,
)
from ps2.algorithms.trees.tree import Absent
from ps2.array_types import Int32s, Int64s
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

# Cost of adding to a bin, in additions of array elements.
COST = 4
# Features of a block, at most: their histogram stays in the second cache.
BLOCK = 32
# The maximum number of pieces of a node's rows that threads add up, and the number of additions from which it pays.
MAX_PIECES, OF_PIECE = 8, 1 << 20


@dataclass(frozen=True, eq=False)
class Split:
    """The split of a node; bin: the last one on the left, -1: the categories of ``words``, a bit each, go left."""

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
    """Rows that have a bin in every feature; columns: ``Bins.bin_dense``, shape (features, rows)."""

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
                piece_rows, first = (
                    order[ends[piece] : ends[piece + 1]],
                    self.first[block * width : (block + 1) * width],
                )
                kernels.add_dense(readable(piece_rows), blocks[block], first, pairs, parts[piece])

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

    def part(self, order: Int32s, split: Split, spare: Int32s) -> int:
        """Move the rows of a node that go left to the front, in place; return their number."""
        return int(kernels.part_dense(order, self.columns[split.feature], split.lefts(self.bins), spare))


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Sparse rows, which do not store one bin of each feature; begins, columns: see ``Bins.bin_sparse``."""

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
        bins, sums = np.empty(count, np.int64), np.empty((count, scratch.sums.shape[1]), np.int64)
        kernels.take_touched(scratch.touched, scratch.sums, bins, sums)
        return bins, sums

    def part(self, order: Int32s, split: Split, spare: Int32s) -> int:
        """Move the rows of a node that go left to the front, in place; return their number."""
        begins, columns, f = readable(self.begins), readable(self.columns), split.feature
        first, implied, lefts = int(self.bins.first[f]), int(self._implied[f]), split.lefts(self.bins)
        return int(kernels.part_sparse(order, begins, columns, first, implied, lefts, spare))

    @cached_property
    def _implied(self) -> Int32s:
        return self.bins.implied(self.absent)


class Scratch:
    """Memory for the histogram of one node of sparse rows; zeros between two uses."""

    def __init__(self, bins: int, channels: int) -> None:
        self.sums: Array = np.zeros((bins, channels), np.int64)
        self.touched = np.zeros(-(-bins // WORD_BITS), np.uint64)
