"""Compiled decisions about one node of a growing tree: the best split by one feature, and whether it gains enough."""

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

# Below this, products of scores and hessians may have lost digits.
TINY = 1e-200


# The rounding error of a difference of nodes' scores, as a share of these scores.
ROUNDING = 8 * float(np.finfo(np.float64).eps)
# A bound, in squared units per row, of the gain that a split of equal rows seems to have because gradients are rounded
# at random: the square of a normal error of variance at most 1/4 squared units, for the largest of very many splits.
CHANCE = 100.0
# The columns of verdicts on nodes: whether a node may be split, whether its best split gains enough, and, from CHILDREN
# on, whether the left and the right child may be split.
MAY, SPLITS, CHILDREN = range(3)


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
        gradient_unit, hessian_unit: the gradient and the hessian that 1 of an integer sum stands for.
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
        max_splits: the maximum number of splits in the tree.
        max_depth: the maximum number of splits above a leaf.
        by_gain: whether the node with the largest gain is split first; else the oldest.
        min_gain: a split must gain more than this.
        min_info_gain: the minimum gain of a split, divided by the weight of its node.
        rows_per_hessian: the number of rows divided by the sum of hessians; 0: unknown.
        weight_unit: the weight that 1 of the third channel stands for; 0: hessians are weights.
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
        number: the feature's number.
        column: the column of its first bin.
        size: the number of its bins.
        implied: the bin that sparse rows do not store; -1: none.
        flags: ``layout.CATEGORICAL`` and the other flags.
    """

    number: int
    column: int
    size: int
    implied: int
    flags: int


class BinSplit(NamedTuple):
    """The best split of a feature; last: the position of the last bin on the left, -1: none gains enough."""

    gain: float
    last: int
    missing_left: int


@kernel
def weight_of(g: float, h: float, reg_lambda: float, reg_alpha: float, lower: float, upper: float) -> float:
    """Compute the best value of a leaf, within bounds, by its sums of gradients and hessians."""
    shrunk = max(g - reg_alpha, 0.0) + min(g + reg_alpha, 0.0)
    penalised = h + reg_lambda
    return min(max(-shrunk / penalised if penalised > 0.0 else 0.0, lower), upper)


@inline
def score_of(g: float, h: float, w: float, reg_lambda: float, reg_alpha: float) -> float:
    """Compute the score of a leaf of value w: minus twice its objective."""
    return -(2.0 * g * w + (h + reg_lambda) * w * w + 2.0 * reg_alpha * abs(w))


@inline
def weight_by(h: int, g: int, bound: Float64s, rules: Rules) -> float:
    """Compute the best value of a leaf, by its integer sums."""
    gradient, hessian = g * rules.gradient_unit, h * rules.hessian_unit
    return weight_of(gradient, hessian, rules.reg_lambda, rules.reg_alpha, bound[LOWER], bound[UPPER])


@inline
def score_by(h: int, g: int, bound: Float64s, rules: Rules) -> float:
    """Compute the score of a leaf of the best value, by its integer sums."""
    w = weight_by(h, g, bound, rules)
    return score_of(g * rules.gradient_unit, h * rules.hessian_unit, w, rules.reg_lambda, rules.reg_alpha)


@inline
def may_gain(
    histogram: Array, feature: Feature, channels: int, total: Int64s, rules: Rules, whole: float, min_gain: float
) -> bool:
    """Return whether a split of a feature with an implied bin may gain more than ``min_gain``, without trying splits.

    One side of a split has only rows of stored bins. Its hessians are at most the sum of these bins; its gradients are
    at most the sum of those of one sign; its score is at most the sum of the scores of its bins. The hessians of the
    other side are at least those of the implied bin. ``whole`` is the score of the node.
    """
    g_unit, h_unit, reg_lambda = rules.gradient_unit, rules.hessian_unit, rules.reg_lambda
    stored, positive, negative, separate_score = np.int64(0), np.int64(0), np.int64(0), 0.0
    for bin in range(feature.size):
        h = np.int64(histogram[(feature.column + bin) * channels])
        if bin != feature.implied and h > 0:
            stored += h
            g = np.int64(histogram[(feature.column + bin) * channels + 1])
            positive += g if g > 0 else 0
            negative += g if g < 0 else 0
            separate_score += (g * g_unit) ** 2 / (h * h_unit)
    if stored * h_unit < rules.min_hessian:
        return False
    min_h, implied_h = rules.min_hessian + reg_lambda, (total[HESSIAN] - stored) * h_unit + reg_lambda
    if implied_h <= 0.0:
        return True
    g_side = max(positive, -negative) * g_unit
    g_other = max(abs(total[GRADIENT] - positive), abs(total[GRADIENT] - negative)) * g_unit
    limit = min(g_side * g_side / min_h, separate_score) if min_h > 0.0 else separate_score
    limit += g_other * g_other / implied_h
    # The tolerance is much larger than rounding errors.
    return limit - whole + 1e-9 * (limit + abs(whole)) > min_gain


@inline
def collect(histogram: Array, feature: Feature, channels: int, total: Int64s, bins: Int64s, sums: Array) -> int:
    """Collect the bins of a feature that are not empty, and their sums; return their number."""
    count, implied_position = 0, -1
    h_rest, g_rest, n_rest = total[HESSIAN], total[GRADIENT], total[THIRD]
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
            h_rest -= h
            g_rest -= sums[count, GRADIENT]
            n_rest -= sums[count, THIRD]
        count += 1
    if implied_position < 0:
        return count
    sums[implied_position, HESSIAN], sums[implied_position, GRADIENT] = h_rest, g_rest
    sums[implied_position, THIRD] = n_rest if channels == 3 else 0
    return count if h_rest != 0 else drop_bin(implied_position, count, bins, sums)


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
    """Set the order in which bins go left: categories by their ratios, which are sorted; other bins as they are."""
    for i in range(count):
        order[i] = i
    if flags & CATEGORICAL:
        sort_pairs(ratios[:count], order)


@inline
def scan(
    flags: int,
    count: int,
    missing: int,
    sums: Array,
    order: Int64s,
    total: Int64s,
    bound: Float64s,
    rules: Rules,
    min_gain: float,
) -> BinSplit:
    """Return the best split by a feature; missing: the position of the missing values' bin; ``count``: none."""
    h_unit, min_h, reg_lambda = rules.hessian_unit, rules.min_hessian, rules.reg_lambda
    whole = score_by(total[HESSIAN], total[GRADIENT], bound, rules)
    left_h, left_g, left_n = 0, 0, 0
    best, last, missing_left, bar = min_gain, -1, 0, _bar(min_gain + whole)
    for i in range(missing):
        left_h += sums[order[i], HESSIAN]
        left_g += sums[order[i], GRADIENT]
        left_n += sums[order[i], THIRD]
        for side in range(1 if missing == count else 2):
            hl, gl, nl = left_h, left_g, left_n
            if side == 1:
                hl, gl, nl = hl + sums[missing, HESSIAN], gl + sums[missing, GRADIENT], nl + sums[missing, THIRD]
            hr, nr = total[HESSIAN] - hl, total[THIRD] - nl
            if hr <= 0 or hl * h_unit < min_h or hr * h_unit < min_h or min(nl, nr) < rules.min_third:
                continue
            gl_real, gr_real = gl * rules.gradient_unit, (total[GRADIENT] - gl) * rules.gradient_unit
            if _is_less(gl_real, hl * h_unit + reg_lambda, gr_real, hr * h_unit + reg_lambda, bar):
                continue
            gain = _gain_of(gl_real, hl * h_unit, gr_real, hr * h_unit, flags, bound, rules, whole)
            if gain > best:
                best, last, missing_left, bar = gain, i, side, _bar(gain + whole)
    return BinSplit(best, last, missing_left)


@inline
def scan_categories(
    is_one_hot: bool,
    count: int,
    missing: int,
    sums: Array,
    order: Int64s,
    ratios: Float64s,
    total: Int64s,
    bound: Float64s,
    rules: Rules,
    min_gain: float,
) -> BinSplit:
    """Return the best split by a categorical feature; see ``scan``. The first bins in ``order`` are the left ones."""
    categories, candidates = rules.categories, 0
    for i in range(missing):
        if is_one_hot or sums[i, THIRD] >= categories.min_category:
            hessian = sums[i, HESSIAN] * rules.hessian_unit + rules.reg_lambda + categories.smooth
            ratios[candidates] = sums[i, GRADIENT] * rules.gradient_unit / hessian
            order[candidates] = i
            candidates += 1
    if is_one_hot:
        split = _scan_single(count, missing, sums, total, bound, rules, min_gain)
        if split.last >= 0:
            order[0], order[split.last] = split.last, 0
            split = BinSplit(split.gain, 0, split.missing_left)
    else:
        sort_pairs(ratios[:candidates], order)
        split = _scan_sorted(candidates, count, missing, sums, order, total, bound, rules, min_gain)
        reverse(order[:candidates])
        reverse_split = _scan_sorted(candidates, count, missing, sums, order, total, bound, rules, split.gain)
        if reverse_split.last >= 0:
            split = reverse_split
        else:
            reverse(order[:candidates])
        for i in range(missing):
            if sums[i, THIRD] < categories.min_category:
                order[candidates] = i
                candidates += 1
    if missing < count:
        h, g = total[HESSIAN] - sums[missing, HESSIAN], total[GRADIENT] - sums[missing, GRADIENT]
        n = total[THIRD] - sums[missing, THIRD]
        gain = _gain_of_set(h, g, n, total, bound, rules, 0.0, 0)
        if gain > split.gain:
            split = BinSplit(gain, missing - 1, 0)
    return split


@inline
def reverse(values: Int64s) -> None:
    """Reverse the order of values, in place."""
    for i in range(len(values) // 2):
        values[i], values[len(values) - 1 - i] = values[len(values) - 1 - i], values[i]


@inline
def _scan_single(
    count: int, missing: int, sums: Array, total: Int64s, bound: Float64s, rules: Rules, min_gain: float
) -> BinSplit:
    """Return the best split that sends one category left; last: its position among the filled bins."""
    best, last, missing_left = min_gain, -1, 0
    for i in range(missing):
        for side in range(1 if missing == count else 2):
            h, g, n = sums[i, HESSIAN], sums[i, GRADIENT], sums[i, THIRD]
            if side == 1:
                h, g, n = h + sums[missing, HESSIAN], g + sums[missing, GRADIENT], n + sums[missing, THIRD]
            gain = _gain_of_set(h, g, n, total, bound, rules, 0.0, 0)
            if gain > best:
                best, last, missing_left = gain, i, side
    return BinSplit(best, last, missing_left)


@inline
def _scan_sorted(
    candidates: int,
    count: int,
    missing: int,
    sums: Array,
    order: Int64s,
    total: Int64s,
    bound: Float64s,
    rules: Rules,
    min_gain: float,
) -> BinSplit:
    """Return the best split that sends the first of the sorted categories left, at most half of them."""
    categories = rules.categories
    left_h, left_g, left_n, group = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    best, last, missing_left = min_gain, -1, 0
    for i in range(min(categories.max_categories, (candidates + 1) // 2)):
        left_h += sums[order[i], HESSIAN]
        left_g += sums[order[i], GRADIENT]
        left_n += sums[order[i], THIRD]
        group += sums[order[i], THIRD]
        if group < categories.min_group:
            continue
        group = np.int64(0)
        for side in range(1 if missing == count else 2):
            h, g, n = left_h, left_g, left_n
            if side == 1:
                h, g, n = h + sums[missing, HESSIAN], g + sums[missing, GRADIENT], n + sums[missing, THIRD]
            gain = _gain_of_set(h, g, n, total, bound, rules, categories.category_lambda, categories.min_group)
            if gain > best:
                best, last, missing_left = gain, i, side
    return BinSplit(best, last, missing_left)


@inline
def _gain_of_set(
    h: int, g: int, n: int, total: Int64s, bound: Float64s, rules: Rules, category_lambda: float, min_right: int
) -> float:
    """Return the gain of a split by its left sums; -inf: a side is too light."""
    right_h, right_n = total[HESSIAN] - h, total[THIRD] - n
    hl, hr = h * rules.hessian_unit, right_h * rules.hessian_unit
    if right_h <= 0 or min(hl, hr) < rules.min_hessian or min(n, right_n) < rules.min_third or right_n < min_right:
        return -np.inf
    gl, gr = g * rules.gradient_unit, (total[GRADIENT] - g) * rules.gradient_unit
    reg_lambda, reg_alpha = rules.reg_lambda + category_lambda, rules.reg_alpha
    w_left = weight_of(gl, hl, reg_lambda, reg_alpha, bound[LOWER], bound[UPPER])
    w_right = weight_of(gr, hr, reg_lambda, reg_alpha, bound[LOWER], bound[UPPER])
    right = score_of(gr, hr, w_right, reg_lambda, reg_alpha)
    node = score_by(total[HESSIAN], total[GRADIENT], bound, rules)
    return score_of(gl, hl, w_left, reg_lambda, reg_alpha) + (right - node)


@inline
def scan_full(
    histogram: Array,
    feature: Feature,
    channels: int,
    total: Int64s,
    bound: Float64s,
    rules: Rules,
    whole: float,
    min_gain: float,
) -> BinSplit:
    """Do what ``scan`` does, for a numeric feature without missing values, if the histogram stores all bins."""
    h_unit, min_h, reg_lambda = rules.hessian_unit, rules.min_hessian, rules.reg_lambda
    left_h, left_g, left_n = np.int64(0), np.int64(0), np.int64(0)
    best, last, bar = min_gain, -1, _bar(min_gain + whole)
    for bin in range(feature.size):
        slot = (feature.column + bin) * channels
        h = np.int64(histogram[slot])
        if h == 0:
            continue
        left_h += h
        left_g += np.int64(histogram[slot + 1])
        if channels == 3:
            left_n += np.int64(histogram[slot + 2])
        hl, hr, nr = left_h * h_unit, (total[HESSIAN] - left_h) * h_unit, total[THIRD] - left_n
        if left_h >= total[HESSIAN] or hr < min_h:
            break
        if hl < min_h or min(left_n, nr) < rules.min_third:
            continue
        gl, gr = left_g * rules.gradient_unit, (total[GRADIENT] - left_g) * rules.gradient_unit
        if _is_less(gl, hl + reg_lambda, gr, hr + reg_lambda, bar):
            continue
        gain = _gain_of(gl, hl, gr, hr, feature.flags, bound, rules, whole)
        if gain > best:
            best, last, bar = gain, bin, _bar(gain + whole)
    return BinSplit(best, last, 0)


@inline
def _gain_of(
    gl: float, hl: float, gr: float, hr: float, flags: int, bound: Float64s, rules: Rules, whole: float
) -> float:
    """Return the gain of a split, by the gradients and hessians of both sides; -inf if it breaks a constraint."""
    reg_lambda, reg_alpha = rules.reg_lambda, rules.reg_alpha
    w_left = weight_of(gl, hl, reg_lambda, reg_alpha, bound[LOWER], bound[UPPER])
    w_right = weight_of(gr, hr, reg_lambda, reg_alpha, bound[LOWER], bound[UPPER])
    if (flags & INCREASING and w_left > w_right) or (flags & DECREASING and w_left < w_right):
        return -np.inf
    right = score_of(gr, hr, w_right, reg_lambda, reg_alpha)
    return score_of(gl, hl, w_left, reg_lambda, reg_alpha) + (right - whole)


@inline
def _bar(score: float) -> float:
    """Return a little less than the score that two sides must reach, so that rounding loses no split."""
    return score * (1.0 - 1e-9)


@inline
def _is_less(gl: float, hl: float, gr: float, hr: float, bar: float) -> bool:
    """Return whether two sides certainly score below a bar: a score is at most gradient^2 / (hessian + penalty)."""
    scaled_bar = bar * (hl * hr)
    return scaled_bar > TINY and gl * gl * hr + gr * gr * hl < scaled_bar


@kernel
def may_split(place: int, total: Int64s, max_depth: int, rules: Rules) -> bool:
    """Return whether a split of a node can have two heavy enough sides; place: see ``tree_kernels.Nodes``."""
    is_heavy = total[HESSIAN] > 1 and total[HESSIAN] * rules.hessian_unit >= 2 * rules.min_hessian
    return bool(place < np.int64(1) << max_depth and is_heavy and total[THIRD] >= 2 * rules.min_third)


@kernel
def gains_enough(gain: float, total: Int64s, left: Int64s, bound: Float64s, rules: Rules, limits: Limits) -> bool:
    """Return whether a split gains enough, and more than rounding errors may; no split: a negative gain."""
    if not gain > limits.min_gain:
        return False
    hessian = total[HESSIAN] * rules.hessian_unit
    weight = total[THIRD] * limits.weight_unit if limits.weight_unit > 0.0 else hessian
    if limits.min_info_gain > 0 and gain < limits.min_info_gain * weight * (1 - ROUNDING):
        return False
    h, g, left_h, left_g = total[HESSIAN], total[GRADIENT], left[HESSIAN], left[GRADIENT]
    scores = abs(score_by(h, g, bound, rules)) + abs(score_by(left_h, left_g, bound, rules))
    scores += abs(score_by(h - left_h, g - left_g, bound, rules))
    g_unit, h_unit = rules.gradient_unit, weight_by(h, g, bound, rules) * rules.hessian_unit
    chance = CHANCE * (g_unit * g_unit + h_unit * h_unit) * limits.rows_per_hessian
    return gain > max(chance, ROUNDING * scores)


@kernel
def judge(
    places: Int64s,
    totals: Int64s,
    bounds: Float64s,
    gains: Float64s,
    lefts: Int64s,
    rules: Rules,
    limits: Limits,
    out: Bools,
) -> None:
    """Set the verdicts on nodes that may be split, shape (n, 4); columns: MAY, SPLITS, CHILDREN; lefts: left sums."""
    for i in range(len(places)):
        out[i, MAY] = True
        if gains_enough(gains[i], totals[i], lefts[i], bounds[i], rules, limits):
            out[i, SPLITS] = True
            out[i, CHILDREN] = may_split(2 * places[i], lefts[i], limits.max_depth, rules)
            out[i, CHILDREN + 1] = may_split(2 * places[i] + 1, totals[i] - lefts[i], limits.max_depth, rules)
