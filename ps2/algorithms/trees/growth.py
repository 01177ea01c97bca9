"""The engine that grows trees on servers, in the driver: the servers' answers in, messages to the workers out. Pure.

One or many trees grow at once. In each clock workers part the rows of some nodes among their children, and add up the
children's histograms, in which the servers search the best splits. ``Growth`` is this loop. What differs is how splits
are judged, which node comes next, and where its histogram lies: ``BoostedGrowth`` grows a boosted tree, and
``forests.growth.ForestGrowth`` some trees of a random forest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.driver_messages import FIELDS, NO_NODES, OPENED_FIELDS, FinalNodes, Moves
from ps2.algorithms.trees.grown_tree import GrownTree
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.split_order import Node
from ps2.array_types import Int64s

# The row of a histogram matrix that has the layout of bins.
LAYOUT = 0

Bools = npt.NDArray[np.bool_]


class Growth(ABC):
    """Some trees that grow at once.

    Args:
        roots: the trees' roots; workers add the histograms of roots that may be split before the first answer.

    Attributes:
        keeps_histograms: whether the histogram of a node serves its children; else it is cleared after the search.
        operation: the name of the operation that searches the best splits.
        open: the nodes whose best splits the servers search next.
        subtract: pairs of rows: the second histogram is subtracted from the first before the search.
        clear: rows to zero before workers add to them.
        num_rows: number of rows that the matrix needs by then.
        is_over: whether the trees are done.
    """

    keeps_histograms: ClassVar[bool]
    operation: ClassVar[str]

    def __init__(self, roots: Sequence[Node]) -> None:
        self._roots, self._words = roots, 0
        self.open = [root for root in roots if root.may_split]
        self.subtract: list[tuple[int, int]] = []
        self.clear: list[int] = []
        self.num_rows, self.is_over = 0, False
        for root in roots:
            root.number = 0
        self._counts = [1] * len(roots)  # nodes that workers know, by tree

    @abstractmethod
    def operands(self) -> dict[str, Any]:
        """Return the operands of the search of the open nodes."""

    def advance(self, best: Splits | None) -> Moves:
        """Record the best splits of the open nodes (None: no node is open), and open the next nodes."""
        if best is not None:
            self._note(best)
        parted = self._choose()
        splits = self._part(parted)
        self.open, added = self._open(parted)
        self.is_over = not self.open
        return Moves(splits, self._final_nodes() if self.is_over else NO_NODES, opened_by(added))

    def _arrays(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return of the open nodes the rows of their histograms, the sums, shape (n, channels), and the places."""
        rows, places = [node.row for node in self.open], [node.place for node in self.open]
        totals = [node.totals for node in self.open]
        return np.array(rows, np.int64), np.array(totals, np.int64), np.array(places, np.int64)

    @abstractmethod
    def _judge(self, best: Splits, verdicts: Bools) -> None:
        """Judge the best splits of the open nodes; verdicts: see ``decision_kernels.MAY``."""

    @abstractmethod
    def _choose(self) -> list[Node]:
        """Return the nodes whose rows are parted next."""

    @abstractmethod
    def _open(self, parted: list[Node]) -> tuple[list[Node], list[Node]]:
        """Return the nodes to open, each with a row for its histogram, and the nodes whose histograms workers add."""

    def _final_nodes(self) -> FinalNodes:
        """Return the nodes of the finished tree; none, if workers need not know them."""
        return NO_NODES

    def _children(self, node: Node, sums: tuple[Int64s, Int64s], may_split: Sequence[bool]) -> tuple[Node, ...]:
        """Return the children of a node whose best split has been noted."""
        return tuple(
            Node(2 * node.place + side, sums[side], node.bounds, may_split[side], node.path, node.tree)
            for side in range(2)
        )

    def _note(self, best: Splits) -> None:
        """Note the best splits of the open nodes that gain enough."""
        self._words, verdicts = best.sets.shape[1], np.zeros((len(self.open), 4), np.bool_)
        self._judge(best, verdicts)
        lefts, rights = best.lefts, self._arrays()[1] - best.lefts
        answers = zip(self.open, verdicts.tolist(), best.gains.tolist(), best.where.tolist(), strict=True)
        for i, (node, (may, is_split, *children_may), gain, where) in enumerate(answers):
            node.may_split = may
            if is_split:
                node.gain, node.where, node.words = gain, where, best.sets[i]
                node.children = self._children(node, (lefts[i], rights[i]), children_may)
                node.is_known = not any(children_may)

    def _part(self, nodes: list[Node]) -> Int64s:
        """Number the children of nodes; return ``splits`` of the message."""
        splits = np.empty((len(nodes), FIELDS + self._words), np.int64)
        for node, row in zip(nodes, splits, strict=True):
            left = self._counts[node.tree]
            row[:FIELDS] = node.tree, node.number, *node.where, left
            row[FIELDS:] = node.words
            for child in node.children:
                child.number = self._counts[node.tree]
                self._counts[node.tree] += 1
        return splits


def opened_by(nodes: Sequence[Node]) -> Int64s:
    """Return ``opened`` of the message that lets workers add the histograms of some nodes."""
    fields = [[node.tree, node.number, node.place, node.turn, node.row] for node in nodes]
    return np.array(fields, np.int64).reshape(-1, OPENED_FIELDS)


def opened_roots(rows: Sequence[int]) -> Int64s:
    """Return ``opened`` for the roots of trees, whose histograms go to some rows of the matrix."""
    return np.array([[tree, 0, 1, 0, row] for tree, row in enumerate(rows)], np.int64).reshape(-1, OPENED_FIELDS)


def grown_tree(root: Node, inner: Sequence[Node]) -> GrownTree:
    """Return a tree as arrays; inner: the nodes that are split, in the order in which it numbers their children."""
    nodes, words = nodes_of(root, inner), len(root.words)
    numbers = {node: number for number, node in enumerate(nodes)}
    split = np.array([numbers[node] for node in inner], np.int64)
    children, where = np.full(len(nodes), -1, np.int64), np.full((len(nodes), 3), -1, np.int64)
    sets, gains = np.zeros((len(nodes), words), np.int64), np.zeros(len(nodes))
    if len(inner):
        children[split] = 1 + 2 * np.arange(len(inner))
        where[split], sets[split] = [node.where for node in inner], [node.words for node in inner]
        gains[split] = [node.gain for node in inner]
    return GrownTree(children, where, sets, gains, np.array([node.totals for node in nodes], np.int64))


def nodes_of(root: Node, inner: Sequence[Node]) -> list[Node]:
    """Return all nodes of a tree, in the tree's order; inner: see ``grown_tree``."""
    return [root, *(child for node in inner for child in node.children)]
