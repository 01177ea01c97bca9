"""Boosted trees that the only worker grows, each in one call of a kernel (``tree_kernels``)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ps2.algorithms.trees import tree_kernels as kernels
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.boosted_growth import limits_of, rules_of, samples_on_servers
from ps2.algorithms.trees.boosted_rows import BoostedRows
from ps2.algorithms.trees.driver_messages import (
    BIN,
    DEFAULT_LEFT,
    FEATURE,
    FIELDS,
    LEFT,
    NODE,
    NONE,
    TREE,
    FinalNodes,
    Moves,
)
from ps2.algorithms.trees.growth import GrownTree, boosted_tree
from ps2.algorithms.trees.layout import CATEGORICAL, HAS_MISSING, SUM_BYTES
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.row_blocks import FileNodeRows
from ps2.algorithms.trees.rows import Binned, DenseRows
from ps2.algorithms.trees.search_kernels import Splits, scratch_of
from ps2.algorithms.trees.tree import Absent, Tree
from ps2.algorithms.trees.tree_matrices import layout_row
from ps2.array_types import Int64s
from ps2.ops.guards import readable

# The maximum bytes of the histograms of one tree.
MAX_BYTES = 1 << 28
# By growth: the number of stored values above which several threads grow a tree faster than one call of the kernel.
MAX_VALUES: Mapping[str, int] = {"level": 1 << 22, "leaf": 1 << 23}
# The sparse arrays of ``kernels.Rows`` if rows are dense.
NO_SPARSE = readable(np.empty(0, np.int64)), readable(np.empty(0, np.int32))


def is_compiled(plan: BoostingPlan, rows: Binned) -> bool:
    """Return whether the kernel can grow trees on these rows, and is faster than several threads."""
    if (plan.node_features and not samples_on_servers(plan)) or plan.level_features:
        return False
    if plan.settings.interactionConstraints:
        return False
    if isinstance(rows, DenseRows):
        # The kernel is compiled for bins of one byte.
        count, values = rows.columns.shape[1], rows.columns.size
        if rows.columns.dtype != np.uint8:
            return False
    else:
        count, values = len(rows.begins) - 1, len(rows.columns)
    row_bytes = int(rows.bins.first_columns[-1]) * plan.channels * SUM_BYTES
    return values <= MAX_VALUES[plan.settings.growth] and _max_histograms(plan, count) * row_bytes <= MAX_BYTES


def _max_histograms(plan: BoostingPlan, rows: int) -> int:
    """Return the maximum number of histograms at a time: one for each leaf that may be split, and one for a child."""
    return min(plan.max_leaves, max(rows, 1)) + 1


def kernel_rows(rows: Binned, has_blocks: bool) -> kernels.Rows:
    """Return binned rows as an argument of kernels; has_blocks: whether dense rows are stored row by row, too."""
    if isinstance(rows, DenseRows):
        columns = readable(rows.columns)
        return kernels.Rows(columns, rows.blocks if has_blocks else readable(columns[:0, :, None]), *NO_SPARSE)
    no_columns = readable(np.empty((0, 0), np.uint8))
    return kernels.Rows(no_columns, no_columns[:, :, None], readable(rows.begins), readable(rows.columns))


def bin_columns(bins: Bins, absent: Absent) -> kernels.BinColumns:
    """Return bins as an argument of kernels; absent: how to read an entry that sparse rows do not store."""
    usable = np.flatnonzero(bins.num_columns)
    flags = CATEGORICAL * (bins.categories > 0).astype(np.int64) | HAS_MISSING * bins.has_missing.astype(np.int64)
    features = np.zeros(max(int(bins.first_columns[-1]), 1), np.int32)
    for feature in usable.tolist():
        features[bins.first_columns[feature] : bins.first_columns[feature] + bins.num_bins[feature]] = feature
    return kernels.BinColumns(
        bins.first_columns,
        readable(bins.num_bins),
        bins.implied(absent),
        readable(flags),
        readable(usable.astype(np.int64)),
        readable(bins.first_columns[usable].astype(np.uint64)),
        readable(features),
    )


def allocate_nodes(max_nodes: int, channels: int, words: int) -> kernels.Nodes:
    """Return arrays for the nodes of a tree. The operating system allocates only the pages that are written."""
    best = Splits(
        np.zeros(max_nodes),
        np.zeros((max_nodes, 3), np.int64),
        np.zeros((max_nodes, channels), np.int64),
        np.zeros((max_nodes, words), np.int64),
    )
    return kernels.Nodes(
        np.ones(max_nodes, np.int64),
        np.zeros((max_nodes, channels), np.int64),
        np.zeros((max_nodes, 2)),
        best,
        np.zeros(max_nodes, np.bool_),
        np.zeros((max_nodes, 2), np.int64),
        np.zeros(max_nodes, np.int64),
    )


class CompiledGrower:
    """Grows trees on the same rows, one after the other."""

    def __init__(self, problem: TreeProblem, plan: BoostingPlan, rows: Binned) -> None:
        self._problem, self._plan, self._bins = problem, plan, rows.bins
        count = rows.columns.shape[1] if isinstance(rows, DenseRows) else len(rows.begins) - 1
        self._rows = kernel_rows(rows, has_blocks=not plan.tree_features)
        self._columns = bin_columns(rows.bins, problem.absent)
        histogram_size = int(rows.bins.first_columns[-1]) * plan.channels
        self._flat = np.zeros((_max_histograms(plan, count), histogram_size), np.int64)
        self._layout = layout_row(rows.bins, problem.absent, plan.channels, plan.monotone)
        self._constraints = readable(np.array(plan.monotone, np.int64))
        self._max_splits, self._scratch = min(plan.max_leaves, max(count, 1)) - 1, scratch_of(3)

    def grow(
        self, rows: BoostedRows, number: int, scales: tuple[float, float], totals: Int64s, rate: float
    ) -> tuple[Tree, Moves]:
        """Grow a tree on ``rows.tree_rows``, and move them to its nodes; return the tree, and the other rows' moves."""
        assert rows.tree_rows is not None
        assert not isinstance(rows.tree_rows, FileNodeRows)
        plan, rules = self._plan, rules_of(self._plan, scales)
        max_nodes = 2 * self._max_splits + 1
        nodes = allocate_nodes(max_nodes, 3, self._problem.words)
        order, scratch_order = rows.tree_rows.arrays
        nodes.totals[0], nodes.bounds[0], nodes.ends[0, 1] = totals, plan.bounds, len(order)
        sums = self._flat.reshape(len(self._flat), -1, plan.channels)
        slots, free = np.full(max_nodes, -1), np.arange(len(self._flat))
        histograms = kernels.Histograms(self._flat, sums, slots, free, np.zeros(1, np.int64))
        limits = limits_of(plan, rules, totals, self._max_splits)
        search_rules = self._layout, self._constraints, rules, limits, self._scratch
        sampling = plan.node_key(number), np.empty(max_nodes, np.int64), plan.node_features
        search = kernels.BoostedSearch(readable(rows.channel_values), histograms, *search_rules, *sampling)
        kernel_input, columns = self._rows, self._columns
        if plan.tree_features:
            sampled_rows = rows.tree_rows.rows
            assert sampled_rows is not None
            kernel_input = kernel_rows(sampled_rows, has_blocks=True)
            if isinstance(sampled_rows, DenseRows):
                columns = columns._replace(usable_first=sampled_rows.first)
        growing_tree = kernels.GrowingTree(order, scratch_order, kernel_input, columns, nodes)
        count = kernels.grow_boosted(search, growing_tree)
        children, ends, best = nodes.children[:count], nodes.ends[:count], nodes.best
        conditions, sets = best.conditions[:count], best.sets[:count]
        grown = GrownTree(children, conditions, sets, best.gains[:count], nodes.totals[:count])
        tree = boosted_tree(self._bins, grown, nodes.bounds[:count], rules, rate)
        tree.count[:] = ends[:, 1] - ends[:, 0]
        split_nodes = np.flatnonzero(children >= 0)
        splits = np.full((len(split_nodes), FIELDS + self._problem.words), NONE, np.int64)
        splits[:, TREE], splits[:, NODE], splits[:, LEFT] = 0, split_nodes, children[split_nodes]
        splits[:, [FEATURE, BIN, DEFAULT_LEFT]], splits[:, FIELDS:] = conditions[split_nodes], sets[split_nodes]
        splits = splits[np.argsort(splits[:, LEFT])]
        is_leaf = children < 0
        rows.tree_rows.set_ends(ends)
        return tree, Moves(splits, FinalNodes(np.arange(count), is_leaf, np.where(is_leaf, tree.value, 0.0)))
