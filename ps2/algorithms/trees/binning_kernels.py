"""Compiled loops from values to cut points and bins.

A value is seen as its ordered bits: uint64 that ascend as float64 values do. NaN, which is missing, is the largest. A
feature's values lie together: in ``bits``, from ``begin[feature]`` on. Weights are whole numbers, so that sums do not
depend on an order; an empty array means that all rows count 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.ascending import sort_pairs
from ps2.array_types import Int32s, Int64s
from ps2.ops.kernels import inline, kernel
from ps2.splitmix import GOLDEN

Array = npt.NDArray[Any]
UInt64s = npt.NDArray[np.uint64]

MISSING = np.uint64(0xFFFFFFFFFFFFFFFF)
SIGN, ONE = np.uint64(1 << 63), np.uint64(1)
# How often, at least and at most, a cell that is cut is halved.
MIN_DEPTH, MAX_DEPTH = 4, 20
# Cells by which the bins of dense columns are looked up, at most; first bits by which cells are. A table has fewer
# entries than this share of the values that are looked up in it.
LOOKED_UP, LOOKED_UP_BITS, SHARE = 1 << 12, 12, 8
# Rows of a block that is turned into columns.
TILE = 512


@kernel
def to_columns(features: Int64s, x: Array, bits: Array) -> None:
    """Set ``bits[f]`` to the ordered bits of column f of ``x``, rows by features of float32 or float64."""
    one = np.empty(1, np.float64)
    word = one.view(np.uint64)
    for begin in range(0, x.shape[0], TILE):
        for f in features:
            for i in range(begin, min(begin + TILE, x.shape[0])):
                one[0] = x[i, f] + 0.0  # -0 is 0
                bits[f, i] = _ordered(word[0], one[0])


@kernel
def to_bits(values: Array, out: UInt64s) -> None:
    """Set ``out`` to the ordered bits of values."""
    one = np.empty(1, np.float64)
    word = one.view(np.uint64)
    for i in range(len(values)):
        one[0] = values[i] + 0.0
        out[i] = _ordered(word[0], one[0])


@kernel
def count_values(columns: Array, values: Array, out: Int64s) -> bool:
    """Add to ``out`` how many values each column has; return whether any is NaN."""
    lacking = False
    for i in range(len(columns)):
        out[columns[i]] += 1
        lacking |= values[i] != values[i]
    return lacking


@inline
def _ordered(word: np.uint64, value: float) -> np.uint64:
    if value != value:
        return MISSING
    return np.uint64(~word) if word & SIGN else np.uint64(word | SIGN)


@inline
def _weight(position: int, begin: int, rows: Int32s, weights: Int64s) -> int:
    if len(weights) == 0:
        return 1
    return weights[rows[position]] if len(rows) else weights[position - begin]


@kernel
def count_distinct(
    features: Int64s,
    bits: UInt64s,
    begin: Int64s,
    rows: Int32s,
    weights: Int64s,
    limit: int,
    start: Int64s,
    values: UInt64s,
    counts: Int64s,
    found: Int64s,
) -> None:
    """Find the distinct values of each feature, from ``start`` on, and their weights; ``found`` -1: more than limit."""
    table = np.empty(4 * limit + 4, np.int64)
    for f in features:
        size = 4
        while size < 2 * (start[f + 1] - start[f]):
            size *= 2
        cells, seen, of_seen = table[:size], values[start[f] : start[f + 1]], counts[start[f] : start[f + 1]]
        cells[:] = -1
        count = 0
        for position in range(begin[f], begin[f + 1]):
            value = bits[position]
            if value == MISSING:
                continue
            # Whole numbers, and all that float32 can hold, differ in their upper bits alone.
            at = np.int64(((value ^ (value >> np.uint64(32))) * GOLDEN) >> np.uint64(40)) & (size - 1)
            while cells[at] >= 0 and seen[cells[at]] != value:
                at = (at + 1) & (size - 1)
            if cells[at] < 0:
                if count == limit:
                    count = -1
                    break
                cells[at] = count
                seen[count] = value
                of_seen[count] = 0
                count += 1
            of_seen[cells[at]] += _weight(position, begin[f], rows, weights)
        found[f] = count
        sort_pairs(seen[: max(count, 0)], of_seen)


@kernel
def count_missing(features: Int64s, bits: UInt64s, begin: Int64s, rows: Int32s, weights: Int64s, out: Int64s) -> None:
    """Set ``out[f]`` to the weight of each feature's missing values."""
    for f in features:
        out[f] = 0
        for position in range(begin[f], begin[f + 1]):
            if bits[position] == MISSING:
                out[f] += _weight(position, begin[f], rows, weights)


@kernel
def count_children(
    places: Int64s,
    features: Int64s,
    bits: UInt64s,
    begin: Int64s,
    rows: Int32s,
    weights: Int64s,
    cell_begin: Int64s,
    first: UInt64s,
    width: UInt64s,
    depth: UInt64s,
    start: Int64s,
    out: Int64s,
) -> None:
    """Add the weights of some features' values to the children of their cells; missing ones to none."""
    before = np.empty((1 << LOOKED_UP_BITS) + 1, np.int32)
    for place in places:
        f = features[place]
        low, end = cell_begin[place], cell_begin[place + 1]
        if low == end:
            continue
        shift = np.uint64(64 - _bits_for(begin[f + 1] - begin[f]))
        # How many cells begin before what begins with some bits: from there it is few steps to a value's.
        count = 0
        for prefix in range(np.int64(MISSING >> shift) + 1):
            while low + count < end and first[low + count] < np.uint64(prefix) << shift:
                count += 1
            before[prefix] = count
        before[np.int64(MISSING >> shift) + 1] = end - low
        mine = bits[begin[f] : begin[f + 1]]
        for i in range(len(mine)):
            value = mine[i]
            if value == MISSING:
                continue
            prefix = value >> shift
            at = np.uint64(low + max(np.int64(before[prefix]) - 1, 0))
            size = np.uint64(low + before[prefix + ONE]) - at
            while size > ONE:
                half = size >> ONE
                at += half if first[at + half] <= value else np.uint64(0)
                size -= half
            child = (value - first[at]) >> (width[at] - depth[at])
            if first[at] <= value and child < ONE << depth[at]:
                # A call, which counts references to arrays, costs more than all else here.
                weight = 1 if len(weights) == 0 else _weight(begin[f] + i, begin[f], rows, weights)
                out[np.uint64(start[at]) + child] += weight


@inline
def choose_ends(counts: Int64s, bins: int, ends: Int64s) -> int:
    """Part ascending cells into bins of about equal weight (as in LightGBM); return the number of bins less one."""
    total = counts.sum()
    large = np.zeros(len(counts), np.bool_)
    rest_bins, rest = bins, total
    if len(counts) > bins:
        for i in range(len(counts)):
            if counts[i] * bins >= total:
                large[i] = True
                rest_bins -= 1
                rest -= counts[i]
    else:
        large[:] = True
    made, held = 0, 0
    mean = rest / max(rest_bins, 1)
    for i in range(len(counts) - 1):
        if made == bins - 1:
            break
        held += counts[i]
        if not large[i]:
            rest -= counts[i]
        if large[i] or held >= mean or (large[i + 1] and held >= max(1.0, 0.5 * mean)):
            ends[made] = i
            made += 1
            held = 0
            if not large[i]:
                rest_bins -= 1
                mean = rest / max(rest_bins, 1)
    return made


@kernel
def choose_depths(
    begin: Int64s, width: UInt64s, weights: Int64s, share: int, spare: int, budget: int, depth: UInt64s
) -> None:
    """Set how often each feature's cells are halved: 0, unless they weigh more than ``spare`` shares of the feature."""
    for f in range(len(begin) - 1):
        total = weights[begin[f] : begin[f + 1]].sum()
        heavy = np.int64(0)
        for cell in range(begin[f], begin[f + 1]):
            if width[cell] > 0 and weights[cell] * share > spare * total:
                heavy += weights[cell]
        for cell in range(begin[f], begin[f + 1]):
            if width[cell] > 0 and weights[cell] * share > spare * total:
                halved = MIN_DEPTH
                while halved < MAX_DEPTH and heavy << halved < budget * weights[cell]:
                    halved += 1
                depth[cell] = min(np.uint64(halved), width[cell])


@kernel
def cut_cells(
    begin: Int64s,
    first: UInt64s,
    width: UInt64s,
    weights: Int64s,
    bins: int,
    low: UInt64s,
    high: UInt64s,
    sizes: Int64s,
) -> int:
    """Choose the cuts of features between ordered bits ``low`` and ``high``; return the number of all cuts."""
    made = 0
    for f in range(len(sizes)):
        ends = np.empty(begin[f + 1] - begin[f], np.int64)
        sizes[f] = 0
        if len(ends) > 0:
            sizes[f] = choose_ends(weights[begin[f] : begin[f + 1]], bins, ends)
        for i in range(sizes[f]):
            cell = begin[f] + ends[i]
            low[made], high[made] = first[cell] + ((np.uint64(1) << width[cell]) - np.uint64(1)), first[cell + 1]
            made += 1
    return made


@kernel
def place_bins(sizes: Int64s, block: int, first: Int64s) -> None:
    """Set where each feature's bins begin, and the last ones end; none lie across a multiple of ``block``, if not 0."""
    at = 0
    for f in range(len(sizes)):
        if block > 0 and at % block + sizes[f] > block:
            at += block - at % block
        first[f] = at
        at += sizes[f]
    first[len(sizes)] = at


@inline
def _bin_from(bin: int, value: np.uint64, cuts: UInt64s, begin: int, end: int, categories: int, missing: int) -> int:
    """Return the bin of a value, at least ``bin``: the number of cuts below it; ``missing`` for what is no category."""
    if value == MISSING:
        return missing
    while begin + bin < end and cuts[begin + bin] < value:
        bin += 1
    if categories > 0 and (bin == categories or cuts[begin + bin] != value):
        return missing
    return bin


@kernel
def bin_columns(
    features: Int64s, bits: Array, cuts: UInt64s, offsets: Int64s, categories: Int32s, missing: Int32s, out: Array
) -> int:
    """Set ``out[f]`` to the bins of dense columns; return a feature with a value that has no bin, or -1."""
    fault = -1
    # How many cuts are before each cell of a grid: from there it is few steps to the bin.
    cells = min(LOOKED_UP, max(bits.shape[1] // SHARE, 1))
    below, word = np.empty(cells + 1, np.int32), np.empty(1, np.uint64)
    number = word.view(np.float64)
    for f in features:
        begin, end = offsets[f], offsets[f + 1]
        least, factor = _grid(cuts, begin, end, cells)
        below[:] = 0
        for i in range(begin, end):
            word[0] = _unordered(cuts[i])
            below[_cell(number[0], least, factor, cells) + 1] += 1
        for cell in range(cells):
            below[cell + 1] += below[cell]
        mine, bins, lost = bits[f], out[f], missing[f]
        for i in range(len(mine)):
            value = mine[i]
            word[0] = _unordered(value)
            place = np.uint64(_cell(number[0], least, factor, cells))
            at, size = np.uint64(begin + below[place]), np.uint64(below[place + ONE] - below[place])
            while size > ONE:
                half = size >> ONE
                at += half if cuts[at + half - ONE] < value else np.uint64(0)
                size -= half
            at += size if size > 0 and cuts[at] < value else np.uint64(0)
            bin = np.int64(at) - begin
            # Of what is no category, the bin is that of missing values; a category's cut is itself.
            if value == MISSING or (categories[f] > 0 and (bin == categories[f] or cuts[at] != value)):
                bin = lost
                if bin < 0:
                    fault = f
                    bin = 0
            bins[i] = bin
    return fault


@inline
def _grid(cuts: UInt64s, begin: int, end: int, cells: int) -> tuple[float, float]:
    """Return where a grid over some cuts begins, and how many of its cells there are for 1."""
    ends = np.zeros(2, np.uint64)
    if begin < end:
        ends[0], ends[1] = _unordered(cuts[begin]), _unordered(cuts[end - 1])
    least, most = ends.view(np.float64)
    return least, cells / (most - least) if most > least else 0.0


@inline
def _cell(value: float, least: float, factor: float, cells: int) -> int:
    """Return the cell of a value: of a larger one never an earlier cell, as rounding keeps the order."""
    at = (value - least) * factor
    if not at > 0.0:  # NaN, of infinite values or grids, too
        return 0
    return int(at) if at < cells else cells - 1


@inline
def _unordered(bits: np.uint64) -> np.uint64:
    """Return the bits of a float64 by its ordered bits."""
    return bits ^ (SIGN | ((bits >> np.uint64(63)) - np.uint64(1)))


@inline
def _bits_for(count: int) -> int:
    """Return by how many first bits so many values are looked up."""
    bits = 1
    while bits < LOOKED_UP_BITS and SHARE << bits <= count:
        bits += 1
    return bits


@inline
def _halved(value: np.uint64, cuts: UInt64s, begin: int, end: int) -> int:
    """Return how many cuts are below a value, or one less."""
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
    cuts: UInt64s,
    offsets: Int64s,
    categories: Int32s,
    missing: Int32s,
    first: Int64s,
    implied: Int32s,
    begins: Int64s,
    out: Int32s,
) -> int:
    """Set ``out`` to the columns of sparse rows' bins, but for implied ones; return as ``bin_columns`` does."""
    fault, at = -1, 0
    for row in range(len(indptr) - 1):
        begins[row] = at
        for position in range(indptr[row], indptr[row + 1]):
            f = columns[position]
            begin, end = offsets[f], offsets[f + 1]
            start = _halved(bits[position], cuts, begin, end)
            bin = _bin_from(start, bits[position], cuts, begin, end, categories[f], missing[f])
            if bin < 0:
                fault = f
            elif bin != implied[f]:
                out[at] = first[f] + bin
                at += 1
    begins[len(indptr) - 1] = at
    return fault
