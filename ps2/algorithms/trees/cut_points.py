"""Cut points of features, from integer weights. They do not depend on the order of the rows.

A feature with few distinct values has a bin for each of them (``distinct_values``, ``cuts_between_values``). For other
features, weights are summed in several turns by cells, which are intervals of ordered bits: first by the upper 12 bits
(``Cells.uncut``), then within heavy cells by their child cells (``Refinement``, ``child_weights``), down to single
float64 values. ``cuts_of_cells`` makes the cut points.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.trees import binning_kernels as kernels
from ps2.algorithms.trees.ascending import is_member, run_starts, union_sorted, unique_sorted
from ps2.algorithms.trees.layout import Array, UInt64s
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

NO_WEIGHTS = readable(np.empty(0, np.int64))
NO_ROWS = readable(np.empty(0, np.int32))
ZERO = kernels.SIGN
# The cost of a value in a kernel, in additions of array elements.
COST = 8


@dataclass(frozen=True, eq=False)
class FeatureColumns:
    """The values of a worker's rows, feature by feature, as ordered bits.

    Attributes:
        bits: the ordered bits of the values, uint64, contiguous for each feature; missing values are the largest.
        begin: the index of each feature's first value, and the end, int64, shape (features + 1,).
        rows: the row of each value in sparse columns, int32; empty: columns are dense, with a value for each row.
    """

    bits: UInt64s
    begin: Int64s
    rows: Int32s
    num_rows: int

    @staticmethod
    def of_dense(x: Array) -> FeatureColumns:
        """Make columns of dense rows, float32 or float64, shape (n, features)."""
        num_rows, num_features = x.shape
        bits = np.empty((num_features, num_rows), np.uint64)
        values = readable(x.astype(np.float64, copy=False))
        over_blocks(kernels.to_columns, (np.arange(num_features),), values, bits, cost=COST * num_rows)
        begin = readable(np.arange(num_features + 1) * num_rows)
        return FeatureColumns(readable(bits.reshape(-1)), begin, NO_ROWS, num_rows)

    @staticmethod
    def of_sparse(x: sp.csr_array) -> FeatureColumns:
        """Make columns of the stored values of sparse rows."""
        columns = sp.csc_array(x)
        bits = ordered_bits(columns.data)
        begin, rows = readable(columns.indptr.astype(np.int64)), readable(columns.indices.astype(np.int32))
        return FeatureColumns(bits, begin, rows, x.shape[0])

    @property
    def num_features(self) -> int:
        return len(self.begin) - 1

    @property
    def is_dense(self) -> bool:
        # Sparse rows without entries have an empty ``rows``, too, but fewer values.
        return not len(self.rows) and 0 < self.num_features * self.num_rows == len(self.bits)

    def arrays(self, weights: Int64s) -> kernels.Columns:
        """Return the columns as the kernels take them, with the weights of the rows."""
        return kernels.Columns(self.bits, self.begin, self.rows, readable(weights))

    @property
    def cost(self) -> int:
        """The cost of one feature's values in a kernel, in additions of array elements."""
        return COST * (len(self.bits) // max(self.num_features, 1) + 1)


@dataclass(frozen=True, eq=False)
class DistinctValues:
    """The distinct values of features that have few of them.

    Attributes:
        features, bits, weights: the feature, ordered bits and weight of each value, ascending by feature and bits.
        many_valued: the features with too many distinct values, ascending.
    """

    features: Int64s
    bits: UInt64s
    weights: Int64s
    many_valued: Int64s

    def without(self, many_valued: Int64s, limit: int) -> DistinctValues:
        """Drop the values of features ``many_valued``, ascending, and of features with more values than ``limit``."""
        begins = run_starts(self.features)
        counts = np.diff(begins, append=len(self.features))
        many_valued = union_sorted(many_valued, self.features[begins][counts > limit])
        largest = max(map(int, (*self.features[-1:], *many_valued[-1:])), default=0)
        keep = ~is_member(self.features, many_valued, 1 + largest)
        return DistinctValues(self.features[keep], self.bits[keep], self.weights[keep], many_valued)


# A key has two parts; the lower one has 32 bits.
FEATURE_BITS = 32
# The number of distinct values from which on those of several parts of the rows are merged.
MIN_MERGED = 1 << 16
DISTINCT_FIELDS = ("features", "bits", "weights", "many_valued")
NO_VALUES = DistinctValues(NO_WEIGHTS, np.empty(0, np.uint64), NO_WEIGHTS, NO_WEIGHTS)


def ordered_bits(values: Array) -> UInt64s:
    """Return the ordered bits of values: uint64 in the order of the values; 0 and -0 are equal, NaN is the largest."""
    bits = np.empty(len(values), np.uint64)
    over_blocks(kernels.to_bits, (readable(values.astype(np.float64, copy=False)), bits))
    return readable(bits)


def from_bits(bits: UInt64s) -> Float64s:
    bits = np.asarray(bits, np.uint64)
    return np.where(bits & kernels.SIGN, bits ^ kernels.SIGN, ~bits).view(np.float64)


def distinct_values(columns: FeatureColumns, limit: int, weights: Int64s = NO_WEIGHTS) -> DistinctValues:
    """Return the distinct values, not missing, of each feature that has at most ``limit``; weights: of the rows."""
    start = np.append(0, np.cumsum(np.minimum(np.diff(columns.begin), limit)))
    values, counts = np.empty(start[-1], np.uint64), np.empty(start[-1], np.int64)
    sizes, arrays = np.empty(columns.num_features, np.int64), columns.arrays(weights)
    operands = arrays, limit, readable(start), values, counts, sizes
    over_blocks(kernels.count_distinct, (np.arange(columns.num_features),), *operands, cost=columns.cost)
    many_valued = np.flatnonzero(sizes < 0)
    sizes[many_valued] = 0
    features = np.repeat(np.arange(columns.num_features), sizes)
    filled = np.repeat(start[:-1] - np.append(0, np.cumsum(sizes)[:-1]), sizes) + np.arange(len(features))
    return DistinctValues(features, values[filled], counts[filled], many_valued)


def value_weights(columns: FeatureColumns, column: int, weights: Int64s) -> tuple[UInt64s, Int64s]:
    """Return the ordered bits of a column's distinct stored values, not missing, and the weight of each."""
    span = slice(columns.begin[column], columns.begin[column + 1])
    is_present = columns.bits[span] != kernels.MISSING
    bits, index = np.unique(columns.bits[span][is_present], return_inverse=True)
    if not len(weights):
        return bits, np.bincount(index, minlength=len(bits))
    row_weights = weights[columns.rows[span]] if len(columns.rows) else weights
    # The sums of these floats are exact.
    return bits, np.bincount(index, row_weights[is_present], len(bits)).astype(np.int64)


def frequent_categories(
    keys: Int64s, weights: Int64s, unstored_zeros: Int64s, features: Int64s, limit: int
) -> tuple[Int64s, Int64s]:
    """Return the ``heaviest_categories`` of some features, and the feature of each; keys: features and categories."""
    frequent = [np.empty(0, np.int64)]
    for feature, zeros in zip(features, unstored_zeros, strict=True):
        span = feature_span(keys, np.array([feature]))
        categories = keys[span] & ((1 << FEATURE_BITS) - 1)
        frequent.append(heaviest_categories(categories, weights[span], zeros, limit))
    return np.concatenate(frequent), np.repeat(features, [len(codes) for codes in frequent[1:]])


def heaviest_categories(categories: Int64s, weights: Int64s, unstored_zeros: int, limit: int) -> Int64s:
    """Return the ``limit`` heaviest categories, ascending; of equally heavy ones, the smallest.

    Category 0 also has the weight ``unstored_zeros``.
    """
    codes, index = np.unique(np.append(categories, 0), return_inverse=True)
    total = np.bincount(index, np.append(weights, unstored_zeros))
    return np.sort(codes[np.lexsort((codes, -total))[:limit]])


def merge_values(parts: Sequence[DistinctValues], limit: int) -> DistinctValues:
    """Return the distinct values of rows from those of parts of the rows, as ``distinct_values`` does."""
    features, bits, weights, many_valued = (
        np.concatenate([getattr(part, name) for part in parts]) for name in DISTINCT_FIELDS
    )
    order = np.lexsort((bits, features))
    features, bits, weights = features[order], bits[order], weights[order]
    is_new = np.append(True, (features[1:] != features[:-1]) | (bits[1:] != bits[:-1]))[: len(bits)]
    begins = np.flatnonzero(is_new)
    sums = np.add.reduceat(weights, begins) if len(begins) else weights
    values = DistinctValues(features[begins], bits[begins], sums, many_valued)
    return values.without(np.unique(many_valued), limit)


def sum_values(parts: Iterable[tuple[FeatureColumns, Int64s]], limit: int) -> tuple[DistinctValues, int]:
    """Return the ``distinct_values`` of parts of the rows, with their weights, and the sum of all weights."""
    total, merged, waiting, size = 0, NO_VALUES, list[DistinctValues](), 0
    for columns, weights in parts:
        total += int(weights.sum()) if len(weights) else columns.num_rows
        waiting.append(distinct_values(columns, limit, weights))
        size += len(waiting[-1].bits)
        if size > max(len(merged.bits), MIN_MERGED):  # so merging takes time in proportion to the values
            merged, waiting, size = merge_values([merged, *waiting], limit), [], 0
    if len(waiting) == 1 and merged is NO_VALUES:
        return waiting[0], total
    return merge_values([merged, *waiting], limit), total


def missing_weights(columns: FeatureColumns, weights: Int64s = NO_WEIGHTS) -> Int64s:
    """Return the weight of each feature's stored missing values, int64."""
    out = np.empty(columns.num_features, np.int64)
    features = np.arange(columns.num_features)
    over_blocks(kernels.count_missing, (features,), columns.arrays(weights), out, cost=columns.cost)
    return out


# Turn 1 cuts the cells that have more than 1 / CELLS_PER_BIN of a bin's weight. Later turns, to be few, cut only cells
# with more than TOLERANCE times this weight, but a feature's cells get at least MIN_CHILDREN children. This bounds the
# error of cut points.
CELLS_PER_BIN, TOLERANCE, MIN_CHILDREN = 16, 4, 1 << 13
# The number of bits of a value, and of its upper bits, sign and exponent, by which turn 0 sums weights.
BITS, COARSE_BITS = 64, 12


@dataclass(frozen=True, eq=False)
class Cells:
    """Intervals of features' ordered bits, without those whose weight is 0.

    Attributes:
        begin: the index of each feature's first cell, and the end, int64, shape (features + 1,).
        lowest_bits: the smallest ordered bits in each cell, uint64, ascending within a feature.
        log_width: the logarithm to base 2 of the width of each cell, uint64.
        weights: the weight of each cell, int64.
    """

    begin: Int64s
    lowest_bits: UInt64s
    log_width: UInt64s
    weights: Int64s

    @staticmethod
    def uncut(features: int) -> Cells:
        """Return one cell for each feature, which contains all values and has weight 1."""
        lowest_bits, log_width = np.zeros(features, np.uint64), np.full(features, BITS, np.uint64)
        return Cells(np.arange(features + 1), lowest_bits, log_width, np.ones(features, np.int64))

    @property
    def features(self) -> Int64s:
        """The index of each cell's feature, int64."""
        return np.repeat(np.arange(len(self.begin) - 1), np.diff(self.begin))

    @property
    def nbytes(self) -> int:
        return self.begin.nbytes + self.lowest_bits.nbytes + self.log_width.nbytes + self.weights.nbytes

    @property
    def is_uncut(self) -> bool:
        return bool(len(self.log_width) and self.log_width[0] == BITS)

    def refine(self, refinement: Refinement, child_ids: Int64s, sums: Int64s) -> Cells:
        """Return the cells, with cut cells replaced by children ``child_ids``, ascending, that have weights ``sums``.

        The rest of a parent's weight are zeros that rows do not store.
        """
        cut, first_child = refinement.cells_to_cut, refinement.first_child
        if not len(cut):
            return self
        if not self.is_uncut:
            ends = np.append(0, np.cumsum(sums))
            stored = np.diff(ends[np.searchsorted(child_ids, np.append(first_child, refinement.child_offsets[-1]))])
            zeros = np.flatnonzero(self.lowest_bits[cut] == ZERO)
            all_ids = union_sorted(child_ids, first_child[zeros])
            all_sums = np.zeros(len(all_ids), np.int64)
            all_sums[np.searchsorted(all_ids, child_ids)] = sums
            all_sums[np.searchsorted(all_ids, first_child[zeros])] += (self.weights[cut] - stored)[zeros]
            child_ids, sums = all_ids, all_sums
        has_weight = sums != 0
        child_ids, sums = child_ids[has_weight], sums[has_weight]
        parent = np.searchsorted(first_child, child_ids, side="right") - 1
        log_width = (self.log_width[cut] - refinement.log_children)[parent]
        lowest_bits = self.lowest_bits[cut[parent]] + ((child_ids - first_child[parent]).astype(np.uint64) << log_width)
        keep = np.ones(len(self.lowest_bits), np.bool_)
        keep[cut] = False
        features = np.concatenate([self.features[keep], self.features[cut[parent]]])
        lowest_bits = np.concatenate([self.lowest_bits[keep], lowest_bits])
        order = np.lexsort((lowest_bits, features))
        return Cells(
            readable(np.searchsorted(features[order], np.arange(len(self.begin)))),
            readable(lowest_bits[order]),
            readable(np.concatenate([self.log_width[keep], log_width])[order]),
            readable(np.concatenate([self.weights[keep], sums])[order]),
        )


@dataclass(frozen=True, eq=False)
class Refinement:
    """A plan to cut cells into children: the heavier a cell, the more children.

    Attributes:
        cells_to_cut: the indices of the cells to cut, int64.
        log_children: the logarithm to base 2 of the number of children of each of these cells, uint64.
        first_child: the index of the first child of each of these cells among all children, int64.
        cell_offsets: the index in ``cells_to_cut`` of each feature's first cell, and the end, int64, (features + 1,).
        child_offsets: the index of each feature's first child, and the end, int64, shape (features + 1,).
    """

    cells_to_cut: Int64s
    log_children: UInt64s
    first_child: Int64s
    cell_offsets: Int64s
    child_offsets: Int64s

    @staticmethod
    def of(cells: Cells, bins: int, turn: int) -> Refinement:
        """Make a plan from the cells' weights; bins: a feature's number of bins; turn: the number of earlier turns."""
        if cells.is_uncut:
            log_children = np.full(len(cells.lowest_bits), COARSE_BITS, np.uint64)
        else:
            max_cells = CELLS_PER_BIN * bins
            tolerance, num_children = (1, 2 * max_cells) if turn == 1 else (TOLERANCE, max(2 * max_cells, MIN_CHILDREN))
            log_children = np.zeros(len(cells.lowest_bits), np.uint64)
            arrays = (readable(cells.begin), readable(cells.log_width), readable(cells.weights))
            kernels.choose_num_children(*arrays, max_cells, tolerance, num_children, log_children)
        cells_to_cut = np.flatnonzero(log_children)
        log_children = log_children[cells_to_cut]
        ends = np.append(0, np.cumsum(1 << log_children.astype(np.int64)))
        cell_offsets = np.searchsorted(cells.features[cells_to_cut], np.arange(len(cells.begin)))
        first_child, child_offsets = readable(ends[:-1]), readable(ends[cell_offsets])
        return Refinement(cells_to_cut, readable(log_children), first_child, readable(cell_offsets), child_offsets)


def child_weights(
    columns: FeatureColumns, features: Int64s, cells: Cells, refinement: Refinement, weights: Int64s = NO_WEIGHTS
) -> Int64s:
    """Return the weight of each child cell, int64; features: the index in ``columns`` of each feature of the cells."""
    out = np.zeros(refinement.child_offsets[-1], np.int64)
    cut = refinement.cells_to_cut
    lowest_bits, log_width = readable(cells.lowest_bits[cut]), readable(cells.log_width[cut])
    offsets, log_children = refinement.cell_offsets, refinement.log_children
    cut_cells = kernels.CutCells(offsets, lowest_bits, log_width, log_children, refinement.first_child)
    operands = readable(features), columns.arrays(weights), cut_cells, out
    over_blocks(kernels.count_children, (np.arange(len(features)),), *operands, cost=columns.cost)
    return out


def cuts_between_values(distinct_values: DistinctValues, unstored_zeros: Int64s) -> tuple[Float64s, Int64s]:
    """Return cuts between adjacent values, and the index of each feature's first cut, and the end.

    ``unstored_zeros`` is the weight of each feature's zeros that rows do not store.
    """
    has_weight = distinct_values.weights > 0
    features, bits = distinct_values.features[has_weight], distinct_values.bits[has_weight]
    # A feature whose only value is 0 has no cut.
    zeros = unique_sorted(features)
    zeros = zeros[unstored_zeros[zeros] != 0]
    zeros = zeros[~is_member(zeros, distinct_values.many_valued, len(unstored_zeros))]
    # Zeros are inserted after the feature's negative values.
    negative = np.append(0, np.cumsum(bits < ZERO))
    begin, end = np.searchsorted(features, zeros), np.searchsorted(features, zeros, side="right")
    index = begin + negative[end] - negative[begin]
    features, bits = np.insert(features, index, zeros), np.insert(bits, index, ZERO)
    is_new = np.append(True, (features[1:] != features[:-1]) | (bits[1:] != bits[:-1]))[: len(bits)]
    values, features = from_bits(bits[is_new]), features[is_new]
    is_same_feature = features[1:] == features[:-1]
    begins = np.searchsorted(features[1:][is_same_feature], np.arange(len(unstored_zeros) + 1))
    return cuts_between(values[:-1][is_same_feature], values[1:][is_same_feature]), begins


def value_counts(distinct_values: DistinctValues, unstored_zeros: Int64s) -> Int64s:
    """Return each feature's number of distinct values, with unstored zeros; args: see ``cuts_between_values``."""
    has_weight = distinct_values.weights > 0
    counts = np.bincount(distinct_values.features[has_weight], minlength=len(unstored_zeros))
    stores_zeros = np.zeros(len(unstored_zeros), bool)
    stores_zeros[distinct_values.features[has_weight & (distinct_values.bits == ZERO)]] = True
    return counts + ((unstored_zeros != 0) & ~stores_zeros)


def cuts_of_cells(cells: Cells, bins: int) -> tuple[Float64s, Int64s]:
    """Return the cuts of features that have many values, feature by feature, and each feature's number of cuts."""
    features = len(cells.begin) - 1
    low, high = np.empty(features * bins, np.uint64), np.empty(features * bins, np.uint64)
    sizes = np.empty(features, np.int64)
    arrays = readable(cells.begin), readable(cells.lowest_bits), readable(cells.log_width), readable(cells.weights)
    count = kernels.cut_cells(*arrays, bins, low, high, sizes)
    below, above = from_bits(low[:count]), from_bits(high[:count])
    # Between adjacent float64 values there is no float32 number. The nearest float32 number below both moves only a few
    # values to the right of the cut, and lets the model be saved for xgboost.
    with np.errstate(over="ignore", under="ignore"):
        above32 = above.astype(np.float32)
        cuts32 = np.nextafter(above32, np.float32(-np.inf)).astype(np.float64)
    first_cut = np.diff(np.repeat(np.arange(features), sizes), prepend=-1) > 0
    min_cut = np.where(first_cut, -np.inf, np.roll(above, 1))
    is_float32 = (high[:count] - low[:count] == 1) & (above32 == above) & (cuts32 >= min_cut) & np.isfinite(cuts32)
    return np.where(is_float32, cuts32, cuts_between(below, above)), sizes


def cuts_between(below: Float64s, above: Float64s) -> Float64s:
    """Return finite cuts in [below, above), near the middle; they are float32 numbers where float32 separates both."""
    largest = np.finfo(np.float64).max
    low, high = np.clip(below, -largest, largest), np.clip(above, -largest, largest)
    middle = low / 2 + high / 2
    with np.errstate(over="ignore", under="ignore"):
        cuts32 = middle.astype(np.float32)
        cuts32 = np.where(cuts32 > middle, np.nextafter(cuts32, np.float32(-np.inf)), cuts32)
        is_float32 = (below.astype(np.float32) <= cuts32) & (cuts32 < above.astype(np.float32)) & (below <= cuts32)
        middle = np.where(middle < above, np.maximum(middle, low), below)
        higher, lower = np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)
        neighbour = np.where(higher < above, higher, np.maximum(lower, below))
        middle = np.where(middle.astype(np.float32) == middle, neighbour, middle)
    return np.where(is_float32 & np.isfinite(cuts32), cuts32.astype(np.float64), middle)


def unit_of(mean_weight: float, bits: int) -> float:
    """Return the unit of weights, a power of two; the mean weight is from 2**bits to 2**(bits + 1) units."""
    return float(2.0 ** (np.floor(np.log2(mean_weight) + 1e-6) - bits))


def integer_weights(weights: Array, unit: float) -> Int64s:
    """Round positive weights to integer multiples of a unit, at least 1."""
    return np.maximum(np.rint(weights / unit), 1).astype(np.int64)


def make_keys(high: Int64s, low: Array) -> Int64s:
    """Return keys with these two parts."""
    return (high << FEATURE_BITS) | low.astype(np.int64)


def feature_span(keys: Int64s, features: Int64s) -> slice:
    """Return the slice of sorted keys from the first to the last of these ascending features."""
    begin, end = np.searchsorted(keys, (features[0] << FEATURE_BITS, (features[-1] + 1) << FEATURE_BITS))
    return slice(int(begin), int(end))


def feature_sums(keys: Int64s, weights: Int64s, features: Int64s) -> Int64s:
    """Return the weight of each feature; keys: sorted; features: ascending."""
    ends = np.append(0, np.cumsum(weights))
    begin, end = (np.searchsorted(keys, (features + offset) << FEATURE_BITS) for offset in (0, 1))
    return ends[end] - ends[begin]
