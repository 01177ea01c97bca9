"""Cut points of features, from weights that are whole numbers: so they do not depend on how rows lie.

A feature with few distinct values has a bin for each (``distinct``). Others are summed up several times, by cells of
their ordered bits: first by the first 12 of these (``Cells.whole``), then what weighs much by finer cells
(``Refinement``, ``children``), as fine as two float64 can be apart. Then ``cuts_of_few`` and ``cuts_of_many`` make cuts
of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ps2.algorithms.trees import binning_kernels as kernels
from ps2.algorithms.trees.ascending import are_in, distinct_of, merged
from ps2.algorithms.trees.feature_columns import NO_WEIGHTS, ZERO, Distinct, FeatureColumns, from_bits
from ps2.algorithms.trees.layout import Array, UInt64s
from ps2.array_types import Float64s, Int64s
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

# A cell should hold at most the weight of a bin over this: that bounds how far a cut is from the exact quantile. Of
# cells that have been cut by it already, those are cut again that hold so many times as much, into more.
FINENESS, SPARE, MIN_CHILDREN = 16, 4, 1 << 13
# Of all values, and by how many of their first bits they are summed up first: sign and exponent.
BITS, COARSE_BITS = 64, 12


@dataclass(frozen=True, eq=False)
class Cells:
    """Intervals of some features' ordered bits that hold weight.

    Attributes:
        begin: int64, shape (features + 1,): where each feature's cells begin.
        first: uint64, the smallest bits of each cell; they ascend within a feature.
        width: uint64, the logarithm to base 2 of the number of bits of each cell.
        weights: int64: what each holds.
    """

    begin: Int64s
    first: UInt64s
    width: UInt64s
    weights: Int64s

    @staticmethod
    def whole(features: int) -> Cells:
        """Return a cell of all values for each feature, as if it held 1."""
        return Cells(
            np.arange(features + 1),
            np.zeros(features, np.uint64),
            np.full(features, BITS, np.uint64),
            np.ones(features, np.int64),
        )

    @property
    def features(self) -> Int64s:
        """int64, the position of each cell's feature."""
        return np.repeat(np.arange(len(self.begin) - 1), np.diff(self.begin))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.begin.nbytes + self.first.nbytes + self.width.nbytes + self.weights.nbytes

    @property
    def is_whole(self) -> bool:
        """Whether no cell has been cut yet."""
        return bool(len(self.width) and self.width[0] == BITS)

    def refine(self, refinement: Refinement, held: Int64s, sums: Int64s) -> Cells:
        """Return the cells with children of known sums for the cut ones; zeros that rows do not store add the rest."""
        cut, start = refinement.cut, refinement.start
        if not len(cut):
            return self
        if not self.is_whole:
            ends = np.append(0, np.cumsum(sums))
            own = np.diff(ends[np.searchsorted(held, np.append(start, refinement.begin[-1]))])
            zeros = np.flatnonzero(self.first[cut] == ZERO)
            every = merged(held, start[zeros])
            all_sums = np.zeros(len(every), np.int64)
            all_sums[np.searchsorted(every, held)] = sums
            all_sums[np.searchsorted(every, start[zeros])] += (self.weights[cut] - own)[zeros]
            held, sums = every, all_sums
        some = sums != 0
        return self._with_children(refinement, held[some], sums[some])

    def _with_children(self, refinement: Refinement, held: Int64s, weights: Int64s) -> Cells:
        cut, start = refinement.cut, refinement.start
        parent = np.searchsorted(start, held, side="right") - 1
        width = (self.width[cut] - refinement.depth)[parent]
        first = self.first[cut[parent]] + ((held - start[parent]).astype(np.uint64) << width)
        keep = np.ones(len(self.first), np.bool_)
        keep[cut] = False
        features = np.concatenate([self.features[keep], self.features[cut[parent]]])
        first = np.concatenate([self.first[keep], first])
        order = np.lexsort((first, features))
        return Cells(
            readable(np.searchsorted(features[order], np.arange(len(self.begin)))),
            readable(first[order]),
            readable(np.concatenate([self.width[keep], width])[order]),
            readable(np.concatenate([self.weights[keep], weights])[order]),
        )


@dataclass(frozen=True, eq=False)
class Refinement:
    """How cells are cut: the more weight, the finer.

    Attributes:
        cut: int64, the numbers of the cells that are cut.
        depth: uint64, the logarithm to base 2 of each one's number of children.
        start: int64, the number of each one's first child.
        cell_begin: int64, shape (features + 1,), the index in ``cut`` of each feature's first cell.
        begin: int64, shape (features + 1,), the number of each feature's first child; its children are contiguous.
    """

    cut: Int64s
    depth: UInt64s
    start: Int64s
    cell_begin: Int64s
    begin: Int64s

    @staticmethod
    def of(cells: Cells, bins: int, turn: int) -> Refinement:
        """Decide by the cells' weights, for a number of bins of a feature; turn: the number of earlier cuts."""
        if cells.is_whole:
            depth = np.full(len(cells.first), COARSE_BITS, np.uint64)
        else:
            share = FINENESS * bins
            spare, budget = (1, 2 * share) if turn == 1 else (SPARE, max(2 * share, MIN_CHILDREN))
            depth = np.zeros(len(cells.first), np.uint64)
            held = (readable(cells.begin), readable(cells.width), readable(cells.weights))
            kernels.choose_depths(*held, share, spare, budget, depth)
        cut = np.flatnonzero(depth)
        depth = depth[cut]
        ends = np.append(0, np.cumsum(1 << depth.astype(np.int64)))
        cell_begin = np.searchsorted(cells.features[cut], np.arange(len(cells.begin)))
        return Refinement(cut, readable(depth), readable(ends[:-1]), readable(cell_begin), readable(ends[cell_begin]))


def children(
    columns: FeatureColumns, features: Int64s, cells: Cells, refinement: Refinement, weights: Int64s = NO_WEIGHTS
) -> Int64s:
    """Return the weights in the children of some features' cells, int64."""
    out = np.zeros(refinement.begin[-1], np.int64)
    first, width = readable(cells.first[refinement.cut]), readable(cells.width[refinement.cut])
    cut = kernels.CutCells(refinement.cell_begin, first, width, refinement.depth, refinement.start)
    indices, arrays = (np.arange(len(features)),), (readable(features), columns.arrays(weights), cut, out)
    over_blocks(kernels.count_children, indices, *arrays, cost=columns.cost)
    return out


def cuts_of_few(distinct: Distinct, absent: Int64s) -> tuple[Float64s, Int64s]:
    """Return cuts between each two values, and each feature's first cut; absent: the weights of unstored zeros."""
    features, bits, some = distinct.features, distinct.bits, distinct.weights > 0
    if not some.all():
        features, bits = features[some], bits[some]
    # A feature that has no value but zeros has no cut.
    zeros = distinct_of(features)
    zeros = zeros[absent[zeros] != 0]
    zeros = zeros[~are_in(zeros, distinct.many, len(absent))]
    # After the feature's negative values.
    negative = np.append(0, np.cumsum(bits < ZERO))
    begin, end = np.searchsorted(features, zeros), np.searchsorted(features, zeros, side="right")
    index = begin + negative[end] - negative[begin]
    features, bits = np.insert(features, index, zeros), np.insert(bits, index, ZERO)
    new = np.append(True, (features[1:] != features[:-1]) | (bits[1:] != bits[:-1]))[: len(bits)]
    values, features = from_bits(bits[new]), features[new]
    pairs = features[1:] == features[:-1]
    begins = np.searchsorted(features[1:][pairs], np.arange(len(absent) + 1))
    return cuts_between(values[:-1][pairs], values[1:][pairs]), begins


def value_counts(distinct: Distinct, absent: Int64s) -> Int64s:
    """Return each feature's number of values, with zeros that rows do not store; for the args, see ``cuts_of_few``."""
    some = distinct.weights > 0
    counts = np.bincount(distinct.features[some], minlength=len(absent))
    with_zero = np.zeros(len(absent), bool)
    with_zero[distinct.features[some & (distinct.bits == ZERO)]] = True
    return counts + ((absent != 0) & ~with_zero)


def cuts_of_many(cells: Cells, bins: int) -> tuple[Float64s, Int64s]:
    """Return the cuts of features that have many values, feature by feature, and each feature's number of them."""
    features = len(cells.begin) - 1
    low, high = np.empty(features * bins, np.uint64), np.empty(features * bins, np.uint64)
    sizes = np.empty(features, np.int64)
    begin, first, width, weights = map(readable, (cells.begin, cells.first, cells.width, cells.weights))
    count = kernels.cut_cells(begin, first, width, weights, bins, low, high, sizes)
    below, above = from_bits(low[:count]), from_bits(high[:count])
    # No float32 number lies between adjacent cells, but one lies just below most of their bounds. Such a cut moves few
    # values to the right, and the model can be saved for xgboost.
    with np.errstate(over="ignore", under="ignore"):
        bound = above.astype(np.float32)
        short = np.nextafter(bound, np.float32(-np.inf)).astype(np.float64)
    first_cut = np.diff(np.repeat(np.arange(features), sizes), prepend=-1) > 0
    min_cut = np.where(first_cut, -np.inf, np.roll(above, 1))
    is_short = (high[:count] - low[:count] == 1) & (bound == above) & (short >= min_cut) & np.isfinite(short)
    return np.where(is_short, short, cuts_between(below, above)), sizes


def cuts_between(below: Float64s, above: Float64s) -> Float64s:
    """Return numbers in [below, above) near the middle, finite; float32 numbers where these separate the two."""
    largest = np.finfo(np.float64).max
    low, high = np.clip(below, -largest, largest), np.clip(above, -largest, largest)
    middle = low / 2 + high / 2
    with np.errstate(over="ignore", under="ignore"):
        short = middle.astype(np.float32)
        short = np.where(short > middle, np.nextafter(short, np.float32(-np.inf)), short)
        is_short = (below.astype(np.float32) <= short) & (short < above.astype(np.float32)) & (below <= short)
        middle = np.where(middle < above, np.maximum(middle, low), below)
        higher, lower = np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)
        other = np.where(higher < above, higher, np.maximum(lower, below))
        middle = np.where(middle.astype(np.float32) == middle, other, middle)
    return np.where(is_short & np.isfinite(short), short.astype(np.float64), middle)


def unit_of(mean_weight: float, bits: int) -> float:
    """Return the unit of weights, a power of two: their mean is between 2 to ``bits`` units and twice that."""
    return float(2.0 ** (np.floor(np.log2(mean_weight) + 1e-6) - bits))


def whole(weights: Array, unit: float) -> Int64s:
    """Return weights, of which none is 0, as whole numbers of units, at least 1."""
    return np.maximum(np.rint(weights / unit), 1).astype(np.int64)
