"""Some trees of a random forest that grow on servers at once: the nodes wait for histograms in turn.

Each clock opens as many nodes as there are histograms, in the order in which their parents were split. A tree does not
depend on which others grow beside it, or on how many nodes a clock opens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ps2.algorithms.trees.forests.grown_forest import ForestTree
from ps2.algorithms.trees.forests.impurity_kernels import judge
from ps2.algorithms.trees.forests.plan import ForestPlan
from ps2.algorithms.trees.growth import Growth, Node, grown_tree
from ps2.algorithms.trees.layout import Bools
from ps2.algorithms.trees.search_kernels import Splits
from ps2.array_types import Int64s
from ps2.ops.guards import readable

NO_BOUNDS = np.empty(0)


class ForestGrowth(Growth):
    """Some trees of a random forest; rows: those of the histograms; usable: the number of features that part rows."""

    keeps_histograms, operation = False, "trees.purest_splits"

    def __init__(
        self, plan: ForestPlan, scales: tuple[float, float], totals: Int64s, rows: Sequence[int], usable: int
    ) -> None:
        self._plan, self._histograms, self._usable = plan, rows, usable
        self._rules = plan.rules(scales)
        may_split = bool(plan.settings.maxDepth and usable)
        super().__init__(
            [Node(1, sums, NO_BOUNDS, may_split, tree=tree, row=rows[tree]) for tree, sums in enumerate(totals)]
        )
        self._waiting: deque[Node] = deque()
        self._inner: list[list[Node]] = [[] for _ in totals]

    @cached_property
    def trees(self) -> list[ForestTree]:
        """The finished trees."""
        grown = (
            grown_tree(root, sorted(inner, key=lambda node: node.place))
            for root, inner in zip(self._roots, self._inner, strict=True)
        )
        return [ForestTree(**vars(tree)) for tree in grown]

    def operands(self) -> dict[str, Any]:
        rows, totals, _ = self._arrays()
        kinds = np.array(self._rules[:4], np.int64)
        return {"rows": rows, "totals": totals, "kinds": kinds, "rules": np.array(self._rules[4:])}

    def _judge(self, best: Splits, verdicts: Bools) -> None:
        _, totals, places = self._arrays()
        judge(readable(places), readable(totals), readable(best.gains), readable(best.lefts), self._rules, verdicts)

    def _choose(self) -> list[Node]:
        """Return the nodes that gain enough; the others may draw other features."""
        parted, plan = [node for node in self.open if node.children], self._plan
        for node in parted:
            self._inner[node.tree].append(node)
        for node in self.open:
            has_features = node.turn + 1 < plan.turns and (node.turn + 1) * plan.node_features < self._usable
            if node.may_split and not node.children and has_features:
                node.turn += 1
                self._waiting.append(node)
        return parted

    def _open(self, parted: list[Node]) -> tuple[list[Node], list[Node]]:
        """Open the nodes that have waited longest."""
        self._waiting.extend(child for node in parted for child in node.children if child.may_split)
        opened = []
        for row in self._histograms[: len(self._waiting)]:
            node = self._waiting.popleft()
            node.row = row
            opened.append(node)
        return opened, opened
