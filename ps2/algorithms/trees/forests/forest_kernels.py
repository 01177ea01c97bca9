"""Compiled loops over rows of random forests: histograms of the features that a node samples, and whole trees.

``integer_pairs`` has the integer weight of each row, and its class or, in regression, (label minus base) times weight.
``draws`` is the number of times that a tree draws each row. If rows have weights, histograms also have a channel for
draws.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ps2.algorithms.trees.forests.impurity_kernels import VARIANCE, ForestRules, gains_enough, may_split, search_feature
from ps2.algorithms.trees.layout import Array, UInt8s
from ps2.algorithms.trees.scan_kernels import Feature
from ps2.algorithms.trees.search_kernels import Scratch, node_keys, permuted, scratch_of
from ps2.algorithms.trees.tree_kernels import BinColumns, GrowingTree, Rows, grow
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.kernels import Float64s, Int32s, Int64s, inline, kernel


@kernel
def count_draws(ids: Int64s, key: int, cumulative_probabilities: Float64s, out: UInt8s) -> int:
    """Set each row's number of draws, by ``ForestPlan.draw_probabilities``; return the number of rows with draws."""
    num_rows = 0
    for i in range(len(ids)):
        state = scrambled(scrambled(np.uint64(key)) + GOLDEN * np.uint64(ids[i]))
        unit = np.float64(state >> np.uint64(11)) * TO_UNIT
        count = 0
        while count < len(cumulative_probabilities) and unit >= cumulative_probabilities[count]:
            count += 1
        out[i] = count
        num_rows += count > 0
    return num_rows


@kernel
def sample_features(usable: Int64s, key: int, heap_index: int, turn: int, num_sampled: int, out: Int64s) -> int:
    """Set the features, ascending, that a node samples in a turn; return their number; num_sampled 0: all features."""
    if num_sampled == 0:
        for i in range(len(usable)):
            out[i] = usable[i]
        return len(usable) if turn == 0 else 0
    node_key = int(node_keys(key, heap_index))
    begin = turn * num_sampled
    count = max(min(num_sampled, len(usable) - begin), 0)
    for i in range(count):
        out[i] = usable[permuted(begin + i, len(usable), node_key)]
    out[:count].sort()
    return count


class FeatureSampling(NamedTuple):
    """How nodes sample features, by a random key: ``num_features`` at a time (0: all), at most ``turns`` times."""

    key: int
    num_features: int
    turns: int


class ForestSearch(NamedTuple):
    """The search for splits of a tree of a random forest.

    Attributes:
        draws, integer_pairs: see the module.
        histogram: memory for a histogram of all columns; zeros before and after each node.
        entries: memory for ``gather``.
        features: memory for the numbers of sampled features.
        is_sampled: memory for a flag for each feature; False before and after each node.
        side_sums: memory for three sums, shape (3, channels).
    """

    draws: UInt8s
    integer_pairs: Array
    feature_sampling: FeatureSampling
    rules: ForestRules
    histogram: Array
    entries: Array
    features: Int64s
    is_sampled: Array
    scratch: Scratch
    side_sums: Int64s


def forest_search(
    tree: GrowingTree, draws: UInt8s, integer_pairs: Array, feature_sampling: FeatureSampling, rules: ForestRules
) -> ForestSearch:
    bins, channels = tree.bins, tree.nodes.totals.shape[1]
    histogram = np.zeros(len(bins.column_features) * channels, np.int64)
    is_sampled = np.zeros(len(bins.num_bins), np.bool_)
    entries, features = np.empty((len(tree.order), 3), np.int64), np.empty(len(bins.usable), np.int64)
    memory = histogram, entries, features, is_sampled, scratch_of(channels), np.empty((3, channels), np.int64)
    return ForestSearch(draws, integer_pairs, feature_sampling, rules, *memory)


@kernel
def gather(order: Int32s, draws: UInt8s, integer_pairs: Array, rules: ForestRules, out: Array) -> None:
    """Set ``out``, shape (n, 3), to what each row of a node adds to a histogram: weight, class or label, draws."""
    has_labels = rules.impurity == VARIANCE
    for i in range(len(order)):
        row = order[i]
        count = np.int64(draws[row])
        out[i, 0] = integer_pairs[row, 0] * count
        out[i, 1] = integer_pairs[row, 1] * count if has_labels else integer_pairs[row, 1]
        out[i, 2] = count


@inline
def add_column(
    order: Int32s, column: Array, first: int, entries: Array, rules: ForestRules, channels: int, histogram: Array
) -> None:
    """Add the rows of a node to the bins of a dense feature."""
    has_draws = channels > rules.width
    width = np.uint64(channels)
    base = np.uint64(first)
    if rules.impurity == VARIANCE:
        for i in range(len(order)):
            slot = (base + np.uint64(column[order[i]])) * width
            histogram[slot] += entries[i, 0]
            histogram[slot + np.uint64(1)] += entries[i, 1]
            if has_draws:
                histogram[slot + np.uint64(2)] += entries[i, 2]
        return
    for i in range(len(order)):
        slot = (base + np.uint64(column[order[i]])) * width
        histogram[slot + np.uint64(entries[i, 1])] += entries[i, 0]
        if has_draws:
            histogram[slot + np.uint64(rules.width)] += entries[i, 2]


@inline
def add_entries(
    order: Int32s,
    rows: Rows,
    bins: BinColumns,
    is_sampled: Array,
    entries: Array,
    rules: ForestRules,
    channels: int,
    histogram: Array,
) -> None:
    """Add the sparse rows of a node to the bins of sampled features."""
    begins, columns = rows.begins, rows.entries
    width = rules.width
    has_draws, has_labels = channels > width, rules.impurity == VARIANCE
    for i in range(len(order)):
        row = order[i]
        for position in range(begins[row], begins[row + 1]):
            column = columns[position]
            if not is_sampled[bins.column_features[column]]:
                continue
            slot = column * channels
            if has_labels:
                histogram[slot] += entries[i, 0]
                histogram[slot + 1] += entries[i, 1]
            else:
                histogram[slot + entries[i, 1]] += entries[i, 0]
            if has_draws:
                histogram[slot + width] += entries[i, 2]


@kernel
def build(
    order: Int32s,
    rows: Rows,
    bins: BinColumns,
    features: Int64s,
    is_sampled: Array,
    entries: Array,
    rules: ForestRules,
    channels: int,
    histogram: Array,
) -> None:
    """Add the rows of a node to the bins of its sampled features; is_sampled: memory, False before and after."""
    if len(rows.columns):
        for feature in features:
            add_column(order, rows.columns[feature], bins.first_columns[feature], entries, rules, channels, histogram)
        return
    for feature in features:
        is_sampled[feature] = True
    add_entries(order, rows, bins, is_sampled, entries, rules, channels, histogram)
    for feature in features:
        is_sampled[feature] = False


@kernel
def extract_filled(features: Int64s, bins: BinColumns, histogram: Array, columns: Int64s, sums: Array) -> int:
    """Copy the filled bins of features to ``columns``, ascending, and ``sums``, and clear them; return their number."""
    channels, count = sums.shape[1], 0
    for feature in features:
        for column in range(bins.first_columns[feature], bins.first_columns[feature] + bins.num_bins[feature]):
            is_filled = False
            for c in range(channels):
                value = histogram[column * channels + c]
                sums[count, c] = value
                histogram[column * channels + c] = 0
                is_filled |= value != 0
            if is_filled:
                columns[count] = column
                count += 1
    return count


@kernel
def sum_rows(entries: Array, rules: ForestRules, out: Int64s) -> None:
    """Add the sums over a node's rows to ``out``, shape (channels,)."""
    width = rules.width
    for i in range(len(entries)):
        if rules.impurity == VARIANCE:
            out[0] += entries[i, 0]
            out[1] += entries[i, 1]
        else:
            out[entries[i, 1]] += entries[i, 0]
        if len(out) > width:
            out[width] += entries[i, 2]


@kernel
def grow_forest_tree(search: ForestSearch, tree: GrowingTree) -> int:
    """Grow a tree, level by level; return the number of its nodes."""
    return grow(_open_root, _open_children, search, len(tree.nodes.heap_indices) // 2, False, tree)


@inline
def _open_root(search: ForestSearch, tree: GrowingTree) -> None:
    _search(0, search, tree)


@inline
def _open_children(search: ForestSearch, node: int, left: int, is_last: bool, tree: GrowingTree) -> None:
    if not is_last:
        _search(left, search, tree)
        _search(left + 1, search, tree)


@inline
def _search(node: int, search: ForestSearch, tree: GrowingTree) -> None:
    """Search the best split of a node among the features that it samples."""
    bins, nodes = tree.bins, tree.nodes
    best, total, rules, sampling = nodes.best, nodes.totals[node], search.rules, search.feature_sampling
    best.gains[node] = 0.0
    if not may_split(nodes.heap_indices[node], total, rules):
        return
    begin, end, channels, histogram = nodes.ends[node, 0], nodes.ends[node, 1], len(total), search.histogram
    node_rows, entries = tree.order[begin:end], search.entries[: end - begin]
    gather(node_rows, search.draws, search.integer_pairs, rules, entries)
    for turn in range(sampling.turns):
        heap_index, features = nodes.heap_indices[node], search.features
        count = sample_features(bins.usable, sampling.key, heap_index, turn, sampling.num_features, features)
        if count == 0:
            break
        features = features[:count]
        best.gains[node] = 0.0
        build(node_rows, tree.rows, bins, features, search.is_sampled, entries, rules, channels, histogram)
        for number in features:
            column, size = int(bins.first_columns[number]), int(bins.num_bins[number])
            feature = Feature(int(number), column, size, int(bins.implied[number]), int(bins.flags[number]))
            search_feature(histogram, feature, node, total, rules, search.scratch, search.side_sums, best)
            histogram[column * channels : (column + size) * channels] = 0
        nodes.is_splittable[node] = gains_enough(best.gains[node], total, best.left_sums[node], rules)
        if nodes.is_splittable[node]:
            break
