"""The driver's engine that grows trees on servers: it makes tasks for workers from the servers' best splits. Pure.

One or many trees grow at once. In each clock, workers move the rows of some nodes to the nodes' children, and build the
children's histograms, in which the servers search the best splits. ``Growth`` is this loop. Its subclasses decide which
splits gain enough, which nodes come next, and which matrix rows have their histograms: ``BoostedGrowth`` for one
boosted tree, and ``forests.growth.ForestGrowth`` for several trees of a random forest.
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

# A heap of nodes; an entry is a sort key, the node's number in the tree, and the node.
NodeQueue = list[tuple[float, int, "Node"]]

# The row of a matrix of histograms that contains the layout of bins.
LAYOUT = 0


@dataclass(frozen=True, eq=False)
class GrownTree:
    """A grown tree, with splits by bins and integer sums.

    Attributes:
        children: the left child of each node, int64, shape (n,); the right child has the next number; -1: a leaf.
        conditions: the split of each node, int64, shape (n, 3); columns: ``layout.FEATURE``, BIN and MISSING_LEFT.
        sets: the categories that go left, as bits, int64, shape (n, words).
        gains: the gain of each split, float64, shape (n,).
        sums: the sums of each node's rows, int64, shape (n, channels).
    """

    children: Int64s
    conditions: Int64s
    sets: Int64s
    gains: Float64s
    sums: Int64s


def tree_of(bins: Bins, grown: GrownTree, value: Float64s, cover: Float64s) -> Tree:
    """Return a ``Tree`` with these values and covers, and ``count`` 0; gains and conditions of leaves are ignored."""
    children, conditions = grown.children, grown.conditions
    is_inner = children >= 0
    feature = np.where(is_inner, conditions[:, FEATURE], LEAF).astype(np.int32)
    has_set = is_inner & (conditions[:, BIN] < 0)
    cut = bins.cut_offsets[feature] + conditions[:, BIN]
    is_last = cut >= bins.cut_offsets[feature + 1]
    threshold = np.where(is_last, np.inf, np.append(bins.cuts, np.inf)[np.clip(cut, 0, len(bins.cuts))])
    flags, codes = list[Bools](), list[Int64s]()
    for node in np.flatnonzero(has_set).tolist():
        set_codes = bins.cuts[bins.cut_offsets[feature[node]] : bins.cut_offsets[feature[node] + 1]].astype(np.int64)
        set_flags = category_flags(np.ascontiguousarray(grown.sets[node]), len(set_codes))
        if bins.has_rare_categories:
            # Codes may be large, so a set has only those of the side that is not the default.
            is_listed = set_flags != (conditions[node, MISSING_LEFT] > 0)
            set_codes, set_flags = set_codes[is_listed], set_flags[is_listed]
        flags.append(set_flags)
        codes.append(set_codes)
    sizes = np.zeros(len(children), np.int64)
    sizes[has_set] = [len(set_flags) for set_flags in flags]
    return Tree(
        feature,
        np.where(is_inner & ~has_set, threshold, 0.0),
        is_inner & (conditions[:, MISSING_LEFT] > 0),
        np.where(is_inner, children, LEAF).astype(np.int32),
        np.where(is_inner, children + 1, LEAF).astype(np.int32),
        value,
        np.where(is_inner, grown.gains, 0.0),
        cover,
        np.zeros(len(children), np.int64),
        np.append(0, np.cumsum(sizes)).astype(np.int64),
        np.concatenate([np.empty(0, np.bool_), *flags]),
        np.concatenate([np.empty(0, np.int64), *codes]) if bins.has_rare_categories else np.empty(0, np.int64),
    )


def boosted_tree(bins: Bins, grown: GrownTree, bounds: Float64s, rules: Rules, rate: float) -> Tree:
    """Return a boosted tree with ``count`` 0; bounds: of each node's value, shape (n, 2); rate: the learning rate."""
    values = np.empty(len(grown.children))
    weigh_nodes(grown.sums, bounds, rules, values)
    cover = np.float64(rules.hessian_unit) * grown.sums[:, HESSIAN]
    return tree_of(bins, grown, values * rate, cover)


@dataclass(eq=False, slots=True)
class Node:
    """A node that may be part of the tree.

    Attributes:
        heap_index: 1 for the root; 2i and 2i + 1 for the children of a node with index i.
        totals: the sums of the node's rows, int64, one for each channel.
        bounds: the smallest and the largest value of leaves below the node; only for boosted trees.
        may_split: whether both sides of a split can be heavy enough; if not, the best split is not searched.
        path: the features of the splits above the node, if there are interaction constraints.
        tree: the index of the node's tree among those that grow at once.
        number: the workers' number of the node; NONE: they have not yet moved its parent's rows.
        row: the matrix row of the node's histogram; NONE: there is none.
        turn: the number of times that the node has sampled features before.
        condition: the best split: ``layout.FEATURE``, BIN and MISSING_LEFT; empty: it is not known.
        words: the categories that go left by the best split, as bits.
        children: the two children by the best split; empty: the best split is not known, or gains too little.
        is_known: whether the best splits of all children that may be split are known.
    """

    heap_index: int
    totals: Int64s
    bounds: Float64s
    may_split: bool
    path: frozenset[int] = frozenset()
    tree: int = 0
    number: int = NONE
    row: int = NONE
    turn: int = 0
    condition: Sequence[int] = ()
    words: Int64s = field(default_factory=lambda: NO_WORDS)
    gain: float = 0.0
    children: tuple[Node, ...] = ()
    is_known: bool = False

    @property
    def rows_are_moved(self) -> bool:
        """Whether workers have got the task to move the node's rows to its children."""
        return bool(self.children) and self.children[0].number != NONE


class SplitOrder:
    """The order in which a tree's nodes are split: by gain, or the oldest first; chosen: nodes certain to be split."""

    def __init__(self, max_splits: int, by_gain: bool) -> None:
        self._max_splits, self._by_gain = max_splits, by_gain
        self._queue: NodeQueue = []
        self.chosen: list[Node] = []

    @property
    def remaining(self) -> int:
        return self._max_splits - len(self.chosen)

    def begin(self, root: Node) -> None:
        """Queue the root, whose best split is known."""
        self._put(self._queue, root, 0)

    def choose(self) -> None:
        """Choose nodes from the queue while their children's splits are known; the last split does not need that."""
        while self._queue and self.remaining:
            if not self._queue[0][-1].is_known and self.remaining > 1:
                break
            node = heappop(self._queue)[-1]
            self.chosen.append(node)
            self._put_children(self._queue, node, len(self.chosen))

    def nodes_to_explore(self) -> list[Node]:
        """Return the nodes that may have to be explored before all splits are chosen, in the queue's order."""
        queue, unexplored = self._queue.copy(), []
        for split in range(len(self.chosen) + 1, self._max_splits):
            if not queue:
                break
            node = heappop(queue)[-1]
            if node.is_known:
                self._put_children(queue, node, split)
            else:
                unexplored.append(node)
        return unexplored

    def _put_children(self, queue: NodeQueue, node: Node, split: int) -> None:
        """Queue the children of a node; split: the number of the node's split in the tree, from 1."""
        for number, child in enumerate(node.children, 2 * split - 1):
            self._put(queue, child, number)

    def _put(self, queue: NodeQueue, node: Node, number: int) -> None:
        if node.children:
            heappush(queue, (-node.gain if self._by_gain else 0.0, number, node))


class Growth(ABC):
    """Trees that grow at once; workers have already sent the histograms of those ``roots`` that may be split.

    Attributes:
        keeps_histograms: whether a node's histogram is kept for its children; if not, it is cleared after the search.
        open: the nodes whose best splits the servers search next.
        subtract: pairs of matrix rows: the second histogram is subtracted from the first before the search.
        clear: matrix rows to clear before workers add to them.
        num_rows: the number of rows that the matrix needs for the next histograms.
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
        self._counts = [1] * len(roots)  # by tree: how many nodes have a workers' number

    @abstractmethod
    def operands(self) -> dict[str, Any]:
        """Return the operands of the operation that searches the open nodes."""

    def advance(self, best: Splits | None) -> Moves:
        """Record the open nodes' best splits (None: no node is open), open the next nodes, and return the moves."""
        if best is not None:
            self._record(best)
        split_nodes = self._choose()
        splits = self._number_children(split_nodes)
        self.open, nodes_to_build = self._open(split_nodes)
        self.is_over = not self.open
        opened = [[node.tree, node.number, node.heap_index, node.turn, node.row] for node in nodes_to_build]
        nodes = self._final_nodes() if self.is_over else NO_NODES
        return Moves(splits, nodes, np.array(opened, np.int64).reshape(-1, OPENED_FIELDS))

    def _arrays(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return the open nodes' matrix rows, totals, shape (n, channels), and heap indices."""
        rows, heap_indices = [node.row for node in self.open], [node.heap_index for node in self.open]
        totals = [node.totals for node in self.open]
        return np.array(rows, np.int64), np.array(totals, np.int64), np.array(heap_indices, np.int64)

    @abstractmethod
    def _set_verdicts(self, best: Splits, verdicts: Bools) -> None:
        """Set the verdicts on the open nodes, shape (n, 4), from their best splits; see ``scan_kernels.CAN_SPLIT``."""

    @abstractmethod
    def _choose(self) -> list[Node]:
        """Return the nodes that workers split next."""

    @abstractmethod
    def _open(self, split_nodes: list[Node]) -> tuple[list[Node], list[Node]]:
        """Return the nodes to open, and the nodes whose histograms workers build; both have matrix rows."""

    def _final_nodes(self) -> FinalNodes:
        """Return the nodes of the finished tree; none if workers do not need them."""
        return NO_NODES

    def _children(self, node: Node, sums: tuple[Int64s, Int64s], may_split: Sequence[bool]) -> tuple[Node, ...]:
        """Return the children of a node by its best split; sums: over the rows of the left and of the right child."""
        return tuple(
            Node(2 * node.heap_index + side, sums[side], node.bounds, may_split[side], node.path, node.tree)
            for side in range(2)
        )

    def _record(self, best: Splits) -> None:
        """Store the best splits of the open nodes that gain enough."""
        self._words, verdicts = best.sets.shape[1], np.zeros((len(self.open), 4), np.bool_)
        self._set_verdicts(best, verdicts)
        left_sums, right_sums = best.left_sums, self._arrays()[1] - best.left_sums
        results = zip(self.open, verdicts.tolist(), best.gains.tolist(), best.conditions.tolist(), strict=True)
        for i, (node, (can_split, is_split, *children_can_split), gain, condition) in enumerate(results):
            node.may_split = can_split
            if is_split:
                node.gain, node.condition, node.words = gain, condition, best.sets[i]
                node.children = self._children(node, (left_sums[i], right_sums[i]), children_can_split)
                node.is_known = not any(children_can_split)

    def _number_children(self, nodes: list[Node]) -> Int64s:
        """Give the children of nodes their workers' numbers; return ``Moves.splits``."""
        splits = np.empty((len(nodes), FIELDS + self._words), np.int64)
        for node, row in zip(nodes, splits, strict=True):
            left = self._counts[node.tree]
            row[:FIELDS] = node.tree, node.number, *node.condition, left
            row[FIELDS:] = node.words
            for child in node.children:
                child.number = self._counts[node.tree]
                self._counts[node.tree] += 1
        return splits


def opened_roots(rows: Sequence[int]) -> Int64s:
    """Return ``Moves.opened`` for the roots of trees; rows: the matrix rows of their histograms."""
    return np.array([[tree, 0, 1, 0, row] for tree, row in enumerate(rows)], np.int64).reshape(-1, OPENED_FIELDS)


def grown_tree(root: Node, inner: Sequence[Node]) -> GrownTree:
    """Return a tree as arrays; inner: the nodes that are split, in the order in which their children are numbered."""
    nodes, words = nodes_of(root, inner), len(root.words)
    numbers = {node: number for number, node in enumerate(nodes)}
    split = np.array([numbers[node] for node in inner], np.int64)
    children, conditions = np.full(len(nodes), -1, np.int64), np.full((len(nodes), 3), -1, np.int64)
    sets, gains = np.zeros((len(nodes), words), np.int64), np.zeros(len(nodes))
    if len(inner):
        children[split] = 1 + 2 * np.arange(len(inner))
        conditions[split], sets[split] = [node.condition for node in inner], [node.words for node in inner]
        gains[split] = [node.gain for node in inner]
    return GrownTree(children, conditions, sets, gains, np.array([node.totals for node in nodes], np.int64))


def nodes_of(root: Node, inner: Sequence[Node]) -> list[Node]:
    """Return all nodes of a tree, ordered by number; inner: see ``grown_tree``."""
    return [root, *(child for node in inner for child in node.children)]
