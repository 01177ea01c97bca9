"""Trees of a random forest that one worker grows, each in one call of a kernel; several threads, a tree each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ps2.algorithms.trees.compiled_growing import node_memory
from ps2.algorithms.trees.forests import forest_kernels as kernels
from ps2.algorithms.trees.forests.forest_rows import ForestRows
from ps2.algorithms.trees.forests.grown_tree import ForestTree, without_unused
from ps2.algorithms.trees.forests.options import ForestOptions
from ps2.algorithms.trees.tree_kernels import BinColumns
from ps2.ops.guards import readable
from ps2.ops.parallel import MAX_BLOCKS, MIN_BLOCK, MIN_BLOCKS, over_blocks


class ForestGrower:
    """Grows trees of the rows of one worker.

    Args:
        scales: factors of weights and labels; words: of sets.
    """

    def __init__(
        self, options: ForestOptions, bins: BinColumns, rows: ForestRows, scales: tuple[float, float], words: int
    ) -> None:
        self._options, self._bins, self._rows, self._words = options, bins, rows, words
        self._rules = options.rules(scales)

    def grow(self, trees: Sequence[int]) -> list[ForestTree]:
        """Grow some trees, by number."""
        assert len(trees) <= MAX_BLOCKS
        numbers = np.array(trees, np.int64)
        # Each tree is a block of its own.
        found = over_blocks(
            lambda some: [self._grow(tree) for tree in some.tolist()], (numbers,), cost=MIN_BLOCKS * MIN_BLOCK
        )
        return [tree for some in found for tree in some]

    def _grow(self, tree: int) -> ForestTree:
        options = self._options
        order, draws = self._rows.drawn(tree)
        nodes = node_memory(2 * min(1 << options.depth, max(len(order), 1)) - 1, options.channels, self._words)
        nodes.ends[0, 1] = len(order)
        entries = np.empty((len(order), 3), np.int64)
        kernels.gather(readable(order), draws, self._rows.whole, self._rules, entries)
        kernels.sum_rows(entries, self._rules, nodes.totals[0])
        histogram = np.zeros(len(self._bins.features) * options.channels, np.int64)
        drawing = kernels.FeatureDraws(options.keys(tree)[1], options.features, options.turns)
        sample = order, draws, self._rows.whole, self._rows.arrays, self._bins
        count = kernels.grow_forest_tree(*sample, drawing, self._rules, histogram, nodes)
        best, children, sums = nodes.best, nodes.children[:count].copy(), nodes.totals[:count].copy()
        return without_unused(ForestTree(children, best.where[:count], best.sets[:count], best.gains[:count], sums))
