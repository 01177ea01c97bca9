"""From values to bins: what rows hold in a feature, summed up; cut points; the columns of a histogram.

Cut points come of weights that are whole numbers, so they do not depend on how rows lie. A feature with few distinct
values has a bin for each (``distinct``). Others are summed up several times, by cells of their ordered bits: first by
the first 12 of these (``Cells.whole``), then what weighs much by finer cells (``Refinement``, ``children``), as fine as
two float64 can be apart. Then ``cuts_of_few`` and ``cuts_of_many`` make cuts of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.trees import binning_kernels as kernels
from ps2.algorithms.trees.tree import Absent
from ps2.errors import ConfigError, InputError
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

Array = npt.NDArray[Any]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Float64s = npt.NDArray[np.float64]

NO_WEIGHTS = readable(np.empty(0, np.int64))
NO_ROWS = readable(np.empty(0, np.int32))
ZERO = kernels.SIGN
# A cell should hold at most the weight of a bin over this: that bounds how far a cut is from the exact quantile. Of
# cells that have been cut by it already, those are cut again that hold so many times as much, into more.
FINENESS, SPARE, LEAST_CHILDREN = 16, 4, 1 << 13
# Of all values, and by how many of their first bits they are summed up first: sign and exponent.
BITS, COARSE_BITS = 64, 12
# What a value costs in a kernel, in additions.
COST = 8


@dataclass(frozen=True, eq=False)
class Columns:
    """Values by feature, as ordered bits.

    Attributes:
        bits: uint64, those of a feature lie together; missing ones are the largest.
        begin: int64, shape (features + 1,).
        rows: int32, of sparse columns: the row of each value; dense ones have all rows, and this is empty.
        count: of rows.
    """

    bits: UInt64s
    begin: Int64s
    rows: Int32s
    count: int

    @staticmethod
    def of_dense(x: Array) -> Columns:
        """Take all values of rows, float32 or float64, shape (n, features)."""
        count, features = x.shape
        bits = np.empty((features, count), np.uint64)
        over_blocks(kernels.to_columns, (np.arange(features),), readable(x), bits, cost=COST * count)
        return Columns(readable(bits.reshape(-1)), readable(np.arange(features + 1) * count), NO_ROWS, count)

    @staticmethod
    def of_sparse(x: sp.csr_array) -> Columns:
        """Take the values that sparse rows hold; those that they do not hold are nowhere in it."""
        columns = sp.csc_array(x)
        bits = ordered_bits(columns.data)
        return Columns(
            bits, readable(columns.indptr.astype(np.int64)), readable(columns.indices.astype(np.int32)), x.shape[0]
        )

    @property
    def features(self) -> int:
        return len(self.begin) - 1

    @property
    def dense(self) -> bool:
        # Sparse rows that hold nothing have no values, and no rows of any.
        return not len(self.rows) and 0 < self.features * self.count == len(self.bits)

    def _cost(self) -> int:
        return COST * (len(self.bits) // max(self.features, 1) + 1)


@dataclass(frozen=True, eq=False)
class Distinct:
    """Values of the features that have few, and their weights.

    Attributes:
        features: int64: of each value; they ascend.
        bits: uint64, the values: they ascend within a feature.
        weights: int64.
        many: int64: the features that have more.
    """

    features: Int64s
    bits: UInt64s
    weights: Int64s
    many: Int64s

    def without(self, many: Int64s, limit: int) -> Distinct:
        """Return the values of features that do not have more than ``limit``.

        Args:
            many: features that are known to have more.
        """
        features, counts = np.unique(self.features, return_counts=True)
        many = np.union1d(many, features[counts > limit])
        few = ~np.isin(self.features, many)
        return Distinct(self.features[few], self.bits[few], self.weights[few], many)


def ordered_bits(values: Array) -> UInt64s:
    """Return uint64 that ascend as float64 values do; 0 and -0 are the same, NaN is the largest."""
    bits = np.empty(len(values), np.uint64)
    over_blocks(kernels.to_bits, (readable(values), bits))
    return readable(bits)


def from_bits(bits: UInt64s) -> Float64s:
    """Return the float64 that have such ordered bits."""
    bits = np.asarray(bits, np.uint64)
    return np.where(bits & kernels.SIGN, bits ^ kernels.SIGN, ~bits).view(np.float64)


def distinct(columns: Columns, limit: int, weights: Int64s = NO_WEIGHTS) -> Distinct:
    """Find the distinct values of each feature, missing ones aside.

    Args:
        limit: of values; a feature with more is one of ``many``.
        weights: of rows, whole numbers, not negative; none: each counts 1.
    """
    start = np.append(0, np.cumsum(np.minimum(np.diff(columns.begin), limit)))
    values, counts = np.empty(start[-1], np.uint64), np.empty(start[-1], np.int64)
    found = np.empty(columns.features, np.int64)
    held = (columns.bits, columns.begin, columns.rows, readable(weights))
    rest = (*held, limit, readable(start), values, counts, found)
    over_blocks(kernels.count_distinct, (np.arange(columns.features),), *rest, cost=columns._cost())
    features = np.repeat(np.arange(columns.features), np.maximum(found, 0))
    some = start[features] + np.arange(len(features)) - np.searchsorted(features, features)
    order = np.lexsort((values[some], features))
    return Distinct(features, values[some][order], counts[some][order], np.flatnonzero(found < 0))


def missing(columns: Columns, weights: Int64s = NO_WEIGHTS) -> Int64s:
    """Return the weight of each feature's missing values, as far as ``columns`` have them, int64."""
    out = np.empty(columns.features, np.int64)
    held = (columns.bits, columns.begin, columns.rows, readable(weights), out)
    over_blocks(kernels.count_missing, (np.arange(columns.features),), *held, cost=columns._cost())
    return out


@dataclass(frozen=True, eq=False)
class Cells:
    """Intervals of some features' ordered bits that hold weight.

    Attributes:
        begin: int64, shape (features + 1,): where each feature's cells begin.
        first: uint64: the least bits of each; they ascend within a feature.
        width: uint64: of each the logarithm, to base 2, of how many bits there are.
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
    def is_whole(self) -> bool:
        """Whether these are of all values yet."""
        return bool(len(self.width) and self.width[0] == BITS)

    def parted(self, refinement: Refinement, sums: Int64s) -> Cells:
        """Return the cells with those that are cut replaced by their children.

        Args:
            sums: int64: the weights of all children. Zeros that rows do not hold are in none: their weight is what a
                cell holds more than its children do.
        """
        at, start = refinement.at, refinement.start
        if not len(at):
            return self
        if not self.is_whole:
            rest = self.weights[at] - np.add.reduceat(sums, start)
            zeros = self.first[at] == ZERO
            sums = sums.copy()
            sums[start[zeros]] += rest[zeros]
        held = np.flatnonzero(sums)
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
            readable(np.concatenate([self.weights[keep], sums[held]])[order]),
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
        """Decide by what the cells hold, for so many bins a feature.

        Args:
            turn: how often cells have been cut before.
        """
        if cells.is_whole:
            depth = np.full(len(cells.first), COARSE_BITS, np.uint64)
        else:
            share = FINENESS * bins
            spare, budget = (1, 2 * share) if turn == 1 else (SPARE, max(2 * share, LEAST_CHILDREN))
            depth = np.zeros(len(cells.first), np.uint64)
            held = (readable(cells.begin), readable(cells.width), readable(cells.weights))
            kernels.choose_depths(*held, share, spare, budget, depth)
        at = np.flatnonzero(depth)
        depth = depth[at]
        ends = np.append(0, np.cumsum(1 << depth.astype(np.int64)))
        cell_begin = np.searchsorted(cells.features[at], np.arange(len(cells.begin)))
        return Refinement(at, readable(depth), readable(ends[:-1]), readable(cell_begin), readable(ends[cell_begin]))


def children(
    columns: Columns, features: Int64s, cells: Cells, refinement: Refinement, weights: Int64s = NO_WEIGHTS
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
    over_blocks(kernels.count_children, places, readable(features), *rest, cost=columns._cost())
    return out


def cuts_of_few(found: Distinct, absent: Int64s) -> tuple[Float64s, Int64s]:
    """Return the cut points of all features that have few values: one between each two.

    Args:
        absent: int64, shape (features,): weight of each feature's zeros that are not in ``found``.

    Returns:
        Cuts, feature by feature, and where each feature's begin, int64, shape (features + 1,).
    """
    some = found.weights > 0
    # A feature that has no value but zeros has no cut.
    zeros = np.unique(found.features[some])
    zeros = zeros[absent[zeros] != 0]
    zeros = zeros[~np.isin(zeros, found.many)]
    features = np.concatenate((found.features[some], zeros))
    bits = np.concatenate((found.bits[some], np.full(len(zeros), ZERO)))
    order = np.lexsort((bits, features))
    features, bits = features[order], bits[order]
    new = np.append(True, (features[1:] != features[:-1]) | (bits[1:] != bits[:-1]))[: len(bits)]
    values, features = from_bits(bits[new]), features[new]
    pairs = features[1:] == features[:-1]
    begins = np.searchsorted(features[1:][pairs], np.arange(len(absent) + 1))
    return cuts_between(values[:-1][pairs], values[1:][pairs]), begins


def value_counts(found: Distinct, absent: Int64s) -> Int64s:
    """Return how many values each feature has, zeros that are not in ``found`` among them; args as ``cuts_of_few``."""
    some = found.weights > 0
    counts = np.bincount(found.features[some], minlength=len(absent))
    with_zero = np.zeros(len(absent), bool)
    with_zero[found.features[some & (found.bits == ZERO)]] = True
    return counts + ((absent != 0) & ~with_zero)


def cuts_of_many(cells: Cells, bins: int) -> tuple[Float64s, Int64s]:
    """Return the cut points of features that have many values, feature by feature, and how many each has.

    Args:
        bins: of a feature, at most.
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

    Where float32 can tell these apart, cuts are float32 numbers, and part them as float32, too.
    """
    most = np.finfo(np.float64).max
    low, high = np.clip(below, -most, most), np.clip(above, -most, most)
    middle = low / 2 + high / 2
    with np.errstate(over="ignore", under="ignore"):
        short = middle.astype(np.float32)
        short = np.where(short > middle, np.nextafter(short, np.float32(-np.inf)), short)
        is_short = (below.astype(np.float32) <= short) & (short < above.astype(np.float32)) & (below <= short)
    middle = np.where(middle < above, np.maximum(middle, low), below)
    return np.where(is_short & np.isfinite(short), short.astype(np.float64), middle)


@dataclass(frozen=True, eq=False)
class Bins:
    """The bins of all features: columns of a histogram, one feature's after the other's.

    A numeric feature with c cuts has c + 1 bins: a value is in bin b if b cuts are below it. A feature of k categories
    has k bins. Then comes, where ``missing`` says so, one for missing values, and for what is no category.

    Attributes:
        cuts: float64: each feature's ascend; of a categorical one they are the categories themselves.
        offsets: int64, shape (features + 1,): where each feature's cuts begin.
        categories: int32, shape (features,); 0: it is numeric.
        missing: bool, shape (features,).
        block: no feature's bins lie on both sides of a multiple of this, which leaves gaps: so the columns of a matrix
            can be cut there. At least the bins of any feature; 0: they lie side by side.
    """

    cuts: Float64s
    offsets: Int64s
    categories: Int32s
    missing: npt.NDArray[np.bool_]
    block: int = 0

    def __post_init__(self) -> None:
        if self.block and self.sizes.max(initial=0) > self.block:
            raise ConfigError(f"block: expected at least {self.sizes.max()}, the bins of a feature, got {self.block}")

    @property
    def features(self) -> int:
        return len(self.categories)

    @cached_property
    def sizes(self) -> Int64s:
        """How many bins each feature has, int64."""
        return np.diff(self.offsets) + (self.categories == 0) + self.missing

    @cached_property
    def columns(self) -> Int64s:
        """How many columns each feature has, int64: its bins; none if there is only one, which cannot part rows."""
        return np.where(self.sizes > 1, self.sizes, 0).astype(np.int64)

    @cached_property
    def first(self) -> Int64s:
        """Where each feature's columns begin, and the last ones end, int64, shape (features + 1,)."""
        first = np.empty(self.features + 1, np.int64)
        kernels.place_bins(readable(self.columns), self.block, first)
        return readable(first)

    @cached_property
    def missing_bin(self) -> Int32s:
        """Each feature's bin for missing values, int32; -1: it has none."""
        return readable(np.where(self.missing, self.sizes - 1, -1).astype(np.int32))

    def implied(self, absent: Absent) -> Int32s:
        """Return each feature's bin that sparse rows do without, int32: of zeros or missing values, or the only one."""
        if absent == "missing":
            return readable(np.where(self.sizes > 1, self.missing_bin, 0).astype(np.int32))
        cuts, feature = self.cuts < 0, np.repeat(np.arange(self.features), np.diff(self.offsets))
        return readable(np.bincount(feature[cuts], minlength=self.features).astype(np.int32))

    def threshold(self, feature: int, bin: int) -> float:
        """Return what values are at most that are in a bin or before it; infinity of the last."""
        at = self.offsets[feature] + bin
        return float(self.cuts[at]) if at < self.offsets[feature + 1] else float("inf")

    @cached_property
    def _for_kernels(self) -> tuple[UInt64s, Int64s, Int32s, Int32s]:
        return ordered_bits(self.cuts), readable(self.offsets), readable(self.categories), self.missing_bin

    def bin_dense(self, columns: Columns) -> Array:
        """Return the bins of dense columns, uint8 or uint16, shape (features, n).

        Raises:
            InputError: a feature has missing values, or what is no category, and no bin for them.
        """
        dtype = np.uint8 if self.sizes.max(initial=0) <= 1 << 8 else np.uint16
        out = np.empty((self.features, columns.count), dtype)
        bits = columns.bits.reshape(out.shape)
        features = np.arange(self.features)
        held = (bits, *self._for_kernels, out)
        faults = over_blocks(kernels.bin_columns, (features,), *held, cost=2 * columns._cost())
        self._check(max(faults, default=-1))
        return out

    def bin_sparse(self, x: sp.csr_array, absent: Absent) -> tuple[Int64s, Int32s]:
        """Return the bins that sparse rows hold, without the implied ones.

        Args:
            x: float32 or float64, its indices sorted.

        Returns:
            int64, shape (n + 1,): where each row begins; int32: columns of the histogram, ascending within a row.

        Raises:
            InputError: as ``bin_dense``.
        """
        begins, out = np.empty(x.shape[0] + 1, np.int64), np.empty(x.nnz, np.int32)
        cuts, offsets, categories, missing = self._for_kernels
        bins = (cuts, offsets, categories, missing, self.first, self.implied(absent))
        rows = (readable(x.indptr), readable(x.indices), ordered_bits(x.data))
        fault: int = kernels.bin_rows(*rows, *bins, begins, out)  # type: ignore[arg-type]
        self._check(fault)
        return begins, out[: begins[-1]].copy()

    def _check(self, fault: int) -> None:
        if fault >= 0:
            of = self.categories[fault]
            what = f"values that are none of its {of} categories" if of else "NaN"
            raise InputError(f"feature {fault}: {what}, and no bin for missing values")
