"""Compiled decisions where a split sends a value, a category or a bin: to the left or to the right child."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.layout import BIN, MISSING_LEFT
from ps2.array_types import Int64s
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]

# Categories in a word of a set.
WORD_BITS = 64


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
    """Set for each bin of a feature whether it goes left; has_missing: the last bin is that of missing values."""
    for bin in range(len(out)):
        if where[BIN] < 0:
            out[bin] = (words[bin // WORD_BITS] >> np.int64(bin % WORD_BITS)) & 1 != 0
        else:
            out[bin] = bin <= where[BIN]
    if has_missing:
        out[-1] = where[MISSING_LEFT] != 0
