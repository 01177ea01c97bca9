"""Compiled loops over the bins of one feature in the histogram of one node: which of its splits gains most."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.trees.layout import CATEGORICAL, DECREASING, INCREASING
from ps2.ops.kernels import Float64s, Int64s, inline, kernel
from ps2.ops.table import Array

# Below this, products of scores and hessians may have lost digits.
TINY = 1e-200


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
def best_score(total: Int64s, bound: Float64s, rules: Float64s) -> float:
    """Compute minus twice the objective of a node by its sums, with the weight that is best for it."""
    g, h = total[1] * rules[0], total[0] * rules[1]
    return score_of(g, h, weight_of(g, h, rules[2], rules[3], bound[0], bound[1]), rules[2], rules[3])


@inline
def may_gain(
    histogram: Array,
    bins: tuple[int, int, int, int],
    total: Int64s,
    rules: Float64s,
    whole: float,
    least: float,
) -> bool:
    """Tell whether a split of a feature with an implied bin may gain more than ``least``, without trying any.

    On one side of it there are only rows of the other bins: that side weighs no more than these, and its gradients sum
    up to no more than those of one sign; nor does it gain more than its bins would alone. The other side weighs at
    least as much as the implied bin.

    Args:
        bins: of the feature: the first one's column, how many there are, which one is implied, and their channels.
    """
    column, size, implied, channels = bins
    g_unit, h_unit, reg_lambda, min_h = rules[0], rules[1], rules[2], rules[4]
    held, up, down, apart = np.int64(0), np.int64(0), np.int64(0), 0.0
    for place in range(size):
        h = np.int64(histogram[(column + place) * channels])
        if place != implied and h > 0:
            held += h
            g = np.int64(histogram[(column + place) * channels + 1])
            up += g if g > 0 else 0
            down += g if g < 0 else 0
            apart += (g * g_unit) ** 2 / (h * h_unit)
    if held * h_unit < min_h:
        return False
    lightest, rest = min_h + reg_lambda, (total[0] - held) * h_unit + reg_lambda
    if rest <= 0.0:
        return True
    one = max(up, -down) * g_unit
    other = max(abs(total[1] - up), abs(total[1] - down)) * g_unit
    most = (min(one * one / lightest, apart) if lightest > 0.0 else apart) + other * other / rest
    # What is lost by rounding is far less.
    return most - whole + 1e-9 * (most + abs(whole)) > least


@inline
def collect(
    histogram: Array,
    bins: tuple[int, int, int, int],
    total: Int64s,
    places: Int64s,
    sums: Array,
) -> int:
    """Collect the bins of a feature that are not empty; return how many."""
    column, size, implied, channels = bins
    count, at = 0, -1
    h_rest, g_rest, n_rest = total[0], total[1], total[2]
    for place in range(size):
        h = np.int64(histogram[(column + place) * channels])
        if place == implied:
            at = count
        elif h == 0:
            continue
        places[count] = place
        sums[count, 0], sums[count, 1], sums[count, 2] = h, histogram[(column + place) * channels + 1], 0
        if channels == 3:
            sums[count, 2] = histogram[(column + place) * channels + 2]
        if place != implied:
            h_rest -= h
            g_rest -= sums[count, 1]
            n_rest -= sums[count, 2]
        count += 1
    if at < 0:
        return count
    sums[at, 0], sums[at, 1], sums[at, 2] = h_rest, g_rest, n_rest if channels == 3 else 0
    if h_rest != 0:
        return count
    for i in range(at + 1, count):
        places[i - 1] = places[i]
        for c in range(3):
            sums[i - 1, c] = sums[i, c]
    return count - 1


@inline
def sort_bins(flags: int, count: int, sums: Array, rules: Float64s, ratios: Float64s, order: Int64s) -> None:
    """Set the order in which bins go left: that of categories is by gradient over hessian, which finds the best set."""
    if flags & CATEGORICAL:
        for i in range(count):
            ratios[i] = sums[i, 1] * rules[0] / (sums[i, 0] * rules[1] + rules[2])
        ranked = np.argsort(ratios[:count], kind="mergesort")
        for i in range(count):
            order[i] = ranked[i]
    else:
        for i in range(count):
            order[i] = i


@inline
def scan(
    flags: int,
    count: int,
    lost: int,
    sums: Array,
    order: Int64s,
    total: Int64s,
    bound: Float64s,
    rules: Float64s,
    min_third: int,
    least: float,
) -> tuple[float, int, int]:
    """Try all splits of a feature at a node.

    Args:
        count: of bins; lost: where that of missing values is, ``count`` if there are none.
        least: what a gain must be above.

    Returns:
        The best gain; how many bins of the order go left, less 1 (-1: none was good enough); 1 if missing ones do.
    """
    g_unit, h_unit, reg_lambda, reg_alpha, min_h = rules[0], rules[1], rules[2], rules[3], rules[4]
    whole = best_score(total, bound, rules)
    left_h, left_g, left_n = 0, 0, 0
    best, improved, taken, bar = least, -1, 0, _bar(least + whole)
    for i in range(lost):
        left_h += sums[order[i], 0]
        left_g += sums[order[i], 1]
        left_n += sums[order[i], 2]
        for side in range(1 if lost == count else 2):
            hl, gl, nl = left_h, left_g, left_n
            if side == 1:
                hl, gl, nl = hl + sums[lost, 0], gl + sums[lost, 1], nl + sums[lost, 2]
            hr, nr = total[0] - hl, total[2] - nl
            if hr <= 0 or hl * h_unit < min_h or hr * h_unit < min_h or min(nl, nr) < min_third:
                continue
            gl_real, gr_real = gl * g_unit, (total[1] - gl) * g_unit
            if _is_less(gl_real, hl * h_unit + reg_lambda, gr_real, hr * h_unit + reg_lambda, bar):
                continue
            w_left = weight_of(gl_real, hl * h_unit, reg_lambda, reg_alpha, bound[0], bound[1])
            w_right = weight_of(gr_real, hr * h_unit, reg_lambda, reg_alpha, bound[0], bound[1])
            if (flags & INCREASING and w_left > w_right) or (flags & DECREASING and w_left < w_right):
                continue
            gain = score_of(gl_real, hl * h_unit, w_left, reg_lambda, reg_alpha)
            gain += score_of(gr_real, hr * h_unit, w_right, reg_lambda, reg_alpha) - whole
            if gain > best:
                best, improved, taken, bar = gain, i, side, _bar(gain + whole)
    return best, improved, taken


@inline
def scan_full(
    histogram: Array,
    bins: tuple[int, int, int, int],
    flags: int,
    total: Int64s,
    bound: Float64s,
    rules: Float64s,
    min_third: int,
    whole: float,
    least: float,
) -> tuple[float, int]:
    """Try all splits of a numeric feature that no row of the node lacks, where all bins are filled: as ``scan``.

    Returns:
        The best gain; the last bin on the left (-1: none was good enough).
    """
    column, size, _, channels = bins
    g_unit, h_unit, reg_lambda, reg_alpha, min_h = rules[0], rules[1], rules[2], rules[3], rules[4]
    left_h, left_g, left_n = np.int64(0), np.int64(0), np.int64(0)
    best, found, bar = least, -1, _bar(least + whole)
    for place in range(size):
        at = (column + place) * channels
        h = np.int64(histogram[at])
        if h == 0:
            continue
        left_h += h
        left_g += np.int64(histogram[at + 1])
        if channels == 3:
            left_n += np.int64(histogram[at + 2])
        hl, hr, nr = left_h * h_unit, (total[0] - left_h) * h_unit, total[2] - left_n
        if left_h >= total[0] or hr < min_h:
            break
        if hl < min_h or min(left_n, nr) < min_third:
            continue
        gl, gr = left_g * g_unit, (total[1] - left_g) * g_unit
        if _is_less(gl, hl + reg_lambda, gr, hr + reg_lambda, bar):
            continue
        w_left = weight_of(gl, hl, reg_lambda, reg_alpha, bound[0], bound[1])
        w_right = weight_of(gr, hr, reg_lambda, reg_alpha, bound[0], bound[1])
        if (flags & INCREASING and w_left > w_right) or (flags & DECREASING and w_left < w_right):
            continue
        gain = score_of(gl, hl, w_left, reg_lambda, reg_alpha)
        gain += score_of(gr, hr, w_right, reg_lambda, reg_alpha) - whole
        if gain > best:
            best, found, bar = gain, place, _bar(gain + whole)
    return best, found


@inline
def _bar(score: float) -> float:
    """Return what two sides' scores have to reach, with more to spare than rounding takes."""
    return score * (1.0 - 1e-9)


@inline
def _is_less(gl: float, hl: float, gr: float, hr: float, bar: float) -> bool:
    """Tell, without a division, whether two sides score less than a bar for certain.

    A side's score is at most the square of its gradients over its hessians, whatever bounds, penalties on gradients and
    constraints there are.

    Args:
        hl, hr: hessians, and the penalty on leaves.
    """
    wanted = bar * (hl * hr)
    return wanted > TINY and gl * gl * hr + gr * gr * hl < wanted
