"""Compiled decisions about a node of a boosted tree: its best split by a feature, and whether a split gains enough."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ps2.algorithms.trees.ascending import sort_pairs
from ps2.algorithms.trees.layout import (
    CATEGORICAL,
    DECREASING,
    GRADIENT,
    HESSIAN,
    INCREASING,
    LOWER,
    THIRD,
    UPPER,
    Array,
    Bools,
)
from ps2.ops.kernels import Float64s, Int64s, inline, kernel

# A product of scores and hessians below this limit may have lost digits.
MIN_PRODUCT = 1e-200
# The rounding error of a difference of nodes' scores, as a fraction of these scores.
ROUNDING = 8 * float(np.finfo(np.float64).eps)
# An upper bound, in squared gradient units per row, of the gain that a split of equal rows seems to have because
# gradients are rounded at random: a row's error has a variance of at most 1/4, and very many splits are tried.
ROUNDING_GAIN = 100.0
# The columns of verdicts on nodes: whether a node can be split, whether its best split gains enough, and, from
# CHILD_CAN_SPLIT on, whether the left and the right child can be split.
CAN_SPLIT, IS_SPLIT, CHILD_CAN_SPLIT = range(3)


class CategoryRules(NamedTuple):
    """The rules of splits by categories, which keep rare categories from fitting noise (LightGBM's).

    Attributes:
        smooth: the number that is added to each category's hessian before categories are sorted by gradient / hessian.
        category_lambda: the L2 penalty on both sides of a split, in addition to that of ``Rules``.
        max_categories: the maximum number of categories on the left side.
        min_category: the minimum third sum of a category that can go left.
        min_group: the minimum third sum of the categories between two splits that are tried, and of the right side.
        one_hot: the maximum number of categories of a feature whose splits send one category left. Only ``Rules``
            apply to these splits.
    """

    smooth: float
    category_lambda: float
    max_categories: int
    min_category: int
    min_group: int
    one_hot: int


class Rules(NamedTuple):
    """The rules of splits of boosted trees.

    Attributes:
        gradient_unit, hessian_unit: the gradient and the hessian that 1 in an integer sum stands for.
        reg_lambda, reg_alpha: the L2 and L1 penalties on leaves.
        min_hessian: the minimum sum of hessians on each side of a split.
        min_third: the minimum sum of the third channel on each side of a split.
        categories: the rules of splits by categories.
    """

    gradient_unit: float
    hessian_unit: float
    reg_lambda: float
    reg_alpha: float
    min_hessian: float
    min_third: int
    categories: CategoryRules


class Limits(NamedTuple):
    """The limits of the growth of a tree.

    Attributes:
        max_depth: the maximum number of splits above a leaf.
        by_gain: whether the node with the largest gain is split first; else the oldest.
        min_gain: a split must gain more than this.
        min_info_gain: the minimum gain of a split, divided by the weight of its node.
        rows_per_hessian: the number of rows divided by the sum of hessians; 0: unknown.
        weight_unit: the weight that 1 in the third channel stands for; 0: hessians are weights.
    """

    max_splits: int
    max_depth: int
    by_gain: bool
    min_gain: float
    min_info_gain: float
    rows_per_hessian: float
    weight_unit: float


class Feature(NamedTuple):
    """The bins of a feature in a histogram.

    Attributes:
        column: the column of its first bin.
        implied: the bin that sparse rows do not store; -1: none.
        flags: ``layout.CATEGORICAL`` and the other flags.
    """

    number: int
    column: int
    size: int
    implied: int
    flags: int


class BinSplit(NamedTuple):
    """The best split by a feature; last_position: the position of the last bin on the left; -1: none gains enough."""

    gain: float
    last_position: int
    missing_left: int


@kernel
def best_leaf_value(g: float, h: float, reg_lambda: float, reg_alpha: float, lower: float, upper: float) -> float:
    """Compute the best value of a leaf, within bounds, from its sums of gradients and hessians."""
    shrunk = max(g - reg_alpha, 0.0) + min(g + reg_alpha, 0.0)
    penalised = h + reg_lambda
    return min(max(-shrunk / penalised if penalised > 0.0 else 0.0, lower), upper)


@inline
def leaf_score(g: float, h: float, w: float, reg_lambda: float, reg_alpha: float) -> float:
    """Compute the score of a leaf of value w: minus twice its objective."""
    return -(2.0 * g * w + (h + reg_lambda) * w * w + 2.0 * reg_alpha * abs(w))


@inline
def leaf_value_of_sums(h: int, g: int, bound: Float64s, rules: Rules) -> float:
    """Compute the best value of a leaf from its integer sums."""
    gradient, hessian = g * rules.gradient_unit, h * rules.hessian_unit
    return best_leaf_value(gradient, hessian, rules.reg_lambda, rules.reg_alpha, bound[LOWER], bound[UPPER])


@inline
def score_of_sums(h: int, g: int, bound: Float64s, rules: Rules) -> float:
    """Compute the score of a leaf of the best value from its integer sums."""
    w = leaf_value_of_sums(h, g, bound, rules)
    return leaf_score(g * rules.gradient_unit, h * rules.hessian_unit, w, rules.reg_lambda, rules.reg_alpha)


@inline
def may_gain(
    histogram: Array, feature: Feature, channels: int, total: Int64s, rules: Rules, node_score: float, min_gain: float
) -> bool:
    """Return whether a split of a feature with an implied bin may gain more than ``min_gain``, without trying splits.

    One side of a split has only rows of stored bins. Its hessians are at most the sum of these bins; its gradients are
    at most the sum of those of one sign; its score is at most the sum of the scores of its bins. The hessians of the
    other side are at least those of the implied bin. ``node_score`` is the score of the node.
    """
    g_unit, h_unit, reg_lambda = rules.gradient_unit, rules.hessian_unit, rules.reg_lambda
    stored, positive, negative, sum_of_bin_scores = np.int64(0), np.int64(0), np.int64(0), 0.0
    for bin in range(feature.size):
        h = np.int64(histogram[(feature.column + bin) * channels])
        if bin != feature.implied and h > 0:
            stored += h
            g = np.int64(histogram[(feature.column + bin) * channels + 1])
            positive += g if g > 0 else 0
            negative += g if g < 0 else 0
            sum_of_bin_scores += (g * g_unit) ** 2 / (h * h_unit)
    if stored * h_unit < rules.min_hessian:
        return False
    min_h, implied_h = rules.min_hessian + reg_lambda, (total[HESSIAN] - stored) * h_unit + reg_lambda
    if implied_h <= 0.0:
        return True
    g_side = max(positive, -negative) * g_unit
    g_other = max(abs(total[GRADIENT] - positive), abs(total[GRADIENT] - negative)) * g_unit
    limit = min(g_side * g_side / min_h, sum_of_bin_scores) if min_h > 0.0 else sum_of_bin_scores
    limit += g_other * g_other / implied_h
    # The tolerance is much larger than rounding errors.
    return limit - node_score + 1e-9 * (limit + abs(node_score)) > min_gain


@inline
def collect(histogram: Array, feature: Feature, channels: int, total: Int64s, bins: Int64s, sums: Array) -> int:
    """Collect the filled bins of a feature, and their sums, shape (bins, 3); return their number."""
    count, implied_position = 0, -1
    implied_h, implied_g, implied_n = total[HESSIAN], total[GRADIENT], total[THIRD]
    for bin in range(feature.size):
        h = np.int64(histogram[(feature.column + bin) * channels])
        if bin == feature.implied:
            implied_position = count
        elif h == 0:
            continue
        bins[count] = bin
        sums[count, HESSIAN], sums[count, THIRD] = h, 0
        sums[count, GRADIENT] = histogram[(feature.column + bin) * channels + 1]
        if channels == 3:
            sums[count, THIRD] = histogram[(feature.column + bin) * channels + 2]
        if bin != feature.implied:
            implied_h -= h
            implied_g -= sums[count, GRADIENT]
            implied_n -= sums[count, THIRD]
        count += 1
    if implied_position < 0:
        return count
    sums[implied_position, HESSIAN], sums[implied_position, GRADIENT] = implied_h, implied_g
    sums[implied_position, THIRD] = implied_n if channels == 3 else 0
    return count if implied_h != 0 else drop_bin(implied_position, count, bins, sums)


@inline
def drop_bin(position: int, count: int, bins: Int64s, sums: Array) -> int:
    """Drop one of the collected bins; return the number of the others."""
    for i in range(position + 1, count):
        bins[i - 1] = bins[i]
        for c in range(sums.shape[1]):
            sums[i - 1, c] = sums[i, c]
    return count - 1


@inline
def order_bins(flags: int, count: int, ratios: Float64s, order: Int64s) -> None:
    """Set the order in which bins go left: categories by their ratios, which are sorted; other bins by position."""
    for i in range(count):
        order[i] = i
    if flags & CATEGORICAL:
        sort_pairs(ratios[:count], order)


@inline
def sums_of_side(h: int, g: int, n: int, side: int, missing: int, sums: Array) -> tuple[int, int, int]:
    """Return the sums of the left bins; with side 1, the bin of missing values, at position ``missing``, is one."""
    if side == 1:
        return h + sums[missing, HESSIAN], g + sums[missing, GRADIENT], n + sums[missing, THIRD]
    return h, g, n


@inline
def scan(
    flags: int,
    count: int,
    missing: int,
    sums: Array,
    total: Int64s,
    bound: Float64s,
    rules: Rules,
    node_score: float,
    min_gain: float,
) -> BinSplit:
    """Return the best split by a numeric feature.

    Args:
        missing: the position of the missing values' bin; ``count``: it is empty.
        node_score: the score of the node.
    """
    h_unit, min_h, reg_lambda = rules.hessian_unit, rules.min_hessian, rules.reg_lambda
    sum_h, sum_g, sum_n = 0, 0, 0
    best, last_position, missing_left, min_score = min_gain, -1, 0, _slightly_below(min_gain + node_score)
    for i in range(missing):
        sum_h += sums[i, HESSIAN]
        sum_g += sums[i, GRADIENT]
        sum_n += sums[i, THIRD]
        for side in range(1 if missing == count else 2):
            h_left, g_left, n_left = sums_of_side(sum_h, sum_g, sum_n, side, missing, sums)
            h_right, g_right, n_right = total[HESSIAN] - h_left, total[GRADIENT] - g_left, total[THIRD] - n_left
            if h_right <= 0 or min(h_left * h_unit, h_right * h_unit) < min_h or min(n_left, n_right) < rules.min_third:
                continue
            gl, gr, hl, hr = (
                g_left * rules.gradient_unit,
                g_right * rules.gradient_unit,
                h_left * h_unit,
                h_right * h_unit,
            )
            if _scores_below(gl, hl + reg_lambda, gr, hr + reg_lambda, min_score):
                continue
            gain = _gain_of(gl, hl, gr, hr, flags, bound, rules, node_score)
            if gain > best:
                best, last_position, missing_left, min_score = gain, i, side, _slightly_below(gain + node_score)
    return BinSplit(best, last_position, missing_left)


class Prefixes(NamedTuple):
    """The sums of a feature's bins up to each bin, in integer units."""

    hessians: Float64s
    gradients: Float64s
    thirds: Int64s


@inline
def may_gain_full(
    histogram: Array,
    feature: Feature,
    channels: int,
    total: Int64s,
    rules: Rules,
    node_score: float,
    min_gain: float,
    prefixes: Prefixes,
) -> bool:
    """Return whether ``scan_full`` may find a split; its loops have no branches, unlike those of ``scan_full``.

    It rejects only what ``scan_full`` rejects: its tolerances are much larger than rounding errors.
    """
    hessians, gradients, thirds = prefixes
    min_score = _slightly_below(min_gain + node_score)
    if min_score < MIN_PRODUCT:
        return True
    # Indices are unsigned: see ``growing_kernels.add_dense``.
    one, begin, end = np.uint64(1), np.uint64(0), np.uint64(0)
    slot, sum_h, sum_g, sum_n = np.uint64(feature.column * channels), np.int64(0), np.int64(0), np.int64(0)
    for bin in range(np.uint64(feature.size)):
        sum_h += np.int64(histogram[slot])
        sum_g += np.int64(histogram[slot + one])
        if channels == 3:
            sum_n += np.int64(histogram[slot + one + one])
        hessians[bin], gradients[bin], thirds[bin] = sum_h, sum_g, sum_n
        slot += np.uint64(channels)
        end += np.uint64(sum_h < total[HESSIAN])
    # The splits that leave enough on both sides are those after bins ``begin`` to ``end - 1``.
    min_h, total_h = _slightly_below(rules.min_hessian) / rules.hessian_unit, np.float64(total[HESSIAN])
    while begin < end and (hessians[begin] < max(min_h, 1.0) or thirds[begin] < rules.min_third):
        begin += one
    max_h, max_n = total_h - min_h + 1e-9 * total_h, total[THIRD] - rules.min_third
    while begin < end and (hessians[end - one] > max_h or thirds[end - one] > max_n):
        end -= one
    if begin == end:
        return False
    if total_h - hessians[end - one] < 1e-6 * total_h:
        return True  # a difference of floats is not exact enough
    reg_lambda, total_g = rules.reg_lambda / rules.hessian_unit, np.float64(total[GRADIENT])
    min_score *= rules.hessian_unit / rules.gradient_unit / rules.gradient_unit
    count = 0
    for bin in range(begin, end):
        g_left, g_right = gradients[bin], total_g - gradients[bin]
        h_left, h_right = hessians[bin] + reg_lambda, total_h - hessians[bin] + reg_lambda
        # See ``_scores_below``.
        count += g_left * g_left * h_right + g_right * g_right * h_left >= min_score * (h_left * h_right)
    return count > 0


@inline
def scan_full(
    histogram: Array,
    feature: Feature,
    channels: int,
    total: Int64s,
    bound: Float64s,
    rules: Rules,
    node_score: float,
    min_gain: float,
) -> BinSplit:
    """Do what ``scan`` does, for a numeric feature without missing values, if the histogram stores all bins."""
    h_unit, min_h, reg_lambda = rules.hessian_unit, rules.min_hessian, rules.reg_lambda
    sum_h, sum_g, sum_n = np.int64(0), np.int64(0), np.int64(0)
    best, last_position, min_score = min_gain, -1, _slightly_below(min_gain + node_score)
    for bin in range(feature.size):
        slot = (feature.column + bin) * channels
        h = np.int64(histogram[slot])
        if h == 0:
            continue
        sum_h += h
        sum_g += np.int64(histogram[slot + 1])
        if channels == 3:
            sum_n += np.int64(histogram[slot + 2])
        h_left, h_right, n_right = sum_h * h_unit, (total[HESSIAN] - sum_h) * h_unit, total[THIRD] - sum_n
        if sum_h >= total[HESSIAN] or h_right < min_h:
            break
        if h_left < min_h or min(sum_n, n_right) < rules.min_third:
            continue
        g_left, g_right = sum_g * rules.gradient_unit, (total[GRADIENT] - sum_g) * rules.gradient_unit
        if _scores_below(g_left, h_left + reg_lambda, g_right, h_right + reg_lambda, min_score):
            continue
        gain = _gain_of(g_left, h_left, g_right, h_right, feature.flags, bound, rules, node_score)
        if gain > best:
            best, last_position, min_score = gain, bin, _slightly_below(gain + node_score)
    return BinSplit(best, last_position, 0)


@inline
def _gain_of(
    gl: float, hl: float, gr: float, hr: float, flags: int, bound: Float64s, rules: Rules, node_score: float
) -> float:
    """Return the gain of a split from the gradients g and hessians h of both sides; -inf if it breaks a constraint."""
    reg_lambda, reg_alpha = rules.reg_lambda, rules.reg_alpha
    left_value = best_leaf_value(gl, hl, reg_lambda, reg_alpha, bound[LOWER], bound[UPPER])
    right_value = best_leaf_value(gr, hr, reg_lambda, reg_alpha, bound[LOWER], bound[UPPER])
    if (flags & INCREASING and left_value > right_value) or (flags & DECREASING and left_value < right_value):
        return -np.inf
    right = leaf_score(gr, hr, right_value, reg_lambda, reg_alpha)
    return leaf_score(gl, hl, left_value, reg_lambda, reg_alpha) + (right - node_score)


@inline
def _slightly_below(score: float) -> float:
    """Return slightly less than a score that two sides must reach, so that rounding errors reject no split."""
    return score * (1.0 - 1e-9)


@inline
def _scores_below(g_left: float, h_left: float, g_right: float, h_right: float, min_score: float) -> bool:
    """Return whether two sides certainly score below a minimum: a score is at most gradient^2 / (hessian + penalty)."""
    scaled_min_score = min_score * (h_left * h_right)
    return scaled_min_score > MIN_PRODUCT and g_left * g_left * h_right + g_right * g_right * h_left < scaled_min_score


@kernel
def may_split(heap_index: int, total: Int64s, max_depth: int, rules: Rules) -> bool:
    """Return whether both sides of a split of a node can be heavy enough; heap_index: see ``tree_kernels.Nodes``."""
    is_heavy = total[HESSIAN] > 1 and total[HESSIAN] * rules.hessian_unit >= 2 * rules.min_hessian
    return bool(heap_index < np.int64(1) << max_depth and is_heavy and total[THIRD] >= 2 * rules.min_third)


@kernel
def gains_enough(gain: float, total: Int64s, left: Int64s, bound: Float64s, rules: Rules, limits: Limits) -> bool:
    """Return whether a split gains enough, and more than rounding errors could; a negative gain: there is no split."""
    if not gain > limits.min_gain:
        return False
    hessian = total[HESSIAN] * rules.hessian_unit
    weight = total[THIRD] * limits.weight_unit if limits.weight_unit > 0.0 else hessian
    if limits.min_info_gain > 0 and gain < limits.min_info_gain * weight * (1 - ROUNDING):
        return False
    h, g, left_h, left_g = total[HESSIAN], total[GRADIENT], left[HESSIAN], left[GRADIENT]
    scores = abs(score_of_sums(h, g, bound, rules)) + abs(score_of_sums(left_h, left_g, bound, rules))
    scores += abs(score_of_sums(h - left_h, g - left_g, bound, rules))
    g_unit, h_unit = rules.gradient_unit, leaf_value_of_sums(h, g, bound, rules) * rules.hessian_unit
    rounding_gain = ROUNDING_GAIN * (g_unit * g_unit + h_unit * h_unit) * limits.rows_per_hessian
    return gain > max(rounding_gain, ROUNDING * scores)


@kernel
def set_verdicts(
    heap_indices: Int64s,
    totals: Int64s,
    bounds: Float64s,
    gains: Float64s,
    left_sums: Int64s,
    rules: Rules,
    limits: Limits,
    out: Bools,
) -> None:
    """Set the verdicts on nodes that can be split, shape (n, 4): see CAN_SPLIT; left_sums: sums of the left sides."""
    for i in range(len(heap_indices)):
        out[i, CAN_SPLIT] = True
        if gains_enough(gains[i], totals[i], left_sums[i], bounds[i], rules, limits):
            out[i, IS_SPLIT] = True
            left, right, max_depth = left_sums[i], totals[i] - left_sums[i], limits.max_depth
            out[i, CHILD_CAN_SPLIT] = may_split(2 * heap_indices[i], left, max_depth, rules)
            out[i, CHILD_CAN_SPLIT + 1] = may_split(2 * heap_indices[i] + 1, right, max_depth, rules)
