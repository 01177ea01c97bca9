"""Margins and leaves of NumPy and scipy arrays, without Spark and servers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.frame.row_matrices import as_rows
from ps2.algorithms.trees import predict_kernels as kernels
from ps2.algorithms.trees.layout import Array, Bools
from ps2.algorithms.trees.tree import LEAF, Forest, Tree
from ps2.array_types import Float64s, Int32s
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

# The cost of a step of a row, and of an entry of a sparse row, in additions.
STEP_COST = 2
ENTRY_COST = 2


class Predictor:
    """A forest as its kernels take it; picklable."""

    def __init__(self, forest: Forest) -> None:
        self._forest = forest
        self._absent = 0.0 if forest.absent == "zero" else np.nan
        orders = [_breadth_first(tree) for tree in forest.trees]
        depths = np.array([len(levels) - 1 for levels in orders], np.int32)
        roots = np.append(0, np.cumsum([len(tree) for tree in forest.trees])).astype(np.uint32)
        self._numbers = np.concatenate([np.empty(0, np.int32), *(level for levels in orders for level in levels)])
        nodes = np.zeros(roots[-1], kernels.NODE)
        flags: list[Bools] = []
        for tree, levels, root in zip(forest.trees, orders, roots, strict=False):
            order = np.concatenate(levels)
            _set_nodes(tree, order, int(root), len(flags), nodes[root : root + len(order)])
            flags += [tree.set_of(node) for node in order if len(tree.set_of(node))]
        set_begin = np.append(0, np.cumsum([len(set_flags) for set_flags in flags])).astype(np.int64)
        has_sets = np.array([len(tree.set_flags) > 0 for tree in forest.trees], np.bool_)
        sets = has_sets, set_begin, np.concatenate([np.empty(0, np.bool_), *flags])
        self._trees = kernels.Trees(*map(readable, (nodes, roots[:-1], depths, *sets)))
        # A block of sparse rows has only the features that trees use.
        features = nodes["where"] >> 2
        self._used = np.unique(features)
        sparse_nodes = nodes.copy()
        sparse_nodes["where"] += ((np.searchsorted(self._used, features) - features) << 2).astype(np.uint32)
        self._sparse_trees = self._trees._replace(nodes=readable(sparse_nodes))

    def margins(self, x: Any) -> Float64s:
        """Return the margins of rows, shape (n, width), summed in float64; x: see ``GBTModel.margins``."""
        x = matrix_of(x, self._forest.features)
        out = np.empty((x.shape[0], self._forest.width))
        out[:] = self._forest.base
        self._run(kernels.dense_margins, kernels.sparse_margins, x, out)
        return out

    def leaves(self, x: Any) -> Int32s:
        """Return the leaves that rows reach, int32, shape (n, trees): numbers of nodes in each ``Tree``."""
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
        cost = int(self._trees.depths.sum()) * STEP_COST + 1
        if sp.issparse(x):
            columns = np.full(self._forest.features, -1, np.int32)
            columns[self._used] = np.arange(len(self._used))
            csr = readable(x.indptr), readable(x.indices), readable(x.data)
            matrix = kernels.SparseMatrix(*csr, readable(columns), len(self._used), self._absent)
            cost += x.nnz * ENTRY_COST // max(len(out), 1)
            over_blocks(sparse, (np.arange(len(out)), out), matrix, self._sparse_trees, cost=cost)
        else:
            over_blocks(dense, (readable(x), out), self._trees, cost=cost)


class TreesModel:
    """The members that trained models of trees share, without Spark and servers; picklable."""

    forest: Forest

    @property
    def dim(self) -> int:
        """The number of features."""
        return self.forest.features

    @property
    def takes_missing(self) -> bool:
        """Whether NaN is a missing value, not a fault."""
        return True

    @property
    def is_light(self) -> bool:
        """Whether it may travel with the function that uses it."""
        return False

    def nodes(self, x: Any) -> Int32s:
        """Return the leaf of each tree that rows come to, as the number of its node: int32, shape (n, trees)."""
        return self._predictor.leaves(x)

    def leaves(self, x: Any) -> Int32s:
        """Return the leaf of each tree that rows come to, counted from the left: int32, shape (n, trees)."""
        return self._predictor.leaf_places(x)

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor(self.forest)


def matrix_of(x: Any, features: int) -> Any:
    """Return rows as an array of float64 or CSR; ShapeError or DTypeError for anything else."""
    x = as_rows("x", x, features)
    return x.astype(np.float64, copy=False)


def _breadth_first(tree: Tree) -> list[Int32s]:
    """Return the numbers of the nodes, level by level: the two children of a node lie side by side."""
    levels = [np.zeros(1, np.int32)]
    while len(inner := levels[-1][tree.feature[levels[-1]] != LEAF]):
        levels.append(np.stack([tree.left[inner], tree.right[inner]], axis=1).reshape(-1))
    return levels


def _set_nodes(tree: Tree, order: Int32s, root: int, sets: int, nodes: Array) -> None:
    """Set the nodes of one tree, which begin at ``root``; its sets have numbers from ``sets`` on."""
    position = np.empty(len(order), np.int32)
    position[order] = np.arange(root, root + len(order))
    leaf = tree.feature[order] == LEAF
    has_set = np.diff(tree.set_begin)[order] > 0
    nodes["left"] = np.where(leaf, position[order], position[tree.left[order]])
    nodes["value"] = tree.value[order]
    # Nothing is above infinity, and NaN goes left: a row stays in its leaf.
    nodes["threshold"] = np.where(leaf, np.inf, tree.threshold[order])
    nodes["threshold"][has_set] = sets + np.arange(has_set.sum())
    where = tree.feature[order] << 2 | has_set << 1 | tree.default_left[order]
    nodes["where"] = np.where(leaf, 1, where).astype(np.uint32)
