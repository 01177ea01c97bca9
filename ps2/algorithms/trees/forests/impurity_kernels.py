"""Compiled loops over the bins of a feature in a node's histogram: they find the split that reduces impurity most.

A bin has ``channels`` integers: in classification, the weight of each class; in regression, the weight, and the sum of
(label minus base) times weight. If rows have weights, the last channel is the number of draws.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ps2.algorithms.trees.category_kernels import reverse
from ps2.algorithms.trees.layout import CATEGORICAL, HAS_MISSING, Array, Bools
from ps2.algorithms.trees.nonempty_bins import next_marked, row_marks
from ps2.algorithms.trees.scan_kernels import (
    CAN_SPLIT,
    CHILD_CAN_SPLIT,
    IS_SPLIT,
    ROUNDING,
    ROUNDING_GAIN,
    BinSplit,
    Feature,
    drop_bin,
    order_bins,
)
from ps2.algorithms.trees.search_kernels import (
    Scratch,
    Splits,
    feature_at,
    missing_position,
    scratch_of,
    set_sides,
    sum_left,
)
from ps2.ops.kernels import Float64s, Int64s, inline, kernel

VARIANCE, GINI, ENTROPY = range(3)
# Of a feature of many categories, one of fewer draws goes right, and at most so many are the smaller side of a split.
MIN_CATEGORY, MAX_CATEGORIES = 10, 32


class ForestRules(NamedTuple):
    """The rules of splits of random forests.

    Attributes:
        impurity: VARIANCE, GINI or ENTROPY.
        width: the number of channels without that for draws: one for each class, or two: weight and label.
        min_draws: the minimum number of draws on each side of a split.
        max_depth: the maximum number of splits above a leaf.
        max_sorted: the maximum number of categories of a feature of which any set may be a side.
        min_group: of a feature of more categories, the minimum number of draws on each side of a split, and of the
            categories between two splits that are tried.
        weight_unit, label_unit: what 1 stands for in an integer sum of weights, and of labels times weights.
        min_weight: the minimum weight on each side of a split.
        min_info_gain: the minimum gain of a split, divided by the weight of its node.
    """

    impurity: int
    width: int
    min_draws: int
    max_depth: int
    max_sorted: int
    min_group: int
    weight_unit: float
    label_unit: float
    min_weight: float
    min_info_gain: float


@inline
def weight_of(sums: Int64s, rules: ForestRules) -> int:
    """Return the integer weight in the sums of rows."""
    if rules.impurity == VARIANCE:
        return int(sums[0])
    weight = 0
    for c in range(rules.width):
        weight += int(sums[c])
    return weight


@inline
def draws_of(sums: Int64s, rules: ForestRules) -> int:
    """Return the number of draws in the sums of rows, which is their integer weight if rows have no weights."""
    return int(sums[rules.width]) if len(sums) > rules.width else weight_of(sums, rules)


@inline
def weighted_purity(sums: Int64s, weight: int, rules: ForestRules) -> float:
    """Return minus impurity times weight, without the terms that are the same for all splits of a node."""
    if weight <= 0:
        return 0.0
    if rules.impurity == VARIANCE:
        labels = sums[1] * rules.label_unit
        return labels * labels / (weight * rules.weight_unit)
    purity = 0.0
    if rules.impurity == GINI:
        for c in range(rules.width):
            purity += np.float64(sums[c]) * np.float64(sums[c])
        return purity / weight * rules.weight_unit
    for c in range(rules.width):
        if sums[c] > 0:
            purity += sums[c] * np.log2(np.float64(sums[c]))
    return (purity - weight * np.log2(np.float64(weight))) * rules.weight_unit


@inline
def may_split(heap_index: int, sums: Int64s, rules: ForestRules) -> bool:
    """Return whether a node may be split, by its weight, depth, draws and classes."""
    weight = weight_of(sums, rules)
    if heap_index >= np.int64(1) << rules.max_depth or weight * rules.weight_unit < 2 * rules.min_weight:
        return False
    if draws_of(sums, rules) < 2 * rules.min_draws:
        return False
    if rules.impurity == VARIANCE:
        return True
    largest = 0
    for c in range(rules.width):
        largest = max(largest, int(sums[c]))
    return largest < weight


@inline
def gains_enough(gain: float, total: Int64s, left: Int64s, rules: ForestRules) -> bool:
    """Return whether a split gains enough, and more than rounding errors could; gain 0: there is no split."""
    if not gain > 0.0:
        return False
    weight, left_weight = weight_of(total, rules), weight_of(left, rules)
    if gain < rules.min_info_gain * weight * rules.weight_unit * (1 - ROUNDING):
        return False
    right = total - left
    scores = abs(weighted_purity(total, weight, rules)) + abs(weighted_purity(left, left_weight, rules))
    scores += abs(weighted_purity(right, weight - left_weight, rules))
    rounding_gain = 0.0
    if rules.impurity == VARIANCE:
        # All draws of a row have the same rounding error, so the bound is larger than for distinct rows.
        draws = draws_of(total, rules)
        rounding_gain = 4 * ROUNDING_GAIN * rules.label_unit * rules.label_unit * draws / (weight * rules.weight_unit)
    return gain > max(rounding_gain, ROUNDING * scores)


@kernel
def set_verdicts(
    heap_indices: Int64s, totals: Int64s, gains: Float64s, left_sums: Int64s, rules: ForestRules, out: Bools
) -> None:
    """Set the verdicts on nodes, shape (n, 4): see ``scan_kernels.CAN_SPLIT``; left_sums: of the left sides."""
    for i in range(len(heap_indices)):
        out[i, :] = False
        out[i, CAN_SPLIT] = may_split(heap_indices[i], totals[i], rules)
        if out[i, CAN_SPLIT] and gains_enough(gains[i], totals[i], left_sums[i], rules):
            out[i, IS_SPLIT] = True
            out[i, CHILD_CAN_SPLIT] = may_split(2 * heap_indices[i], left_sums[i], rules)
            out[i, CHILD_CAN_SPLIT + 1] = may_split(2 * heap_indices[i] + 1, totals[i] - left_sums[i], rules)


@inline
def _collect(histogram: Array, feature: Feature, total: Int64s, bins: Int64s, sums: Array, implied_sums: Int64s) -> int:
    """Collect the filled bins of a feature, and return their number; the implied bin is the total minus the others."""
    channels = len(total)
    count, implied_position = 0, -1
    implied_sums[:] = total
    for bin in range(feature.size):
        begin = (feature.column + bin) * channels
        is_implied = bin == feature.implied
        is_filled = is_implied
        for c in range(channels):
            value = np.int64(histogram[begin + c])
            sums[count, c] = value
            is_filled |= value != 0
        if is_implied:
            implied_position = count
        elif is_filled:
            for c in range(channels):
                implied_sums[c] -= sums[count, c]
        if is_filled:
            bins[count] = bin
            count += 1
    if implied_position < 0:
        return count
    is_filled = False
    for c in range(channels):
        sums[implied_position, c] = implied_sums[c]
        is_filled |= implied_sums[c] != 0
    return count if is_filled else drop_bin(implied_position, count, bins, sums)


@inline
def _sort(
    flags: int,
    count: int,
    min_draws: int,
    sums: Array,
    total: Int64s,
    rules: ForestRules,
    ratios: Float64s,
    order: Int64s,
) -> int:
    """Set the order in which bins go left: categories by mean label, or by the fraction of the heaviest class.

    Categories of fewer than ``min_draws`` draws are the last ones. Return the number of the others.
    """
    candidates = count
    if flags & CATEGORICAL:
        channel = 1
        if rules.impurity != VARIANCE and rules.width > 2:
            channel = int(np.argmax(total[: rules.width]))
        for i in range(count):
            ratios[i] = sums[i, channel] / weight_of(sums[i], rules)
            if draws_of(sums[i], rules) < min_draws:
                ratios[i] = np.inf
                candidates -= 1
    order_bins(flags, count, ratios, order)
    return candidates


@inline
def _scan(
    limit: int,
    min_group: int,
    count: int,
    missing: int,
    total: Int64s,
    rules: ForestRules,
    scratch: Scratch,
    side_sums: Int64s,
    min_gain: float,
) -> BinSplit:
    """Return the best split that sends at most the first ``limit`` bins left; min_group: see ``ForestRules``."""
    sums, order = scratch.sums, scratch.order
    left, right, left_with_missing = side_sums[0], side_sums[1], side_sums[2]
    channels, weight = len(total), weight_of(total, rules)
    node_purity, min_draws = weighted_purity(total, weight, rules), max(rules.min_draws, min_group)
    gain, last_position, missing_left, group = min_gain, -1, 0, 0
    left[:] = 0
    for i in range(limit):
        for c in range(channels):
            left[c] += sums[order[i], c]
        group += draws_of(sums[order[i]], rules)
        if group < min_group:
            continue
        group = 0
        for side in range(1 if missing == count else 2):
            for c in range(channels):
                left_with_missing[c] = left[c] + (sums[missing, c] if side == 1 else 0)
                right[c] = total[c] - left_with_missing[c]
            left_weight = weight_of(left_with_missing, rules)
            right_weight = weight - left_weight
            if left_weight <= 0 or right_weight <= 0:
                continue
            if min(left_weight, right_weight) * rules.weight_unit < rules.min_weight:
                continue
            if min(draws_of(left_with_missing, rules), draws_of(right, rules)) < min_draws:
                continue
            decrease = weighted_purity(left_with_missing, left_weight, rules)
            decrease = decrease + weighted_purity(right, right_weight, rules) - node_purity
            if decrease > gain:
                gain, last_position, missing_left = decrease, i, side
    return BinSplit(gain, last_position, missing_left)


@inline
def search_feature(
    histogram: Array,
    feature: Feature,
    node: int,
    total: Int64s,
    rules: ForestRules,
    scratch: Scratch,
    side_sums: Int64s,
    best: Splits,
) -> None:
    """Search the splits of a node by a feature; side_sums: memory, shape (3, channels)."""
    bins, sums, order = scratch.bins, scratch.sums, scratch.order
    count = _collect(histogram, feature, total, bins, sums, side_sums[0])
    if count < 2:
        return
    missing, flags = missing_position(feature, count, bins), feature.flags
    has_many = flags & CATEGORICAL and feature.size - (1 if flags & HAS_MISSING else 0) > rules.max_sorted
    min_draws = MIN_CATEGORY if has_many else 0
    candidates = _sort(flags, missing, min_draws, sums, total, rules, scratch.ratios, order)
    limit, min_group = missing, 0
    if has_many:
        limit, min_group = min(MAX_CATEGORIES, (candidates + 1) // 2), rules.min_group
    split = _scan(limit, min_group, count, missing, total, rules, scratch, side_sums, best.gains[node])
    if has_many:
        reverse(order[:candidates])
        reverse_split = _scan(limit, min_group, count, missing, total, rules, scratch, side_sums, split.gain)
        if reverse_split.last_position >= 0:
            split = reverse_split
        else:
            reverse(order[:candidates])
    if split.last_position < 0:
        return
    best.gains[node] = split.gain
    sum_left(node, missing, split, scratch, best)
    left_weight = weight_of(best.left_sums[node], rules)
    is_heavy = left_weight >= weight_of(total, rules) - left_weight
    set_sides(node, feature, count, missing, split, is_heavy, scratch, best)


@kernel
def search_forest(
    nodes: Int64s, m: Array, rows: Int64s, layout_row: int, totals: Int64s, rules: ForestRules, best: Splits
) -> None:
    """Search the features that have marked bins in the histograms of nodes."""
    channels = totals.shape[1]
    layout, scratch, side_sums = m[layout_row], scratch_of(channels), np.empty((3, channels), np.int64)
    columns = m.shape[1] // channels
    for node in nodes:
        marks, histogram = row_marks(m, channels, rows[node]), m[rows[node]]
        column = next_marked(marks, 0, columns)
        while column < columns:
            feature = feature_at(layout, column, channels)
            search_feature(histogram, feature, node, totals[node], rules, scratch, side_sums, best)
            column = next_marked(marks, feature.column + feature.size, columns)
