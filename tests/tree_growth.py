"""A tree that grows as a training's halves grow it, in one process: rows of one worker, histograms in an array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.trees import driver_messages as messages
from ps2.algorithms.trees import growing_kernels, ops
from ps2.algorithms.trees.boosted_growth import ROOT, BoostedGrowth
from ps2.algorithms.trees.growth import LAYOUT
from ps2.algorithms.trees.problem import BoostingPlan
from ps2.algorithms.trees.row_blocks import build_histograms
from ps2.algorithms.trees.rows import Binned, Histograms, NodeRows
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.tree import Tree
from ps2.algorithms.trees.tree_matrices import layout_row


@dataclass
class Grown:
    """What came of it.

    Attributes:
        margins: float64: what the tree adds to each row's.
        clocks: how many it took; parted: nodes; room: rows of histograms.
        added: rows of nodes that histograms were built of.
    """

    tree: Tree
    margins: Any
    clocks: int
    parted: int
    room: int
    added: int


def grow(rows: Binned, pairs: Any, scales: tuple[float, float], recipe: BoostingPlan, number: int = 0) -> Grown:
    """Grow a tree of all rows.

    Args:
        pairs: int64, shape (n, 2): hessians and gradients, times ``scales``.
    """
    rows_of_nodes = NodeRows(rows, np.arange(len(pairs), dtype=np.int32))
    totals = np.array([*growing_kernels.sum_pairs(rows_of_nodes.rows_of(0), pairs), len(pairs)])
    growing = BoostedGrowth(recipe, rows.bins, scales, totals, number)
    m = np.zeros((growing.num_rows, int(rows.bins.first_columns[-1]) * 2), np.int64)
    m[LAYOUT] = layout_row(rows.bins, getattr(rows, "absent", None), 2, recipe.monotone)
    histograms, margins = Histograms(rows.bins, 2), np.zeros(len(pairs))
    added = {0: ROOT}
    clocks = parted = counted = 0
    while not growing.is_over:
        built = build_histograms(histograms, rows_of_nodes, list(added), pairs)
        for (node, row), histogram in zip(added.items(), built, strict=True):
            if histogram is not None:
                bins, sums = histogram
                m.reshape(len(m), -1, 2)[row, slice(None) if bins is None else bins] += sums
            counted += len(rows_of_nodes.rows_of(node))
        moves = growing.advance(_found(growing, m) if growing.open else None)
        m = np.vstack([m, np.zeros((growing.num_rows - len(m), m.shape[1]), np.int64)])
        m[growing.clear] = 0
        rows_of_nodes.partition(moves.splits)
        rows_of_nodes.add_leaf_values(moves.nodes, margins)
        added = {message[messages.NODE]: message[messages.ROW] for message in moves.opened}
        clocks, parted = clocks + 1, parted + len(moves.splits)
    tree = growing.tree
    tree.count[:] = rows_of_nodes.counts(moves.nodes)
    return Grown(tree, margins, clocks, parted, growing.num_rows, counted)


def _found(growing: BoostedGrowth, m: Any) -> Splits:
    if growing.subtract:
        ops.subtract(m, *np.array(growing.subtract).T)
    return Splits(*ops.best_splits(m, **{**growing.operands(), "marks": False}, layout=LAYOUT))
