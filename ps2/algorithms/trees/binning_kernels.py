"""Compiled loops from values to cut points and bins.

The ordered bits of a float64 value are a uint64. They sort as the values do, and those of NaN, a missing value, are the
largest. The values of a feature are contiguous in ``bits``, from ``begin[feature]`` on. Weights are integers, so their
sums do not depend on the order of the rows. An empty array of weights means that each row counts 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ps2.algorithms.trees.ascending import sort_pairs
from ps2.algorithms.trees.layout import Array, UInt64s
from ps2.array_types import Int32s, Int64s
from ps2.ops.kernels import inline, kernel
from ps2.splitmix import GOLDEN

MISSING = np.uint64(0xFFFFFFFFFFFFFFFF)
SIGN, ONE = np.uint64(1 << 63), np.uint64(1)
# The minimum and the maximum number of times that a cell is halved.
MIN_DEPTH, MAX_DEPTH = 4, 20
# The maximum number of grid cells in a table that finds bins, and of upper bits that index a table that finds cells. A
# table has at least VALUES_PER_ENTRY values for each entry, so that it is worth its time.
MAX_GRID, MAX_PREFIX_BITS, VALUES_PER_ENTRY = 1 << 12, 12, 8
# The number of rows that are transposed at a time: their values stay in a cache.
TILE = 512


class Columns(NamedTuple):
    """The values of some features.

    Attributes:
        bits: the ordered bits of the values, contiguous for each feature.
        begin: the index of each feature's first value, and the end.
        rows: the row of each value; empty: each feature has a value in all rows.
        weights: the weights of the rows as integers; empty: each row counts 1.
    """

    bits: UInt64s
    begin: Int64s
    rows: Int32s
    weights: Int64s


class CutCells(NamedTuple):
    """Cells, which are intervals of ordered bits, and their division into child cells of equal width.

    Attributes:
        begin: the index of each feature's first cell, and the end.
        lowest_bits: the smallest ordered bits in each cell.
        log_width, log_children: the logarithms to base 2 of each cell's width and of its number of children.
        first_child: the index of each cell's first child among all children.
    """

    begin: Int64s
    lowest_bits: UInt64s
    log_width: UInt64s
    log_children: UInt64s
    first_child: Int64s


class CutPoints(NamedTuple):
    """The cut points of all features.

    Attributes:
        bits: the ordered bits of the cuts, contiguous and ascending for each feature.
        offsets: the index of each feature's first cut, and the end.
        categories: the number of categories of each feature, which are its cuts; 0: the feature is numeric.
        missing_bins: the bin of each feature's missing values; -1: there is none.
    """

    bits: UInt64s
    offsets: Int64s
    categories: Int32s
    missing_bins: Int32s


@kernel
def to_columns(features: Int64s, x: Array, bits: Array) -> None:
    """Set ``bits[f]`` to the ordered bits of column f of ``x``, shape (rows, features)."""
    value_memory = np.empty(1, np.float64)
    bits_memory = value_memory.view(np.uint64)
    for begin in range(0, x.shape[0], TILE):
        for f in features:
            for i in range(begin, min(begin + TILE, x.shape[0])):
                value_memory[0] = x[i, f] + 0.0  # -0 is 0
                bits[f, i] = _ordered(bits_memory[0], value_memory[0])


@kernel
def to_bits(values: Array, out: UInt64s) -> None:
    value_memory = np.empty(1, np.float64)
    bits_memory = value_memory.view(np.uint64)
    for i in range(len(values)):
        value_memory[0] = values[i] + 0.0
        out[i] = _ordered(bits_memory[0], value_memory[0])


@kernel
def count_values(columns: Array, values: Array, out: Int64s) -> bool:
    """Add each column's number of values to ``out``; return whether any value is NaN."""
    has_missing = False
    for i in range(len(columns)):
        out[columns[i]] += 1
        has_missing |= values[i] != values[i]
    return has_missing


@inline
def _ordered(word: np.uint64, value: float) -> np.uint64:
    """Return the ordered bits of a value; word: the bits of the float64."""
    if value != value:
        return MISSING
    return np.uint64(~word) if word & SIGN else np.uint64(word | SIGN)


@inline
def _weight(position: int, begin: int, columns: Columns) -> int:
    """Return the weight of the value at a position of ``bits``; begin: the position of the feature's first value."""
    if len(columns.weights) == 0:
        return 1
    return columns.weights[columns.rows[position]] if len(columns.rows) else columns.weights[position - begin]


@kernel
def count_distinct(
    features: Int64s, columns: Columns, limit: int, start: Int64s, values: UInt64s, counts: Int64s, sizes: Int64s
) -> None:
    """Set each feature's values and weights from ``start[f]`` on; sizes: the number of values, -1: over ``limit``."""
    bits, begin, hash_table = columns.bits, columns.begin, np.empty(4 * limit + 4, np.int64)
    for f in features:
        num_slots = 4
        while num_slots < 2 * (start[f + 1] - start[f]):
            num_slots *= 2
        slots, first, end = hash_table[:num_slots], start[f], start[f + 1]
        feature_values, feature_weights = values[first:end], counts[first:end]
        slots[:] = -1
        count = 0
        for position in range(begin[f], begin[f + 1]):
            value = bits[position]
            if value == MISSING:
                continue
            # Small integers and float32 values differ only in their upper bits, so the hash mixes both halves.
            slot = np.int64(((value ^ (value >> np.uint64(32))) * GOLDEN) >> np.uint64(40)) & (num_slots - 1)
            while slots[slot] >= 0 and feature_values[slots[slot]] != value:
                slot = (slot + 1) & (num_slots - 1)
            if slots[slot] < 0:
                if count == limit:
                    count = -1
                    break
                slots[slot] = count
                feature_values[count] = value
                feature_weights[count] = 0
                count += 1
            feature_weights[slots[slot]] += _weight(position, begin[f], columns)
        sizes[f] = count
        sort_pairs(feature_values[: max(count, 0)], feature_weights)


@kernel
def count_missing(features: Int64s, columns: Columns, out: Int64s) -> None:
    """Set ``out[f]`` to the weight of each feature's missing values."""
    for f in features:
        out[f] = 0
        for position in range(columns.begin[f], columns.begin[f + 1]):
            if columns.bits[position] == MISSING:
                out[f] += _weight(position, columns.begin[f], columns)


@kernel
def count_children(indices: Int64s, features: Int64s, columns: Columns, cells: CutCells, out: Int64s) -> None:
    """Add the weights of values to the child cells that contain them; missing values are in no cell."""
    begin, first_child, lowest_bits = columns.begin, cells.first_child, cells.lowest_bits
    log_width, log_children = cells.log_width, cells.log_children
    first_cell = np.empty((1 << MAX_PREFIX_BITS) + 1, np.int32)
    for index in indices:
        f = features[index]
        low, end = cells.begin[index], cells.begin[index + 1]
        if low == end:
            continue
        shift = np.uint64(64 - _prefix_bits(begin[f + 1] - begin[f]))
        # first_cell[prefix]: the number of cells before the first value with a prefix. A binary search finds the cell.
        count = 0
        for prefix in range(np.int64(MISSING >> shift) + 1):
            while low + count < end and lowest_bits[low + count] < np.uint64(prefix) << shift:
                count += 1
            first_cell[prefix] = count
        first_cell[np.int64(MISSING >> shift) + 1] = end - low
        values = columns.bits[begin[f] : begin[f + 1]]
        for i in range(len(values)):
            value = values[i]
            if value == MISSING:
                continue
            prefix = value >> shift
            cell = np.uint64(low + max(np.int64(first_cell[prefix]) - 1, 0))
            size = np.uint64(low + first_cell[prefix + ONE]) - cell
            while size > ONE:
                half = size >> ONE
                cell += half if lowest_bits[cell + half] <= value else np.uint64(0)
                size -= half
            child = (value - lowest_bits[cell]) >> (log_width[cell] - log_children[cell])
            if lowest_bits[cell] <= value and child < ONE << log_children[cell]:
                # Without weights there is no call: it would count references to arrays, which costs more than the loop.
                weight = 1 if len(columns.weights) == 0 else _weight(begin[f] + i, begin[f], columns)
                out[np.uint64(first_child[cell]) + child] += weight


@inline
def choose_ends(counts: Int64s, bins: int, ends: Int64s) -> int:
    """Choose bins of about equal weight, as LightGBM: set the last cell of all bins but the last; return the count."""
    total = counts.sum()
    is_large = np.zeros(len(counts), np.bool_)
    remaining_bins, remaining_weight = bins, total
    if len(counts) > bins:
        for i in range(len(counts)):
            if counts[i] * bins >= total:
                is_large[i] = True
                remaining_bins -= 1
                remaining_weight -= counts[i]
    else:
        is_large[:] = True
    count, weight = 0, 0
    mean_weight = remaining_weight / max(remaining_bins, 1)
    for i in range(len(counts) - 1):
        if count == bins - 1:
            break
        weight += counts[i]
        if not is_large[i]:
            remaining_weight -= counts[i]
        if is_large[i] or weight >= mean_weight or (is_large[i + 1] and weight >= max(1.0, 0.5 * mean_weight)):
            ends[count] = i
            count += 1
            weight = 0
            if not is_large[i]:
                remaining_bins -= 1
                mean_weight = remaining_weight / max(remaining_bins, 1)
    return count


@kernel
def choose_num_children(
    begin: Int64s, log_width: UInt64s, weights: Int64s, denominator: int, numerator: int, goal: int, out: UInt64s
) -> None:
    """Set the logarithm of each cell's number of children: 0, unless the cell is heavy.

    A cell is heavy if it has more than ``numerator / denominator`` of its feature's weight. The heavy cells of a
    feature together get about ``goal`` children, in proportion to their weights.
    """
    for f in range(len(begin) - 1):
        total = weights[begin[f] : begin[f + 1]].sum()
        heavy_weight = np.int64(0)
        for cell in range(begin[f], begin[f + 1]):
            if log_width[cell] > 0 and weights[cell] * denominator > numerator * total:
                heavy_weight += weights[cell]
        for cell in range(begin[f], begin[f + 1]):
            if log_width[cell] > 0 and weights[cell] * denominator > numerator * total:
                num_halvings = MIN_DEPTH
                while num_halvings < MAX_DEPTH and heavy_weight << num_halvings < goal * weights[cell]:
                    num_halvings += 1
                out[cell] = min(np.uint64(num_halvings), log_width[cell])


@kernel
def cut_cells(
    begin: Int64s,
    lowest_bits: UInt64s,
    log_width: UInt64s,
    weights: Int64s,
    bins: int,
    low: UInt64s,
    high: UInt64s,
    sizes: Int64s,
) -> int:
    """Set the bits just below and just above each feature's cuts, and its number of cuts; return the sum of these."""
    count = 0
    for f in range(len(sizes)):
        ends = np.empty(begin[f + 1] - begin[f], np.int64)
        sizes[f] = 0
        if len(ends) > 0:
            sizes[f] = choose_ends(weights[begin[f] : begin[f + 1]], bins, ends)
        for i in range(sizes[f]):
            cell = begin[f] + ends[i]
            low[count] = lowest_bits[cell] + ((np.uint64(1) << log_width[cell]) - np.uint64(1))
            high[count] = lowest_bits[cell + 1]
            count += 1
    return count


@kernel
def set_first_columns(num_bins: Int64s, block_width: int, first_columns: Int64s) -> None:
    """Set each feature's first column, and the end; each feature lies in one block; block_width 0: no blocks."""
    column = 0
    for f in range(len(num_bins)):
        if block_width > 0 and column % block_width + num_bins[f] > block_width:
            column += block_width - column % block_width
        first_columns[f] = column
        column += num_bins[f]
    first_columns[len(num_bins)] = column


@inline
def _bin_from(bin: int, value: np.uint64, f: int, cuts: CutPoints) -> int:
    """Return the bin of a value by a search from ``bin`` upwards; a value that is not a category is missing."""
    if value == MISSING:
        return cuts.missing_bins[f]
    begin, end, categories = cuts.offsets[f], cuts.offsets[f + 1], cuts.categories[f]
    while begin + bin < end and cuts.bits[begin + bin] < value:
        bin += 1
    if categories > 0 and (bin == categories or cuts.bits[begin + bin] != value):
        return cuts.missing_bins[f]
    return bin


@kernel
def bin_columns(features: Int64s, bits: Array, cut_points: CutPoints, out: Array) -> int:
    """Set ``out[f]`` to the bins of dense columns; return a feature with a value that has no bin, or -1."""
    faulty_feature, cuts, categories = -1, cut_points.bits, cut_points.categories
    # below[cell]: the number of cuts before a cell of the grid. A binary search within the cell finds the bin.
    cells = min(MAX_GRID, max(bits.shape[1] // VALUES_PER_ENTRY, 1))
    below, bits_memory = np.empty(cells + 1, np.int32), np.empty(1, np.uint64)
    value_memory = bits_memory.view(np.float64)
    for f in features:
        begin, end = cut_points.offsets[f], cut_points.offsets[f + 1]
        smallest, factor = _grid(cuts, begin, end, cells)
        below[:] = 0
        for i in range(begin, end):
            bits_memory[0] = _unordered(cuts[i])
            below[_cell(value_memory[0], smallest, factor, cells) + 1] += 1
        for cell in range(cells):
            below[cell + 1] += below[cell]
        values, bins = bits[f], out[f]
        for i in range(len(values)):
            value = values[i]
            bits_memory[0] = _unordered(value)
            grid_cell = np.uint64(_cell(value_memory[0], smallest, factor, cells))
            cut, size = np.uint64(begin + below[grid_cell]), np.uint64(below[grid_cell + ONE] - below[grid_cell])
            while size > ONE:
                half = size >> ONE
                cut += half if cuts[cut + half - ONE] < value else np.uint64(0)
                size -= half
            cut += size if size > 0 and cuts[cut] < value else np.uint64(0)
            bin = np.int64(cut) - begin
            # A category is its own cut. Any other value of a categorical feature is missing.
            if value == MISSING or (categories[f] > 0 and (bin == categories[f] or cuts[cut] != value)):
                bin = cut_points.missing_bins[f]
                if bin < 0:
                    faulty_feature = f
                    bin = 0
            bins[i] = bin
    return faulty_feature


@inline
def _grid(cuts: UInt64s, begin: int, end: int, cells: int) -> tuple[float, float]:
    """Return the smallest cut, at which the grid starts, and the number of grid cells per unit of the feature."""
    limits = np.zeros(2, np.uint64)
    if begin < end:
        limits[0], limits[1] = _unordered(cuts[begin]), _unordered(cuts[end - 1])
    smallest, largest = limits.view(np.float64)
    return smallest, cells / (largest - smallest) if largest > smallest else 0.0


@inline
def _cell(value: float, smallest: float, factor: float, cells: int) -> int:
    """Return the grid cell of a value. In spite of rounding, a larger value never has a lower cell."""
    position = (value - smallest) * factor
    if not position > 0.0:  # also NaN, from an infinite value or grid
        return 0
    return int(position) if position < cells else cells - 1


@inline
def _unordered(bits: np.uint64) -> np.uint64:
    """Return the bits of the float64 with these ordered bits."""
    return bits ^ (SIGN | ((bits >> np.uint64(63)) - np.uint64(1)))


@inline
def _prefix_bits(count: int) -> int:
    """Return the number of upper bits that index the table of ``count_children``; count: the number of values."""
    bits = 1
    while bits < MAX_PREFIX_BITS and VALUES_PER_ENTRY << bits <= count:
        bits += 1
    return bits


@inline
def _cuts_below(value: np.uint64, cuts: UInt64s, begin: int, end: int) -> int:
    """Return the number of cuts below a value, or one less, by bisection."""
    low, size = begin, end - begin
    while size > 1:
        half = size >> 1
        if cuts[low + half - 1] < value:
            low += half
        size -= half
    return low - begin


@kernel
def bin_rows(
    indptr: Array,
    columns: Array,
    bits: UInt64s,
    cuts: CutPoints,
    first_columns: Int64s,
    implied: Int32s,
    begins: Int64s,
    out: Int32s,
) -> int:
    """Set ``out`` to the histogram columns of sparse rows, without implied bins; return what ``bin_columns`` does."""
    faulty_feature, count = -1, 0
    for row in range(len(indptr) - 1):
        begins[row] = count
        for position in range(indptr[row], indptr[row + 1]):
            f = columns[position]
            start = _cuts_below(bits[position], cuts.bits, cuts.offsets[f], cuts.offsets[f + 1])
            bin = _bin_from(start, bits[position], f, cuts)
            if bin < 0:
                faulty_feature = f
            elif bin != implied[f]:
                out[count] = first_columns[f] + bin
                count += 1
    begins[len(indptr) - 1] = count
    return faulty_feature
