"""The compiled engine for a worker that has all rows: it grows a whole tree in one call.

``grow`` is the engine of boosted trees and of random forests, which pass two functions that search the best splits of
nodes. A boosted tree is bitwise the same as that of ``boosted_growth.BoostedGrowth``. Nodes have the numbers of the
finished tree: the children of the n-th split, counted from 1, have numbers 2n - 1 and 2n.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ps2.algorithms.trees.growing_kernels import add_blocks, partition_dense, partition_sparse
from ps2.algorithms.trees.layout import (
    FEATURE,
    GRADIENT,
    HAS_MISSING,
    HESSIAN,
    LOWER,
    UPPER,
    Array,
    UInt64s,
    set_left_bins,
)
from ps2.algorithms.trees.scan_kernels import Limits, Rules, gains_enough, leaf_value_of_sums, may_split
from ps2.algorithms.trees.search_kernels import OpenNodes, Scratch, Splits, node_keys, search_node
from ps2.ops.kernels import Float64s, Int32s, Int64s, inline, kernel


class Rows(NamedTuple):
    """A worker's binned rows, which are dense or sparse; the arrays of the other kind are empty.

    Attributes:
        columns: the bins of dense rows, unsigned, shape (features, rows).
        blocks: the same bins row by row, in blocks of features (``DenseRows.blocks``); empty for random forests.
        begins: the index in ``entries`` of each sparse row's first entry, and the end.
        entries: the histogram columns of sparse rows, ascending within a row, without implied bins.
    """

    columns: Array
    blocks: Array
    begins: Int64s
    entries: Int32s


class BinColumns(NamedTuple):
    """The bins of all features as columns of a histogram.

    Attributes:
        first_columns: each feature's first column, and the end.
        implied: the bin of each feature that sparse rows do not store.
        flags: ``layout.CATEGORICAL`` and ``layout.HAS_MISSING`` of each feature.
        usable: the numbers of the features that can split rows, ascending.
        usable_first: the first column of each usable feature.
    """

    first_columns: Int64s
    num_bins: Int64s
    implied: Int32s
    flags: Int64s
    usable: Int64s
    usable_first: UInt64s
    column_features: Int32s


class Nodes(NamedTuple):
    """The nodes of a growing tree.

    Attributes:
        heap_indices: 1 for the root; 2i and 2i + 1 for the children of a node with index i.
        totals: the sums of each node's rows, shape (n, channels).
        bounds: the smallest and the largest value of the leaves below each node, shape (n, 2).
        is_splittable: whether the best split is known and gains enough.
        ends: the interval of each node's rows in ``GrowingTree.order``, shape (n, 2).
        children: the left child's number; the right child has the next one; -1: a leaf.
    """

    heap_indices: Int64s
    totals: Int64s
    bounds: Float64s
    best: Splits
    is_splittable: Array
    ends: Int64s
    children: Int64s


class GrowingTree(NamedTuple):
    """A growing tree and its rows.

    Attributes:
        order: the numbers of the tree's rows; those of a node become contiguous.
        spare: scratch memory of the same length.
        nodes: memory for the nodes; heap index, totals, bounds and ends of the root are set.
    """

    order: Int32s
    spare: Int32s
    rows: Rows
    bins: BinColumns
    nodes: Nodes


@inline
def grow(
    open_root: Callable[..., None],
    open_children: Callable[..., None],
    search: Any,
    max_splits: int,
    by_gain: bool,
    tree: GrowingTree,
) -> int:
    """Grow a tree, and return its number of nodes; open_root, open_children: functions that search best splits."""
    bins, nodes = tree.bins, tree.nodes
    queue, queue_length, num_splits = np.empty(len(nodes.heap_indices), np.int64), 0, 0
    max_bins = 0
    for num_feature_bins in bins.num_bins:
        max_bins = max(max_bins, num_feature_bins)
    goes_left = np.empty(max_bins, np.bool_)
    nodes.children[0] = -1
    if max_splits > 0:
        open_root(search, tree)
        if nodes.is_splittable[0]:
            queue_length = _push(queue, queue_length, 0, nodes.best.gains, by_gain)
    while queue_length > 0 and num_splits < max_splits:
        node = queue[0]
        queue_length = _pop(queue, queue_length, nodes.best.gains, by_gain)
        left = 2 * num_splits + 1
        num_splits += 1
        _split(node, left, goes_left, tree)
        open_children(search, node, left, num_splits == max_splits, tree)
        for child in (left, left + 1):
            if nodes.is_splittable[child]:
                queue_length = _push(queue, queue_length, child, nodes.best.gains, by_gain)
    return 2 * num_splits + 1


@inline
def _split(node: int, left: int, goes_left: Array, tree: GrowingTree) -> None:
    """Move the rows of a node to its children, and set their totals; goes_left: memory for a feature's bins."""
    rows, bins, nodes = tree.rows, tree.bins, tree.nodes
    best, totals, ends = nodes.best, nodes.totals, nodes.ends
    feature = best.conditions[node, FEATURE]
    is_left_bin = goes_left[: bins.num_bins[feature]]
    set_left_bins(best.conditions[node], best.sets[node], (bins.flags[feature] & HAS_MISSING) != 0, is_left_bin)
    begin, end = ends[node, 0], ends[node, 1]
    node_rows, scratch = tree.order[begin:end], tree.spare[begin:end]
    if len(rows.columns):
        middle = begin + partition_dense(node_rows, rows.columns[feature], is_left_bin, scratch)
    else:
        first, implied = int(bins.first_columns[feature]), int(bins.implied[feature])
        middle = begin + partition_sparse(node_rows, rows.begins, rows.entries, first, implied, is_left_bin, scratch)
    nodes.children[node] = left
    ends[left, 0], ends[left, 1], ends[left + 1, 0], ends[left + 1, 1] = begin, middle, middle, end
    for c in range(totals.shape[1]):
        totals[left, c] = best.left_sums[node, c]
        totals[left + 1, c] = totals[node, c] - best.left_sums[node, c]
    for child in (left, left + 1):
        nodes.heap_indices[child] = 2 * nodes.heap_indices[node] + child - left
        nodes.children[child], nodes.is_splittable[child] = -1, False


class Histograms(NamedTuple):
    """Histograms of nodes of a boosted tree.

    Attributes:
        flat: all histograms, shape (histograms, columns * channels).
        sums: the same memory, shape (histograms, columns, channels).
        slots: the index of each node's histogram; -1: there is none.
        free: the indices of all histograms; those at positions from ``num_used[0]`` on are free.
        num_used: the number of histograms in use, shape (1,).
    """

    flat: Int64s
    sums: Int64s
    slots: Int64s
    free: Int64s
    num_used: Int64s


class BoostedSearch(NamedTuple):
    """The search for splits of a boosted tree.

    Attributes:
        pairs: the integer hessian and gradient of each row, and the third channel if there is one.
        layout: the layout row (``layout.layout_of``).
        constraints: the monotone constraint of each feature, -1, 0 or 1; empty: all are 0.
        tree_key, keys, num_sampled: the random key of the tree, memory for those of nodes, and the number of features
            that each node samples; 0: nodes use all features.
    """

    pairs: Array
    histograms: Histograms
    layout: Array
    constraints: Int64s
    rules: Rules
    limits: Limits
    scratch: Scratch
    tree_key: int
    keys: Int64s
    num_sampled: int


@kernel
def grow_boosted(search: BoostedSearch, tree: GrowingTree) -> int:
    """Grow a boosted tree; return the number of its nodes."""
    return grow(_open_root, _open_children, search, search.limits.max_splits, search.limits.by_gain, tree)


@inline
def _open_root(search: BoostedSearch, tree: GrowingTree) -> None:
    if may_split(tree.nodes.heap_indices[0], tree.nodes.totals[0], search.limits.max_depth, search.rules):
        _build(0, search, tree)
        _search(0, search, tree)


@inline
def _open_children(search: BoostedSearch, node: int, left: int, is_last: bool, tree: GrowingTree) -> None:
    """Search the children that can be split. The histogram of the larger one is the parent's minus the other's."""
    nodes = tree.nodes
    feature = nodes.best.conditions[node, FEATURE]
    _set_child_bounds(nodes, node, left, search.constraints[feature] if len(search.constraints) else 0, search.rules)
    if is_last:
        return
    histograms, ends, max_depth = search.histograms, nodes.ends, search.limits.max_depth
    slots, parent = histograms.slots, histograms.slots[node]
    small = left if ends[left, 1] - ends[left, 0] <= ends[left + 1, 1] - ends[left + 1, 0] else left + 1
    large = 2 * left + 1 - small
    is_small_open = may_split(nodes.heap_indices[small], nodes.totals[small], max_depth, search.rules)
    is_large_open = may_split(nodes.heap_indices[large], nodes.totals[large], max_depth, search.rules)
    if is_small_open:
        _build(small, search, tree)
    if not is_large_open:
        _release(parent, histograms)
    elif is_small_open:
        slots[large] = parent
        parent_sums, child_sums = histograms.flat[parent], histograms.flat[slots[small]]
        for i in range(len(parent_sums)):
            parent_sums[i] -= child_sums[i]
    else:
        slots[large] = parent
        _add_rows(small, -1, histograms.sums[parent], search, tree)
    for child in (left, left + 1):
        if slots[child] >= 0:
            _search(child, search, tree)


@inline
def _build(node: int, search: BoostedSearch, tree: GrowingTree) -> None:
    """Assign a free histogram to a node, and add the node's rows to it."""
    histograms = search.histograms
    slot = histograms.free[histograms.num_used[0]]
    histograms.slots[node] = slot
    histograms.num_used[0] += 1
    histograms.flat[slot] = 0
    _add_rows(node, 1, histograms.sums[slot], search, tree)


@inline
def _add_rows(node: int, sign: int, out: Array, search: BoostedSearch, tree: GrowingTree) -> None:
    """Add a node's rows to a histogram; sign -1: subtract them."""
    pairs, rows, ends = search.pairs, tree.rows, tree.nodes.ends
    node_rows = tree.order[ends[node, 0] : ends[node, 1]]
    if len(rows.columns):
        add_blocks(node_rows, rows.blocks, tree.bins.usable_first, pairs, sign, out)
        return
    begins, entries = rows.begins, rows.entries
    for row in node_rows:
        for position in range(begins[row], begins[row + 1]):
            column = entries[position]
            for c in range(pairs.shape[1]):
                out[column, c] += sign * pairs[row, c]


@inline
def _release(slot: int, histograms: Histograms) -> None:
    histograms.num_used[0] -= 1
    histograms.free[histograms.num_used[0]] = slot


@inline
def _search(node: int, search: BoostedSearch, tree: GrowingTree) -> None:
    """Search the best split of a node; release the node's histogram if no split gains enough."""
    nodes, histograms, layout, rules = tree.nodes, search.histograms, search.layout, search.rules
    best = nodes.best
    slot, columns = histograms.slots[node], histograms.sums.shape[1]
    histogram, end = histograms.flat[slot], int(tree.bins.first_columns[-1])
    search.keys[node] = node_keys(search.tree_key, nodes.heap_indices[node])
    open_nodes = OpenNodes(nodes.totals, nodes.bounds, search.keys, np.empty((0, 0), np.int64))
    best.gains[node] = -np.inf
    is_full = len(tree.rows.columns) > 0
    search_node(
        histogram, layout[:0], layout, 0, end, len(histogram) // columns, node, open_nodes, rules,
        len(tree.bins.num_bins), search.num_sampled, is_full, search.scratch, best,
    )  # fmt: skip
    total, left, bound = nodes.totals[node], best.left_sums[node], nodes.bounds[node]
    nodes.is_splittable[node] = gains_enough(best.gains[node], total, left, bound, rules, search.limits)
    if not nodes.is_splittable[node]:
        _release(slot, histograms)


@inline
def _set_child_bounds(nodes: Nodes, node: int, left: int, sign: int, rules: Rules) -> None:
    """Set the bounds of leaf values below two children: see ``boosted_growth.child_bounds``."""
    totals, bounds = nodes.totals, nodes.bounds
    for child in (left, left + 1):
        bounds[child, LOWER], bounds[child, UPPER] = bounds[node, LOWER], bounds[node, UPPER]
    if sign != 0:
        right = left + 1
        left_value = leaf_value_of_sums(totals[left, HESSIAN], totals[left, GRADIENT], bounds[node], rules)
        right_value = leaf_value_of_sums(totals[right, HESSIAN], totals[right, GRADIENT], bounds[node], rules)
        middle = (left_value + right_value) / 2
        upper, lower = (left, left + 1) if sign > 0 else (left + 1, left)
        bounds[upper, UPPER] = bounds[lower, LOWER] = middle


@inline
def _comes_before(node: int, other: int, gains: Float64s, by_gain: bool) -> bool:
    """Return whether a node is split before another node: it has the larger gain, or it is older."""
    if by_gain and gains[node] != gains[other]:
        return gains[node] > gains[other]
    return node < other


@inline
def _push(queue: Int64s, count: int, node: int, gains: Float64s, by_gain: bool) -> int:
    """Put a node into a heap of ``count`` nodes; return the new count."""
    position = count
    while position > 0 and _comes_before(node, queue[(position - 1) // 2], gains, by_gain):
        queue[position] = queue[(position - 1) // 2]
        position = (position - 1) // 2
    queue[position] = node
    return count + 1


@inline
def _pop(queue: Int64s, count: int, gains: Float64s, by_gain: bool) -> int:
    """Remove the first node from a heap of ``count`` nodes; return the new count."""
    last, position = queue[count - 1], 0
    while 2 * position + 1 < count - 1:
        child = 2 * position + 1
        if child + 1 < count - 1 and _comes_before(queue[child + 1], queue[child], gains, by_gain):
            child += 1
        if not _comes_before(queue[child], last, gains, by_gain):
            break
        queue[position] = queue[child]
        position = child
    queue[position] = last
    return count - 1


@kernel
def weigh_nodes(totals: Int64s, bounds: Float64s, rules: Rules, out: Float64s) -> None:
    """Set ``out`` to the best value of each node as a leaf."""
    for node in range(len(out)):
        out[node] = leaf_value_of_sums(totals[node, HESSIAN], totals[node, GRADIENT], bounds[node], rules)
