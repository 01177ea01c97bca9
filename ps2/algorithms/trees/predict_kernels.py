"""Compiled walks of rows through trees.

Eight rows go down a tree side by side: the steps of one do not wait for those of another, and none is a branch that
could be mispredicted. A row that has reached a leaf stays there: a leaf is its own left child, and sends no row right.
The nodes of a tree are contiguous, children next to each other, 24 bytes each, and all rows of a block walk one tree
before the next, so that it stays in the first cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ps2.algorithms.trees.layout import Array, UInt32s, category_goes_left, goes_left
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.kernels import inline, kernel

# ``where``: feature << 2, + 2 if there is a set, + 1 if NaN goes left. ``threshold``: of a set, its number. Unsigned,
# as for a signed index numba asks whether it counts from the end.
NODE = np.dtype([("threshold", np.float64), ("value", np.float64), ("where", np.uint32), ("left", np.uint32)])
# The number of rows that walk together, and the size of a dense block of sparse rows, in numbers.
BLOCK = 256
LANES = 8
DENSE_SIZE = 1 << 16
# Steps after which all eight are asked whether they are in leaves: trees that grow leaf by leaf are deep in places.
PATIENCE = 6

DEFAULT_LEFT, HAS_SET, SHIFT = np.uint32(1), np.uint32(2), np.uint32(2)


class Trees(NamedTuple):
    """The trees of a forest.

    Attributes:
        nodes: NODE records, those of a tree contiguous.
        roots, depths: the first node of each tree, and its depth.
        has_sets: whether each tree has sets of categories.
        set_begin, set_flags: where the flags of each set begin; the flags of all sets.
    """

    nodes: Array
    roots: UInt32s
    depths: Int32s
    has_sets: Array
    set_begin: Int64s
    set_flags: Array


class SparseMatrix(NamedTuple):
    """Sparse rows, and the columns of the features that trees use in a dense block.

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
    """Return the child that a row goes to, or the leaf itself."""
    where = nodes[node].where
    value = np.float64(x[row, np.uint64(where >> SHIFT)])
    is_left = goes_left(value, nodes[node].threshold, (where & DEFAULT_LEFT) != 0)
    return np.uint64(nodes[node].left + np.uint32(not is_left))


@inline
def _step_by_set(x: Array, trees: Trees, row: np.uint64, node: np.uint64) -> np.uint64:
    """Do what ``_step`` does where there is a set."""
    nodes = trees.nodes
    where, number = nodes[node].where, np.int64(nodes[node].threshold)
    value = np.float64(x[row, np.uint64(where >> SHIFT)])
    begin, end = trees.set_begin[number], trees.set_begin[number + 1]
    is_left = category_goes_left(value, trees.set_flags, begin, end, (where & DEFAULT_LEFT) != 0)
    return np.uint64(nodes[node].left + np.uint32(not is_left))


@inline
def _walk_with_sets(x: Array, trees: Trees, tree: int, leaves: UInt32s) -> None:
    """Do what ``_walk`` does in a tree that has sets."""
    for row in range(x.shape[0]):
        node = np.uint64(trees.roots[tree])
        for _ in range(trees.depths[tree]):
            if trees.nodes[node].where & HAS_SET:
                node = _step_by_set(x, trees, np.uint64(row), node)
            else:
                node = _step(x, trees.nodes, np.uint64(row), node)
        leaves[row] = node


@inline
def _walk(x: Array, nodes: Array, root: int, depth: int, leaves: UInt32s) -> None:
    """Let rows go down one tree, ``depth`` steps; ``leaves``, LANES longer than a block, gets their leaves."""
    last = x.shape[0] - 1
    for begin in range(0, x.shape[0], LANES):
        # Unrolled, so that all nodes stay in registers; the last row fills the lanes behind it.
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
            if steps >= PATIENCE and moved == 0:
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
def _over_dense(do: Callable[..., None], x: Array, out: Array, trees: Trees) -> None:
    """Do something with blocks of rows."""
    leaves = np.empty(BLOCK + LANES, np.uint32)
    for begin in range(0, x.shape[0], BLOCK):
        end = min(begin + BLOCK, x.shape[0])
        do(x[begin:end], trees, leaves, out[begin:end])


@inline
def _over_sparse(do: Callable[..., None], rows: Int64s, out: Array, matrix: SparseMatrix, trees: Trees) -> None:
    """Do something with dense blocks of consecutive rows of a sparse matrix."""
    size = max(LANES, min(BLOCK, DENSE_SIZE // matrix.width))
    leaves, block = np.empty(size + LANES, np.uint32), np.empty((size, matrix.width))
    for begin in range(0, len(rows), size):
        end = min(begin + size, len(rows))
        _fill_block(rows[begin], rows[end - 1] + 1, matrix, block)
        do(block[: end - begin], trees, leaves, out[begin:end])


@inline
def _fill_block(begin: int, end: int, matrix: SparseMatrix, block: Float64s) -> None:
    """Set a block to some sparse rows."""
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
    """Add the trees' leaves to ``out``, float64, shape (rows, width)."""
    _over_sparse(_add_margins, rows, out, matrix, trees)


@kernel
def sparse_leaves(rows: Int64s, out: Array, matrix: SparseMatrix, trees: Trees) -> None:
    """Set ``out``, shape (rows, trees), to the positions of leaves in ``Trees.nodes``."""
    _over_sparse(_set_leaves, rows, out, matrix, trees)
