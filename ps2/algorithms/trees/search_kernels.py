"""Compiled loops that find the best split of a node in its histogram: what ``ops.best_splits`` does on a shard."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.trees.layout import CATEGORICAL, HAS_MISSING, MAX_BINS, PLACE_BITS, PLACES
from ps2.algorithms.trees.nonempty_bins import marks_of, next_marked
from ps2.algorithms.trees.scan_kernels import best_score, collect, may_gain, scan, scan_full, sort_bins
from ps2.ops.draws import GOLDEN, scrambled
from ps2.ops.kernels import Float64s, Int64s, inline, kernel
from ps2.ops.table import Array

# Bins that are passed over at once if all are empty.
STRIDE = 16
# Of a set of categories.
WORD_BITS = 64
# Rounds of the network that draws features.
HALVES = 4


@inline
def permuted(number: int, count: int, key: int) -> int:
    """Return the place of a number below ``count`` in a permutation, which a key draws.

    A Feistel network permutes the numbers; what leaves their range goes through it again.
    """
    half = np.uint64(1)
    while (np.uint64(1) << (half + half)) < np.uint64(count):
        half += np.uint64(1)
    mask = (np.uint64(1) << half) - np.uint64(1)
    place = np.uint64(number)
    while True:
        high, low = place >> half, place & mask
        for turn in range(HALVES):
            mixed = scrambled(np.uint64(key) + GOLDEN * (low * np.uint64(HALVES) + np.uint64(turn + 1)))
            high, low = low, high ^ (mixed & mask)
        place = high << half | low
        if place < np.uint64(count):
            return int(place)


@inline
def is_drawn(feature: int, features: int, drawn: int, key: int) -> bool:
    """Tell whether a feature is one of ``drawn`` that a key draws: of as many as that, whoever asks for which."""
    return bool(permuted(feature, features, key) < drawn)


@kernel
def search(
    tiles: Int64s,
    ends: Int64s,
    m: Array,
    rows: Int64s,
    layout_row: int,
    channels: int,
    nodes: tuple[Int64s, Float64s, Int64s, Int64s],
    rules: Float64s,
    limits: tuple[int, int, int, bool, bool],
    out: tuple[Float64s, Int64s, Int64s, Int64s],
) -> None:
    """Search the features that begin in some tiles."""
    min_third, features, drawn, is_full, marks = limits
    layout, scratch = m[layout_row], scratch_of()
    for tile in tiles:
        # Slices of arrays that all threads share are counted, one thread after the other: none is made in the loop.
        found = out[0][tile], out[1][tile], out[2][tile], out[3][tile]
        span = _start(layout, ends[tile], channels), _start(layout, ends[tile + 1], channels)
        for node in range(len(rows)):
            words = marks_of(m, channels, rows[node]) if marks else layout[:0]
            some = (min_third, features, drawn, is_full)
            search_node(m[rows[node]], words, layout, span, channels, node, nodes, rules, some, scratch, found)


@inline
def scratch_of() -> tuple[Int64s, Int64s, Int64s, Float64s]:
    """Return room for the bins of one feature."""
    places, sums = np.empty(MAX_BINS, np.int64), np.empty((MAX_BINS, 3), np.int64)
    return places, sums, np.empty(MAX_BINS, np.int64), np.empty(MAX_BINS)


@inline
def search_node(
    histogram: Array,
    words: Array,
    layout: Array,
    span: tuple[int, int],
    channels: int,
    node: int,
    nodes: tuple[Int64s, Float64s, Int64s, Int64s],
    rules: Float64s,
    limits: tuple[int, int, int, bool],
    scratch: tuple[Int64s, Int64s, Int64s, Float64s],
    out: tuple[Float64s, Int64s, Int64s, Int64s],
) -> None:
    """Search some features in the histogram of one node.

    Args:
        words: its marks; none: it has no marks.
        span: where the first feature begins, and where the last one ends.
        limits: as of ``search``, without the last one.
        scratch: ``scratch_of()``.
        out: by node, as of ``search``; a split has to gain more than is there.
    """
    totals, bounds, keys, allowed = nodes
    min_third, features, drawn, is_full = limits
    places, sums, order, ratios = scratch
    gains, where, lefts, sets = out
    total, bound = totals[node], bounds[node]
    whole = best_score(total, bound, rules)
    column, end = span
    while True:
        column = _next_filled(histogram, words, column, end, channels)
        if column == end:
            break
        column -= max(int(layout[column * channels + 1]), 0)
        word = -int(layout[column * channels + 1])
        size = (word >> PLACE_BITS) & PLACES
        implied = (word & PLACES) - 1
        flags = word >> (2 * PLACE_BITS)
        feature = int(layout[column * channels])
        is_tried = allowed.shape[1] == 0 or _is_in(feature, allowed, node)
        if is_tried and (drawn == 0 or is_drawn(feature, features, drawn, keys[node])):
            bins = (column, size, implied, channels)
            missing = flags & HAS_MISSING and histogram[(column + size - 1) * channels] != 0
            if is_full and not (flags & CATEGORICAL or missing):
                found = scan_full(histogram, bins, flags, total, bound, rules, min_third, whole, gains[node])
                if found[1] >= 0:
                    gains[node] = found[0]
                    _keep_full(node, (feature, flags), bins, found[1], histogram, total, where, lefts)
            else:
                count = 0
                if implied < 0 or may_gain(histogram, bins, total, rules, whole, gains[node]):
                    count = collect(histogram, bins, total, places, sums)
                if count > 1:
                    lost = count - 1 if flags & HAS_MISSING and places[count - 1] == size - 1 else count
                    sort_bins(flags, lost, sums, rules, ratios, order)
                    best = scan(flags, count, lost, sums, order, total, bound, rules, min_third, gains[node])
                    if best[1] >= 0:
                        gains[node] = best[0]
                        what = (feature, flags, implied, count, lost)
                        _keep(node, what, best, places, sums, order, total, where, lefts, sets)
        column += size


@inline
def _keep_full(
    node: int,
    what: tuple[int, int],
    bins: tuple[int, int, int, int],
    last: int,
    histogram: Array,
    total: Int64s,
    where: Array,
    lefts: Array,
) -> None:
    """Write down the best split so far of a node, found by ``scan_full``: as ``_keep``."""
    feature, flags = what
    column, _, implied, channels = bins
    lefts[node, 0] = lefts[node, 1] = lefts[node, 2] = 0
    for place in range(last + 1):
        at = (column + place) * channels
        if histogram[at] != 0:
            for c in range(channels):
                lefts[node, c] += histogram[at + c]
    taken = lefts[node, 0] >= total[0] - lefts[node, 0]
    if implied >= 0 and not flags & HAS_MISSING:
        taken = implied <= last
    where[node, 0], where[node, 1], where[node, 2] = feature, last, taken


@inline
def _is_in(feature: int, allowed: Int64s, node: int) -> bool:
    """Tell whether a node may use a feature."""
    return bool((allowed[node, feature // WORD_BITS] >> np.int64(feature % WORD_BITS)) & 1)


@inline
def _start(layout: Array, column: int, channels: int) -> int:
    """Return where the next feature begins, at a column or behind it."""
    while column * channels < len(layout) and layout[column * channels + 1] > 0:
        column += 1
    return column


@inline
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


@inline
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
    lost = what[4]
    _, last, taken = best
    for c in range(3):
        lefts[node, c] = sums[lost, c] if taken else 0
        for i in range(last + 1):
            lefts[node, c] += sums[order[i], c]
    is_heavy = lefts[node, 0] >= total[0] - lefts[node, 0]
    note_sides(node, what, last, taken != 0, is_heavy, places, order, where, sets)


@inline
def note_sides(
    node: int,
    what: tuple[int, int, int, int, int],
    last: int,
    goes: bool,
    is_heavy: bool,
    places: Int64s,
    order: Int64s,
    where: Array,
    sets: Array,
) -> None:
    """Write down which values of a feature go left at a node.

    Args:
        what: feature, flags, the bin that sparse rows do without (-1: none), number of bins with rows, and that of
            missing values among them (as many: none).
        last: the last bin on the left, by ``order``; goes: whether missing values go left.
        is_heavy: whether most rows go left.
    """
    feature, flags, implied, count, lost = what
    if lost == count:
        # Nothing tells where missing values go: with the zeros that sparse rows do not hold, else with most others.
        goes = is_heavy
        if implied >= 0 and not flags & HAS_MISSING:
            if not flags & CATEGORICAL:
                goes = implied <= places[last]
            else:
                for i in range(count):
                    if places[order[i]] == implied:
                        goes = i <= last
    where[node, 0], where[node, 1], where[node, 2] = feature, -1 if flags & CATEGORICAL else places[last], goes
    if flags & CATEGORICAL:
        # Categories that the node has not seen go with the missing ones.
        for word in range(sets.shape[1]):
            sets[node, word] = -1 if goes else 0
        for i in range(lost):
            place = places[order[i]]
            bit = np.int64(1) << np.int64(place % WORD_BITS)
            if i <= last:
                sets[node, place // WORD_BITS] |= bit
            else:
                sets[node, place // WORD_BITS] &= ~bit
