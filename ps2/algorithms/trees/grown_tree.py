"""Trees as they have grown, on servers or in the only worker: splits by bins, and sums as whole numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.layout import BIN, FEATURE, HESSIAN, MISSING_LEFT, set_of
from ps2.algorithms.trees.scan_kernels import Rules
from ps2.algorithms.trees.tree import LEAF, Tree
from ps2.algorithms.trees.tree_kernels import weigh_nodes
from ps2.array_types import Float64s, Int64s


@dataclass(frozen=True, eq=False)
class GrownTree:
    """A tree as it has grown: its splits by bins, and its sums as whole numbers.

    Attributes:
        children: int64, shape (n,): the left child of each node, before the right one; -1: a leaf.
        where: int64, shape (n, 3): columns ``layout.FEATURE`` and the following ones.
        sets: int64, shape (n, words): the categories that go left, as bits.
        gains: float64, shape (n,).
        sums: int64, shape (n, channels): the sums of each node's rows.
    """

    children: Int64s
    where: Int64s
    sets: Int64s
    gains: Float64s
    sums: Int64s


def tree_of(bins: Bins, grown: GrownTree, value: Float64s, cover: Float64s) -> Tree:
    """Return the tree with some values; ``count`` is 0 everywhere. Gains and splits of leaves are ignored."""
    children, where = grown.children, grown.where
    is_inner = children >= 0
    feature = np.where(is_inner, where[:, FEATURE], LEAF).astype(np.int32)
    has_set = is_inner & (where[:, BIN] < 0)
    cut = bins.offsets[feature] + where[:, BIN]
    is_last = cut >= bins.offsets[feature + 1]
    threshold = np.where(is_last, np.inf, np.append(bins.cuts, np.inf)[np.clip(cut, 0, len(bins.cuts))])
    flags = [
        set_of(np.ascontiguousarray(grown.sets[node]), int(bins.categories[feature[node]]))
        for node in np.flatnonzero(has_set).tolist()
    ]
    sizes = np.zeros(len(children), np.int64)
    sizes[has_set] = [len(some) for some in flags]
    return Tree(
        feature,
        np.where(is_inner & ~has_set, threshold, 0.0),
        is_inner & (where[:, MISSING_LEFT] > 0),
        np.where(is_inner, children, LEAF).astype(np.int32),
        np.where(is_inner, children + 1, LEAF).astype(np.int32),
        value,
        np.where(is_inner, grown.gains, 0.0),
        cover,
        np.zeros(len(children), np.int64),
        np.append(0, np.cumsum(sizes)).astype(np.int64),
        np.concatenate([np.empty(0, np.bool_), *flags]),
    )


def boosted_tree(bins: Bins, grown: GrownTree, bounds: Float64s, rules: Rules, rate: float) -> Tree:
    """Return a boosted tree; ``count`` is 0 everywhere.

    Args:
        bounds: float64, shape (n, 2): the smallest and the largest weight of each node.
        rate: factor of its leaves.
    """
    values = np.empty(len(grown.children))
    weigh_nodes(grown.sums, bounds, rules, values)
    cover = np.float64(rules.hessian_unit) * grown.sums[:, HESSIAN]
    return tree_of(bins, grown, values * rate, cover)
