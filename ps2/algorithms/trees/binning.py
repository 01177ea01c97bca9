"""Bins: which bin a value of a feature has, and which column of a histogram a bin has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.trees import binning_kernels as kernels
from ps2.algorithms.trees.cut_points import FeatureColumns, ordered_bits
from ps2.algorithms.trees.layout import MAX_CATEGORIES, Array
from ps2.algorithms.trees.nonempty_bins import MARKS_PER_WORD
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.tree import Absent
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.errors import ConfigError, InputError
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

# Servers get whole blocks of columns. There are about MIN_BLOCKS blocks, for an even division, or more: a block has at
# most LARGE_BLOCK columns. A block is wider only if one feature has more bins.
LARGE_BLOCK = 1 << 12
MIN_BLOCKS = 64


@dataclass(frozen=True, eq=False)
class Bins:
    """The bins of all features, as columns of a histogram, in the order of the features.

    A numeric feature with c cuts has c + 1 bins: a value is in bin b if b cuts are below it. A feature of k categories
    has k bins. With ``has_missing``, a feature has one more bin, its last: for missing values, and for values that are
    not a category. The rare categories of a feature with too many are such values: they count as missing.

    Attributes:
        cuts: the cut points, float64, ascending within each feature; of a categorical feature, its categories.
        cut_offsets: the index in ``cuts`` of each feature's first cut, int64, shape (features + 1,).
        categories: the number of categories of each feature with bins of their own, int32, shape (features,); 0: the
            feature is numeric.
        has_missing: whether each feature has a bin for missing values, bool, shape (features,).
        block_width: the number of columns of a block. A server has whole blocks, and a feature's bins lie in one block,
            so the last columns of a block may be unused. 0: there are no blocks, and no unused columns.
    """

    cuts: Float64s
    cut_offsets: Int64s
    categories: Int32s
    has_missing: npt.NDArray[np.bool_]
    block_width: int = 0

    def __post_init__(self) -> None:
        if self.block_width and self.num_bins.max(initial=0) > self.block_width:
            limit = self.num_bins.max()
            raise ConfigError(f"block: expected at least {limit}, the bins of a feature, got {self.block_width}")

    @property
    def num_features(self) -> int:
        return len(self.categories)

    @cached_property
    def has_rare_categories(self) -> bool:
        """Whether categories of any feature may have no bin of their own: its categories are not 0, 1, ..."""
        categorical = np.flatnonzero(self.categories)
        last = self.cuts[self.cut_offsets[categorical + 1] - 1]
        return bool((last >= self.categories[categorical]).any())

    @cached_property
    def num_bins(self) -> Int64s:
        return np.diff(self.cut_offsets) + (self.categories == 0) + self.has_missing

    @cached_property
    def num_columns(self) -> Int64s:
        """The number of columns of each feature, int64: its number of bins, or 0 if that is 1."""
        return np.where(self.num_bins > 1, self.num_bins, 0).astype(np.int64)

    @cached_property
    def first_columns(self) -> Int64s:
        """The first column of each feature, and the end of the last feature's columns, int64, shape (features + 1,)."""
        first = np.empty(self.num_features + 1, np.int64)
        kernels.set_first_columns(readable(self.num_columns), self.block_width, first)
        return readable(first)

    @cached_property
    def missing_bin(self) -> Int32s:
        """Each feature's bin for missing values, int32; -1: there is none."""
        return readable(np.where(self.has_missing, self.num_bins - 1, -1).astype(np.int32))

    def implied(self, absent: Absent) -> Int32s:
        """Return each feature's implied bin, int32: the bin of entries that sparse rows do not store."""
        if absent == "missing":
            return readable(np.where(self.num_bins > 1, self.missing_bin, 0).astype(np.int32))
        is_negative, feature = self.cuts < 0, np.repeat(np.arange(self.num_features), np.diff(self.cut_offsets))
        implied = np.bincount(feature[is_negative], minlength=self.num_features)
        categorical = np.flatnonzero(self.categories)
        is_rare = self.cuts[self.cut_offsets[categorical]] > 0  # category 0 has no bin of its own
        implied[categorical[is_rare]] = self.missing_bin[categorical[is_rare]]
        return readable(implied.astype(np.int32))

    @cached_property
    def _cut_points(self) -> kernels.CutPoints:
        arrays = readable(self.cut_offsets), readable(self.categories), self.missing_bin
        return kernels.CutPoints(ordered_bits(self.cuts), *arrays)

    def bin_dense(self, columns: FeatureColumns) -> Array:
        """Return the bins of dense columns, uint8 or uint16, shape (features, n); InputError: a value has no bin."""
        dtype = np.uint8 if self.num_bins.max(initial=0) <= 1 << 8 else np.uint16
        out = np.empty((self.num_features, columns.num_rows), dtype)
        bits = columns.bits.reshape(out.shape)
        features, operands = np.arange(self.num_features), (bits, self._cut_points, out)
        self._check(max(over_blocks(kernels.bin_columns, (features,), *operands, cost=2 * columns.cost), default=-1))
        return out

    def bin_sparse(self, x: sp.csr_array, absent: Absent) -> tuple[Int64s, Int32s]:
        """Return row offsets and histogram columns, without implied bins; the indices of ``x`` are sorted."""
        begins, out = np.empty(x.shape[0] + 1, np.int64), np.empty(x.nnz, np.int32)
        rows = readable(x.indptr), readable(x.indices), ordered_bits(x.data)
        bins = self._cut_points, self.first_columns, self.implied(absent)
        self._check(kernels.bin_rows(*rows, *bins, begins, out))
        return begins, out[: begins[-1]].copy()

    def _check(self, feature: int) -> None:
        """Raise InputError about a feature that has a value without a bin; -1: there is none."""
        if feature >= 0:
            categories = self.categories[feature]
            value = f"a value that is none of its {categories} categories" if categories else "NaN"
            raise InputError(f"feature {feature}: expected no missing values, as in the other rows, got {value}")


def bin_codes(bins: Bins) -> Int32s:
    """Return a code for each feature, int32: twice its number of cuts, plus 1 if it has a bin for missing values."""
    return (np.diff(bins.cut_offsets) << 1 | bins.has_missing).astype(np.int32)


def bins_from_codes(problem: TreeProblem, cuts: Float64s, codes: Int32s) -> Bins:
    """Return the bins of all features from their cut points and ``bin_codes``; further cut points are ignored."""
    cut_offsets = np.append(0, np.cumsum((codes >> 1).astype(np.int64)))
    return bins_of(problem, cuts[: cut_offsets[-1]], cut_offsets, (codes & 1).astype(np.bool_))


def bins_of(problem: TreeProblem, cuts: Float64s, cut_offsets: Int64s, has_missing: npt.NDArray[np.bool_]) -> Bins:
    """Return the bins of all features, with blocks of columns."""
    categories = np.zeros(problem.dim, np.int32)
    categories[list(problem.categories)] = np.diff(cut_offsets)[list(problem.categories)]
    bins = Bins(readable(cuts), readable(cut_offsets), readable(categories), readable(has_missing))
    block = max(int(bins.num_bins.max()), min(int(bins.num_columns.sum()) // MIN_BLOCKS, LARGE_BLOCK))
    return replace(bins, block_width=-(-block // MARKS_PER_WORD) * MARKS_PER_WORD)


def categories_of(problem: TreeProblem) -> tuple[Float64s, Int64s]:
    """Return the categories of features with few, which serve as cut points, and the feature of each category."""
    few = {feature: count for feature, count in problem.categories.items() if count <= MAX_CATEGORIES}
    counts = np.array(list(few.values()), np.int64)
    features = np.repeat(np.array(list(few), np.int64), counts)
    within = np.arange(len(features)) - np.repeat(np.cumsum(counts) - counts, counts)
    return within.astype(np.float64), features
