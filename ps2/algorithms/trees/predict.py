"""Margins and leaves of rows, without Spark and servers: compiled loops that send rows of arrays down trees.

Eight rows go down a tree together, because the steps of different rows do not depend on each other. There is no branch
that the processor could mispredict. A row that has reached a leaf stays there: a leaf is its own left child, and no row
goes right at it. The nodes of a tree are contiguous, 24 bytes each, with siblings next to each other. All rows of a
block go down one tree before the next one, so that the tree stays in the L1 cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.frame.row_matrices import as_rows
from ps2.algorithms.trees.layout import Array, Bools, UInt32s, category_goes_left, goes_left
from ps2.algorithms.trees.tree import LEAF, Absent, Forest, Tree
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.guards import readable
from ps2.ops.kernels import inline, kernel
from ps2.ops.parallel import over_blocks

# ``packed_split``: feature << 2, + 2 if the split is by a set of categories, + 1 if NaN goes left. A set's index is in
# ``threshold``. Integers are unsigned: for a signed index, numba would check whether it counts from the end.
NODE = np.dtype([("threshold", np.float64), ("value", np.float64), ("packed_split", np.uint32), ("left", np.uint32)])
# The number of rows of a block, of rows that go down a tree together, and of values in a dense block of sparse rows.
BLOCK = 256
LANES = 8
DENSE_VALUES = 1 << 16
# After this many steps, each step checks whether all eight rows are in leaves. Trees that grow leaf by leaf have a few
# deep paths, which most rows do not take.
UNCHECKED_STEPS = 6

DEFAULT_LEFT, HAS_SET, SHIFT = np.uint32(1), np.uint32(2), np.uint32(2)


class Trees(NamedTuple):
    """The trees of a forest.

    Attributes:
        nodes: NODE records, those of a tree contiguous.
        roots, depths: the index of each tree's root in ``nodes``, and the tree's depth.
        has_sets: whether each tree has sets of categories.
        set_begin, set_flags: the index of each set's first flag, and the end; the flags of all sets.
        set_codes: the category of each flag; empty: see ``category_goes_left``.
    """

    nodes: Array
    roots: UInt32s
    depths: Int32s
    has_sets: Array
    set_begin: Int64s
    set_flags: Array
    set_codes: Int64s


class SparseMatrix(NamedTuple):
    """Sparse rows, and how to copy the features that trees use to a dense block.

    Attributes:
        indptr, indices, data: CSR.
        columns: each feature's column in a block; -1: no tree uses the feature.
        width: the number of a block's columns.
        absent: the value of an entry that is not stored.
    """

    indptr: Array
    indices: Array
    data: Array
    columns: Int32s
    width: int
    absent: float


@inline
def _step(x: Array, nodes: Array, row: np.uint64, node: np.uint64) -> np.uint64:
    """Return the child to which a row goes, or the node itself if it is a leaf."""
    packed_split = nodes[node].packed_split
    value = np.float64(x[row, np.uint64(packed_split >> SHIFT)])
    is_left = goes_left(value, nodes[node].threshold, (packed_split & DEFAULT_LEFT) != 0)
    return np.uint64(nodes[node].left + np.uint32(not is_left))


@inline
def _step_by_set(x: Array, trees: Trees, row: np.uint64, node: np.uint64) -> np.uint64:
    """Return the child to which a row goes at a node with a set of categories."""
    nodes = trees.nodes
    packed_split, number = nodes[node].packed_split, np.int64(nodes[node].threshold)
    value = np.float64(x[row, np.uint64(packed_split >> SHIFT)])
    begin, end = trees.set_begin[number], trees.set_begin[number + 1]
    missing_left = (packed_split & DEFAULT_LEFT) != 0
    is_left = category_goes_left(value, trees.set_flags, trees.set_codes, begin, end, missing_left)
    return np.uint64(nodes[node].left + np.uint32(not is_left))


@inline
def _walk_with_sets(x: Array, trees: Trees, tree: int, leaves: UInt32s) -> None:
    """Set ``leaves`` to the leaves that rows reach in a tree with sets of categories."""
    for row in range(x.shape[0]):
        node = np.uint64(trees.roots[tree])
        parent = node + np.uint64(1)
        while node != parent:  # a leaf is its own left child
            parent = node
            if trees.nodes[node].packed_split & HAS_SET:
                node = _step_by_set(x, trees, np.uint64(row), node)
            else:
                node = _step(x, trees.nodes, np.uint64(row), node)
        leaves[row] = node


@inline
def _walk(x: Array, nodes: Array, root: int, depth: int, leaves: UInt32s) -> None:
    """Set ``leaves``, which is LANES longer than a block, to the leaves that rows reach in one tree."""
    last = x.shape[0] - 1
    for begin in range(0, x.shape[0], LANES):
        # The loop over lanes is unrolled, so that all nodes stay in registers. The last row fills unused lanes.
        r0, r1 = np.uint64(begin), np.uint64(min(begin + 1, last))
        r2, r3 = np.uint64(min(begin + 2, last)), np.uint64(min(begin + 3, last))
        r4, r5 = np.uint64(min(begin + 4, last)), np.uint64(min(begin + 5, last))
        r6, r7 = np.uint64(min(begin + 6, last)), np.uint64(min(begin + 7, last))
        a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = np.uint64(root)
        for steps in range(depth):
            b0, b1, b2, b3, b4, b5, b6, b7 = a0, a1, a2, a3, a4, a5, a6, a7
            a0, a1 = _step(x, nodes, r0, b0), _step(x, nodes, r1, b1)
            a2, a3 = _step(x, nodes, r2, b2), _step(x, nodes, r3, b3)
            a4, a5 = _step(x, nodes, r4, b4), _step(x, nodes, r5, b5)
            a6, a7 = _step(x, nodes, r6, b6), _step(x, nodes, r7, b7)
            moved = (a0 ^ b0) | (a1 ^ b1) | (a2 ^ b2) | (a3 ^ b3) | (a4 ^ b4) | (a5 ^ b5) | (a6 ^ b6) | (a7 ^ b7)
            if steps >= UNCHECKED_STEPS and moved == 0:
                break
        leaves[begin], leaves[begin + 1], leaves[begin + 2], leaves[begin + 3] = a0, a1, a2, a3
        leaves[begin + 4], leaves[begin + 5], leaves[begin + 6], leaves[begin + 7] = a4, a5, a6, a7


@inline
def _walk_any(x: Array, trees: Trees, tree: int, leaves: UInt32s) -> None:
    if trees.has_sets[tree]:
        _walk_with_sets(x, trees, tree, leaves)
    else:
        _walk(x, trees.nodes, trees.roots[tree], trees.depths[tree], leaves)


@inline
def _add_margins(x: Array, trees: Trees, leaves: UInt32s, out: Array) -> None:
    width = out.shape[1]
    for tree in range(len(trees.depths)):
        _walk_any(x, trees, tree, leaves)
        column = tree % width
        for i in range(x.shape[0]):
            out[i, column] += trees.nodes[leaves[i]].value


@inline
def _set_leaves(x: Array, trees: Trees, leaves: UInt32s, out: Array) -> None:
    for tree in range(len(trees.depths)):
        _walk_any(x, trees, tree, leaves)
        for i in range(x.shape[0]):
            out[i, tree] = leaves[i]


@inline
def _over_dense(function: Callable[..., None], x: Array, out: Array, trees: Trees) -> None:
    """Call a function for each block of rows."""
    leaves = np.empty(BLOCK + LANES, np.uint32)
    for begin in range(0, x.shape[0], BLOCK):
        end = min(begin + BLOCK, x.shape[0])
        function(x[begin:end], trees, leaves, out[begin:end])


@inline
def _over_sparse(function: Callable[..., None], rows: Int64s, out: Array, matrix: SparseMatrix, trees: Trees) -> None:
    """Call a function for consecutive rows of a sparse matrix, in dense blocks."""
    size = max(LANES, min(BLOCK, DENSE_VALUES // matrix.width))
    leaves, block = np.empty(size + LANES, np.uint32), np.empty((size, matrix.width))
    for begin in range(0, len(rows), size):
        end = min(begin + size, len(rows))
        _fill_block(rows[begin], rows[end - 1] + 1, matrix, block)
        function(block[: end - begin], trees, leaves, out[begin:end])


@inline
def _fill_block(begin: int, end: int, matrix: SparseMatrix, block: Float64s) -> None:
    """Set a block to the sparse rows from ``begin`` to ``end``."""
    block[: end - begin] = matrix.absent
    for row in range(begin, end):
        for position in range(matrix.indptr[row], matrix.indptr[row + 1]):
            column = matrix.columns[matrix.indices[position]]
            if column >= 0:
                block[row - begin, column] = matrix.data[position]


@kernel
def dense_margins(x: Array, out: Array, trees: Trees) -> None:
    """Add the trees' leaves to ``out``, float64, shape (rows, width)."""
    _over_dense(_add_margins, x, out, trees)


@kernel
def dense_leaves(x: Array, out: Array, trees: Trees) -> None:
    """Set ``out``, shape (rows, trees), to the positions of leaves in ``Trees.nodes``."""
    _over_dense(_set_leaves, x, out, trees)


@kernel
def sparse_margins(rows: Int64s, out: Array, matrix: SparseMatrix, trees: Trees) -> None:
    _over_sparse(_add_margins, rows, out, matrix, trees)


@kernel
def sparse_leaves(rows: Int64s, out: Array, matrix: SparseMatrix, trees: Trees) -> None:
    _over_sparse(_set_leaves, rows, out, matrix, trees)


# The costs of a step of a row, and of an entry of a sparse row, in additions of array elements.
STEP_COST = 2
ENTRY_COST = 2


class Predictor:
    """A forest as arguments of the kernels; picklable."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._absent = 0.0 if forest.absent == "zero" else np.nan
        orders = [_breadth_first(tree) for tree in forest.trees]
        depths = np.array([len(levels) - 1 for levels in orders], np.int32)
        roots = np.append(0, np.cumsum([len(tree) for tree in forest.trees])).astype(np.uint32)
        self._node_numbers = np.concatenate([np.empty(0, np.int32), *(level for levels in orders for level in levels)])
        nodes = np.zeros(roots[-1], NODE)
        flags, codes = list[Bools](), list[Int64s]()
        has_codes = any(len(tree.set_codes) for tree in forest.trees)
        for tree, levels, root in zip(forest.trees, orders, roots, strict=False):
            order = np.concatenate(levels)
            _set_nodes(tree, order, int(root), len(flags), nodes[root : root + len(order)])
            set_nodes = [node for node in order if len(tree.set_of(node))]
            flags += [tree.set_of(node) for node in set_nodes]
            codes += [tree.node_codes(node) for node in set_nodes if has_codes]
        set_begin = np.append(0, np.cumsum([len(set_flags) for set_flags in flags])).astype(np.int64)
        has_sets = np.array([len(tree.set_flags) > 0 for tree in forest.trees], np.bool_)
        set_codes = np.concatenate([np.empty(0, np.int64), *codes])
        sets = has_sets, set_begin, np.concatenate([np.empty(0, np.bool_), *flags]), set_codes
        self._trees = Trees(*map(readable, (nodes, roots[:-1], depths, *sets)))
        # A block of sparse rows has only the features that trees use.
        features = nodes["packed_split"] >> 2
        self._used_features = np.unique(features)
        sparse_nodes = nodes.copy()
        sparse_nodes["packed_split"] += ((np.searchsorted(self._used_features, features) - features) << 2).astype(
            np.uint32
        )
        self._sparse_trees = self._trees._replace(nodes=readable(sparse_nodes))

    def margins(self, x: Any) -> Float64s:
        """Return the margins of rows, shape (n, width), summed in float64; x: see ``GBTModel.margins``."""
        x = self._rows(x)
        out = np.empty((x.shape[0], self._forest.width))
        out[:] = self._forest.base
        self._run(dense_margins, sparse_margins, x, out)
        return out

    def leaves(self, x: Any) -> Int32s:
        """Return the leaf of each tree that rows reach, as its node number: int32, shape (n, trees)."""
        x = self._rows(x)
        out = np.empty((x.shape[0], len(self._forest.trees)), np.int32)
        self._run(dense_leaves, sparse_leaves, x, out)
        return self._node_numbers[out]

    def leaf_ranks(self, x: Any) -> Int32s:
        """Return the leaf of each tree that rows reach, counted from the left: int32, shape (n, trees)."""
        nodes = self.leaves(x)
        for number, tree in enumerate(self._forest.trees):
            positions = np.zeros(len(tree), np.int32)
            positions[tree.leaves] = np.arange(len(tree.leaves))
            nodes[:, number] = positions[nodes[:, number]]
        return nodes

    def _rows(self, x: Any) -> Any:
        return self._forest.with_statistics(matrix_of(x, self._forest.inputs))

    def _run(self, dense: Callable[..., None], sparse: Callable[..., None], x: Any, out: Array) -> None:
        """Call one of two kernels on rows, in threads."""
        if not len(self._forest.trees):
            return
        cost = int(self._trees.depths.sum()) * STEP_COST + 1
        if sp.issparse(x):
            columns = np.full(self._forest.features, -1, np.int32)
            columns[self._used_features] = np.arange(len(self._used_features))
            csr = readable(x.indptr), readable(x.indices), readable(x.data)
            matrix = SparseMatrix(*csr, readable(columns), len(self._used_features), self._absent)
            cost += x.nnz * ENTRY_COST // max(len(out), 1)
            over_blocks(sparse, (np.arange(len(out)), out), matrix, self._sparse_trees, cost=cost)
        else:
            over_blocks(dense, (readable(x), out), self._trees, cost=cost)


class TreesModel:
    """Members of all trained models of trees, without Spark and servers; picklable."""

    forest: Forest

    @property
    def dim(self) -> int:
        """The number of features."""
        return self.forest.inputs

    @property
    def takes_missing(self) -> bool:
        """Whether rows may have missing values, as NaN."""
        return True

    @property
    def is_light(self) -> bool:
        """Whether the model is so small that Spark may send it within each task's function."""
        return False

    def nodes(self, x: Any) -> Int32s:
        """Return the leaf of each tree that rows reach, as its node number: int32, shape (n, trees)."""
        return self._predictor.leaves(x)

    def leaves(self, x: Any) -> Int32s:
        """Return the leaf of each tree that rows reach, counted from the left: int32, shape (n, trees)."""
        return self._predictor.leaf_ranks(x)

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor(self.forest)


def matrix_of(x: Any, features: int) -> Any:
    """Return rows as a float64 array or CSR matrix; ShapeError, DTypeError: it has another shape or type."""
    x = as_rows("x", x, features)
    return x.astype(np.float64, copy=False)


def dense_rows(x: sp.csr_array, absent: Absent) -> Array:
    """Return sparse rows as a dense array; entries that are not stored become 0, or NaN if they are missing."""
    out: Array = x.toarray()
    if absent == "missing":
        is_stored = sp.csr_array((np.ones(x.nnz, np.bool_), x.indices, x.indptr), shape=x.shape)
        out[~is_stored.toarray()] = np.nan
    return out


def _breadth_first(tree: Tree) -> list[Int32s]:
    """Return the numbers of the nodes of each level; the two children of a node are next to each other."""
    levels = [np.zeros(1, np.int32)]
    while len(inner := levels[-1][tree.feature[levels[-1]] != LEAF]):
        levels.append(np.stack([tree.left[inner], tree.right[inner]], axis=1).reshape(-1))
    return levels


def _set_nodes(tree: Tree, order: Int32s, root: int, sets: int, nodes: Array) -> None:
    """Set the NODE records of a tree; root: the index of its first node; sets: the index of its first set."""
    position = np.empty(len(order), np.int32)
    position[order] = np.arange(root, root + len(order))
    leaf = tree.feature[order] == LEAF
    has_set = np.diff(tree.set_begin)[order] > 0
    nodes["left"] = np.where(leaf, position[order], position[tree.left[order]])
    nodes["value"] = tree.value[order]
    # At a leaf, no value is above infinity, and NaN goes left: a row stays there.
    nodes["threshold"] = np.where(leaf, np.inf, tree.threshold[order])
    nodes["threshold"][has_set] = sets + np.arange(has_set.sum())
    packed_splits = tree.feature[order] << 2 | has_set << 1 | tree.default_left[order]
    nodes["packed_split"] = np.where(leaf, 1, packed_splits).astype(np.uint32)
