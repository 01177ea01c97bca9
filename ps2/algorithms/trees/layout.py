"""The layout of a histogram's bins.

One row of the matrix of histograms has each bin's feature and position, and each feature's number of bins, implied bin
and flags, which servers need for the search.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Int32s, Int64s
from ps2.errors import LimitError
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
UInt8s = npt.NDArray[np.uint8]
UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]

# The layout row has two int64s for a bin: its feature, and its position among the feature's bins. The first bin of a
# feature has, instead of position 0, a negative number: minus the packed flags, number of bins, and implied bin + 1.
POSITION_BITS = 13
POSITION_MASK = (1 << POSITION_BITS) - 1
# The maximum number of bins of a feature; a categorical feature may need one of them for missing values.
MAX_BINS = 1 << 12
# The maximum number of categories that have bins of their own, and the maximum number of categories of a feature.
MAX_CATEGORIES, MAX_CODES = MAX_BINS - 1, 1 << 31
# The bytes of a sum in a histogram, an int64.
SUM_BYTES = 8
# Flags of a feature; INCREASING and DECREASING are monotone constraints.
CATEGORICAL, HAS_MISSING, INCREASING, DECREASING = 1, 2, 4, 8
# The smallest hessian of a row, as in xgboost.
MIN_HESSIAN = 1e-16
# Rows that store at least this fraction of all entries become dense.
DENSE_FROM = 0.25
# The channels of a bin of boosted trees.
HESSIAN, GRADIENT, THIRD = range(3)
# The columns of arrays of leaf bounds: the smallest and the largest value of a leaf.
LOWER, UPPER = range(2)
# The columns of arrays of split conditions: the feature; the last bin on the left (-1: a set of categories goes left);
# whether missing values go left.
FEATURE, BIN, MISSING_LEFT = range(3)

# The bits of an int64 in a set of categories or features, which has one bit for each.
WORD_BITS = 64


def layout_of(counts: Int64s, first: Int64s, implied: Int32s | None, flags: Int64s, channels: int) -> Int64s:
    """Return the layout row of a histogram, int64; LimitError: a feature has too many bins.

    Args:
        counts, first: see ``Bins.num_columns`` and ``Bins.first_columns``.
        implied: the bin of each feature that sparse rows do not store; None: rows store all bins.
    """
    if len(counts) and counts.max() > MAX_BINS:
        worst = int(np.argmax(counts))
        raise LimitError(f"feature {worst}: expected at most {MAX_BINS:,} bins, got {counts[worst]:,}")
    positions = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = np.repeat(first[:-1], counts) + positions
    layout = np.zeros((int(first[-1]), channels), np.int64)
    layout[columns, 0] = np.repeat(np.arange(len(counts)), counts)
    layout[columns, 1] = positions
    implied_codes = np.zeros(len(counts), np.int64) if implied is None else implied.astype(np.int64) + 1
    has_bins = counts > 0
    layout[first[:-1][has_bins], 1] = -(implied_codes | counts << POSITION_BITS | flags << (2 * POSITION_BITS))[
        has_bins
    ]
    return layout.reshape(-1)


def category_flags(words: npt.NDArray[Any], size: int) -> npt.NDArray[np.bool_]:
    """Return for each of the first ``size`` categories whether it is in a set; words: the set as bits."""
    return np.unpackbits(words.view(np.uint8), bitorder="little", count=size).astype(np.bool_)


@inline
def goes_left(value: float, threshold: float, missing_left: bool) -> bool:
    """Return whether a value goes left: it is at most the threshold, or missing and missing values go left."""
    # There is no branch, because the processor cannot predict it.
    return not ((value > threshold) | ((value != value) & (not missing_left)))


@inline
def category_goes_left(value: float, flags: Bools, codes: Int64s, begin: int, end: int, missing_left: bool) -> bool:
    """Return whether a category goes left, by ``flags[begin:end]``; any other value goes where missing values go.

    ``codes`` has the category of each flag, ascending within a set; empty: the flags of a set are those of 0, 1, ...
    """
    if len(codes):
        low = begin
        while low < end and codes[(low + end) >> 1] != value:
            if codes[(low + end) >> 1] < value:
                low = ((low + end) >> 1) + 1
            else:
                end = (low + end) >> 1
        return bool(flags[(low + end) >> 1]) if low < end else missing_left
    if value >= 0 and value < end - begin and value == np.floor(value):
        return bool(flags[begin + np.int64(value)])
    return missing_left


@kernel
def set_left_bins(condition: Int64s, words: Int64s, has_missing: bool, out: Array) -> None:
    """Set ``out`` to whether each bin of a feature goes left; has_missing: the last bin is for missing values."""
    for bin in range(len(out)):
        if condition[BIN] < 0:
            out[bin] = (words[bin // WORD_BITS] >> np.int64(bin % WORD_BITS)) & 1 != 0
        else:
            out[bin] = bin <= condition[BIN]
    if has_missing:
        out[-1] = condition[MISSING_LEFT] != 0
