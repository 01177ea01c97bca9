"""The growth of one boosted tree, on servers or in the process of the only worker. Pure.

Splits are chosen one after the other (``SplitOrder``). To explore a node means to search the best splits of its
children. Explored nodes that are not chosen are dropped, so the tree does not depend on the number of nodes that a
clock explores. Workers build the histogram of the lighter child. The servers subtract it from the parent's histogram,
which gives the histogram of the heavier child.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.driver_messages import FinalNodes
from ps2.algorithms.trees.growth import Growth, Node, SplitOrder, boosted_tree, grown_tree, nodes_of
from ps2.algorithms.trees.layout import FEATURE, GRADIENT, HESSIAN, LOWER, THIRD, UPPER, WORD_BITS, Bools
from ps2.algorithms.trees.nonempty_bins import is_marks_row
from ps2.algorithms.trees.problem import BoostingPlan, key_of
from ps2.algorithms.trees.scan_kernels import CategoryRules, Limits, Rules, leaf_value_of_sums, may_split, set_verdicts
from ps2.algorithms.trees.search_kernels import Splits, node_keys
from ps2.algorithms.trees.tree import Tree
from ps2.array_types import Float64s, Int64s
from ps2.ops.draws import GOLDEN, TO_UNIT, scrambled
from ps2.ops.guards import readable
from ps2.ops.kernels import kernel

Path = frozenset[int]


@dataclass(frozen=True)
class FeatureSets:
    """The features that nodes may be split by: interaction constraints, and samples of trees, levels and nodes.

    The driver sends a set of features, as bits, for each open node, and the servers search only these features. The
    features that a tree has not sampled need no bits: workers do not add them to histograms.

    Attributes:
        groups: groups of features, as xgboost's ``interaction_constraints``: a node may use the features of its path,
            and those of each group that contains the path; the root may use all features. Empty: no constraints.
        weights: the weight of each feature in samples; empty: all weights are equal.
        num_sampled: the number of features that each node samples, without replacement; 0: all of its level.
        num_in_tree: the number of features that the tree samples; 0: all.
        num_in_level: the number of features that each level samples; 0: all of the tree.
        seed, tree: the random numbers of the tree and of its levels depend on them.
    """

    features: int
    groups: tuple[tuple[int, ...], ...] = ()
    weights: tuple[float, ...] = ()
    num_sampled: int = 0
    num_in_tree: int = 0
    num_in_level: int = 0
    seed: int = 0
    tree: int = 0

    @staticmethod
    def for_tree(plan: BoostingPlan, features: int, tree: int) -> FeatureSets:
        """Return the sets of a tree, by its number."""
        groups = tuple(map(tuple, plan.settings.interactionConstraints or ()))
        weights = tuple(plan.settings.featureWeights or ())
        num_sampled = 0 if samples_on_servers(plan) else plan.node_features
        return FeatureSets(
            features, groups, weights, num_sampled, plan.tree_features, plan.level_features, plan.seed, tree
        )

    @cached_property
    def in_tree(self) -> Bools:
        """Whether the tree samples each feature."""
        return self._sample(key_of(self.seed, self.tree, 0, 1), np.ones(self.features, np.bool_), self.num_in_tree)

    def words(self, paths: Sequence[Path], keys: Int64s, levels: Sequence[int] = ()) -> Int64s:
        """Return each node's set of features as bits, int64, shape (n, words); 0 words: nodes use all of the tree.

        Args:
            paths: the features of the splits above each node.
            keys: the random key of each node.
            levels: the depth of each node; needed if levels sample.
        """
        if not (self.groups or self.num_sampled or self.num_in_level):
            return np.empty((len(paths), 0), np.int64)
        words = -(-self.features // WORD_BITS)
        flags = np.zeros((len(paths), words * WORD_BITS), np.bool_)
        in_level = {level: self._in_level(level) for level in set(levels or (0,))}
        for row, path, key, level in zip(flags, paths, keys.tolist(), levels or (0,) * len(paths), strict=True):
            row[: self.features] = self._sample(key, in_level[level], self.num_sampled)
            if self.groups and path:
                row[: self.features] &= self._allowed_after(path)
        return np.packbits(flags, axis=1, bitorder="little").view(np.int64)

    def _in_level(self, level: int) -> Bools:
        return self._sample(key_of(self.seed, self.tree, 0, 2 + level), self.in_tree, self.num_in_level)

    def _allowed_after(self, path: Path) -> Bools:
        """Return for each feature whether the constraints allow it below a path."""
        is_allowed = np.zeros(self.features, np.bool_)
        is_allowed[list(path)] = True
        for group in self.groups:
            if path.issubset(group):
                is_allowed[list(group)] = True
        return is_allowed

    def _sample(self, key: int, is_candidate: Bools, number: int) -> Bools:
        """Sample some candidates by their weights (Efraimidis and Spirakis, "Weighted random sampling", 2006)."""
        if not number:
            return is_candidate
        times, weights = np.empty(self.features), np.array(self.weights or np.ones(self.features), np.float64)
        sample_exponentials(key, readable(weights * is_candidate), times)
        is_sampled = np.isfinite(times)
        if is_sampled.sum() > number:
            is_sampled[np.argpartition(times, number)[number:]] = False
        return is_sampled


def samples_on_servers(plan: BoostingPlan) -> bool:
    """Return whether servers sample the features of nodes: from all features, with equal weights."""
    return not (plan.settings.featureWeights or plan.tree_features or plan.level_features)


@kernel
def sample_exponentials(key: int, weights: Float64s, out: Float64s) -> None:
    """Set ``out`` to exponential random variables, whose rates are the features' weights; infinite for rate 0."""
    for feature in range(len(weights)):
        state = scrambled(scrambled(np.uint64(key)) + GOLDEN * np.uint64(feature + 1))
        unit = (np.float64(state >> np.uint64(11)) + 1.0) * TO_UNIT
        out[feature] = -np.log(unit) / weights[feature] if weights[feature] > 0.0 else np.inf


# The matrix row of a root's histogram: row 0 is the layout, and row 1 has the marks.
ROOT = 2
# A clock of leaf-wise growth explores at least BATCH nodes, and at least the remaining splits divided by BATCH_DIVISOR
# (decision 20).
BATCH, BATCH_DIVISOR = 16, 8


def rules_of(plan: BoostingPlan, scales: tuple[float, float]) -> Rules:
    """Return the rules of splits; scales: see ``PlantTrees``."""
    hessian_scale, gradient_scale = scales
    penalties = float(plan.settings.regLambda), float(plan.settings.regAlpha)
    settings = plan.settings
    min_group = settings.minDataPerGroup or 0
    categories = CategoryRules(
        smooth=float(settings.catSmooth),
        category_lambda=float(settings.catL2),
        max_categories=settings.maxCatThreshold,
        min_category=plan.third_of(min(settings.catSmooth, min_group)),
        min_group=plan.third_of(min_group),
        one_hot=settings.maxCatToOnehot,
    )
    min_sums = float(plan.min_hessian), plan.min_third
    return Rules(1 / gradient_scale, 1 / hessian_scale, *penalties, *min_sums, categories)


def limits_of(plan: BoostingPlan, rules: Rules, totals: Int64s, max_splits: int) -> Limits:
    """Return the limits of a tree's growth; totals: the sums over the root's rows."""
    # The third total is the number of rows (0 without a third channel), unless it is their weight.
    rows = 0 if plan.third_channel == "weights" else int(totals[THIRD])
    rows_per_hessian = rows / max(int(totals[HESSIAN]) * rules.hessian_unit, rules.hessian_unit)
    min_gain = float(max(plan.min_gain, plan.settings.minSplitLoss))
    weight_unit = 0.0 if plan.weight_source == "hessians" else float(plan.weight_unit)
    by_gain, min_info_gain = plan.settings.growth == "leaf", float(plan.settings.minInfoGain)
    return Limits(max_splits, plan.settings.maxDepth, by_gain, min_gain, min_info_gain, rows_per_hessian, weight_unit)


class BoostedGrowth(Growth):
    """A boosted tree; scales: see ``PlantTrees``; totals: of the root; tree_number: from 0; rate None: the plan's."""

    keeps_histograms, operation = True, "trees.best_splits"

    def __init__(
        self,
        plan: BoostingPlan,
        bins: Bins,
        scales: tuple[float, float],
        totals: Int64s,
        tree_number: int = 0,
        rate: float | None = None,
    ) -> None:
        # The number of nodes that a clock of leaf-wise growth explores; None: see BATCH. Trees do not depend on it.
        self.nodes_per_clock: int | None = None
        self._plan, self._bins, self._tree_number = plan, bins, tree_number
        self._rate = plan.settings.stepSize if rate is None else rate
        self._rules = rules_of(plan, scales)
        self._limits = limits_of(plan, self._rules, totals, plan.max_leaves - 1)
        root_may_split = bool(may_split(1, readable(totals), plan.settings.maxDepth, self._rules))
        root = Node(1, totals, plan.bounds, root_may_split, row=ROOT)
        super().__init__([root])
        self.num_rows = ROOT + 1
        self._sets = FeatureSets.for_tree(plan, bins.num_features, tree_number)
        self._order = SplitOrder(plan.max_leaves - 1, plan.settings.growth == "leaf")
        self._explored: list[Node] = []
        # Nodes that have a histogram and have not been explored.
        self._unexplored = [root]
        # Matrix rows whose histograms are not needed after the next search, and rows without a histogram.
        self._spent_rows, self._free_rows = list[int](), list[int]()

    def operands(self) -> dict[str, Any]:
        plan, (rows, totals, heap_indices) = self._plan, self._arrays()
        levels = [heap_index.bit_length() - 1 for heap_index in heap_indices.tolist()]
        keys = np.zeros(len(rows), np.int64)  # of the random numbers by which nodes sample features
        if plan.node_features:
            keys = node_keys(plan.node_key(self._tree_number), heap_indices)
        return {
            "rows": rows,
            "totals": totals,
            "bounds": self._bounds(self.open),
            "keys": keys,
            "rules": np.array(self._rules[:5]),
            "min_third": plan.min_third,
            **self._rules.categories._asdict(),
            "allowed": self._sets.words([node.path for node in self.open], keys, levels),
            "channels": plan.channels,
            "marks": True,
            "features": self._bins.num_features,
            # Other samples of nodes are in ``allowed``.
            "drawn": plan.node_features if samples_on_servers(plan) else 0,
        }

    @cached_property
    def tree(self) -> Tree:
        """The finished tree; ``count`` is 0 everywhere."""
        (root,), split_nodes = self._roots, self._order.chosen
        bounds = self._bounds(nodes_of(root, split_nodes))
        return boosted_tree(self._bins, grown_tree(root, split_nodes), bounds, self._rules, self._rate)

    def _bounds(self, nodes: Sequence[Node]) -> Float64s:
        return np.array([node.bounds for node in nodes])

    def _set_verdicts(self, best: Splits, verdicts: Bools) -> None:
        _, totals, heap_indices = self._arrays()
        nodes = readable(heap_indices), readable(totals), readable(self._bounds(self.open))
        splits = readable(best.gains), readable(best.left_sums)
        set_verdicts(*nodes, *splits, self._rules, self._limits, verdicts)

    def _children(self, node: Node, sums: tuple[Int64s, Int64s], may_split: Sequence[bool]) -> tuple[Node, ...]:
        children, plan, feature = super()._children(node, sums, may_split), self._plan, node.condition[FEATURE]
        if plan.monotone:
            left, right = (
                float(leaf_value_of_sums(total[HESSIAN], total[GRADIENT], node.bounds, self._rules)) for total in sums
            )
            bounds = child_bounds(left, right, plan.monotone[feature], node.bounds)
            children[0].bounds, children[1].bounds = bounds
        if plan.settings.interactionConstraints:
            children[0].path = children[1].path = node.path | {feature}
        return children

    def _choose(self) -> list[Node]:
        """Choose the splits that are certain; return the nodes to explore, or at the end the chosen nodes to split."""
        for node in self._explored:
            node.is_known = True
        if not self._explored:
            self._order.begin(self._roots[0])
        self._order.choose()
        to_explore = self._order.nodes_to_explore()
        self._release_unneeded(to_explore)
        count = self._order.remaining
        if self._plan.settings.growth == "leaf":
            count = self.nodes_per_clock or max(BATCH, count // BATCH_DIVISOR)
        self._explored, self._unexplored = to_explore[:count], to_explore[count:]
        return self._explored or [node for node in self._order.chosen if not node.rows_are_moved]

    def _open(self, split_nodes: list[Node]) -> tuple[list[Node], list[Node]]:
        """Open the children of explored nodes that may be split; workers build the lighter children's histograms."""
        lighter = [self._assign_rows(node) for node in self._explored]
        opened = [child for node in self._explored for child in node.children if child.may_split]
        self._unexplored += opened
        return opened, lighter

    def _final_nodes(self) -> FinalNodes:
        (root,), split_nodes = self._roots, set(self._order.chosen)
        nodes = nodes_of(root, self._order.chosen)
        is_leaf = np.array([node not in split_nodes for node in nodes])
        return FinalNodes(np.array([node.number for node in nodes]), is_leaf, np.where(is_leaf, self.tree.value, 0.0))

    def _assign_rows(self, node: Node) -> Node:
        """Assign matrix rows to the children's histograms; return the lighter child."""
        left, right = node.children
        light, heavy = (left, right) if left.totals[HESSIAN] <= right.totals[HESSIAN] else (right, left)
        light.row = self._new_row()
        if heavy.may_split:
            self.subtract.append((node.row, light.row))
            heavy.row = node.row
        else:
            self._release(node.row)
        if not light.may_split:
            self._spent_rows.append(light.row)
        return light

    def _release_unneeded(self, to_explore: list[Node]) -> None:
        """Release the histograms of nodes that will not be explored."""
        self.subtract, self.clear = [], []
        for row in self._spent_rows:
            self._release(row)
        needed = set(to_explore)
        for node in self._unexplored:
            if node not in needed:
                self._release(node.row)
        self._spent_rows, self._unexplored = [], []

    def _new_row(self) -> int:
        if self._free_rows:
            return self._free_rows.pop()
        row = self.num_rows
        # If the next row is for marks, the matrix needs it, too: it has the marks of this row.
        self.num_rows += 2 if is_marks_row(row + 1) else 1
        return row

    def _release(self, row: int) -> None:
        self._free_rows.append(row)
        self.clear.append(row)


def child_bounds(left_value: float, right_value: float, sign: int, bounds: Float64s) -> tuple[Float64s, Float64s]:
    """Return the bounds of leaf values below two children; sign: the monotone constraint of the split's feature."""
    left, right = bounds.copy(), bounds.copy()
    if sign:
        upper, lower = (left, right) if sign > 0 else (right, left)
        upper[UPPER] = lower[LOWER] = (left_value + right_value) / 2
    return left, right
