"""From values to bins: what rows hold in a feature, summed up; cut points; the columns of a histogram.

Cut points come of weights that are whole numbers, so they do not depend on how rows lie. A feature with few distinct
values has a bin for each (``distinct``). Others are summed up twice: how much weight lies in each of 4,096 coarse cells
of their ordered bits (``coarse``), then, where there is much of it, in finer ones (``Refinement``, ``fine``). In either
form a feature's part is a contiguous piece of int64 to which others' are added. Then ``cuts_of_few`` and
``cuts_of_many`` make cuts of them.
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
UInt32s = npt.NDArray[np.uint32]
Float32s = npt.NDArray[np.float32]

NO_WEIGHTS = readable(np.empty(0, np.int64))
NO_ROWS = readable(np.empty(0, np.int32))
ZERO = kernels.SIGN
# A fine cell should hold at most the weight of a bin over this: that bounds how far a cut is from the exact quantile.
FINENESS = 16
# What a value costs in a kernel, in additions.
COST = 8


@dataclass(frozen=True, eq=False)
class Columns:
    """Values by feature, as ordered bits.

    Attributes:
        bits: uint32, those of a feature lie together; missing ones are the largest.
        begin: int64, shape (features + 1,).
        rows: int32, of sparse columns: the row of each value; dense ones have all rows, and this is empty.
        count: of rows.
    """

    bits: UInt32s
    begin: Int64s
    rows: Int32s
    count: int

    @staticmethod
    def of_dense(x: Array) -> Columns:
        """Take all values of rows, float32 or float64, shape (n, features)."""
        count, features = x.shape
        bits = np.empty((features, count), np.uint32)
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
        return not len(self.rows)

    def _cost(self) -> int:
        return COST * (len(self.bits) // max(self.features, 1) + 1)


@dataclass(frozen=True, eq=False)
class Distinct:
    """Values of the features that have few, and their weights.

    Attributes:
        features: int64: of each value; they ascend.
        bits: uint32, the values: they ascend within a feature.
        weights: int64.
        many: int64: the features that have more.
    """

    features: Int64s
    bits: UInt32s
    weights: Int64s
    many: Int64s

    @property
    def keys(self) -> Int64s:
        """A key for each value, feature << 32 | bits: those of sparse columns of a DCV to which weights are added."""
        return (self.features << 32) | self.bits.astype(np.int64)

    @staticmethod
    def of_keys(keys: Int64s, weights: Int64s, limit: int, many: Int64s) -> Distinct:
        """Put together what others found: keys that are sorted and unique.

        Args:
            many: features that are known to have more than ``limit``; their keys are dropped.
        """
        features, counts = np.unique(keys >> 32, return_counts=True)
        many = np.union1d(many, features[counts > limit])
        few = ~np.isin(keys >> 32, many)
        bits = (keys[few] & 0xFFFFFFFF).astype(np.uint32)
        return Distinct(keys[few] >> 32, bits, weights[few], many)


def ordered_bits(values: Array) -> UInt32s:
    """Return uint32 that ascend as the values do, as float32; 0 and -0 are the same, NaN is the largest."""
    bits = np.empty(len(values), np.uint32)
    over_blocks(kernels.to_bits, (readable(values), bits))
    return readable(bits)


def from_bits(bits: UInt32s) -> Float32s:
    """Return the float32 that have such ordered bits."""
    bits = np.asarray(bits, np.uint32)
    return np.where(bits & kernels.SIGN, bits ^ kernels.SIGN, ~bits).astype(np.uint32).view(np.float32)


def distinct(columns: Columns, limit: int, weights: Int64s = NO_WEIGHTS) -> Distinct:
    """Find the distinct values of each feature, missing ones aside.

    Args:
        limit: of values; a feature with more is one of ``many``.
        weights: of rows, whole numbers, not negative; none: each counts 1.
    """
    start = np.append(0, np.cumsum(np.minimum(np.diff(columns.begin), limit)))
    values, counts = np.empty(start[-1], np.uint32), np.empty(start[-1], np.int64)
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


def coarse(columns: Columns, features: Int64s, weights: Int64s = NO_WEIGHTS) -> Array:
    """Return the weights in the coarse cells of some features, int64, shape (len(features), COARSE)."""
    out = np.zeros((len(features), kernels.COARSE), np.int64)
    held = (columns.bits, columns.begin, columns.rows, readable(weights))
    over_blocks(kernels.count_coarse, (np.arange(len(features)),), readable(features), *held, out, cost=columns._cost())
    return out


@dataclass(frozen=True, eq=False)
class Refinement:
    """How coarse cells are cut into fine ones: the more weight, the finer.

    Attributes:
        depth: uint8, shape (features, COARSE): each is cut into 2 to that many.
        start: int64, shape (features, COARSE): where its fine cells begin among all.
        begin: int64, shape (features + 1,): where each feature's fine cells begin: a contiguous piece.
    """

    depth: npt.NDArray[np.uint8]
    start: Int64s
    begin: Int64s

    @staticmethod
    def of(total: Array, bins: int) -> Refinement:
        """Decide by the weights in all coarse cells, int64, shape (features, COARSE), for so many bins a feature."""
        # No more fine cells than there are values, if they weigh 1.
        depth = np.zeros(total.shape, np.uint8)
        kernels.choose_depths(readable(total), FINENESS * bins, depth)
        sizes = np.where(total > 0, 1 << depth.astype(np.int64), 0)
        ends = np.cumsum(sizes).reshape(total.shape)
        return Refinement(readable(depth), readable(ends - sizes), readable(np.append(0, ends[:, -1])))


def fine(columns: Columns, features: Int64s, refinement: Refinement, weights: Int64s = NO_WEIGHTS) -> Int64s:
    """Return the weights in the fine cells of some features, those of a ``Refinement`` of the same, int64."""
    out = np.zeros(refinement.begin[-1], np.int64)
    held = (columns.bits, columns.begin, columns.rows, readable(weights), refinement.depth, refinement.start, out)
    over_blocks(kernels.count_fine, (np.arange(len(features)),), readable(features), *held, cost=columns._cost())
    return out


def cuts_of_few(found: Distinct, absent: Int64s) -> tuple[Float32s, Int64s]:
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
    zeros = (zeros[~np.isin(zeros, found.many)] << 32) | int(ZERO)
    # Not np.unique, which takes ten times as long for integers that are nearly sorted.
    keys = np.sort(np.concatenate((found.keys[some], zeros)))
    keys = keys[np.diff(keys, prepend=-1) > 0]
    values, features = from_bits((keys & 0xFFFFFFFF).astype(np.uint32)), keys >> 32
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


def cuts_of_many(refinement: Refinement, cells: Int64s, bins: int, absent: Int64s) -> tuple[Float32s, Int64s]:
    """Return the cut points of features that have many values, feature by feature, and how many each has.

    Args:
        cells: int64: the weights in all fine cells.
        bins: of a feature, at most.
        absent: int64, shape (features,): weight of each feature's zeros that are in no cell; they have one.
    """
    features = len(refinement.begin) - 1
    low, high = np.empty(features * bins, np.uint32), np.empty(features * bins, np.uint32)
    sizes = np.empty(features, np.int64)
    given = (refinement.depth, refinement.start, refinement.begin, readable(cells), readable(absent))
    count = kernels.cut_cells(*given, bins, low, high, sizes)
    return cuts_between(from_bits(low[:count]), from_bits(high[:count])), sizes


def cuts_between(below: Float32s, above: Float32s) -> Float32s:
    """Return float32 that are at least ``below``, and less than ``above``: in the middle, but never infinite."""
    most = np.float64(np.finfo(np.float32).max)
    low, high = np.clip(below, -most, most).astype(np.float64), np.clip(above, -most, most).astype(np.float64)
    middle = low + (high - low) / 2
    cuts = middle.astype(np.float32)
    with np.errstate(over="ignore"):  # where it is not taken
        cuts = np.where(cuts > middle, np.nextafter(cuts, np.float32(-np.inf)), cuts)
    return np.where(cuts < above, cuts, below).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Bins:
    """The bins of all features: columns of a histogram, one feature's after the other's.

    A numeric feature with c cuts has c + 1 bins: a value is in bin b if b cuts are below it. A feature of k categories
    has k bins. Then comes, where ``missing`` says so, one for missing values, and for what is no category.

    Attributes:
        cuts: float32: each feature's ascend; of a categorical one they are the categories themselves.
        offsets: int64, shape (features + 1,): where each feature's cuts begin.
        categories: int32, shape (features,); 0: it is numeric.
        missing: bool, shape (features,).
        block: no feature's bins lie on both sides of a multiple of this, which leaves gaps: so the columns of a matrix
            can be cut there. At least the bins of any feature; 0: they lie side by side.
    """

    cuts: Float32s
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
    def _for_kernels(self) -> tuple[UInt32s, Int64s, Int32s, Int32s]:
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
