"""A whole tree in one compiled loop, for a worker that has all rows.

It makes the decisions that ``Growth`` makes, node after node: the same tree, to the bit. Nodes have the numbers that
they have in the tree: the children of the n-th split are 2n - 1 and 2n.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.decision_kernels import gains_enough, may_split, weight_by
from ps2.algorithms.trees.growing_kernels import add_blocks, part_dense, part_sparse
from ps2.algorithms.trees.search_kernels import scratch_of, search_node
from ps2.ops.kernels import Float64s, Int32s, Int64s, inline, kernel

Array = npt.NDArray[Any]
UInt64s = npt.NDArray[np.uint64]
# Dense rows: bins, shape (features, rows), and in blocks (``DenseRows``). Sparse rows: where each begins, its columns
# of the histogram, and the bin of each feature that they do without. Of one kind there are none.
Rows = tuple[Array, Array, Int64s, Int32s, Int32s]
# Where the columns of the histogram begin of each feature that has any; of each feature; how many bins each has, and
# whether the last one is of missing values.
Bins = tuple[UInt64s, Int64s, Int64s, Array]
Nodes = tuple[Int64s, Int64s, Float64s, Int64s, Float64s, Int64s, Int64s, Int64s, Int64s, Int64s]


@kernel
def grow_tree(
    order: Int32s,
    aside: Int32s,
    rows: Rows,
    bins: Bins,
    pairs: Array,
    m: Array,
    sums: Array,
    layout: Array,
    constraints: Int64s,
    rules: Float64s,
    limits: Float64s,
    most: tuple[int, int, int, bool],
    nodes: Nodes,
) -> int:
    """Grow a tree; return how many nodes it has.

    Args:
        order: the rows that it is grown of; gets those of each node side by side. aside: as long, overwritten.
        rows: by bins.
        bins: of all features.
        pairs, sums: as kernels add them (``growing_kernels``): of rows; and ``m``, shape (histograms, bins, channels).
        m: room for histograms, shape (most that are there at once, columns).
        layout: ``layout_of`` the bins.
        constraints: -1, 0 or 1 by feature; none: all are 0.
        rules, limits: as of ``decision_kernels``.
        most: splits; splits above a leaf; the least third total of a node, and whether the largest gain comes first.
        nodes: get what there is to know of each node: places, 1 for the root; totals, which the root has; bounds, too;
            keys, zeros; and what ``search_node`` finds: gains, features with bins and sides of missing values, sums on
            the left, sets. Then where the rows of each begin, and end: of the root they do. Then the left child, -1: a
            leaf.
    """
    places, totals, _, _, gains, _, _, _, ends, children = nodes
    splits, depth, min_third, by_gain = most
    scratch, flags = scratch_of(), np.empty(bins[2].max() + 1, np.bool_)
    # Of each node the row of its histogram; the rows from the ``used``-th on are free.
    slots, free, used = np.full(len(places), -1, np.int64), np.arange(len(m)), 0
    queue, waiting, chosen = np.empty(len(places), np.int64), 0, 0
    children[0] = -1
    if splits > 0 and may_split(places[0], totals[0], depth, min_third, rules):
        slots[0], used = free[0], 1
        _build(order[ends[0, 0] : ends[0, 1]], rows, bins, pairs, sums[slots[0]])
        if _search(0, m[slots[0]], sums.shape[1], layout, rows, bins, rules, limits, min_third, scratch, nodes):
            waiting = _push(queue, waiting, 0, gains, by_gain)
    while waiting > 0 and chosen < splits:
        node = queue[0]
        waiting = _pop(queue, waiting, gains, by_gain)
        left = 2 * chosen + 1
        chosen += 1
        _split(node, left, order, aside, rows, bins, constraints, rules, flags, nodes)
        if chosen == splits:
            break
        used = _open(node, left, order, rows, bins, pairs, m, sums, rules, most, nodes, slots, free, used)
        for child in (left, left + 1):
            slot = slots[child]
            if slot < 0:
                continue
            if _search(child, m[slot], sums.shape[1], layout, rows, bins, rules, limits, min_third, scratch, nodes):
                waiting = _push(queue, waiting, child, gains, by_gain)
            else:
                used -= 1
                free[used] = slot
    return 2 * chosen + 1


@inline
def _split(
    node: int,
    left: int,
    order: Int32s,
    aside: Int32s,
    rows: Rows,
    bins: Bins,
    constraints: Int64s,
    rules: Float64s,
    flags: Array,
    nodes: Nodes,
) -> None:
    """Part the rows of a node among its children, and set what is known of these; flags: room for a feature's bins."""
    places, totals, bounds, _, _, where, lefts, sets, ends, children = nodes
    children[node] = left
    feature = where[node, 0]
    goes = flags[: bins[2][feature]]
    _goes_left(where[node], sets[node], bins[3][feature], goes)
    begin, end = ends[node, 0], ends[node, 1]
    middle = begin + _part(order[begin:end], feature, rows, bins[1], goes, aside[begin:end])
    ends[left, 0], ends[left, 1], ends[left + 1, 0], ends[left + 1, 1] = begin, middle, middle, end
    for c in range(3):
        totals[left, c] = lefts[node, c]
        totals[left + 1, c] = totals[node, c] - lefts[node, c]
    for child in (left, left + 1):
        places[child] = 2 * places[node] + child - left
        children[child] = -1
    _bound(totals, bounds, node, left, constraints[feature] if len(constraints) else 0, rules)


@inline
def _open(
    node: int,
    left: int,
    order: Int32s,
    rows: Rows,
    bins: Bins,
    pairs: Array,
    m: Array,
    sums: Array,
    rules: Float64s,
    most: tuple[int, int, int, bool],
    nodes: Nodes,
    slots: Int64s,
    free: Int64s,
    used: int,
) -> int:
    """Give histograms to the children that may be split: that with fewer rows is added up, the other subtracted.

    Returns:
        How many histograms are used.
    """
    places, totals, ends = nodes[0], nodes[1], nodes[8]
    _, depth, min_third, _ = most
    parent = slots[node]
    small = left if ends[left, 1] - ends[left, 0] <= ends[left + 1, 1] - ends[left + 1, 0] else left + 1
    large = 2 * left + 1 - small
    wants_small = may_split(places[small], totals[small], depth, min_third, rules)
    wants_large = may_split(places[large], totals[large], depth, min_third, rules)
    if wants_small or wants_large:
        slots[small] = free[used]
        used += 1
        _build(order[ends[small, 0] : ends[small, 1]], rows, bins, pairs, sums[slots[small]])
    if wants_large:
        slots[large] = parent
        whole, part = m[parent], m[slots[small]]
        for i in range(len(whole)):
            whole[i] -= part[i]
    else:
        used -= 1
        free[used] = parent
    if wants_large and not wants_small:
        used -= 1
        free[used] = slots[small]
        slots[small] = -1
    return used


@inline
def _search(
    node: int,
    histogram: Array,
    columns: int,
    layout: Array,
    rows: Rows,
    bins: Bins,
    rules: Float64s,
    limits: Float64s,
    min_third: int,
    scratch: tuple[Int64s, Int64s, Int64s, Float64s],
    nodes: Nodes,
) -> bool:
    """Find the best split of a node; return whether it gains enough. columns: how many bins a histogram has."""
    _, totals, bounds, keys, gains, where, lefts, sets, _, _ = nodes
    given, found = (totals, bounds, keys, np.empty((0, 0), np.int64)), (gains, where, lefts, sets)
    span, most = (0, bins[1][-1]), (min_third, 0, 0, len(rows[0]) > 0)
    search_node(
        histogram, layout[:0], layout, span, len(histogram) // columns, node, given, rules, most, scratch, found
    )
    return gains_enough(gains[node], totals[node], lefts[node], bounds[node], rules, limits)


@inline
def _build(order: Int32s, rows: Rows, bins: Bins, pairs: Array, out: Array) -> None:
    """Set a histogram."""
    out[:] = 0
    columns, blocks, begins, held, _ = rows
    if len(columns):
        add_blocks(order, blocks, bins[0], pairs, out)
        return
    for row in order:
        for position in range(begins[row], begins[row + 1]):
            bin = held[position]
            for c in range(pairs.shape[1]):
                out[bin, c] += pairs[row, c]


@inline
def _part(order: Int32s, feature: int, rows: Rows, first: Int64s, flags: Array, aside: Int32s) -> int:
    """Part the rows of a node: ``part_dense``, or ``part_sparse``."""
    columns, _, begins, bins, implied = rows
    if len(columns):
        return part_dense(order, columns[feature], flags, aside)
    return part_sparse(order, begins, bins, first[feature], implied[feature], flags, aside)


@inline
def _goes_left(where: Int64s, words: Int64s, missing: bool, out: Array) -> None:
    """Set for each bin of a feature whether it goes left: ``Split.lefts``."""
    for bin in range(len(out)):
        if where[1] < 0:
            out[bin] = (words[bin >> 6] >> np.int64(bin & 63)) & 1 != 0
        else:
            out[bin] = bin <= where[1]
    if missing:
        out[-1] = where[2] != 0


@inline
def _bound(totals: Int64s, bounds: Float64s, node: int, left: int, sign: int, rules: Float64s) -> None:
    """Set the bounds of the weights below two children: ``growing.child_bounds``."""
    for child in (left, left + 1):
        bounds[child, 0], bounds[child, 1] = bounds[node, 0], bounds[node, 1]
    if sign != 0:
        middle = weight_by(totals[left, 0], totals[left, 1], bounds[node], rules)
        middle = (middle + weight_by(totals[left + 1, 0], totals[left + 1, 1], bounds[node], rules)) / 2
        upper, lower = (left, left + 1) if sign > 0 else (left + 1, left)
        bounds[upper, 1] = bounds[lower, 0] = middle


@inline
def _comes_before(one: int, other: int, gains: Float64s, by_gain: bool) -> bool:
    """Tell which of two nodes is split first: that with the larger gain, or the older one."""
    if by_gain and gains[one] != gains[other]:
        return gains[one] > gains[other]
    return one < other


@inline
def _push(queue: Int64s, count: int, node: int, gains: Float64s, by_gain: bool) -> int:
    """Put a node into a heap; return how many there are."""
    at = count
    while at > 0 and _comes_before(node, queue[(at - 1) // 2], gains, by_gain):
        queue[at] = queue[(at - 1) // 2]
        at = (at - 1) // 2
    queue[at] = node
    return count + 1


@inline
def _pop(queue: Int64s, count: int, gains: Float64s, by_gain: bool) -> int:
    """Take the first node out of a heap; return how many are left."""
    last, at = queue[count - 1], 0
    while 2 * at + 1 < count - 1:
        below = 2 * at + 1
        if below + 1 < count - 1 and _comes_before(queue[below + 1], queue[below], gains, by_gain):
            below += 1
        if not _comes_before(queue[below], last, gains, by_gain):
            break
        queue[at] = queue[below]
        at = below
    queue[at] = last
    return count - 1


@kernel
def weigh_nodes(totals: Int64s, bounds: Float64s, rules: Float64s, out: Float64s) -> None:
    """Set the weight that is best for each node."""
    for node in range(len(out)):
        out[node] = weight_by(totals[node, 0], totals[node, 1], bounds[node], rules)
