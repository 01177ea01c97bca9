"""A growing tree, in the driver: the servers' answers in, messages to the workers out. Pure.

Each clock explores several nodes: workers part the rows of these and add histograms of their children, in which the
servers find the best splits. Splits are chosen one after the other (``split_order``), as soon as enough is known.
Explored nodes that are not chosen are dropped, so the tree does not depend on how many nodes a clock explores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.decision_kernels import Limits, gains_enough, may_split
from ps2.algorithms.trees.driver_messages import (
    BIN,
    BUILT,
    DEFAULT_LEFT,
    FEATURE,
    FIELDS,
    LEFT,
    NO_NODES,
    NODE,
    NONE,
    ROW,
    FinalNodes,
)
from ps2.algorithms.trees.feature_sets import FeatureSets
from ps2.algorithms.trees.growing import Split, child_bounds
from ps2.algorithms.trees.layout import GRADIENT, HESSIAN, THIRD
from ps2.algorithms.trees.nonempty_bins import has_marks
from ps2.algorithms.trees.problem import BoostingOptions, key_of
from ps2.algorithms.trees.scan_kernels import Rules, weight_of
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.split_order import Node, SplitOrder
from ps2.algorithms.trees.tree import Tree, TreeBuilder
from ps2.array_types import Float64s, Int64s
from ps2.ops.guards import readable

Array = npt.NDArray[Any]

# Of a histogram matrix: its layout, and the histogram of a root; ``marks`` have the row between.
LAYOUT, ROOT = 0, 2
# Nodes that a clock of leaf-wise growth explores: this number, or this share of the remaining splits (decision 20).
BATCH, BATCH_SHARE = 16, 8


def rules_of(options: BoostingOptions, scales: tuple[float, float]) -> Rules:
    """Return how splits are judged; scales: factors of hessians and gradients."""
    hessian_scale, gradient_scale = scales
    penalties = float(options.reg_lambda), float(options.reg_alpha)
    return Rules(1 / gradient_scale, 1 / hessian_scale, *penalties, float(options.min_hessian), options.min_third)


def limits_of(options: BoostingOptions, rules: Rules, totals: Int64s, max_splits: int) -> Limits:
    """Return when a tree stops growing; totals: of the root."""
    # The third total is a number of rows, unless it is a weight.
    rows = 0 if options.third == "weights" else int(totals[THIRD])
    rows_per_hessian = rows / max(int(totals[HESSIAN]) * rules.hessian_unit, rules.hessian_unit)
    min_gain = float(max(options.least_gain, options.min_gain))
    weight_unit = 0.0 if options.weighed_by == "hessians" else float(options.weight_unit)
    by_gain, min_info_gain = options.growth == "leaf", float(options.min_info_gain)
    return Limits(max_splits, options.depth, by_gain, min_gain, min_info_gain, rows_per_hessian, weight_unit)


class Growth:
    """One tree.

    Args:
        scales: factors of hessians and gradients.
        totals: int64, shape (3,): the sums of all rows: hessians, gradients, and the third channel.
        tree: its number.
        rate: factor of its leaves; None: that of the options.

    Attributes:
        is_over: whether the tree is done.
        explores: nodes that a clock of leaf-wise growth explores, on which the tree does not depend; None: so many that
            trees take few clocks.
        subtract: pairs of rows: the second histogram is subtracted from the first, once workers have added it.
        clear: rows to zero before workers add to them.
        room: rows that the matrix needs by then.
        tree: its number.
    """

    def __init__(
        self,
        options: BoostingOptions,
        bins: Bins,
        scales: tuple[float, float],
        totals: Int64s,
        tree: int = 0,
        rate: float | None = None,
    ) -> None:
        self.explores: int | None = None
        self._rate = options.rate if rate is None else rate
        self._options, self._bins, self.tree = options, bins, tree
        self._rules = rules_of(options, scales)
        self._limits = limits_of(options, self._rules, totals, options.most_leaves - 1)
        self.is_over = False
        self.subtract: list[tuple[int, int]] = []
        self.clear: list[int] = []
        self.room = ROOT + 1
        drawn = options.features if options.feature_weights else 0
        self._sets = FeatureSets(bins.features, options.groups, options.feature_weights, drawn)
        self._free: list[int] = []
        self._root = self._node(1, totals, options.bounds)
        self._root.number, self._root.row = 0, ROOT
        self._numbers = 1
        self._order = SplitOrder(options.most_leaves - 1, options.growth == "leaf")
        # Nodes whose best splits are to be found; nodes that were explored for them.
        self._open = [self._root] if self._root.may_split else []
        self._explored: list[Node] = []
        # Nodes with histograms that are not explored yet; rows of histograms that are not needed any more.
        self._kept = [self._root]
        self._spent: list[int] = []

    @property
    def is_searched(self) -> bool:
        """Whether the servers are to find splits."""
        return bool(self._open)

    @property
    def rows(self) -> Int64s:
        """Rows of the open nodes' histograms."""
        return np.array([node.row for node in self._open], np.int64)

    @property
    def totals(self) -> Int64s:
        """Totals of the open nodes, shape (n, 3)."""
        return np.array([node.totals for node in self._open], np.int64)

    @property
    def bounds(self) -> Float64s:
        """Bounds of the open nodes, shape (n, 2)."""
        return np.array([node.bounds for node in self._open])

    @property
    def rules(self) -> Float64s:
        """``rules`` of the operation ``best_splits``."""
        return np.array(self._rules[:-1])

    @property
    def allowed(self) -> Int64s:
        """The features that the open nodes may be split by: ``FeatureSets.words``."""
        return self._sets.words([node.path for node in self._open], self.keys)

    @property
    def keys(self) -> Int64s:
        """Random keys that draw the open nodes' features."""
        if not (self._options.features or self._options.feature_weights):
            return np.zeros(len(self._open), np.int64)
        return np.array([key_of(self._options.seed, self.tree, node.place) for node in self._open], np.int64)

    def go_on(self, best: Splits | None) -> tuple[Int64s, FinalNodes]:
        """Choose the splits that are certain, and explore the nodes that the next ones depend on.

        Args:
            best: the best splits of the open nodes; None: the servers were not asked.

        Returns:
            ``splits`` and ``nodes`` of ``Moves``.
        """
        if best is not None:
            self._note(best)
        self._order.choose()
        ahead = self._order.ahead()
        self._give_rows_back(ahead)
        words = 0 if best is None else best.sets.shape[1]
        if not ahead:
            self.is_over = True
            rest = [node for node in self._order.chosen if not node.is_parted]
            return self._splits_of(rest, words), self._final_nodes()
        count = self._at_once()
        self._explored, self._kept = ahead[:count], ahead[count:]
        splits = self._splits_of(self._explored, words)
        for node, row in zip(self._explored, splits, strict=True):
            self._open_children(node, row)
        return splits, NO_NODES

    def finish(self) -> Tree:
        """Return the finished tree; ``count`` is 0 everywhere."""
        draft = TreeBuilder(self._weight(self._root), self._cover(self._root), 0)
        numbers = {self._root: 0}
        for node in self._order.chosen:
            assert node.split is not None
            number, split = numbers[node], node.split
            draft.split(number, split.feature, split.test(self._bins), split.default_left, node.gain)
            for child in node.children:
                numbers[child] = draft.add_child(number, self._weight(child), self._cover(child), 0)
        return draft.finish(self._rate)

    def _at_once(self) -> int:
        """Return how many nodes a clock explores."""
        if self._options.growth == "level":
            return self._order.left
        return self.explores or max(BATCH, self._order.left // BATCH_SHARE)

    def _note(self, best: Splits) -> None:
        """Note the open nodes' best splits, and close the nodes."""
        for i, node in enumerate(self._open):
            if self._is_enough(float(best.gains[i]), node, best.lefts[i]):
                feature, last_bin, missing_left = best.where[i].tolist()
                node.gain = float(best.gains[i])
                node.split = Split(feature, last_bin, bool(missing_left), best.sets[i])
                node.children = self._children(node, node.split, best.lefts[i])
                node.is_known = not any(child.may_split for child in node.children)
        for node in self._explored:
            node.is_known = True
        if self._open == [self._root]:
            self._order.begin(self._root)
        self._open, self._explored = [], []

    def _is_enough(self, gain: float, node: Node, left: Int64s) -> bool:
        """Return whether a split gains enough; where the servers found none, the gain is negative."""
        sums = readable(node.totals), readable(left), readable(node.bounds)
        return bool(gains_enough(gain, *sums, self._rules, self._limits))

    def _children(self, node: Node, split: Split, left: Int64s) -> tuple[Node, Node]:
        sums = left, node.totals - left
        weights = [self._weight_of(total, node.bounds) for total in sums]
        sign = self._options.monotone[split.feature] if self._options.monotone else 0
        bounds = child_bounds(weights[0], weights[1], sign, node.bounds)
        path = node.path | {split.feature} if self._options.groups else node.path
        places = 2 * node.place, 2 * node.place + 1
        return self._node(places[0], sums[0], bounds[0], path), self._node(places[1], sums[1], bounds[1], path)

    def _node(self, place: int, totals: Int64s, bounds: Float64s, path: frozenset[int] = frozenset()) -> Node:
        may = may_split(place, readable(totals), self._options.depth, self._rules)
        return Node(place, totals, bounds, bool(may), path)

    def _splits_of(self, nodes: list[Node], words: int) -> Int64s:
        """Number the children of nodes; return ``splits`` of the message."""
        splits = np.full((len(nodes), FIELDS + words), NONE, np.int64)
        for node, row in zip(nodes, splits, strict=True):
            split = node.split
            assert split is not None
            row[NODE], row[LEFT] = node.number, self._numbers
            row[FEATURE], row[BIN], row[DEFAULT_LEFT] = split.feature, split.bin, split.default_left
            row[FIELDS:] = split.words
            for child in node.children:
                child.number = self._numbers
                self._numbers += 1
        return splits

    def _open_children(self, node: Node, row: Int64s) -> None:
        """Give histograms to children that may be split; workers build that of the lighter child."""
        left, right = node.children
        small, large = (left, right) if left.totals[HESSIAN] <= right.totals[HESSIAN] else (right, left)
        small.row = self._take_row()
        row[BUILT], row[ROW] = node.children.index(small), small.row
        if large.may_split:
            self.subtract.append((node.row, small.row))
            large.row = node.row
        else:
            self._release(node.row)
        if not small.may_split:
            self._spent.append(small.row)
        mine = [child for child in node.children if child.may_split]
        self._open += mine
        self._kept += mine

    def _give_rows_back(self, ahead: list[Node]) -> None:
        """Release the histograms of nodes that will not be explored."""
        self.subtract, self.clear = [], []
        for row in self._spent:
            self._release(row)
        wanted = set(ahead)
        for node in self._kept:
            if node not in wanted:
                self._release(node.row)
        self._spent, self._kept = [], []

    def _take_row(self) -> int:
        if self._free:
            return self._free.pop()
        row = self.room
        # The row after it may be for bitmaps, which the matrix needs too.
        self.room += 2 if has_marks(row + 1) else 1
        return row

    def _release(self, row: int) -> None:
        self._free.append(row)
        self.clear.append(row)

    def _final_nodes(self) -> FinalNodes:
        nodes = [self._root, *(child for node in self._order.chosen for child in node.children)]
        inner = set(self._order.chosen)
        is_leaf = np.array([node not in inner for node in nodes])
        values = [0.0 if node in inner else self._weight(node) * self._rate for node in nodes]
        return FinalNodes(np.array([node.number for node in nodes]), is_leaf, np.array(values))

    def _weight(self, node: Node) -> float:
        return self._weight_of(node.totals, node.bounds)

    def _weight_of(self, totals: Int64s, bounds: Float64s) -> float:
        h, g = totals[HESSIAN] * self._rules.hessian_unit, totals[GRADIENT] * self._rules.gradient_unit
        return float(weight_of(g, h, self._rules.reg_lambda, self._rules.reg_alpha, *bounds))

    def _cover(self, node: Node) -> float:
        return float(node.totals[HESSIAN] * self._rules.hessian_unit)
