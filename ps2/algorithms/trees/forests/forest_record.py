"""The driver's view of a random forest: its trees, and how their growing went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ps2.algorithms.frame.program import Ask
from ps2.algorithms.training.record import Record, TrainingHistory
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.forests.grown_tree import ForestTree, random_forest
from ps2.algorithms.trees.forests.plan import ForestPlan
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.problem import TreeProblem


class ForestRecord:
    """Trees by number.

    Attributes:
        record: the training's record: the impurity of a root, then the mean impurity of the leaves of each tree.
        trees: those that have grown.
    """

    def __init__(self, problem: TreeProblem, plan: ForestPlan, record: Record) -> None:
        self._problem, self._plan, self.record = problem, plan, record
        self.trees: list[ForestTree] = []
        self._bins: Bins | None = None
        self._scales = (1.0, 1.0)

    def begin(self, bins: Bins, scales: tuple[float, float]) -> None:
        """Note the bins, and the factors of weights and labels."""
        self._bins, self._scales = bins, scales

    def add(self, ask: Ask, trees: Sequence[ForestTree], rows: int, seconds: float | None = None) -> None:
        """Note trees that have grown.

        Args:
            rows: number of rows that they are grown of.
            seconds: duration of one tree; None: the time since the last step, divided by the number of trees.
        """
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

    def forest(self) -> RandomForest:
        """Return the forest."""
        assert self._bins is not None
        return random_forest(self.trees, self._bins, self._problem, self._plan, self._scales)

    def history(self) -> TrainingHistory:
        """Return how it went; with it, the leaves of each tree."""
        leaves = tuple(float((tree.children < 0).sum()) for tree in self.trees)
        return replace(self.record.history(), metrics={"leaves": leaves})
