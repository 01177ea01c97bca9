"""The engine that grows trees on servers, in the driver: the servers' answers in, messages to the workers out. Pure.

One or many trees grow at once. In each clock workers part the rows of some nodes among their children, and add up the
children's histograms, in which the servers search the best splits. ``Growth`` is this loop. What differs is how splits
are judged, which node comes next, and where its histogram lies: ``BoostedGrowth`` grows a boosted tree, and
``forests.growth.ForestGrowth`` some trees of a random forest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, ClassVar

import numpy as np

from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.driver_messages import FIELDS, NO_NODES, NONE, OPENED_FIELDS, FinalNodes, Moves
from ps2.algorithms.trees.layout import BIN, FEATURE, HESSIAN, MISSING_LEFT, Bools, category_flags
from ps2.algorithms.trees.scan_kernels import Rules
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.tree import LEAF, Tree
from ps2.algorithms.trees.tree_kernels import weigh_nodes
from ps2.array_types import Float64s, Int64s

NO_WORDS = np.empty(0, np.int64)

# Sort key; the node's number in the tree; the node.
Queue = list[tuple[float, int, "Node"]]

# The row of a histogram matrix that has the layout of bins.
LAYOUT = 0


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
        category_flags(np.ascontiguousarray(grown.sets[node]), int(bins.categories[feature[node]]))
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
    """Return a boosted tree with zero counts; bounds: of each node's weight, shape (n, 2); rate: of its leaves."""
    values = np.empty(len(grown.children))
    weigh_nodes(grown.sums, bounds, rules, values)
    cover = np.float64(rules.hessian_unit) * grown.sums[:, HESSIAN]
    return tree_of(bins, grown, values * rate, cover)


@dataclass(eq=False, slots=True)
class Node:
    """A node that may be part of the tree.

    Attributes:
        place: 1 for the root; 2p and 2p + 1 for the children of p.
        totals: int64: the sums of its rows, a number per channel.
        bounds: the smallest and the largest weight below it; only for boosted trees.
        may_split: whether both sides of a split can be heavy enough; else its best split is not searched.
        path: the features of the splits above it, where features interact by groups.
        tree: the number of its tree, from 0 among those that grow at once.
        number: the number by which workers know it, once its parent's rows are parted.
        row: the row of its histogram, while it has one.
        turn: how often it has drawn features before.
        where, words, gain, children: its best split, once it is known: columns ``layout.FEATURE`` and the following
            ones, the categories that go left as bits, the gain, and two nodes; a leaf has no children.
        is_known: whether the best splits of those children that may be split are known.
    """

    place: int
    totals: Int64s
    bounds: Float64s
    may_split: bool
    path: frozenset[int] = frozenset()
    tree: int = 0
    number: int = NONE
    row: int = NONE
    turn: int = 0
    where: Sequence[int] = ()
    words: Int64s = field(default_factory=lambda: NO_WORDS)
    gain: float = 0.0
    children: tuple[Node, ...] = ()
    is_known: bool = False

    @property
    def is_parted(self) -> bool:
        """Whether a message has told workers to part its rows."""
        return bool(self.children) and self.children[0].number != NONE


class SplitOrder:
    """The order of one tree.

    Args:
        splits: the maximum number of splits.
        by_gain: the largest gain comes first; else the oldest node.

    Attributes:
        chosen: the nodes that are split for certain, in order.
    """

    def __init__(self, splits: int, by_gain: bool) -> None:
        self._splits, self._by_gain = splits, by_gain
        self._queue: Queue = []
        self.chosen: list[Node] = []

    @property
    def left(self) -> int:
        """Remaining splits."""
        return self._splits - len(self.chosen)

    def begin(self, root: Node) -> None:
        """Queue the root, whose best split is known."""
        self._put(self._queue, root, 0)

    def choose(self) -> None:
        """Choose the nodes that are certain: known ones at the head of the queue, and the last one in any case."""
        while self._queue and self.left:
            if not self._queue[0][-1].is_known and self.left > 1:
                break
            node = heappop(self._queue)[-1]
            self.chosen.append(node)
            self._put_children(self._queue, node, len(self.chosen))

    def ahead(self) -> list[Node]:
        """Return the nodes that may have to be explored before all splits are chosen, in the queue's order."""
        queue, unknown = self._queue.copy(), []
        for split in range(len(self.chosen) + 1, self._splits):
            if not queue:
                break
            node = heappop(queue)[-1]
            if node.is_known:
                self._put_children(queue, node, split)
            else:
                unknown.append(node)
        return unknown

    def _put_children(self, queue: Queue, node: Node, split: int) -> None:
        """Queue the children of a node that is split as the tree's n-th."""
        for number, child in enumerate(node.children, 2 * split - 1):
            self._put(queue, child, number)

    def _put(self, queue: Queue, node: Node, number: int) -> None:
        if node.children:
            heappush(queue, (-node.gain if self._by_gain else 0.0, number, node))


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
        """Judge the best splits of the open nodes; verdicts: see ``scan_kernels.MAY``."""

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
        """Store the best splits of the open nodes that gain enough."""
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
