"""Cut points of features, from weights that are whole numbers: so they do not depend on how rows lie.

A feature with few distinct values has a bin for each (``distinct``). Others are summed up several times, by cells of
their ordered bits: first by the first 12 of these (``Cells.whole``), then what weighs much by finer cells
(``Refinement``, ``children``), as fine as two float64 can be apart. Then ``cuts_of_few`` and ``cuts_of_many`` make cuts
of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees import binning_kernels as kernels
from ps2.algorithms.trees.ascending import are_in, distinct_of, merged
from ps2.algorithms.trees.feature_columns import NO_WEIGHTS, ZERO, Distinct, FeatureColumns, from_bits
from ps2.array_types import Float64s, Int64s
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

Array = npt.NDArray[Any]
UInt64s = npt.NDArray[np.uint64]

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
        """The place of the feature that each is of, int64."""
        return np.repeat(np.arange(len(self.begin) - 1), np.diff(self.begin))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.begin.nbytes + self.first.nbytes + self.width.nbytes + self.weights.nbytes

    @property
    def is_whole(self) -> bool:
        """Whether these are of all values yet."""
        return bool(len(self.width) and self.width[0] == BITS)

    def parted(self, refinement: Refinement, held: Int64s, sums: Int64s) -> Cells:
        """Return the cells with those that are cut replaced by their children.

        Args:
            held: int64, ascending: the children that have sums, of all; sums: int64, their weights. Zeros that rows do
                not hold are in none of them: their weight is what a cell holds more than its children do. But of cells
                that are whole yet, the children have all the weight.
        """
        at, start = refinement.at, refinement.start
        if not len(at):
            return self
        if not self.is_whole:
            ends = np.append(0, np.cumsum(sums))
            own = np.diff(ends[np.searchsorted(held, np.append(start, refinement.begin[-1]))])
            zeros = np.flatnonzero(self.first[at] == ZERO)
            every = merged(held, start[zeros])
            all_sums = np.zeros(len(every), np.int64)
            all_sums[np.searchsorted(every, held)] = sums
            all_sums[np.searchsorted(every, start[zeros])] += (self.weights[at] - own)[zeros]
            held, sums = every, all_sums
        some = sums != 0
        return self._with_children(refinement, held[some], sums[some])

    def _with_children(self, refinement: Refinement, held: Int64s, weights: Int64s) -> Cells:
        at, start = refinement.at, refinement.start
        parent = np.searchsorted(start, held, side="right") - 1
        width = (self.width[at] - refinement.depth)[parent]
        first = self.first[at[parent]] + ((held - start[parent]).astype(np.uint64) << width)
        keep = np.ones(len(self.first), np.bool_)
        keep[at] = False
        features = np.concatenate([self.features[keep], self.features[at[parent]]])
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
        at: int64: which cells are; depth: uint64: each into 2 to that many children.
        start: int64: where its children begin among all.
        cell_begin: int64, shape (features + 1,): where each feature's cells begin in ``at``.
        begin: int64, shape (features + 1,): where each feature's children begin: a contiguous piece.
    """

    at: Int64s
    depth: UInt64s
    start: Int64s
    cell_begin: Int64s
    begin: Int64s

    @staticmethod
    def of(cells: Cells, bins: int, turn: int) -> Refinement:
        """Decide by the cells' weights, for this number of bins of a feature.

        Args:
            turn: how often cells have been cut before.
        """
        if cells.is_whole:
            depth = np.full(len(cells.first), COARSE_BITS, np.uint64)
        else:
            share = FINENESS * bins
            spare, budget = (1, 2 * share) if turn == 1 else (SPARE, max(2 * share, MIN_CHILDREN))
            depth = np.zeros(len(cells.first), np.uint64)
            held = (readable(cells.begin), readable(cells.width), readable(cells.weights))
            kernels.choose_depths(*held, share, spare, budget, depth)
        at = np.flatnonzero(depth)
        depth = depth[at]
        ends = np.append(0, np.cumsum(1 << depth.astype(np.int64)))
        cell_begin = np.searchsorted(cells.features[at], np.arange(len(cells.begin)))
        return Refinement(at, readable(depth), readable(ends[:-1]), readable(cell_begin), readable(ends[cell_begin]))


def children(
    columns: FeatureColumns, features: Int64s, cells: Cells, refinement: Refinement, weights: Int64s = NO_WEIGHTS
) -> Int64s:
    """Return the weights in the children of some features' cells, int64.

    Args:
        features: in ``columns``, whose cells these are.
    """
    out = np.zeros(refinement.begin[-1], np.int64)
    held = (columns.bits, columns.begin, columns.rows, readable(weights), refinement.cell_begin)
    cut = (readable(cells.first[refinement.at]), readable(cells.width[refinement.at]))
    rest = (*held, *cut, refinement.depth, refinement.start, out)
    places = (np.arange(len(features)),)
    over_blocks(kernels.count_children, places, readable(features), *rest, cost=columns.cost)
    return out


def cuts_of_few(found: Distinct, absent: Int64s) -> tuple[Float64s, Int64s]:
    """Return the cut points of all features that have few values: one between each two.

    Args:
        absent: int64, shape (features,): weight of each feature's zeros that are not in ``found``.

    Returns:
        Cuts, feature by feature, and where each feature's begin, int64, shape (features + 1,).
    """
    features, bits, some = found.features, found.bits, found.weights > 0
    if not some.all():
        features, bits = features[some], bits[some]
    # A feature that has no value but zeros has no cut.
    zeros = distinct_of(features)
    zeros = zeros[absent[zeros] != 0]
    zeros = zeros[~are_in(zeros, found.many, len(absent))]
    # After the feature's negative values.
    negative = np.append(0, np.cumsum(bits < ZERO))
    begin, end = np.searchsorted(features, zeros), np.searchsorted(features, zeros, side="right")
    at = begin + negative[end] - negative[begin]
    features, bits = np.insert(features, at, zeros), np.insert(bits, at, ZERO)
    new = np.append(True, (features[1:] != features[:-1]) | (bits[1:] != bits[:-1]))[: len(bits)]
    values, features = from_bits(bits[new]), features[new]
    pairs = features[1:] == features[:-1]
    begins = np.searchsorted(features[1:][pairs], np.arange(len(absent) + 1))
    return cuts_between(values[:-1][pairs], values[1:][pairs]), begins


def value_counts(found: Distinct, absent: Int64s) -> Int64s:
    """Return each feature's number of values, with zeros that rows do not store; for the args, see ``cuts_of_few``."""
    some = found.weights > 0
    counts = np.bincount(found.features[some], minlength=len(absent))
    with_zero = np.zeros(len(absent), bool)
    with_zero[found.features[some & (found.bits == ZERO)]] = True
    return counts + ((absent != 0) & ~with_zero)


def cuts_of_many(cells: Cells, bins: int) -> tuple[Float64s, Int64s]:
    """Return the cut points of features that have many values, feature by feature, and each feature's number of them.

    Args:
        bins: the maximum number of bins of a feature.
    """
    features = len(cells.begin) - 1
    low, high = np.empty(features * bins, np.uint64), np.empty(features * bins, np.uint64)
    sizes = np.empty(features, np.int64)
    begin, first, width, weights = map(readable, (cells.begin, cells.first, cells.width, cells.weights))
    count = kernels.cut_cells(begin, first, width, weights, bins, low, high, sizes)
    below, above = from_bits(low[:count]), from_bits(high[:count])
    # Between cells side by side is no float32 number, but one lies just below most of their bounds: little goes right
    # for it, and the model can be saved for xgboost.
    with np.errstate(over="ignore", under="ignore"):
        bound = above.astype(np.float32)
        short = np.nextafter(bound, np.float32(-np.inf)).astype(np.float64)
    first_cut = np.diff(np.repeat(np.arange(features), sizes), prepend=-1) > 0
    least = np.where(first_cut, -np.inf, np.roll(above, 1))
    is_short = (high[:count] - low[:count] == 1) & (bound == above) & (short >= least) & np.isfinite(short)
    return np.where(is_short, short, cuts_between(below, above)), sizes


def cuts_between(below: Float64s, above: Float64s) -> Float64s:
    """Return float64 that are at least ``below``, and less than ``above``: near the middle, but never infinite.

    Where float32 can tell these apart, cuts are float32 numbers, and part them as float32, too. Where it cannot, cuts
    are no float32 numbers, except between float64 side by side.
    """
    most = np.finfo(np.float64).max
    low, high = np.clip(below, -most, most), np.clip(above, -most, most)
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
    """Return a power of two that weights are multiples of, about: their mean is 2 to ``bits`` of it, up to twice that.

    Means that differ in their last digits, because they were summed up in another order, have the same.
    """
    return float(2.0 ** (np.floor(np.log2(mean_weight) + 1e-6) - bits))


def whole(weights: Array, unit: float) -> Int64s:
    """Return weights, of which none is 0, as whole numbers of units, at least 1."""
    return np.maximum(np.rint(weights / unit), 1).astype(np.int64)
