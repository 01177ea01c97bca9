"""A tree that one worker grows in one call of a kernel (``tree_kernels``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees import tree_kernels as kernels
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.boosted_rows import BoostedRows
from ps2.algorithms.trees.driver_messages import BIN, DEFAULT_LEFT, FEATURE, FIELDS, LEFT, NODE, NONE, FinalNodes
from ps2.algorithms.trees.growing import DenseRows
from ps2.algorithms.trees.growth import limits_of, rules_of
from ps2.algorithms.trees.layout import SUM_BYTES, set_of
from ps2.algorithms.trees.problem import BoostingOptions, GrowthName, TreeProblem
from ps2.algorithms.trees.rows import Binned
from ps2.algorithms.trees.tree import LEAF, Tree
from ps2.algorithms.trees.tree_matrices import layout_row
from ps2.array_types import Int64s
from ps2.ops.guards import readable

Array = npt.NDArray[Any]

# Bytes that the histograms of one tree may take.
MAX_BYTES = 1 << 28
# Stored values above which several threads are faster, in calls for each level, or for each split.
MAX_VALUES: Mapping[GrowthName, int] = {"level": 1 << 22, "leaf": 1 << 23}
# In place of the rows of the other kind.
NO_DENSE = (readable(np.empty((0, 0), np.uint8)), readable(np.empty((0, 0, 0), np.uint8)))
NO_FIRST = readable(np.empty(0, np.uint64))
NO_SPARSE = (readable(np.empty(0, np.int64)), readable(np.empty(0, np.int32)), readable(np.empty(0, np.int32)))


def is_compiled(options: BoostingOptions, rows: Binned) -> bool:
    """Return whether the trees of some rows are grown by the kernel."""
    if options.features or options.groups:
        return False
    if isinstance(rows, DenseRows):
        # Kernels are compiled for bins of a byte.
        count, values = rows.columns.shape[1], rows.columns.size
        if rows.columns.dtype != np.uint8:
            return False
    else:
        count, values = len(rows.begins) - 1, len(rows.columns)
    return (
        values <= MAX_VALUES[options.growth]
        and _histograms(options, count) * _row_bytes(options, rows.bins) <= MAX_BYTES
    )


def _histograms(options: BoostingOptions, rows: int) -> int:
    """Return how many histograms there are at once, at most: of leaves that may be split, and of one more node."""
    return min(options.most_leaves, max(rows, 1)) + 1


def _row_bytes(options: BoostingOptions, bins: Bins) -> int:
    return int(bins.first[-1]) * options.channels * SUM_BYTES


@dataclass(frozen=True, eq=False)
class CompiledTree:
    """A tree that has grown.

    Attributes:
        tree: its values times the rate.
        splits: of all inner nodes, as of ``Moves``.
        nodes: all of them, as the messages' too.
        ends: int64, shape (n, 2): where the rows of each node begin and end.
    """

    tree: Tree
    splits: Int64s
    nodes: FinalNodes
    ends: Int64s


class CompiledGrower:
    """Grows trees of the same rows, one after the other."""

    def __init__(self, problem: TreeProblem, options: BoostingOptions, rows: Binned) -> None:
        self._problem, self._options, bins = problem, options, rows.bins
        if isinstance(rows, DenseRows):
            count, first = rows.columns.shape[1], rows.first
            held = readable(rows.columns), rows.blocks, *NO_SPARSE
        else:
            count, first, implied = len(rows.begins) - 1, NO_FIRST, bins.implied(rows.absent)
            held = *NO_DENSE, readable(rows.begins), readable(rows.columns), readable(implied)
        self._rows = held
        self._of_bins = bins
        self._m = np.zeros((_histograms(options, count), int(bins.first[-1]) * options.channels), np.int64)
        self._layout = layout_row(bins, problem, options)
        self._constraints = readable(np.array(options.monotone, np.int64))
        self._bins = (first, readable(bins.first), readable(bins.sizes), readable(bins.missing))
        self._splits = min(options.most_leaves, max(count, 1)) - 1

    def grow(self, of: BoostedRows, scales: tuple[float, float], totals: Int64s, rate: float) -> CompiledTree:
        """Grow the tree that has been planted.

        Args:
            scales: factors of hessians and gradients; totals: of the root; rate: factor of the leaves.
        """
        assert of.grown is not None
        options, rules = self._options, rules_of(self._options, scales)
        most = 2 * self._splits + 1
        places, totals_of, bounds = np.ones(most, np.int64), np.zeros((most, 3), np.int64), np.zeros((most, 2))
        totals_of[0], bounds[0] = totals, options.bounds
        gains, where, lefts = np.full(most, -np.inf), np.full((most, 3), -1), np.zeros((most, 3), np.int64)
        sets, ends = np.zeros((most, self._problem.words), np.int64), np.zeros((most, 2), np.int64)
        order, aside = of.grown.arrays
        ends[0, 1] = len(order)
        children, keys = np.full(most, -1), np.zeros(most, np.int64)
        pairs, sums = readable(of.summed), self._m.reshape(len(self._m), -1, options.channels)
        count = kernels.grow_tree(
            *(order, aside, self._rows, self._bins, pairs, self._m, sums, self._layout),
            *(self._constraints, rules, limits_of(options, scales, totals)),
            (self._splits, options.depth, options.min_third, options.growth == "leaf"),
            (places, totals_of, bounds, keys, gains, where, lefts, sets, ends, children),
        )
        values = np.empty(count)
        kernels.weigh_nodes(totals_of[:count], bounds[:count], rules, values)
        values *= rate
        children, ends = children[:count], ends[:count]
        tree = self._tree(children, where[:count], sets, gains[:count], values, totals_of[:count, 0] * (1 / scales[0]))
        tree.count[:] = ends[:, 1] - ends[:, 0]
        inner = np.flatnonzero(children >= 0)
        splits = np.full((len(inner), FIELDS + self._problem.words), NONE, np.int64)
        splits[:, NODE], splits[:, LEFT] = inner, children[inner]
        splits[:, [FEATURE, BIN, DEFAULT_LEFT]], splits[:, FIELDS:] = where[inner], sets[inner]
        splits = splits[np.argsort(splits[:, LEFT])]
        leaf = children < 0
        return CompiledTree(tree, splits, FinalNodes(np.arange(count), leaf, np.where(leaf, values, 0.0)), ends)

    def _tree(self, children: Int64s, where: Int64s, sets: Int64s, gains: Array, values: Array, cover: Array) -> Tree:
        bins, inner = self._of_bins, children >= 0
        feature = np.where(inner, where[:, 0], LEAF).astype(np.int32)
        has_set = inner & (where[:, 1] < 0)
        at = bins.offsets[where[:, 0]] + where[:, 1]
        cuts = np.append(bins.cuts, np.inf)
        last = at >= bins.offsets[where[:, 0] + 1]
        threshold = np.where(last, np.inf, cuts[np.minimum(at, len(bins.cuts))])
        flags = [
            set_of(sets[node], int(bins.categories[feature[node]])) if has_set[node] else np.empty(0, np.bool_)
            for node in (range(len(children)) if has_set.any() else ())
        ]
        set_begin = np.append(0, np.cumsum([len(one) for one in flags] or np.zeros(len(children), np.int64)))
        return Tree(
            feature,
            np.where(inner & ~has_set, threshold, 0.0),
            inner & (where[:, 2] > 0),
            np.where(inner, children, LEAF).astype(np.int32),
            np.where(inner, children + 1, LEAF).astype(np.int32),
            values,
            np.where(inner, gains, 0.0),
            cover,
            np.zeros(len(children), np.int64),
            set_begin.astype(np.int64),
            np.concatenate([np.empty(0, np.bool_), *flags]),
        )
