"""Compiled loops over rows of random forests: histograms of the features that a node draws, and whole trees.

``whole`` has the weight of each row as a whole number, beside its class, or its label (less a base) times the weight;
``draws`` how often the tree has it. Where rows have weights of their own, draws are a channel of histograms too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.forests.draw_kernels import UInt8s, draw_features
from ps2.algorithms.trees.forests.impurity_kernels import (
    IMPURITY,
    VARIANCE,
    WIDTH,
    gains_enough,
    may_split,
    scratch_of,
    search_feature,
)
from ps2.algorithms.trees.growing_kernels import part_dense, part_sparse
from ps2.algorithms.trees.layout import HAS_MISSING
from ps2.ops.kernels import Float64s, Int32s, Int64s, inline, kernel

Array = npt.NDArray[Any]
# Dense rows: bins, shape (features, rows). Sparse rows: where each begins, and its columns of the histogram. Of one
# kind there are none.
Rows = tuple[Array, Int64s, Int32s]
# Of all features: where the columns of each begin; how many bins it has; the one that sparse rows do without; flags;
# then the feature of each column.
Bins = tuple[Int64s, Int64s, Int32s, Int64s, Int32s]
# Of all nodes: places, sums, gains, splits, sums on the left, sets, where rows begin and end, left children (-1: leaf).
Nodes = tuple[Int64s, Int64s, Float64s, Int64s, Int64s, Int64s, Int64s, Int64s]
# What the draws of a tree go by: keys of seed and tree; how many features a node draws, and how often.
Drawing = tuple[int, int, int]


@kernel
def gather(order: Int32s, draws: UInt8s, whole: Array, kinds: Int64s, out: Array) -> None:
    """Set ``out`` to what each row of a node adds: weight, class or label, draws."""
    of_labels = kinds[IMPURITY] == VARIANCE
    for i in range(len(order)):
        row = order[i]
        count = np.int64(draws[row])
        out[i, 0] = whole[row, 0] * count
        out[i, 1] = whole[row, 1] * count if of_labels else whole[row, 1]
        out[i, 2] = count


@inline
def add_column(
    order: Int32s, column: Array, first: int, held: Array, kinds: Int64s, channels: int, histogram: Array
) -> None:
    """Add the rows of a node to the bins of a dense feature."""
    has_draws = channels > kinds[WIDTH]
    width = np.uint64(channels)
    base = np.uint64(first)
    if kinds[IMPURITY] == VARIANCE:
        for i in range(len(order)):
            at = (base + np.uint64(column[order[i]])) * width
            histogram[at] += held[i, 0]
            histogram[at + np.uint64(1)] += held[i, 1]
            if has_draws:
                histogram[at + np.uint64(2)] += held[i, 2]
        return
    for i in range(len(order)):
        at = (base + np.uint64(column[order[i]])) * width
        histogram[at + np.uint64(held[i, 1])] += held[i, 0]
        if has_draws:
            histogram[at + np.uint64(kinds[WIDTH])] += held[i, 2]


@inline
def add_entries(
    order: Int32s,
    rows: Rows,
    bins: Bins,
    is_drawn: Array,
    held: Array,
    kinds: Int64s,
    channels: int,
    histogram: Array,
) -> None:
    """Add the rows of a node to the bins of sparse features that are drawn."""
    _, begins, columns = rows
    feature_of = bins[4]
    width = kinds[WIDTH]
    has_draws, of_labels = channels > width, kinds[IMPURITY] == VARIANCE
    for i in range(len(order)):
        row = order[i]
        for position in range(begins[row], begins[row + 1]):
            column = columns[position]
            if not is_drawn[feature_of[column]]:
                continue
            at = column * channels
            if of_labels:
                histogram[at] += held[i, 0]
                histogram[at + 1] += held[i, 1]
            else:
                histogram[at + held[i, 1]] += held[i, 0]
            if has_draws:
                histogram[at + width] += held[i, 2]


@kernel
def build(
    order: Int32s,
    rows: Rows,
    bins: Bins,
    features: Int64s,
    is_drawn: Array,
    held: Array,
    kinds: Int64s,
    channels: int,
    histogram: Array,
) -> None:
    """Add the rows of a node to the bins of some features.

    Args:
        features: those that the node has drawn.
        is_drawn: room for a flag a feature: False at first, and again at the end.
        held: what ``gather`` sets.
        histogram: flat, of all columns.
    """
    if len(rows[0]):
        for feature in features:
            add_column(order, rows[0][feature], bins[0][feature], held, kinds, channels, histogram)
        return
    for feature in features:
        is_drawn[feature] = True
    add_entries(order, rows, bins, is_drawn, held, kinds, channels, histogram)
    for feature in features:
        is_drawn[feature] = False


@kernel
def take_filled(features: Int64s, bins: Bins, histogram: Array, columns: Int64s, sums: Array) -> int:
    """Move the bins of some features that are not empty to ``columns``, ascending, and ``sums``; return how many.

    The histogram is zero again.
    """
    channels, count = sums.shape[1], 0
    for feature in features:
        for column in range(bins[0][feature], bins[0][feature] + bins[1][feature]):
            some = False
            for c in range(channels):
                value = histogram[column * channels + c]
                sums[count, c] = value
                histogram[column * channels + c] = 0
                some |= value != 0
            if some:
                columns[count] = column
                count += 1
    return count


@kernel
def sum_rows(held: Array, kinds: Int64s, out: Int64s) -> None:
    """Add what the rows of a node sum up to; ``out`` has a number a channel."""
    width = kinds[WIDTH]
    for i in range(len(held)):
        if kinds[IMPURITY] == VARIANCE:
            out[0] += held[i, 0]
            out[1] += held[i, 1]
        else:
            out[held[i, 1]] += held[i, 0]
        if len(out) > width:
            out[width] += held[i, 2]


@kernel
def grow_tree(
    order: Int32s,
    draws: UInt8s,
    whole: Array,
    rows: Rows,
    bins: Bins,
    usable: Int64s,
    drawing: Drawing,
    kinds: Int64s,
    rules: Float64s,
    histogram: Array,
    nodes: Nodes,
) -> int:
    """Grow a tree, level by level; return how many nodes it has.

    Args:
        order: the rows that it is grown of; gets those of each node side by side.
        usable: the features that can part rows, ascending.
        kinds, rules: as of ``impurity_kernels``.
        histogram: flat zeros, of all columns; zeros again at the end.
        nodes: room; the root's place, sums and rows are there.
    """
    places, totals, gains, where, lefts, sets, ends, children = nodes
    key, drawn, turns = drawing
    channels = totals.shape[1]
    scratch = scratch_of(channels)
    held, aside = np.empty((len(order), 3), np.int64), np.empty_like(order)
    features, is_drawn = np.empty(len(usable), np.int64), np.zeros(len(bins[1]), np.bool_)
    flags = np.empty(bins[1].max() + 1, np.bool_)
    found = gains, where, lefts, sets
    count, node = 1, 0
    while node < count:
        children[node], gains[node] = -1, 0.0
        begin, end = ends[node, 0], ends[node, 1]
        is_split = False
        if may_split(places[node], totals[node], kinds, rules):
            mine, entries = order[begin:end], held[: end - begin]
            gather(mine, draws, whole, kinds, entries)
            for turn in range(turns):
                some = features[: draw_features(usable, key, places[node], turn, drawn, features)]
                if len(some) == 0:
                    break
                gains[node] = 0.0
                build(mine, rows, bins, some, is_drawn, entries, kinds, channels, histogram)
                for feature in some:
                    span = int(bins[0][feature]), int(bins[1][feature]), int(bins[2][feature])
                    flag = bins[3][feature]
                    search_feature(histogram, feature, span, flag, node, totals[node], kinds, rules, scratch, found)
                    histogram[span[0] * channels : (span[0] + span[1]) * channels] = 0
                is_split = gains_enough(gains[node], totals[node], lefts[node], kinds, rules)
                if is_split:
                    break
        if is_split:
            feature = where[node, 0]
            goes = flags[: bins[1][feature]]
            goes_left(where[node], sets[node], bins[3][feature], goes)
            if len(rows[0]):
                left = part_dense(order[begin:end], rows[0][feature], goes, aside[: end - begin])
            else:
                first, implied = int(bins[0][feature]), int(bins[2][feature])
                left = part_sparse(order[begin:end], rows[1], rows[2], first, implied, goes, aside[: end - begin])
            _add_children(node, count, begin + left, nodes)
            count += 2
        node += 1
    return count


@inline
def _add_children(node: int, left: int, middle: int, nodes: Nodes) -> None:
    """Set what is known of the children of a node, whose rows part in the middle."""
    places, totals, _, _, lefts, _, ends, children = nodes
    children[node] = left
    ends[left, 0], ends[left, 1], ends[left + 1, 0], ends[left + 1, 1] = ends[node, 0], middle, middle, ends[node, 1]
    for c in range(totals.shape[1]):
        totals[left, c] = lefts[node, c]
        totals[left + 1, c] = totals[node, c] - lefts[node, c]
    places[left], places[left + 1] = 2 * places[node], 2 * places[node] + 1


@inline
def goes_left(where: Int64s, words: Int64s, flags: int, out: Array) -> None:
    """Set for each bin of a feature whether it goes left: ``Split.lefts``."""
    for bin in range(len(out)):
        if where[1] < 0:
            out[bin] = (words[bin >> 6] >> np.int64(bin & 63)) & 1 != 0
        else:
            out[bin] = bin <= where[1]
    if flags & HAS_MISSING:
        out[-1] = where[2] != 0
