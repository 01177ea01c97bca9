"""Compiled loops that find the best splits of a boosted tree's nodes in their histograms."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ps2.algorithms.trees.category_kernels import scan_categories
from ps2.algorithms.trees.layout import (
    BIN,
    CATEGORICAL,
    FEATURE,
    GRADIENT,
    HAS_MISSING,
    HESSIAN,
    MAX_BINS,
    MISSING_LEFT,
    POSITION_BITS,
    POSITION_MASK,
    THIRD,
    WORD_BITS,
    Array,
)
from ps2.algorithms.trees.nonempty_bins import next_marked, row_marks
from ps2.algorithms.trees.scan_kernels import (
    BinSplit,
    Feature,
    Prefixes,
    Rules,
    collect,
    may_gain,
    may_gain_full,
    scan,
    scan_full,
    score_of_sums,
)
from ps2.ops.draws import GOLDEN, scrambled
from ps2.ops.kernels import Float64s, Int64s, inline, kernel

# The number of adjacent bins that are skipped at once if all are empty.
SKIP_BINS = 16
# The number of rounds of the Feistel network that samples features.
ROUNDS = 4


@inline
def permuted(number: int, count: int, key: int) -> int:
    """Return the position of ``number`` in a permutation of [0, count) that a key defines, by a Feistel network."""
    half = np.uint64(1)
    while (np.uint64(1) << (half + half)) < np.uint64(count):
        half += np.uint64(1)
    mask = (np.uint64(1) << half) - np.uint64(1)
    position = np.uint64(number)
    while True:
        high, low = position >> half, position & mask
        for step in range(ROUNDS):
            mixed = scrambled(np.uint64(key) + GOLDEN * (low * np.uint64(ROUNDS) + np.uint64(step + 1)))
            high, low = low, high ^ (mixed & mask)
        position = high << half | low
        if position < np.uint64(count):
            return int(position)


@inline
def is_sampled(feature: int, num_features: int, num_sampled: int, key: int) -> bool:
    """Return whether a key samples a feature: it samples exactly ``num_sampled``, the same on every server."""
    return bool(permuted(feature, num_features, key) < num_sampled)


@inline
def node_keys(tree_key: int, heap_indices: Any) -> Any:
    """Return the key, or an array of keys, by which nodes of a tree sample features."""
    return np.int64(scrambled(np.uint64(tree_key) + GOLDEN * np.uint64(heap_indices)) >> np.uint64(1))


class OpenNodes(NamedTuple):
    """Nodes whose best splits are searched.

    Attributes:
        totals: the sums of each node's rows, shape (n, 3).
        bounds: the smallest and the largest value of a leaf below each node, shape (n, 2).
        keys: the random key by which each node samples features.
        allowed: the features that each node may use, as bits, shape (n, words); 0 words: all.
    """

    totals: Int64s
    bounds: Float64s
    keys: Int64s
    allowed: Int64s


class Splits(NamedTuple):
    """The best split that has been found for each node.

    Attributes:
        gains: the gain of each split, shape (n,); a better split must gain more.
        conditions: shape (n, 3); columns: ``layout.FEATURE``, BIN and MISSING_LEFT.
        left_sums: the sums of the left side, shape (n, channels).
        sets: the categories that go left, as bits, shape (n, words).
    """

    gains: Float64s
    conditions: Int64s
    left_sums: Int64s
    sets: Int64s


class Scratch(NamedTuple):
    """Memory for one feature.

    Attributes:
        bins, sums, order: its filled bins, their sums and order.
        ratios: the ratios by which categories are sorted.
        prefixes: see ``may_gain_full``.
    """

    bins: Int64s
    sums: Int64s
    order: Int64s
    ratios: Float64s
    prefixes: Prefixes


@kernel
def search(
    tiles: Int64s,
    tile_ends: Int64s,
    m: Array,
    rows: Int64s,
    layout_row: int,
    channels: int,
    has_marks: bool,
    nodes: OpenNodes,
    rules: Rules,
    num_features: int,
    num_sampled: int,
    is_full: bool,
    out: Splits,
) -> None:
    """Search the features that begin in these tiles; the first axis of the arrays in ``out`` is the tile."""
    layout, scratch = m[layout_row], scratch_of(3)
    for tile in tiles:
        # ``out`` is sliced before the loop over nodes: threads would wait for each other to count array references.
        best = Splits(out.gains[tile], out.conditions[tile], out.left_sums[tile], out.sets[tile])
        begin = _next_feature(layout, tile_ends[tile], channels)
        end = _next_feature(layout, tile_ends[tile + 1], channels)
        for node in range(len(rows)):
            marks = row_marks(m, channels, rows[node]) if has_marks else layout[:0]
            histogram = m[rows[node]]
            search_node(
                histogram, marks, layout, begin, end, channels, node, nodes, rules, num_features, num_sampled, is_full,
                scratch, best,
            )  # fmt: skip


@inline
def scratch_of(channels: int) -> Scratch:
    bins, sums, order = (
        np.empty(MAX_BINS, np.int64),
        np.empty((MAX_BINS, channels), np.int64),
        np.empty(MAX_BINS, np.int64),
    )
    prefixes = Prefixes(np.empty(MAX_BINS), np.empty(MAX_BINS), np.empty(MAX_BINS, np.int64))
    return Scratch(bins, sums, order, np.empty(MAX_BINS), prefixes)


@inline
def feature_at(layout: Array, column: int, channels: int) -> Feature:
    """Return the feature of a histogram column, from the layout row."""
    first = column - max(int(layout[column * channels + 1]), 0)
    word = -int(layout[first * channels + 1])
    size, implied = (word >> POSITION_BITS) & POSITION_MASK, (word & POSITION_MASK) - 1
    return Feature(int(layout[first * channels]), first, size, implied, word >> (2 * POSITION_BITS))


@inline
def search_node(
    histogram: Array,
    marks: Array,
    layout: Array,
    begin: int,
    end: int,
    channels: int,
    node: int,
    nodes: OpenNodes,
    rules: Rules,
    num_features: int,
    num_sampled: int,
    is_full: bool,
    scratch: Scratch,
    best: Splits,
) -> None:
    """Search the features in columns ``begin`` to ``end`` of a node's histogram; num_sampled 0: no sampling."""
    total, bound = nodes.totals[node], nodes.bounds[node]
    node_score = score_of_sums(total[HESSIAN], total[GRADIENT], bound, rules)
    column = begin
    while True:
        column = _next_filled(histogram, marks, column, end, channels)
        if column == end:
            break
        feature = feature_at(layout, column, channels)
        is_allowed = nodes.allowed.shape[1] == 0 or _is_allowed(feature.number, nodes.allowed, node)
        if is_allowed and (num_sampled == 0 or is_sampled(feature.number, num_features, num_sampled, nodes.keys[node])):
            last_bin = (feature.column + feature.size - 1) * channels
            if is_full and not (feature.flags & CATEGORICAL or (feature.flags & HAS_MISSING and histogram[last_bin])):
                sums = histogram, feature, channels, total
                if may_gain_full(*sums, rules, node_score, best.gains[node], scratch.prefixes):
                    split = scan_full(*sums, bound, rules, node_score, best.gains[node])
                    if split.last_position >= 0:
                        best.gains[node] = split.gain
                        _set_full(node, feature, channels, split.last_position, histogram, total, best)
            else:
                _search_bins(histogram, feature, channels, node, total, bound, rules, node_score, scratch, best)
        column = feature.column + feature.size


@inline
def _search_bins(
    histogram: Array,
    feature: Feature,
    channels: int,
    node: int,
    total: Int64s,
    bound: Float64s,
    rules: Rules,
    node_score: float,
    scratch: Scratch,
    best: Splits,
) -> None:
    """Search the splits of a feature between its filled bins."""
    bins, sums, order = scratch.bins, scratch.sums, scratch.order
    if feature.implied >= 0 and not may_gain(histogram, feature, channels, total, rules, node_score, best.gains[node]):
        return
    count = collect(histogram, feature, channels, total, bins, sums)
    if count < 2:
        return
    missing = missing_position(feature, count, bins)
    if feature.flags & CATEGORICAL:
        is_one_hot = feature.size - (1 if feature.flags & HAS_MISSING else 0) <= rules.categories.one_hot
        split = scan_categories(
            is_one_hot, count, missing, sums, order, scratch.ratios, total, bound, rules, node_score, best.gains[node]
        )
    else:
        split = scan(feature.flags, count, missing, sums, total, bound, rules, node_score, best.gains[node])
    if split.last_position >= 0:
        if not feature.flags & CATEGORICAL:
            for i in range(split.last_position + 1):
                order[i] = i
        best.gains[node] = split.gain
        sum_left(node, missing, split, scratch, best)
        is_heavy = best.left_sums[node, HESSIAN] >= total[HESSIAN] - best.left_sums[node, HESSIAN]
        set_sides(node, feature, count, missing, split, is_heavy, scratch, best)


@inline
def missing_position(feature: Feature, count: int, bins: Int64s) -> int:
    """Return the position of the missing values' bin among the filled bins, or ``count`` if it is empty."""
    return count - 1 if feature.flags & HAS_MISSING and bins[count - 1] == feature.size - 1 else count


@inline
def _set_full(
    node: int, feature: Feature, channels: int, last_bin: int, histogram: Array, total: Int64s, best: Splits
) -> None:
    """Set the best split of a node to the split that ``scan_full`` has found."""
    left_sums, conditions = best.left_sums, best.conditions
    left_sums[node, HESSIAN] = left_sums[node, GRADIENT] = left_sums[node, THIRD] = 0
    for bin in range(last_bin + 1):
        slot = (feature.column + bin) * channels
        if histogram[slot] != 0:
            for c in range(channels):
                left_sums[node, c] += histogram[slot + c]
    missing_left = left_sums[node, HESSIAN] >= total[HESSIAN] - left_sums[node, HESSIAN]
    if feature.implied >= 0 and not feature.flags & HAS_MISSING:
        missing_left = feature.implied <= last_bin
    conditions[node, FEATURE], conditions[node, BIN] = feature.number, last_bin
    conditions[node, MISSING_LEFT] = missing_left


@inline
def _is_allowed(feature: int, allowed: Int64s, node: int) -> bool:
    return bool((allowed[node, feature // WORD_BITS] >> np.int64(feature % WORD_BITS)) & 1)


@inline
def _next_feature(layout: Array, column: int, channels: int) -> int:
    """Return the first column, from ``column`` on, at which a feature begins."""
    while column * channels < len(layout) and layout[column * channels + 1] > 0:
        column += 1
    return column


@inline
def _next_filled(histogram: Array, marks: Array, column: int, end: int, channels: int) -> int:
    """Return the next filled bin from ``column`` on, or ``end``; if there are many features, most bins are empty."""
    if len(marks):
        column = next_marked(marks, column, end)
        while column < end and histogram[column * channels] == 0:
            column = next_marked(marks, column + 1, end)
        return column
    while column + SKIP_BINS <= end:
        bits = histogram[column * channels]
        for i in range(1, SKIP_BINS):
            bits |= histogram[(column + i) * channels]
        if bits != 0:
            break
        column += SKIP_BINS
    while column < end and histogram[column * channels] == 0:
        column += 1
    return column


@inline
def sum_left(node: int, missing: int, split: BinSplit, scratch: Scratch, best: Splits) -> None:
    for c in range(best.left_sums.shape[1]):
        best.left_sums[node, c] = scratch.sums[missing, c] if split.missing_left else 0
        for i in range(split.last_position + 1):
            best.left_sums[node, c] += scratch.sums[scratch.order[i], c]


@inline
def set_sides(
    node: int,
    feature: Feature,
    count: int,
    missing: int,
    split: BinSplit,
    is_heavy: bool,
    scratch: Scratch,
    best: Splits,
) -> None:
    """Set which values go left at a node; count: the number of filled bins; is_heavy: the left side is the heavier."""
    bins, order, sets, last_position = scratch.bins, scratch.order, best.sets, split.last_position
    is_categorical = (feature.flags & CATEGORICAL) != 0
    missing_left = split.missing_left != 0
    if missing == count:
        # No row has a missing value. Missing values go with the implied bin, else with the heavier side.
        missing_left = is_heavy
        if feature.implied >= 0 and not feature.flags & HAS_MISSING:
            if not is_categorical:
                missing_left = feature.implied <= bins[last_position]
            else:
                for i in range(count):
                    if bins[order[i]] == feature.implied:
                        missing_left = i <= last_position
    best.conditions[node, FEATURE], best.conditions[node, MISSING_LEFT] = feature.number, missing_left
    best.conditions[node, BIN] = -1 if is_categorical else bins[last_position]
    if is_categorical:
        # Categories without rows in the node go with the missing values.
        for word in range(sets.shape[1]):
            sets[node, word] = -1 if missing_left else 0
        for i in range(missing):
            category = bins[order[i]]
            bit = np.int64(1) << np.int64(category % WORD_BITS)
            if i <= last_position:
                sets[node, category // WORD_BITS] |= bit
            else:
                sets[node, category // WORD_BITS] &= ~bit
