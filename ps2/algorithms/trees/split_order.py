"""The order in which a tree's nodes are split, as far as it is known. Pure.

Nodes are split one after the other, until no split gains or the tree has its most leaves: first the node with the
largest gain (growth by "leaf": H. Shi, "Best-first decision tree learning", 2007), or the oldest (by "level"); ties go
to the oldest. To explore a node's children only after its split would cost one clock per split. So the nodes at the
head of the queue are explored beforehand. An unknown gain can only push other nodes back: a node that is too far back
for the remaining splits is never split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from ps2.algorithms.trees.driver_messages import NONE
from ps2.array_types import Float64s, Int64s

NO_WORDS = np.empty(0, np.int64)

# Sort key; the node's number in the tree; the node.
Queue = list[tuple[float, int, "Node"]]


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
        """Return the nodes that must or may have to be explored before all splits are chosen, in the queue's order.

        No other node, unless it is queued behind one of these, will have to be.
        """
        queue, found = self._queue.copy(), []
        for split in range(len(self.chosen) + 1, self._splits):
            if not queue:
                break
            node = heappop(queue)[-1]
            if node.is_known:
                self._put_children(queue, node, split)
            else:
                found.append(node)
        return found

    def _put_children(self, queue: Queue, node: Node, split: int) -> None:
        """Queue the children of a node that is split as the tree's n-th."""
        for number, child in enumerate(node.children, 2 * split - 1):
            self._put(queue, child, number)

    def _put(self, queue: Queue, node: Node, number: int) -> None:
        if node.children:
            heappush(queue, (-node.gain if self._by_gain else 0.0, number, node))
