"""Compiled loops that find the best split of a node by a categorical feature, for ``search_kernels``."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.trees.ascending import sort_pairs
from ps2.algorithms.trees.layout import GRADIENT, HESSIAN, LOWER, THIRD, UPPER, Array
from ps2.algorithms.trees.scan_kernels import BinSplit, Rules, best_leaf_value, leaf_score, sums_of_side
from ps2.ops.kernels import Float64s, Int64s, inline


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
    node_score: float,
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
        split = _scan_single(count, missing, sums, total, bound, rules, node_score, min_gain)
        if split.last_position >= 0:
            order[0], order[split.last_position] = split.last_position, 0
            split = BinSplit(split.gain, 0, split.missing_left)
    else:
        sort_pairs(ratios[:candidates], order)
        split = _scan_sorted(candidates, count, missing, sums, order, total, bound, rules, node_score, min_gain)
        reverse(order[:candidates])
        reverse_split = _scan_sorted(
            candidates, count, missing, sums, order, total, bound, rules, node_score, split.gain
        )
        if reverse_split.last_position >= 0:
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
        gain = _gain_of_set(h, g, n, total, bound, rules, node_score, 0.0, 0)
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
    count: int,
    missing: int,
    sums: Array,
    total: Int64s,
    bound: Float64s,
    rules: Rules,
    node_score: float,
    min_gain: float,
) -> BinSplit:
    """Return the best split that sends one category left; last_position: that of the category among the filled bins."""
    best, last_position, missing_left = min_gain, -1, 0
    for i in range(missing):
        for side in range(1 if missing == count else 2):
            h, g, n = sums_of_side(sums[i, HESSIAN], sums[i, GRADIENT], sums[i, THIRD], side, missing, sums)
            gain = _gain_of_set(h, g, n, total, bound, rules, node_score, 0.0, 0)
            if gain > best:
                best, last_position, missing_left = gain, i, side
    return BinSplit(best, last_position, missing_left)


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
    node_score: float,
    min_gain: float,
) -> BinSplit:
    """Return the best split that sends the first of the sorted categories left, at most half of them."""
    categories = rules.categories
    left_h, left_g, left_n, group = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    best, last_position, missing_left = min_gain, -1, 0
    for i in range(min(categories.max_categories, (candidates + 1) // 2)):
        left_h += sums[order[i], HESSIAN]
        left_g += sums[order[i], GRADIENT]
        left_n += sums[order[i], THIRD]
        group += sums[order[i], THIRD]
        if group < categories.min_group:
            continue
        group = np.int64(0)
        for side in range(1 if missing == count else 2):
            h, g, n = sums_of_side(left_h, left_g, left_n, side, missing, sums)
            penalty, min_right = categories.category_lambda, categories.min_group
            gain = _gain_of_set(h, g, n, total, bound, rules, node_score, penalty, min_right)
            if gain > best:
                best, last_position, missing_left = gain, i, side
    return BinSplit(best, last_position, missing_left)


@inline
def _gain_of_set(
    h: int,
    g: int,
    n: int,
    total: Int64s,
    bound: Float64s,
    rules: Rules,
    node_score: float,
    category_lambda: float,
    min_right: int,
) -> float:
    """Return the gain of a split by its left sums; -inf: a side is too light."""
    right_h, right_n = total[HESSIAN] - h, total[THIRD] - n
    hl, hr = h * rules.hessian_unit, right_h * rules.hessian_unit
    if right_h <= 0 or min(hl, hr) < rules.min_hessian or min(n, right_n) < rules.min_third or right_n < min_right:
        return -np.inf
    gl, gr = g * rules.gradient_unit, (total[GRADIENT] - g) * rules.gradient_unit
    reg_lambda, reg_alpha = rules.reg_lambda + category_lambda, rules.reg_alpha
    left_value = best_leaf_value(gl, hl, reg_lambda, reg_alpha, bound[LOWER], bound[UPPER])
    right_value = best_leaf_value(gr, hr, reg_lambda, reg_alpha, bound[LOWER], bound[UPPER])
    right = leaf_score(gr, hr, right_value, reg_lambda, reg_alpha)
    return leaf_score(gl, hl, left_value, reg_lambda, reg_alpha) + (right - node_score)
