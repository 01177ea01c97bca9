"""Margins and leaves of NumPy and scipy arrays, without Spark and servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.frame.row_matrices import as_rows
from ps2.algorithms.trees import predict_kernels as kernels
from ps2.algorithms.trees.tree import LEAF, Bools, Forest, Tree
from ps2.array_types import Float64s, Int32s
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

Array = npt.NDArray[Any]

# What a step of a row costs, in additions; and an entry of a sparse row.
STEP_COST = 2
ENTRY_COST = 2


class Predictor:
    """A forest as its kernels want it; picklable.

    Args:
        forest: any.
    """

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._absent = 0.0 if forest.absent == "zero" else np.nan
        orders = [_breadth_first(tree) for tree in forest.trees]
        self._depths = np.array([len(levels) - 1 for levels in orders], np.int32)
        self._roots = np.append(0, np.cumsum([len(tree) for tree in forest.trees])).astype(np.uint32)
        self._numbers = np.concatenate([np.empty(0, np.int32), *(level for levels in orders for level in levels)])
        self._nodes = np.zeros(self._roots[-1], kernels.NODE)
        flags: list[Bools] = []
        for tree, levels, root in zip(forest.trees, orders, self._roots, strict=False):
            order = np.concatenate(levels)
            _lay(tree, order, int(root), len(flags), self._nodes[root : root + len(order)])
            flags += [tree.set_of(node) for node in order if len(tree.set_of(node))]
        set_begin = np.append(0, np.cumsum([len(one) for one in flags])).astype(np.int64)
        has_sets = np.array([len(tree.set_flags) > 0 for tree in forest.trees], np.bool_)
        self._sets = tuple(map(readable, (has_sets, set_begin, np.concatenate([np.empty(0, np.bool_), *flags]))))
        # Of a sparse row, only the features that trees ask for are laid out.
        features = self._nodes["where"] >> 2
        self._used = np.unique(features)
        self._sparse_nodes = self._nodes.copy()
        self._sparse_nodes["where"] += ((np.searchsorted(self._used, features) - features) << 2).astype(np.uint32)

    def margins(self, x: Any) -> Float64s:
        """Compute the margins of rows: the base and what the trees add to it, summed in float64.

        Args:
            x: float64 (others are converted), shape (n, features), dense or CSR, or what NumPy makes an
                array of, such as a pandas DataFrame; NaN is missing.

        Returns:
            Shape (n, width).

        Raises:
            ShapeError: x has another number of features.
            DTypeError: it holds no numbers.
        """
        x = matrix_of(x, self._forest.features)
        out = np.empty((x.shape[0], self._forest.width))
        out[:] = self._forest.base
        self._run(kernels.dense_margins, kernels.sparse_margins, x, out)
        return out

    def leaves(self, x: Any) -> Int32s:
        """Return the leaves that rows reach, int32, shape (n, trees): numbers of nodes in each ``Tree``.

        Args and Raises: as of ``margins``.
        """
        x = matrix_of(x, self._forest.features)
        out = np.empty((x.shape[0], len(self._forest.trees)), np.int32)
        self._run(kernels.dense_leaves, kernels.sparse_leaves, x, out)
        return self._numbers[out]

    def leaf_places(self, x: Any) -> Int32s:
        """Return the leaves that rows reach, counted in each tree from the left; as ``leaves`` else."""
        nodes = self.leaves(x)
        for number, tree in enumerate(self._forest.trees):
            places = np.zeros(len(tree), np.int32)
            places[tree.leaves] = np.arange(len(tree.leaves))
            nodes[:, number] = places[nodes[:, number]]
        return nodes

    def _run(self, dense: Callable[..., None], sparse: Callable[..., None], x: Any, out: Array) -> None:
        if not len(self._forest.trees):
            return
        forest = (self._sets, readable(self._roots[:-1]), readable(self._depths))
        cost = int(self._depths.sum()) * STEP_COST + 1
        if sp.issparse(x):
            matrix = tuple(readable(a) for a in (x.indptr, x.indices, x.data))
            places = np.full(self._forest.features, -1, np.int32)
            places[self._used] = np.arange(len(self._used))
            cost += x.nnz * ENTRY_COST // max(len(out), 1)
            how = (matrix, readable(places), len(self._used), self._absent, readable(self._sparse_nodes))
            over_blocks(sparse, (np.arange(len(out)), out), *how, *forest, cost=cost)
        else:
            over_blocks(dense, (readable(x), out), readable(self._nodes), *forest, cost=cost)


def matrix_of(x: Any, features: int) -> Any:
    """Return rows as an array of float64, or as CSR.

    Raises:
        ShapeError, DTypeError: they are none, or have another number of features.
    """
    x = as_rows("x", x, features)
    return x.astype(np.float64, copy=False)


def _breadth_first(tree: Tree) -> list[Int32s]:
    """Return the numbers of the nodes, level by level: the two children of a node lie side by side."""
    levels = [np.zeros(1, np.int32)]
    while len(inner := levels[-1][tree.feature[levels[-1]] != LEAF]):
        levels.append(np.stack([tree.left[inner], tree.right[inner]], axis=1).reshape(-1))
    return levels


def _lay(tree: Tree, order: Int32s, root: int, sets: int, nodes: Array) -> None:
    """Set the nodes of one tree, which begin at ``root``; its sets have numbers from ``sets`` on."""
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(root, root + len(order))
    leaf = tree.feature[order] == LEAF
    held = np.diff(tree.set_begin)[order] > 0
    nodes["left"] = np.where(leaf, place[order], place[tree.left[order]])
    nodes["value"] = tree.value[order]
    # Nothing is above infinity, and NaN goes left: a row stays in its leaf.
    nodes["threshold"] = np.where(leaf, np.inf, tree.threshold[order])
    nodes["threshold"][held] = sets + np.arange(held.sum())
    where = tree.feature[order] << 2 | held << 1 | tree.default_left[order]
    nodes["where"] = np.where(leaf, 1, where).astype(np.uint32)
