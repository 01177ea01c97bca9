"""Compiled loops over the bins of one feature in the histogram of one node: the split that lessens impurity most.

A bin has ``channels`` whole numbers. Of classes: the weight of each class. Of numbers: the weight, and the sum of
labels (less a base) times weights. Behind these, where rows have weights of their own, the number of draws.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.decision_kernels import CHANCE, ROUNDING
from ps2.algorithms.trees.layout import CATEGORICAL, HAS_MISSING, MAX_BINS
from ps2.algorithms.trees.search_kernels import note_sides
from ps2.ops.kernels import Float64s, Int64s, inline, kernel
from ps2.ops.table import Array

Bools = npt.NDArray[np.bool_]

# Impurities.
VARIANCE, GINI, ENTROPY = range(3)
# Of ``rules``: what 1 of a weight and of a sum of labels stands for; the least weight of a node, and the least gain of
# a split, divided by the weight of its node.
WEIGHT_UNIT, LABEL_UNIT, MIN_WEIGHT, MIN_INFO_GAIN = range(4)
# Of ``kinds``: the impurity; its channels; the least draws of a node; most splits above a leaf.
IMPURITY, WIDTH, MIN_DRAWS, DEPTH = range(4)
# What ``judge`` tells of a node.
MAY, SPLITS, CHILDREN = range(3)


@inline
def weight_of(sums: Int64s, kinds: Int64s) -> int:
    """Return the weight of some sums, as a whole number."""
    if kinds[IMPURITY] == VARIANCE:
        return int(sums[0])
    weight = 0
    for c in range(kinds[WIDTH]):
        weight += int(sums[c])
    return weight


@inline
def draws_of(sums: Int64s, kinds: Int64s) -> int:
    """Return how many draws some sums are of: their weight, where each row weighs 1."""
    return int(sums[kinds[WIDTH]]) if len(sums) > kinds[WIDTH] else weight_of(sums, kinds)


@inline
def purity_of(sums: Int64s, weight: int, kinds: Int64s, rules: Float64s) -> float:
    """Return minus the impurity times the weight, but for what all splits of a node have in common."""
    if weight <= 0:
        return 0.0
    if kinds[IMPURITY] == VARIANCE:
        of_labels = sums[1] * rules[LABEL_UNIT]
        return of_labels * of_labels / (weight * rules[WEIGHT_UNIT])
    found = 0.0
    if kinds[IMPURITY] == GINI:
        for c in range(kinds[WIDTH]):
            found += np.float64(sums[c]) * np.float64(sums[c])
        return found / weight * rules[WEIGHT_UNIT]
    for c in range(kinds[WIDTH]):
        if sums[c] > 0:
            found += sums[c] * np.log2(np.float64(sums[c]))
    return (found - weight * np.log2(np.float64(weight))) * rules[WEIGHT_UNIT]


@inline
def may_split(place: int, sums: Int64s, kinds: Int64s, rules: Float64s) -> bool:
    """Tell whether a node may have children: it is heavy, high and mixed enough."""
    weight = weight_of(sums, kinds)
    if place >= np.int64(1) << kinds[DEPTH] or weight * rules[WEIGHT_UNIT] < 2 * rules[MIN_WEIGHT]:
        return False
    if draws_of(sums, kinds) < 2 * kinds[MIN_DRAWS]:
        return False
    if kinds[IMPURITY] == VARIANCE:
        return True
    largest = 0
    for c in range(kinds[WIDTH]):
        largest = max(largest, int(sums[c]))
    return largest < weight


@inline
def gains_enough(gain: float, total: Int64s, left: Int64s, kinds: Int64s, rules: Float64s) -> bool:
    """Tell whether the best split of a node gains enough, and more than rounding may seem to gain.

    Args:
        gain: negative, if there is no split.
        total, left: sums of the node, and of its left side.
    """
    if not gain > 0.0:
        return False
    weight, of_left = weight_of(total, kinds), weight_of(left, kinds)
    if gain < rules[MIN_INFO_GAIN] * weight * rules[WEIGHT_UNIT] * (1 - ROUNDING):
        return False
    right = total - left
    scores = abs(purity_of(total, weight, kinds, rules)) + abs(purity_of(left, of_left, kinds, rules))
    scores += abs(purity_of(right, weight - of_left, kinds, rules))
    chance = 0.0
    if kinds[IMPURITY] == VARIANCE:
        # A row that is drawn several times is rounded alike each time.
        draws = draws_of(total, kinds)
        chance = 4 * CHANCE * rules[LABEL_UNIT] * rules[LABEL_UNIT] * draws / (weight * rules[WEIGHT_UNIT])
    return gain > max(chance, ROUNDING * scores)


@kernel
def judge(
    places: Int64s, totals: Int64s, gains: Float64s, lefts: Int64s, kinds: Int64s, rules: Float64s, out: Bools
) -> None:
    """Set of each node whether it may have children, whether its best split is taken, and whether its children may.

    Args:
        places: of the nodes; totals, lefts: sums of each, and of its left side, shape (n, channels).
        out: shape (n, 4), the columns ``MAY``, ``SPLITS``, and two from ``CHILDREN`` on.
    """
    for i in range(len(places)):
        out[i, :] = False
        out[i, MAY] = may_split(places[i], totals[i], kinds, rules)
        if out[i, MAY] and gains_enough(gains[i], totals[i], lefts[i], kinds, rules):
            out[i, SPLITS] = True
            out[i, CHILDREN] = may_split(2 * places[i], lefts[i], kinds, rules)
            out[i, CHILDREN + 1] = may_split(2 * places[i] + 1, totals[i] - lefts[i], kinds, rules)


@inline
def scratch_of(channels: int) -> tuple[Int64s, Int64s, Int64s, Float64s, Int64s]:
    """Return room for the bins of one feature, and for the sums of two sides."""
    bins = np.empty(MAX_BINS, np.int64), np.empty((MAX_BINS, channels), np.int64)
    return bins[0], bins[1], np.empty(MAX_BINS, np.int64), np.empty(MAX_BINS), np.empty((3, channels), np.int64)


@inline
def _collect(
    histogram: Array, bins: tuple[int, int, int], total: Int64s, places: Int64s, sums: Array, rest: Int64s
) -> int:
    """Collect the bins of a feature that are not empty; return how many. The implied one has what the others lack."""
    column, size, implied = bins
    channels = len(total)
    count, at = 0, -1
    for i in range(len(total)):
        rest[i] = total[i]
    for place in range(size):
        begin = (column + place) * channels
        some = place == implied
        for c in range(channels):
            value = np.int64(histogram[begin + c])
            sums[count, c] = value
            some |= value != 0
        if place == implied:
            at = count
        elif some:
            for c in range(channels):
                rest[c] -= sums[count, c]
        if some:
            places[count] = place
            count += 1
    if at < 0:
        return count
    some = False
    for c in range(channels):
        sums[at, c] = rest[c]
        some |= rest[c] != 0
    if some:
        return count
    for i in range(at + 1, count):
        places[i - 1] = places[i]
        for c in range(channels):
            sums[i - 1, c] = sums[i, c]
    return count - 1


@inline
def _sort(flags: int, count: int, sums: Array, total: Int64s, kinds: Int64s, ratios: Float64s, order: Int64s) -> None:
    """Set the order in which bins go left: that of categories is by mean label, or by the share of one class.

    For two classes and for numbers, one of the sets in this order is the best of all. Of several classes the one with
    the largest weight in the node counts.
    """
    if not flags & CATEGORICAL:
        for i in range(count):
            order[i] = i
        return
    channel = 1
    if kinds[IMPURITY] != VARIANCE and kinds[WIDTH] > 2:
        channel = int(np.argmax(total[: kinds[WIDTH]]))
    for i in range(count):
        ratios[i] = sums[i, channel] / weight_of(sums[i], kinds)
    ranked = np.argsort(ratios[:count], kind="mergesort")
    for i in range(count):
        order[i] = ranked[i]


@inline
def search_feature(
    histogram: Array,
    feature: int,
    bins: tuple[int, int, int],
    flags: int,
    node: int,
    total: Int64s,
    kinds: Int64s,
    rules: Float64s,
    scratch: tuple[Int64s, Int64s, Int64s, Float64s, Int64s],
    out: tuple[Float64s, Int64s, Int64s, Int64s],
) -> None:
    """Search a feature in the histogram of a node.

    Args:
        bins: of the feature: the first one's column, how many there are, and which one is implied (-1: none).
        total: of the node, int64, shape (channels,).
        scratch: ``scratch_of(channels)``.
        out: by node: gains; features, with bins (-1: a set) and sides of missing values; sums on the left; sets. A
            split has to gain more than is there.
    """
    places, sums, order, ratios, sides = scratch
    gains, _, lefts, _ = out
    left, right, taken = sides[0], sides[1], sides[2]
    count = _collect(histogram, bins, total, places, sums, taken)
    if count < 2:
        return
    lost = count - 1 if flags & HAS_MISSING and places[count - 1] == bins[1] - 1 else count
    _sort(flags, lost, sums, total, kinds, ratios, order)
    channels, weight = len(total), weight_of(total, kinds)
    whole = purity_of(total, weight, kinds, rules)
    best, last, with_lost = gains[node], -1, False
    left[:] = 0
    for i in range(lost):
        for c in range(channels):
            left[c] += sums[order[i], c]
        for side in range(1 if lost == count else 2):
            for c in range(channels):
                taken[c] = left[c] + (sums[lost, c] if side == 1 else 0)
                right[c] = total[c] - taken[c]
            of_left = weight_of(taken, kinds)
            of_right = weight - of_left
            if of_left <= 0 or of_right <= 0:
                continue
            if min(of_left, of_right) * rules[WEIGHT_UNIT] < rules[MIN_WEIGHT]:
                continue
            if min(draws_of(taken, kinds), draws_of(right, kinds)) < kinds[MIN_DRAWS]:
                continue
            gain = purity_of(taken, of_left, kinds, rules) + purity_of(right, of_right, kinds, rules) - whole
            if gain > best:
                best, last, with_lost = gain, i, side == 1
    if last < 0:
        return
    gains[node] = best
    for c in range(channels):
        lefts[node, c] = sums[lost, c] if with_lost else 0
        for i in range(last + 1):
            lefts[node, c] += sums[order[i], c]
    _keep(node, feature, bins, flags, (count, lost, last), with_lost, total, kinds, scratch, out)


@inline
def _keep(
    node: int,
    feature: int,
    bins: tuple[int, int, int],
    flags: int,
    found: tuple[int, int, int],
    with_lost: bool,
    total: Int64s,
    kinds: Int64s,
    scratch: tuple[Int64s, Int64s, Int64s, Float64s, Int64s],
    out: tuple[Float64s, Int64s, Int64s, Int64s],
) -> None:
    """Write down which values of a feature go left."""
    places, _, order, _, _ = scratch
    _, where, lefts, sets = out
    count, lost, last = found
    of_left = weight_of(lefts[node], kinds)
    is_heavy = of_left >= weight_of(total, kinds) - of_left
    what = feature, flags, bins[2], count, lost
    note_sides(node, what, last, with_lost, is_heavy, places, order, where, sets)
