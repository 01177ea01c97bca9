"""In which order a tree's nodes are split, as far as is known: pure.

Nodes are split one after the other, until nothing gains or there are as many leaves as there may be: the one that gains
most first (growth by "leaf": H. Shi, "Best-first decision tree learning", 2007), or the oldest (by "level"); of equals
the oldest. Whoever looks at a node's children only when it is split has to wait for each of them. So nodes are looked
into beforehand, those that are first in line as far as is known. What is not known yet can only push others back: a
node that is too far back in line for the splits that are left is never split.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.driver_messages import NONE
from ps2.algorithms.trees.growing import Split

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[Any]

# What comes first; the number that the node has in the tree; the node.
Line = list[tuple[float, int, "Node"]]


@dataclass(eq=False)
class Node:
    """A node that a tree may come to have.

    Attributes:
        place: 1 for the root; 2p and 2p + 1 for the children of p.
        totals: int64: sums of hessians, gradients, and of the third channel.
        bounds: of the weights below it.
        may_split: whether both sides of a split could be heavy enough: without, its best one is not looked for.
        number: by which workers know it, from when its parent's rows were parted.
        row: of its histogram, while there is one.
        split, gain, children: its best split, once that is found. Of a leaf there is none.
        is_known: whether the best splits of its children are found, as far as they are looked for.
    """

    place: int
    totals: Int64s
    bounds: Float64s
    may_split: bool
    number: int = NONE
    row: int = NONE
    split: Split | None = None
    gain: float = 0.0
    children: tuple[Node, ...] = ()
    is_known: bool = False

    @property
    def is_parted(self) -> bool:
        """Whether workers have been told to part its rows."""
        return bool(self.children) and self.children[0].number != NONE


class SplitOrder:
    """The order of one tree.

    Args:
        splits: there are as many at most.
        by_gain: what gains most comes first; else what is oldest.

    Attributes:
        chosen: the nodes that are split, in order: these are certain.
    """

    def __init__(self, splits: int, by_gain: bool) -> None:
        self._splits, self._by_gain = splits, by_gain
        self._line: Line = []
        self.chosen: list[Node] = []

    @property
    def left(self) -> int:
        """How many more nodes may be chosen."""
        return self._splits - len(self.chosen)

    def begin(self, root: Node) -> None:
        """Put the root in line, whose best split is found."""
        self._put(self._line, root, 0)

    def choose(self) -> None:
        """Choose as many nodes as is certain: all that are first in line and known, and the last one in any case."""
        while self._line and self.left:
            if not self._line[0][-1].is_known and self.left > 1:
                break
            node = heappop(self._line)[-1]
            self.chosen.append(node)
            self._put_children(self._line, node, len(self.chosen))

    def ahead(self) -> list[Node]:
        """Return the nodes that have to be known before all is chosen, or may have to: those next in line first.

        All others that are not known, and not in line behind one of these, never have to be.
        """
        line, found = self._line.copy(), []
        for split in range(len(self.chosen) + 1, self._splits):
            if not line:
                break
            node = heappop(line)[-1]
            if node.is_known:
                self._put_children(line, node, split)
            else:
                found.append(node)
        return found

    def _put_children(self, line: Line, node: Node, split: int) -> None:
        """Put those in line that may be split next when a node has been, as the tree's n-th."""
        for number, child in enumerate(node.children, 2 * split - 1):
            self._put(line, child, number)

    def _put(self, line: Line, node: Node, number: int) -> None:
        if node.children:
            heappush(line, (-node.gain if self._by_gain else 0.0, number, node))
