"""Compiled loops over the bins of one feature in the histogram of one node: which of its splits gains most."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ps2.algorithms.trees.ascending import sort_pairs
from ps2.algorithms.trees.layout import CATEGORICAL, DECREASING, GRADIENT, HESSIAN, INCREASING, LOWER, THIRD, UPPER
from ps2.ops.kernels import Float64s, Int64s, inline, kernel
from ps2.ops.table import Array

# Below this, products of scores and hessians may have lost digits.
TINY = 1e-200


class Rules(NamedTuple):
    """How splits of boosted trees are judged.

    Attributes:
        gradient_unit: the gradient that 1 of a whole sum stands for; hessian_unit: the hessian.
        reg_lambda, reg_alpha: the L2 and L1 penalties on leaves.
        min_hessian: the smallest sum of hessians on each side of a split.
        min_third: the smallest total of the third channel on each side of a split.
    """

    gradient_unit: float
    hessian_unit: float
    reg_lambda: float
    reg_alpha: float
    min_hessian: float
    min_third: int


class Feature(NamedTuple):
    """A feature in a histogram.

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
    """The best split of one feature.

    Attributes:
        gain: its gain.
        last: the position of the last bin on the left, in the order of bins; -1: no split gains enough.
        missing_left: 1 if missing values go left, else 0.
    """

    gain: float
    last: int
    missing_left: int


@kernel
def weight_of(g: float, h: float, reg_lambda: float, reg_alpha: float, lower: float, upper: float) -> float:
    """Compute the weight that is best for a node, within bounds."""
    shrunk = max(g - reg_alpha, 0.0) + min(g + reg_alpha, 0.0)
    heavy = h + reg_lambda
    return min(max(-shrunk / heavy if heavy > 0.0 else 0.0, lower), upper)


@inline
def score_of(g: float, h: float, w: float, reg_lambda: float, reg_alpha: float) -> float:
    """Compute minus twice the objective of a node of weight w."""
    return -(2.0 * g * w + (h + reg_lambda) * w * w + 2.0 * reg_alpha * abs(w))


@inline
def best_score(total: Int64s, bound: Float64s, rules: Rules) -> float:
    """Compute minus twice the objective of a node by its sums, with the weight that is best for it."""
    g, h = total[GRADIENT] * rules.gradient_unit, total[HESSIAN] * rules.hessian_unit
    w = weight_of(g, h, rules.reg_lambda, rules.reg_alpha, bound[LOWER], bound[UPPER])
    return score_of(g, h, w, rules.reg_lambda, rules.reg_alpha)


@inline
def may_gain(
    histogram: Array, feature: Feature, channels: int, total: Int64s, rules: Rules, whole: float, min_gain: float
) -> bool:
    """Return whether a split of a feature with an implied bin may gain more than ``min_gain``, without trying any.

    On one side of it there are only rows of the other bins: that side weighs no more than these, and its gradients sum
    up to no more than those of one sign; nor does it gain more than its bins would alone. The other side weighs at
    least as much as the implied bin.
    """
    g_unit, h_unit, reg_lambda = rules.gradient_unit, rules.hessian_unit, rules.reg_lambda
    held, up, down, apart = np.int64(0), np.int64(0), np.int64(0), 0.0
    for bin in range(feature.size):
        h = np.int64(histogram[(feature.column + bin) * channels])
        if bin != feature.implied and h > 0:
            held += h
            g = np.int64(histogram[(feature.column + bin) * channels + 1])
            up += g if g > 0 else 0
            down += g if g < 0 else 0
            apart += (g * g_unit) ** 2 / (h * h_unit)
    if held * h_unit < rules.min_hessian:
        return False
    lightest, rest = rules.min_hessian + reg_lambda, (total[HESSIAN] - held) * h_unit + reg_lambda
    if rest <= 0.0:
        return True
    one = max(up, -down) * g_unit
    other = max(abs(total[GRADIENT] - up), abs(total[GRADIENT] - down)) * g_unit
    limit = (min(one * one / lightest, apart) if lightest > 0.0 else apart) + other * other / rest
    # What is lost by rounding is far less.
    return limit - whole + 1e-9 * (limit + abs(whole)) > min_gain


@inline
def collect(histogram: Array, feature: Feature, channels: int, total: Int64s, bins: Int64s, sums: Array) -> int:
    """Collect the bins of a feature that are not empty, and their sums; return how many."""
    count, implied_at = 0, -1
    h_rest, g_rest, n_rest = total[HESSIAN], total[GRADIENT], total[THIRD]
    for bin in range(feature.size):
        h = np.int64(histogram[(feature.column + bin) * channels])
        if bin == feature.implied:
            implied_at = count
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
    if implied_at < 0:
        return count
    sums[implied_at, HESSIAN], sums[implied_at, GRADIENT] = h_rest, g_rest
    sums[implied_at, THIRD] = n_rest if channels == 3 else 0
    return count if h_rest != 0 else drop_bin(implied_at, count, bins, sums)


@inline
def drop_bin(position: int, count: int, bins: Int64s, sums: Array) -> int:
    """Drop one of the collected bins; return how many are left."""
    for i in range(position + 1, count):
        bins[i - 1] = bins[i]
        for c in range(sums.shape[1]):
            sums[i - 1, c] = sums[i, c]
    return count - 1


@inline
def sort_bins(flags: int, count: int, sums: Array, rules: Rules, ratios: Float64s, order: Int64s) -> None:
    """Set the order in which bins go left: that of categories is by gradient over hessian, which finds the best set."""
    if flags & CATEGORICAL:
        for i in range(count):
            hessian = sums[i, HESSIAN] * rules.hessian_unit + rules.reg_lambda
            ratios[i] = sums[i, GRADIENT] * rules.gradient_unit / hessian
    order_bins(flags, count, ratios, order)


@inline
def order_bins(flags: int, count: int, ratios: Float64s, order: Int64s) -> None:
    """Set the order in which bins go left: categories by their ratios, which are sorted; others as they are."""
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
    """Return the best split of a feature at a node; missing: the position of the missing values' bin, or ``count``."""
    h_unit, min_h, reg_lambda = rules.hessian_unit, rules.min_hessian, rules.reg_lambda
    whole = best_score(total, bound, rules)
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
    """Do what ``scan`` does for a numeric feature that no row of the node lacks, where all bins are filled."""
    h_unit, min_h, reg_lambda = rules.hessian_unit, rules.min_hessian, rules.reg_lambda
    left_h, left_g, left_n = np.int64(0), np.int64(0), np.int64(0)
    best, last, bar = min_gain, -1, _bar(min_gain + whole)
    for bin in range(feature.size):
        at = (feature.column + bin) * channels
        h = np.int64(histogram[at])
        if h == 0:
            continue
        left_h += h
        left_g += np.int64(histogram[at + 1])
        if channels == 3:
            left_n += np.int64(histogram[at + 2])
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
    """Return the gain of a split by both sides' gradients and hessians; minus infinity if it breaks a constraint."""
    reg_lambda, reg_alpha = rules.reg_lambda, rules.reg_alpha
    w_left = weight_of(gl, hl, reg_lambda, reg_alpha, bound[LOWER], bound[UPPER])
    w_right = weight_of(gr, hr, reg_lambda, reg_alpha, bound[LOWER], bound[UPPER])
    if (flags & INCREASING and w_left > w_right) or (flags & DECREASING and w_left < w_right):
        return -np.inf
    right = score_of(gr, hr, w_right, reg_lambda, reg_alpha)
    return score_of(gl, hl, w_left, reg_lambda, reg_alpha) + (right - whole)


@inline
def _bar(score: float) -> float:
    """Return what two sides' scores have to reach, with more to spare than rounding takes."""
    return score * (1.0 - 1e-9)


@inline
def _is_less(gl: float, hl: float, gr: float, hr: float, bar: float) -> bool:
    """Return whether two sides certainly score less than a bar; a score is at most gradient^2 / (hessian + penalty)."""
    scaled_bar = bar * (hl * hr)
    return scaled_bar > TINY and gl * gl * hr + gr * gr * hl < scaled_bar
