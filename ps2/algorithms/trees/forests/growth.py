"""The trees of a random forest that grow on servers, in the driver: answers in, tasks of the workers out. Pure.

Some trees grow at once. Each clock looks into as many of their nodes as there are histograms; nodes wait in the order
in which their parents were split. A tree does not depend on which others grow beside it, or on what a clock looks into.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from ps2.algorithms.trees.driver_messages import BIN, DEFAULT_LEFT, FEATURE, FIELDS, LEFT, NODE, NONE
from ps2.algorithms.trees.forests.grown_tree import GrownTree, without_unused
from ps2.algorithms.trees.forests.impurity_kernels import judge
from ps2.algorithms.trees.forests.options import ForestOptions
from ps2.algorithms.trees.search_kernels import Splits
from ps2.array_types import Int64s
from ps2.ops.guards import readable

# Columns of ``opened``.
TREE, NUMBER, PLACE, TURN, ROW = range(5)
ROOT_PLACE = 1


@dataclass(frozen=True, eq=False)
class Orders:
    """What workers do in a clock.

    Attributes:
        first, count: the trees that grow, by number.
        plants: whether their roots get their rows first; workers report what the rows of each sum up to.
        splits: int64, shape (n, 1 + FIELDS + words): the tree, from 0 on among those that grow; then as of
            ``Moves``: nodes whose rows are to be parted.
        opened: int64, shape (n, 5): tree, node, its place, turn of its features, and the row of its histogram.
    """

    first: int
    count: int
    plants: bool
    splits: Int64s
    opened: Int64s


class _Tree:
    """A tree that grows: of each node its place, sums and, if it is split, how; nodes have their workers' numbers."""

    def __init__(self, sums: Int64s) -> None:
        self.places, self.sums = [ROOT_PLACE], [sums]
        self.splits: dict[int, tuple[float, Int64s, Int64s, int]] = {}

    def split(self, node: int, gain: float, where: Int64s, left: Int64s, words: Int64s) -> int:
        """Split a node; return the number of the left child."""
        number = len(self.places)
        self.splits[node] = gain, where, words, number
        self.places += [2 * self.places[node], 2 * self.places[node] + 1]
        self.sums += [left, self.sums[node] - left]
        return number

    def finish(self, words: int) -> GrownTree:
        """Return the tree, its nodes ordered by place."""
        order = np.argsort(np.array(self.places), kind="stable")
        number_of = np.empty(len(order), np.int64)
        number_of[order] = np.arange(len(order))
        n = len(order)
        children, where = np.full(n, -1, np.int64), np.full((n, 3), -1, np.int64)
        sets, gains = np.zeros((n, words), np.int64), np.zeros(n)
        for node, (gain, how, some, left) in self.splits.items():
            at = number_of[node]
            children[at], where[at], sets[at], gains[at] = number_of[left], how, some, gain
        return without_unused(GrownTree(children, where, sets, gains, np.array(self.sums, np.int64)[order]))


class ForestGrowth:
    """All trees of a forest.

    Args:
        scales: factors of weights and labels.
        rows: of the matrix of histograms, that may be used.
        usable: how many features can part rows; words: of sets.

    Attributes:
        trees: those that have grown.
        orders: what workers do in the clock; None: all trees have grown.
    """

    def __init__(
        self, options: ForestOptions, scales: tuple[float, float], rows: list[int], usable: int, words: int
    ) -> None:
        self._options, self._rows, self._usable, self._words = options, rows, usable, words
        self.rules = options.rules(scales)
        self._at_once = min(options.trees_at_once, len(rows))
        self.trees: list[GrownTree] = []
        self._growing: list[_Tree] = []
        # Nodes to look into: tree among those that grow, node, turn.
        self._waiting: deque[tuple[int, int, int]] = deque()
        self.orders: Orders | None = self._plant()

    @property
    def rows(self) -> Int64s:
        """Rows of the histograms of the open nodes."""
        return self._opened[:, ROW]

    @property
    def totals(self) -> Int64s:
        """Sums of the open nodes, shape (n, channels)."""
        return np.array([self._growing[tree].sums[node] for tree, node in self._opened[:, :2].tolist()], np.int64)

    @property
    def _opened(self) -> Int64s:
        assert self.orders is not None
        return self.orders.opened

    def take_totals(self, totals: Int64s | None) -> None:
        """Take in what the rows of the roots of new trees sum up to, shape (trees, channels); None: there are none."""
        if totals is not None:
            self._growing = [_Tree(sums) for sums in totals]

    def go_on(self, best: Splits | None) -> None:
        """Choose splits of the open nodes, and what workers do next.

        Args:
            best: their best splits; None: no node was open.
        """
        splits: list[list[int]] = []
        opened = self._opened.tolist()
        for i, (may, is_split, *children) in enumerate(self._judged(best)):
            assert best is not None
            tree, node, _, turn, _ = opened[i]
            if is_split:
                number = self._growing[tree].split(
                    node, float(best.gains[i]), best.where[i], best.lefts[i], best.sets[i]
                )
                splits.append(self._split(tree, node, number, best.where[i], best.sets[i]))
                self._waiting.extend((tree, number + side, 0) for side in range(2) if children[side])
            elif may and turn + 1 < self._options.turns and (turn + 1) * self._options.features < self._usable:
                self._waiting.append((tree, node, turn + 1))
        if self._waiting:
            self.orders = Orders(len(self.trees), len(self._growing), False, self._table(splits), self._open())
            return
        self.trees += [tree.finish(self._words) for tree in self._growing]
        self.orders = self._plant() if len(self.trees) < self._options.trees else None

    def _judged(self, best: Splits | None) -> list[list[bool]]:
        """Return what ``judge`` says of the open nodes."""
        if best is None:
            return []
        out = np.empty((len(best.gains), 4), np.bool_)
        places, lefts = np.ascontiguousarray(self._opened[:, PLACE]), readable(best.lefts)
        judge(readable(places), readable(self.totals), readable(best.gains), lefts, self.rules, out)
        judged: list[list[bool]] = out.tolist()
        return judged

    def _plant(self) -> Orders:
        """Begin with the next trees: workers sum up their roots, and add the histograms of these."""
        first = len(self.trees)
        count = min(self._at_once, self._options.trees - first)
        opened = [[tree, 0, ROOT_PLACE, 0, row] for tree, row in zip(range(count), self._rows, strict=False)]
        if not (self._options.depth and self._usable):
            opened = []
        return Orders(first, count, True, self._table([]), np.array(opened, np.int64).reshape(-1, 5))

    def _open(self) -> Int64s:
        """Give histograms to the nodes that have waited longest."""
        opened = []
        for row in self._rows[: len(self._waiting)]:
            tree, node, turn = self._waiting.popleft()
            opened.append([tree, node, self._growing[tree].places[node], turn, row])
        return np.array(opened, np.int64)

    def _split(self, tree: int, node: int, left: int, where: Int64s, words: Int64s) -> list[int]:
        row = [NONE] * FIELDS
        row[NODE], row[LEFT] = node, left
        row[FEATURE], row[BIN], row[DEFAULT_LEFT] = where.tolist()
        return [tree, *row, *words.tolist()]

    def _table(self, splits: list[list[int]]) -> Int64s:
        return np.array(splits, np.int64).reshape(-1, 1 + FIELDS + self._words)
