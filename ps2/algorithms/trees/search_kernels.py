"""Compiled loops that find the best split of a node in its histogram: what ``ops.best_splits`` does on a shard."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.trees.layout import (
    CATEGORICAL,
    DECREASING,
    HAS_MISSING,
    INCREASING,
    MOST_BINS,
    PLACE_BITS,
    PLACES,
)
from ps2.algorithms.trees.nonempty_bins import marks_of, next_marked
from ps2.ops.draws import GOLDEN, scrambled
from ps2.ops.kernels import Float64s, Int64s, kernel
from ps2.ops.table import Array

# Bins that are passed over at once if all are empty.
STRIDE = 16
# Of a set of categories.
WORD_BITS = 64
# Rounds of the network that draws features.
HALVES = 4


@kernel
def is_drawn(feature: int, features: int, drawn: int, key: int) -> bool:
    """Tell whether a feature is one of ``drawn`` that a key draws: of as many as that, whoever asks for which.

    A Feistel network permutes the features; what leaves their range goes through it again.
    """
    half = np.uint64(1)
    while (np.uint64(1) << (half + half)) < np.uint64(features):
        half += np.uint64(1)
    mask = (np.uint64(1) << half) - np.uint64(1)
    number = np.uint64(feature)
    while True:
        high, low = number >> half, number & mask
        for turn in range(HALVES):
            mixed = scrambled(np.uint64(key) + GOLDEN * (low * np.uint64(HALVES) + np.uint64(turn + 1)))
            high, low = low, high ^ (mixed & mask)
        number = high << half | low
        if number < np.uint64(features):
            return bool(number < np.uint64(drawn))


@kernel
def weight_of(g: float, h: float, reg_lambda: float, reg_alpha: float, lower: float, upper: float) -> float:
    """Compute the weight that is best for a node, within bounds."""
    shrunk = max(g - reg_alpha, 0.0) + min(g + reg_alpha, 0.0)
    heavy = h + reg_lambda
    return min(max(-shrunk / heavy if heavy > 0.0 else 0.0, lower), upper)


@kernel
def score_of(g: float, h: float, w: float, reg_lambda: float, reg_alpha: float) -> float:
    """Compute minus twice the objective of a node of weight w."""
    return -(2.0 * g * w + (h + reg_lambda) * w * w + 2.0 * reg_alpha * abs(w))


@kernel
def _best_score(total: Int64s, bound: Float64s, rules: Float64s) -> float:
    """Compute minus twice the objective of a node by its sums, with the weight that is best for it."""
    g, h = total[1] * rules[0], total[0] * rules[1]
    return score_of(g, h, weight_of(g, h, rules[2], rules[3], bound[0], bound[1]), rules[2], rules[3])


@kernel
def search(
    tiles: Int64s,
    ends: Int64s,
    m: Array,
    rows: Int64s,
    layout_row: int,
    channels: int,
    nodes: tuple[Int64s, Float64s, Int64s],
    rules: Float64s,
    limits: tuple[int, int, int, bool],
    out: tuple[Float64s, Int64s, Int64s, Int64s],
) -> None:
    """Search the features that begin in some tiles."""
    totals, bounds, keys = nodes
    min_third, features, drawn, marks = limits
    layout = m[layout_row]
    places, sums = np.empty(MOST_BINS, np.int64), np.empty((MOST_BINS, 3), np.int64)
    order, ratios = np.empty(MOST_BINS, np.int64), np.empty(MOST_BINS)
    for tile in tiles:
        # Slices of arrays that all threads share are counted, one thread after the other: none is made in the loop.
        gains, where, lefts, sets = out[0][tile], out[1][tile], out[2][tile], out[3][tile]
        for node in range(len(rows)):
            histogram, total, bound = m[rows[node]], totals[node], bounds[node]
            words = marks_of(m, channels, rows[node]) if marks else layout[:0]
            whole = _best_score(total, bound, rules)
            column, end = _start(layout, ends[tile], channels), _start(layout, ends[tile + 1], channels)
            while True:
                column = _next_filled(histogram, words, column, end, channels)
                if column == end:
                    break
                column -= max(int(layout[column * channels + 1]), 0)
                word = -int(layout[column * channels + 1])
                size = (word >> PLACE_BITS) & PLACES
                implied = (word & PLACES) - 1
                feature = int(layout[column * channels])
                if drawn == 0 or is_drawn(feature, features, drawn, keys[node]):
                    count, bins = 0, (column, size, implied, channels)
                    if implied < 0 or _may_gain(histogram, bins, total, rules, whole, gains[node]):
                        count = _collect(histogram, bins, total, places, sums)
                    if count > 1:
                        flags = word >> (2 * PLACE_BITS)
                        lost = count - 1 if flags & HAS_MISSING and places[count - 1] == size - 1 else count
                        _sort(flags, lost, sums, rules, ratios, order)
                        best = _scan(flags, count, lost, sums, order, total, bound, rules, min_third, gains[node])
                        if best[1] >= 0:
                            gains[node] = best[0]
                            what = (feature, flags, implied, count, lost)
                            _keep(node, what, best, places, sums, order, total, where, lefts, sets)
                column += size


@kernel
def _start(layout: Array, column: int, channels: int) -> int:
    """Return where the next feature begins, at a column or behind it."""
    while column * channels < len(layout) and layout[column * channels + 1] > 0:
        column += 1
    return column


@kernel
def _next_filled(histogram: Array, words: Array, column: int, end: int, channels: int) -> int:
    """Return the next bin that is not empty, or ``end``: most are empty where features are many and rows few."""
    if len(words):
        column = next_marked(words, column, end)
        while column < end and histogram[column * channels] == 0:
            column = next_marked(words, column + 1, end)
        return column
    while column + STRIDE <= end:
        some = histogram[column * channels]
        for i in range(1, STRIDE):
            some |= histogram[(column + i) * channels]
        if some != 0:
            break
        column += STRIDE
    while column < end and histogram[column * channels] == 0:
        column += 1
    return column


@kernel
def _may_gain(
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


@kernel
def _collect(
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


@kernel
def _sort(flags: int, count: int, sums: Array, rules: Float64s, ratios: Float64s, order: Int64s) -> None:
    """Set the order in which bins go left: that of categories is by gradient over hessian, which finds the best set."""
    if flags & CATEGORICAL:
        for i in range(count):
            ratios[i] = sums[i, 1] * rules[0] / (sums[i, 0] * rules[1] + rules[2])
        order[:count] = np.argsort(ratios[:count], kind="mergesort")
    else:
        for i in range(count):
            order[i] = i


@kernel
def _scan(
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
    whole = _best_score(total, bound, rules)
    left_h, left_g, left_n = 0, 0, 0
    best, improved, taken = least, -1, 0
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
            w_left = weight_of(gl_real, hl * h_unit, reg_lambda, reg_alpha, bound[0], bound[1])
            w_right = weight_of(gr_real, hr * h_unit, reg_lambda, reg_alpha, bound[0], bound[1])
            if (flags & INCREASING and w_left > w_right) or (flags & DECREASING and w_left < w_right):
                continue
            gain = score_of(gl_real, hl * h_unit, w_left, reg_lambda, reg_alpha)
            gain += score_of(gr_real, hr * h_unit, w_right, reg_lambda, reg_alpha) - whole
            if gain > best:
                best, improved, taken = gain, i, side
    return best, improved, taken


@kernel
def _keep(
    node: int,
    what: tuple[int, int, int, int, int],
    best: tuple[float, int, int],
    places: Int64s,
    sums: Array,
    order: Int64s,
    total: Int64s,
    where: Array,
    lefts: Array,
    sets: Array,
) -> None:
    """Write down the best split so far of a node."""
    feature, flags, implied, count, lost = what
    _, last, taken = best
    for c in range(3):
        lefts[node, c] = sums[lost, c] if taken else 0
        for i in range(last + 1):
            lefts[node, c] += sums[order[i], c]
    if lost == count:
        # Nothing tells where missing values go: with the zeros that sparse rows do not hold, else with most others.
        taken = lefts[node, 0] >= total[0] - lefts[node, 0]
        if implied >= 0 and not flags & HAS_MISSING:
            if not flags & CATEGORICAL:
                taken = implied <= places[last]
            else:
                for i in range(count):
                    if places[order[i]] == implied:
                        taken = i <= last
    where[node, 0], where[node, 1], where[node, 2] = feature, -1 if flags & CATEGORICAL else places[last], taken
    if flags & CATEGORICAL:
        # Categories that the node has not seen go with the missing ones.
        for word in range(sets.shape[1]):
            sets[node, word] = -1 if taken else 0
        for i in range(lost):
            place = places[order[i]]
            bit = np.int64(1) << np.int64(place % WORD_BITS)
            if i <= last:
                sets[node, place // WORD_BITS] |= bit
            else:
                sets[node, place // WORD_BITS] &= ~bit
