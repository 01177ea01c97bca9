"""Compiled walks of rows through trees.

Eight rows go down a tree side by side: the steps of one do not wait for those of another, and none is a branch that
could be mispredicted. A row that has reached a leaf stays there: a leaf is its own left child, and sends no row right.
The nodes of a tree lie together, children next to each other, 24 bytes each, and all rows of a block walk one tree
before the next, so that it stays in the first cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.routing import category_goes_left, goes_left
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.kernels import inline, kernel

Array = npt.NDArray[Any]
UInt32s = npt.NDArray[np.uint32]
# Whether each tree has sets; where each begins in their flags; the flags.
Sets = tuple[Array, Int64s, Array]

# ``where``: feature << 2, + 2 if there is a set, + 1 if NaN goes left. ``threshold``: of a set, its number. Unsigned,
# as for a signed index numba asks whether it counts from the end.
NODE = np.dtype([("threshold", np.float64), ("value", np.float64), ("where", np.uint32), ("left", np.uint32)])
# Rows that walk together, and what a block of sparse ones may take when they are laid out, in numbers.
BLOCK = 256
LANES = 8
LAID_OUT = 1 << 16
# Steps after which all eight are asked whether they are in leaves: trees that grow leaf by leaf are deep in places.
PATIENCE = 6

DEFAULT_LEFT, HAS_SET, SHIFT = np.uint32(1), np.uint32(2), np.uint32(2)


@inline
def _step(x: Array, nodes: Array, row: np.uint64, at: np.uint64) -> np.uint64:
    """Return the place of the child, or of the leaf itself, that a row at ``at`` goes to."""
    where = nodes[at].where
    value = np.float64(x[row, np.uint64(where >> SHIFT)])
    is_left = goes_left(value, nodes[at].threshold, (where & DEFAULT_LEFT) != 0)
    return np.uint64(nodes[at].left + np.uint32(not is_left))


@inline
def _step_by_set(
    x: Array, nodes: Array, set_begin: Int64s, set_flags: Array, row: np.uint64, at: np.uint64
) -> np.uint64:
    """Do what ``_step`` does where there is a set."""
    where, number = nodes[at].where, np.int64(nodes[at].threshold)
    value = np.float64(x[row, np.uint64(where >> SHIFT)])
    begin, end = set_begin[number], set_begin[number + 1]
    is_left = category_goes_left(value, set_flags, begin, end, (where & DEFAULT_LEFT) != 0)
    return np.uint64(nodes[at].left + np.uint32(not is_left))


@inline
def _walk_with_sets(
    x: Array, nodes: Array, set_begin: Int64s, set_flags: Array, root: int, depth: int, at: UInt32s
) -> None:
    """Do what ``_walk`` does in a tree that has sets."""
    for row in range(x.shape[0]):
        place = np.uint64(root)
        for _ in range(depth):
            if nodes[place].where & HAS_SET:
                place = _step_by_set(x, nodes, set_begin, set_flags, np.uint64(row), place)
            else:
                place = _step(x, nodes, np.uint64(row), place)
        at[row] = place


@inline
def _walk(x: Array, nodes: Array, root: int, depth: int, at: UInt32s) -> None:
    """Let rows ``x`` go down one tree, ``depth`` steps; ``at``, of BLOCK and LANES more, gets the places of leaves."""
    last = x.shape[0] - 1
    for begin in range(0, x.shape[0], LANES):
        # Unrolled, so that all places stay in registers; what is behind the last row walks with it.
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
        at[begin], at[begin + 1], at[begin + 2], at[begin + 3] = a0, a1, a2, a3
        at[begin + 4], at[begin + 5], at[begin + 6], at[begin + 7] = a4, a5, a6, a7


@inline
def _walk_any(x: Array, nodes: Array, sets: Sets, tree: int, root: int, depth: int, at: UInt32s) -> None:
    has_sets, set_begin, set_flags = sets
    if has_sets[tree]:
        _walk_with_sets(x, nodes, set_begin, set_flags, root, depth, at)
    else:
        _walk(x, nodes, root, depth, at)


@inline
def _add_margins(x: Array, nodes: Array, sets: Sets, roots: UInt32s, depths: Int32s, at: UInt32s, out: Array) -> None:
    width = out.shape[1]
    for tree in range(len(depths)):
        _walk_any(x, nodes, sets, tree, roots[tree], depths[tree], at)
        column = tree % width
        for i in range(x.shape[0]):
            out[i, column] += nodes[at[i]].value


@inline
def _set_leaves(x: Array, nodes: Array, sets: Sets, roots: UInt32s, depths: Int32s, at: UInt32s, out: Array) -> None:
    for tree in range(len(depths)):
        _walk_any(x, nodes, sets, tree, roots[tree], depths[tree], at)
        for i in range(x.shape[0]):
            out[i, tree] = at[i]


@kernel
def dense_margins(x: Array, out: Array, nodes: Array, sets: Sets, roots: UInt32s, depths: Int32s) -> None:
    """Add what the trees say to ``out``, float64 of shape (rows, width); ``x`` has a column for each used feature."""
    at = np.empty(BLOCK + LANES, np.uint32)
    for begin in range(0, x.shape[0], BLOCK):
        end = min(begin + BLOCK, x.shape[0])
        _add_margins(x[begin:end], nodes, sets, roots, depths, at, out[begin:end])


@kernel
def dense_leaves(x: Array, out: Array, nodes: Array, sets: Sets, roots: UInt32s, depths: Int32s) -> None:
    """Set ``out``, of shape (rows, trees), to the places of leaves in ``nodes``."""
    at = np.empty(BLOCK + LANES, np.uint32)
    for begin in range(0, x.shape[0], BLOCK):
        end = min(begin + BLOCK, x.shape[0])
        _set_leaves(x[begin:end], nodes, sets, roots, depths, at, out[begin:end])


@inline
def _lay_out(
    begin: int, end: int, indptr: Array, columns: Array, values: Array, places: Int32s, absent: float, block: Float64s
) -> None:
    """Lay some sparse rows out: ``places[column]`` is a column's in ``block``, -1 if no tree asks for it."""
    block[: end - begin] = absent
    for row in range(begin, end):
        for position in range(indptr[row], indptr[row + 1]):
            place = places[columns[position]]
            if place >= 0:
                block[row - begin, place] = values[position]


@kernel
def sparse_margins(
    rows: Int64s,
    out: Array,
    matrix: tuple[Array, Array, Array],
    places: Int32s,
    used: int,
    absent: float,
    nodes: Array,
    sets: Sets,
    roots: UInt32s,
    depths: Int32s,
) -> None:
    """Do what ``dense_margins`` does, for consecutive ``rows`` of a sparse matrix (indptr, indices, data)."""
    size = max(LANES, min(BLOCK, LAID_OUT // used))
    at, block = np.empty(size + LANES, np.uint32), np.empty((size, used))
    for begin in range(0, len(rows), size):
        end = min(begin + size, len(rows))
        _lay_out(rows[begin], rows[end - 1] + 1, *matrix, places, absent, block)
        _add_margins(block[: end - begin], nodes, sets, roots, depths, at, out[begin:end])


@kernel
def sparse_leaves(
    rows: Int64s,
    out: Array,
    matrix: tuple[Array, Array, Array],
    places: Int32s,
    used: int,
    absent: float,
    nodes: Array,
    sets: Sets,
    roots: UInt32s,
    depths: Int32s,
) -> None:
    """Do what ``dense_leaves`` does, for consecutive ``rows`` of a sparse matrix (indptr, indices, data)."""
    size = max(LANES, min(BLOCK, LAID_OUT // used))
    at, block = np.empty(size + LANES, np.uint32), np.empty((size, used))
    for begin in range(0, len(rows), size):
        end = min(begin + size, len(rows))
        _lay_out(rows[begin], rows[end - 1] + 1, *matrix, places, absent, block)
        _set_leaves(block[: end - begin], nodes, sets, roots, depths, at, out[begin:end])
