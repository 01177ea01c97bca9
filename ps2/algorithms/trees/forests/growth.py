"""Trees of a random forest: their growth on servers, finished trees with integer sums, and the record of the training.

Several trees grow at once. Each clock opens as many nodes as there are matrix rows for histograms, in the order in
which their parents were split. A tree depends neither on other trees nor on the number of nodes that a clock opens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask
from ps2.algorithms.training.record import Record, Trained
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.forests.impurity_kernels import set_verdicts
from ps2.algorithms.trees.forests.plan import ForestPlan, impurity_of
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.growth import GrownTree, Growth, Node, grown_tree, tree_of
from ps2.algorithms.trees.layout import BIN, Bools
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.tree import Forest
from ps2.array_types import Float64s, Int64s
from ps2.ops.guards import readable


@dataclass(frozen=True, eq=False)
class ForestTree(GrownTree):
    """A tree whose nodes are numbered level by level; a gain is the decrease of impurity times the node's weight."""

    def as_data(self) -> list[Any]:
        """Return the arrays of the tree, in the order of its attributes."""
        return [getattr(self, field.name) for field in fields(self)]

    def impurity(self, plan: ForestPlan, scales: tuple[float, float]) -> tuple[float, float]:
        """Return the root's impurity, and the leaves' mean impurity; in regression, both minus the root's impurity."""
        weight = self.weights(plan, scales)
        decrease = float(self.gains[self.children >= 0].sum()) / weight[0] if weight[0] else 0.0
        root = 0.0
        if plan.classes and weight[0]:
            root = float(impurity_of(plan.impurity, self.class_fractions(plan)[:1])[0])
        return root, root - decrease

    def weights(self, plan: ForestPlan, scales: tuple[float, float]) -> Float64s:
        scaled_weights = self.sums[:, : plan.classes].sum(axis=1) if plan.classes else self.sums[:, 0]
        return np.asarray(scaled_weights / scales[0])

    def class_fractions(self, plan: ForestPlan) -> Float64s:
        """Return the fraction of each class in each node, shape (n, classes)."""
        counts = self.sums[:, : plan.classes].astype(np.float64)
        return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)


def random_forest(
    trees: Sequence[ForestTree], bins: Bins, problem: TreeProblem, plan: ForestPlan, scales: tuple[float, float]
) -> RandomForest:
    """Return the forest of these trees; scales: see ``PlantTrees``."""
    class_fractions = tuple(tree.class_fractions(plan) for tree in trees) if plan.classes else ()
    result = []
    for number, grown in enumerate(trees):
        weights = grown.weights(plan, scales)
        if class_fractions:
            value = np.argmax(class_fractions[number], axis=1).astype(np.float64)
            draws = grown.sums[:, : plan.classes].sum(axis=1)
        else:
            value = problem.base[0] + grown.sums[:, 1] / scales[1] / np.where(weights > 0, weights, 1.0)
            draws = grown.sums[:, 0]
        tree = tree_of(bins, grown, value, weights)
        tree.count[:] = grown.sums[:, plan.width] if plan.is_weighted else draws
        result.append(tree)
    forest = Forest(tuple(result), np.zeros(1), problem.dim, absent=problem.absent)
    return RandomForest(forest, class_fractions)


def without_unused_splits(tree: ForestTree) -> ForestTree:
    """Remove the splits of leaves, which gain too little, and the sets of splits of numeric features."""
    is_leaf = tree.children < 0
    conditions, sets, gains = tree.conditions.copy(), tree.sets.copy(), tree.gains.copy()
    conditions[is_leaf], sets[is_leaf], gains[is_leaf] = -1, 0, 0.0
    sets[conditions[:, BIN] >= 0] = 0
    return replace(tree, conditions=conditions, sets=sets, gains=gains)


class ForestRecord:
    """The trees, and the training's record: the first root's impurity, then the mean impurity of each tree's leaves."""

    def __init__(self, problem: TreeProblem, plan: ForestPlan, record: Record) -> None:
        self._problem, self._plan, self.record = problem, plan, record
        self.trees: list[ForestTree] = []
        self._bins: Bins | None = None
        self._scales = (1.0, 1.0)

    def begin(self, bins: Bins, scales: tuple[float, float]) -> None:
        """Store the bins and the scales (see ``PlantTrees``)."""
        self._bins, self._scales = bins, scales

    def add(self, ask: Ask, trees: Sequence[ForestTree], rows: int, seconds: float | None = None) -> None:
        """Record trees; rows: the number of rows; seconds: the time for one tree, None: measure it in the driver."""
        if not trees:
            return
        tree_s = ask(lambda: self.record.lap_s / len(trees) if seconds is None else seconds)
        for tree in trees:
            root, leaves = tree.impurity(self._plan, self._scales)
            self.record.add(rows, 0)
            if not self.trees:
                self.record.objective.append(root)
            self.trees.append(tree)
            ask.record_step_and_check_stop(leaves, {"leaves": int((tree.children < 0).sum())}, tree_s)

    def result(self) -> Trained[RandomForest]:
        """Return the forest, and the history with each tree's number of leaves."""
        assert self._bins is not None
        forest = random_forest(self.trees, self._bins, self._problem, self._plan, self._scales)
        leaves = tuple(float((tree.children < 0).sum()) for tree in self.trees)
        return Trained(forest, replace(self.record.history(), metrics={"leaves": leaves}))


NO_BOUNDS = np.empty(0)


class ForestGrowth(Growth):
    """Growing trees of a random forest; rows: the matrix rows for histograms; num_usable: of features with bins."""

    keeps_histograms, operation = False, "trees.purest_splits"

    def __init__(
        self, plan: ForestPlan, scales: tuple[float, float], totals: Int64s, rows: Sequence[int], num_usable: int
    ) -> None:
        self._plan, self._histogram_rows, self._num_usable = plan, rows, num_usable
        self._rules = plan.rules(scales)
        may_split = bool(plan.settings.maxDepth and num_usable)
        super().__init__(
            [Node(1, sums, NO_BOUNDS, may_split, tree=tree, row=rows[tree]) for tree, sums in enumerate(totals)]
        )
        self._waiting: deque[Node] = deque()
        self._split_nodes: list[list[Node]] = [[] for _ in totals]

    @cached_property
    def trees(self) -> list[ForestTree]:
        grown = (
            grown_tree(root, sorted(split_nodes, key=lambda node: node.heap_index))
            for root, split_nodes in zip(self._roots, self._split_nodes, strict=True)
        )
        return [ForestTree(**vars(tree)) for tree in grown]

    def operands(self) -> dict[str, Any]:
        rows, totals, _ = self._arrays()
        kinds = np.array(self._rules[:6], np.int64)
        return {"rows": rows, "totals": totals, "kinds": kinds, "rules": np.array(self._rules[6:])}

    def _set_verdicts(self, best: Splits, verdicts: Bools) -> None:
        _, totals, heap_indices = self._arrays()
        arrays = readable(heap_indices), readable(totals), readable(best.gains), readable(best.left_sums)
        set_verdicts(*arrays, self._rules, verdicts)

    def _choose(self) -> list[Node]:
        """Return the nodes whose best splits gain enough; let other nodes wait to sample further features."""
        split_nodes, plan = [node for node in self.open if node.children], self._plan
        for node in split_nodes:
            self._split_nodes[node.tree].append(node)
        for node in self.open:
            has_features = node.turn + 1 < plan.turns and (node.turn + 1) * plan.node_features < self._num_usable
            if node.may_split and not node.children and has_features:
                node.turn += 1
                self._waiting.append(node)
        return split_nodes

    def _open(self, split_nodes: list[Node]) -> tuple[list[Node], list[Node]]:
        """Open the nodes that have waited longest, as many as there are matrix rows for histograms."""
        self._waiting.extend(child for node in split_nodes for child in node.children if child.may_split)
        opened = []
        for row in self._histogram_rows[: len(self._waiting)]:
            node = self._waiting.popleft()
            node.row = row
            opened.append(node)
        return opened, opened
