"""Trees of a random forest that one worker grows, each in one call of a kernel; several threads, a tree each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ps2.algorithms.trees.forests import forest_kernels as kernels
from ps2.algorithms.trees.forests.forest_rows import BinForms, ForestRows
from ps2.algorithms.trees.forests.grown_tree import GrownTree, without_rest
from ps2.algorithms.trees.forests.options import ForestOptions
from ps2.ops.guards import readable
from ps2.ops.parallel import MAX_BLOCKS, MIN_BLOCK, MIN_BLOCKS, over_blocks


class ForestGrower:
    """Grows trees of the rows of one worker.

    Args:
        scales: factors of weights and labels; words: of sets.
    """

    def __init__(
        self, options: ForestOptions, forms: BinForms, rows: ForestRows, scales: tuple[float, float], words: int
    ) -> None:
        self._options, self._forms, self._rows, self._words = options, forms, rows, words
        self._kinds, self._rules = options.kinds, options.rules(scales)

    def grow(self, trees: Sequence[int]) -> list[GrownTree]:
        """Grow some trees, by number."""
        assert len(trees) <= MAX_BLOCKS
        numbers = np.array(trees, np.int64)
        # Each tree is a block of its own.
        found = over_blocks(
            lambda some: [self._grow(tree) for tree in some.tolist()], (numbers,), cost=MIN_BLOCKS * MIN_BLOCK
        )
        return [tree for some in found for tree in some]

    def _grow(self, tree: int) -> GrownTree:
        options, forms = self._options, self._forms
        order, draws = self._rows.drawn(tree)
        most = 2 * min(1 << options.depth, max(len(order), 1)) - 1
        nodes = self._room(most)
        places, totals, ends = nodes[0], nodes[1], nodes[6]
        places[0], ends[0, 1] = 1, len(order)
        held = np.empty((len(order), 3), np.int64)
        kernels.gather(readable(order), draws, self._rows.whole, self._kinds, held)
        kernels.sum_rows(held, self._kinds, totals[0])
        histogram = np.zeros(max(forms.most_columns, 1) * options.channels, np.int64)
        drawing = options.keys(tree)[1], options.features, options.turns
        given = order, draws, self._rows.whole, self._rows.arrays, forms.arrays, forms.usable
        count = kernels.grow_tree(*given, drawing, self._kinds, self._rules, histogram, nodes)
        _, totals, gains, where, _, sets, _, children = nodes
        grown = GrownTree(children[:count].copy(), where[:count], sets[:count], gains[:count], totals[:count].copy())
        return without_rest(grown)

    def _room(self, most: int) -> kernels.Nodes:
        """Return room for the nodes of a tree; memory that is not written to takes none."""
        channels = self._options.channels
        return (
            np.empty(most, np.int64),
            np.zeros((most, channels), np.int64),
            np.empty(most),
            np.empty((most, 3), np.int64),
            np.empty((most, channels), np.int64),
            np.empty((most, self._words), np.int64),
            np.zeros((most, 2), np.int64),
            np.empty(most, np.int64),
        )
