"""The cut points of one feature, out of its cells: the reference of those that are found for many at once."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.trees import binning_kernels as kernels
from ps2.algorithms.trees.binning import ZERO, cuts_between, from_bits


def fine_cells(refinement, place):
    """Return the first and the last ordered bits of each fine cell of a feature."""
    some = np.flatnonzero(np.diff(refinement.start[place], append=refinement.begin[place + 1]))
    depth = refinement.depth[place, some].astype(np.int64)
    cells = np.repeat(some, 1 << depth) << kernels.FINE_BITS
    within = np.arange(len(cells)) - np.repeat(np.cumsum(1 << depth) - (1 << depth), 1 << depth)
    width = np.repeat(1 << (kernels.FINE_BITS - depth), 1 << depth)
    first = cells + within * width
    return first.astype(np.uint32), (first + width - 1).astype(np.uint32)


def cuts_from(first, last, weights, bins, absent=0):
    """Return the cut points of a feature, at most one less than bins.

    Args:
        first, last: ordered bits of ascending cells, uint32; of distinct values twice the same.
        weights: in the cells, int64.
        bins: at most.
        absent: weight of zeros that are in no cell.
    """
    if absent:
        at = int(np.searchsorted(last, ZERO))
        if at == len(first) or first[at] > ZERO:
            first, last = np.insert(first, at, ZERO), np.insert(last, at, ZERO)
            weights = np.insert(weights, at, 0)
        weights = weights.copy()
        weights[at] += absent
    some = weights > 0
    first, last, weights = first[some], last[some], weights[some]
    if not len(weights):
        return np.empty(0, np.float32)
    ends = np.empty(len(weights), np.int64)
    # Not as compiled: nothing but a kernel calls it, and what is compiled ahead is not to be more than is called.
    ends = ends[: kernels.choose_ends.py_func(weights, bins, ends)]
    return cuts_between(from_bits(last[ends]), from_bits(first[ends + 1]))
