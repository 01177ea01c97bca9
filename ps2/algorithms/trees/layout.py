"""The layout of a histogram's bins.

One row of the matrix of histograms holds, for each bin, its feature and how servers search that feature for splits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Int32s, Int64s
from ps2.errors import LimitError
from ps2.ops.kernels import inline, kernel

# Types of arrays.
Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
UInt8s = npt.NDArray[np.uint8]
UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]

# The layout of a bin is two numbers: its feature, and its position among the feature's bins. The first bin has instead
# of its position, 0, a negative number that packs the number of bins, the implied bin (+ 1), and flags.
PLACE_BITS = 13
PLACES = (1 << PLACE_BITS) - 1
# The maximum for a feature; a categorical one may need a bin for missing values, too.
MAX_BINS = 1 << 12
MAX_CATEGORIES = MAX_BINS - 1
# Bytes of a sum in a histogram, an int64.
SUM_BYTES = 8
CATEGORICAL, HAS_MISSING, INCREASING, DECREASING = 1, 2, 4, 8
# Rows that hold this share of their features are stored dense.
DENSE_FROM = 0.25
# Channels of boosted trees' sums.
HESSIAN, GRADIENT, THIRD = range(3)
# Columns of bounds.
LOWER, UPPER = range(2)
# Columns of splits by bins: the feature; the last bin on the left (-1: a set of categories goes left); whether missing
# values go left.
FEATURE, BIN, MISSING_LEFT = range(3)


# Categories in a word of a set, one bit for each.
WORD_BITS = 64


def layout_of(sizes: Int64s, first: Int64s, implied: Int32s | None, flags: Int64s, channels: int) -> Int64s:
    """Return the layout row of a histogram, int64; implied None: no feature has one; LimitError: too many bins."""
    if len(sizes) and sizes.max() > MAX_BINS:
        worst = int(np.argmax(sizes))
        raise LimitError(f"feature {worst}: expected at most {MAX_BINS:,} bins, got {sizes[worst]:,}")
    positions = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    columns = np.repeat(first[:-1], sizes) + positions
    layout = np.zeros((int(first[-1]), channels), np.int64)
    layout[columns, 0] = np.repeat(np.arange(len(sizes)), sizes)
    layout[columns, 1] = positions
    implied_codes = np.zeros(len(sizes), np.int64) if implied is None else implied.astype(np.int64) + 1
    has_bins = sizes > 0
    layout[first[:-1][has_bins], 1] = -(implied_codes | sizes << PLACE_BITS | flags << (2 * PLACE_BITS))[has_bins]
    return layout.reshape(-1)


def category_flags(words: npt.NDArray[Any], size: int) -> npt.NDArray[np.bool_]:
    """Return the flags of a set's first ``size`` categories."""
    return np.unpackbits(words.view(np.uint8), bitorder="little", count=size).astype(np.bool_)


@inline
def goes_left(value: float, threshold: float, missing_left: bool) -> bool:
    """Return whether a value goes left: it is at most the threshold, or missing and missing values go left."""
    # No branch: which way rows go cannot be predicted.
    return not ((value > threshold) | ((value != value) & (not missing_left)))


@inline
def category_goes_left(value: float, flags: Bools, begin: int, end: int, missing_left: bool) -> bool:
    """Return whether a category goes left; any value outside of the set goes where missing values go."""
    if value >= 0 and value < end - begin and value == np.floor(value):
        return bool(flags[begin + np.int64(value)])
    return missing_left


@kernel
def bins_left(where: Int64s, words: Int64s, has_missing: bool, out: Array) -> None:
    """Set for each bin of a feature whether it goes left; has_missing: the last bin is for missing values."""
    for bin in range(len(out)):
        if where[BIN] < 0:
            out[bin] = (words[bin // WORD_BITS] >> np.int64(bin % WORD_BITS)) & 1 != 0
        else:
            out[bin] = bin <= where[BIN]
    if has_missing:
        out[-1] = where[MISSING_LEFT] != 0
