"""The cut points of one feature, out of its cells: the reference of those that are found for many at once."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.trees import binning_kernels as kernels
from ps2.algorithms.trees.cut_points import ZERO, cuts_between, from_bits


def cells_of(cells, place):
    """Return the first and the last ordered bits of each cell of a feature, and their weights."""
    mine = slice(cells.begin[place], cells.begin[place + 1])
    last = cells.lowest_bits[mine] + ((np.uint64(1) << cells.log_width[mine]) - np.uint64(1))
    return cells.lowest_bits[mine], last, cells.weights[mine]


def cuts_from(first, last, weights, bins, absent=0):
    """Return the cut points of a feature, at most one less than bins.

    Args:
        first, last: ordered bits of ascending cells, uint64; of distinct values twice the same.
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
        return np.empty(0)
    ends = np.empty(len(weights), np.int64)
    ends = ends[: kernels.choose_ends(weights, bins, ends)]
    return cuts_between(from_bits(last[ends]), from_bits(first[ends + 1]))
