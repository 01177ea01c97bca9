"""A boosted tree that grows on servers, or by steps in the only worker. Pure.

Splits are chosen one after the other (``SplitOrder``), as soon as enough is known. Explored nodes that are not chosen
are dropped, so the tree does not depend on how many nodes a clock explores. Of two children, workers add the histogram
of the lighter one; that of the other is what is left of their parent's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.driver_messages import FinalNodes
from ps2.algorithms.trees.feature_sets import FeatureSets
from ps2.algorithms.trees.growth import Growth, Node, SplitOrder, boosted_tree, grown_tree, nodes_of
from ps2.algorithms.trees.layout import FEATURE, GRADIENT, HESSIAN, LOWER, THIRD, UPPER, Bools
from ps2.algorithms.trees.nonempty_bins import has_marks
from ps2.algorithms.trees.problem import BoostingPlan, key_of
from ps2.algorithms.trees.scan_kernels import Limits, Rules, judge, may_split, weight_by
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.tree import Tree
from ps2.array_types import Float64s, Int64s
from ps2.ops.guards import readable

# The row of the histogram of a root: after the layout, and the row of the marks.
ROOT = 2
# Nodes that a clock of leaf-wise growth explores: this number, or this share of the remaining splits (decision 20).
BATCH, BATCH_SHARE = 16, 8


def rules_of(plan: BoostingPlan, scales: tuple[float, float]) -> Rules:
    """Return how splits are judged; ``scales``: the factors that made hessians and gradients whole numbers."""
    hessian_scale, gradient_scale = scales
    penalties = float(plan.settings.regLambda), float(plan.settings.regAlpha)
    return Rules(1 / gradient_scale, 1 / hessian_scale, *penalties, float(plan.min_hessian), plan.min_third)


def limits_of(plan: BoostingPlan, rules: Rules, totals: Int64s, max_splits: int) -> Limits:
    """Return when a tree stops growing; totals: those of the root."""
    # The third total is a number of rows, unless it is a weight.
    rows = 0 if plan.third == "weights" else int(totals[THIRD])
    rows_per_hessian = rows / max(int(totals[HESSIAN]) * rules.hessian_unit, rules.hessian_unit)
    min_gain = float(max(plan.min_gain, plan.settings.minSplitLoss))
    weight_unit = 0.0 if plan.weight_source == "hessians" else float(plan.weight_unit)
    by_gain, min_info_gain = plan.settings.growth == "leaf", float(plan.settings.minInfoGain)
    return Limits(max_splits, plan.settings.maxDepth, by_gain, min_gain, min_info_gain, rows_per_hessian, weight_unit)


class BoostedGrowth(Growth):
    """A boosted tree that grows; scales: see ``PlantTrees``; rate: the learning rate of leaves, None: the plan's."""

    keeps_histograms, operation = True, "trees.best_splits"

    def __init__(
        self,
        plan: BoostingPlan,
        bins: Bins,
        scales: tuple[float, float],
        totals: Int64s,
        number: int = 0,
        rate: float | None = None,
    ) -> None:
        # Nodes that a clock of leaf-wise growth explores; None: as many as keep the clocks few. Trees are the same.
        self.explores: int | None = None
        self._plan, self._bins, self._number = plan, bins, number
        self._rate = plan.settings.stepSize if rate is None else rate
        self._rules = rules_of(plan, scales)
        self._limits = limits_of(plan, self._rules, totals, plan.max_leaves - 1)
        may = bool(may_split(1, readable(totals), plan.settings.maxDepth, self._rules))
        root = Node(1, totals, plan.bounds, may, row=ROOT)
        super().__init__([root])
        self.num_rows = ROOT + 1
        drawn = plan.node_features if plan.settings.featureWeights else 0
        groups = tuple(map(tuple, plan.settings.interactionConstraints or ()))
        self._sets = FeatureSets(bins.features, groups, tuple(plan.settings.featureWeights or ()), drawn)
        self._order = SplitOrder(plan.max_leaves - 1, plan.settings.growth == "leaf")
        self._explored: list[Node] = []
        # Nodes with histograms that are not explored yet; rows of histograms that are not needed any more; free rows.
        self._kept, self._spent, self._free = [root], list[int](), list[int]()

    def operands(self) -> dict[str, Any]:
        plan, (rows, totals, _) = self._plan, self._arrays()
        keys = np.zeros(len(rows), np.int64)
        if plan.node_features or plan.settings.featureWeights:
            # Random keys, by which each node draws its features.
            keys[:] = [key_of(plan.seed, self._number, node.place) for node in self.open]
        return {
            "rows": rows,
            "totals": totals,
            "bounds": self._bounds(self.open),
            "keys": keys,
            "rules": np.array(self._rules[:-1]),
            "allowed": self._sets.words([node.path for node in self.open], keys),
            "channels": plan.channels,
            "marks": True,
            "min_third": plan.min_third,
            "features": self._bins.features,
            # Weighted draws are in ``allowed``.
            "drawn": 0 if plan.settings.featureWeights else plan.node_features,
        }

    @cached_property
    def tree(self) -> Tree:
        """The finished tree; ``count`` is 0 everywhere."""
        (root,), inner = self._roots, self._order.chosen
        bounds = self._bounds(nodes_of(root, inner))
        return boosted_tree(self._bins, grown_tree(root, inner), bounds, self._rules, self._rate)

    def _bounds(self, nodes: Sequence[Node]) -> Float64s:
        return np.array([node.bounds for node in nodes])

    def _judge(self, best: Splits, verdicts: Bools) -> None:
        _, totals, places = self._arrays()
        sums = readable(totals), readable(self._bounds(self.open))
        judge(readable(places), *sums, readable(best.gains), readable(best.lefts), self._rules, self._limits, verdicts)

    def _children(self, node: Node, sums: tuple[Int64s, Int64s], may_split: Sequence[bool]) -> tuple[Node, ...]:
        children, plan, feature = super()._children(node, sums, may_split), self._plan, node.where[FEATURE]
        if plan.monotone:
            left, right = (
                float(weight_by(total[HESSIAN], total[GRADIENT], node.bounds, self._rules)) for total in sums
            )
            bounds = child_bounds(left, right, plan.monotone[feature], node.bounds)
            children[0].bounds, children[1].bounds = bounds
        if plan.settings.interactionConstraints:
            children[0].path = children[1].path = node.path | {feature}
        return children

    def _choose(self) -> list[Node]:
        """Choose the splits that are certain; return the nodes that the next ones depend on, or those left to part."""
        for node in self._explored:
            node.is_known = True
        if not self._explored:
            self._order.begin(self._roots[0])
        self._order.choose()
        ahead = self._order.ahead()
        self._release_unneeded(ahead)
        count = self._at_once()
        self._explored, self._kept = ahead[:count], ahead[count:]
        return self._explored or [node for node in self._order.chosen if not node.is_parted]

    def _at_once(self) -> int:
        """Return the number of nodes that a clock explores."""
        if self._plan.settings.growth == "level":
            return self._order.left
        return self.explores or max(BATCH, self._order.left // BATCH_SHARE)

    def _open(self, parted: list[Node]) -> tuple[list[Node], list[Node]]:
        """Open the children of explored nodes that may be split; workers add the histograms of the lighter ones."""
        lighter = [self._give_histograms(node) for node in self._explored]
        opened = [child for node in self._explored for child in node.children if child.may_split]
        self._kept += opened
        return opened, lighter

    def _final_nodes(self) -> FinalNodes:
        (root,), inner = self._roots, set(self._order.chosen)
        nodes = nodes_of(root, self._order.chosen)
        is_leaf = np.array([node not in inner for node in nodes])
        return FinalNodes(np.array([node.number for node in nodes]), is_leaf, np.where(is_leaf, self.tree.value, 0.0))

    def _give_histograms(self, node: Node) -> Node:
        """Give rows for histograms to the children; return the lighter child."""
        left, right = node.children
        small, large = (left, right) if left.totals[HESSIAN] <= right.totals[HESSIAN] else (right, left)
        small.row = self._take_row()
        if large.may_split:
            self.subtract.append((node.row, small.row))
            large.row = node.row
        else:
            self._release(node.row)
        if not small.may_split:
            self._spent.append(small.row)
        return small

    def _release_unneeded(self, ahead: list[Node]) -> None:
        """Release the histograms of nodes that will not be explored."""
        self.subtract, self.clear = [], []
        for row in self._spent:
            self._release(row)
        needed = set(ahead)
        for node in self._kept:
            if node not in needed:
                self._release(node.row)
        self._spent, self._kept = [], []

    def _take_row(self) -> int:
        if self._free:
            return self._free.pop()
        row = self.num_rows
        # The row after it may be for bitmaps, which the matrix needs too.
        self.num_rows += 2 if has_marks(row + 1) else 1
        return row

    def _release(self, row: int) -> None:
        self._free.append(row)
        self.clear.append(row)


def child_bounds(w_left: float, w_right: float, sign: int, bounds: Float64s) -> tuple[Float64s, Float64s]:
    """Return the bounds of the weights below two children, whose feature has a constraint: 1, -1, or 0 for none."""
    left, right = bounds.copy(), bounds.copy()
    if sign:
        upper, lower = (left, right) if sign > 0 else (right, left)
        upper[UPPER] = lower[LOWER] = (w_left + w_right) / 2
    return left, right
