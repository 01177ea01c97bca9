"""The driver's view of a boosting: its trees, the losses of its rounds, and when it ends. Pure, but for the time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ps2.algorithms.training.record import Record, TrainingHistory
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.trees.metrics import Metric
from ps2.algorithms.trees.problem import BoostingOptions, TreeProblem
from ps2.algorithms.trees.stopping import EarlyStopping
from ps2.algorithms.trees.tree import Forest, Tree


class BoostingRecord:
    """Trees by number, and what happened round by round.

    Attributes:
        record: of the training.
        metric: of the rows that are held out.
        trees: those that are finished.
    """

    def __init__(self, problem: TreeProblem, options: BoostingOptions, record: Record) -> None:
        self._problem, self._options = problem, options
        self.record = record
        self.metric = Metric.parsed(options.metric)
        self._stopping = EarlyStopping(options.patience, options.validation_tol, self.metric.is_larger_better)
        self.trees: list[Tree] = []

    @property
    def most(self) -> int:
        """How many trees there will be, if nothing ends the training before."""
        return self._options.rounds * self._problem.objective.width

    def note(self, sums: Mapping[str, Any], journal: ReplayJournal, seconds: float | None = None) -> bool:
        """Note the losses after a round, or before the first one; return whether the training ends.

        Args:
            sums: of all workers: "loss", "weight", "rows", "bytes"; "held", the metric of the rows held out, if there
                are any; and "lap_s", the seconds of the round.
            journal: of what the callback has answered; its page is open.
            seconds: of the round; None: since the last one ended.
        """
        loss = float(sums["loss"] / sums["weight"])
        self.record.add(sums["rows"], sums["bytes"])
        if not self.trees:
            self.record.objective.append(loss)
            return False
        is_enough = self._options.validate and self._is_enough(sums)
        if journal.is_replaying:
            self.record.step_before(loss, sums["lap_s"])
        leaves = {"leaves": self._leaves(len(self.trees))}
        if journal.hear(lambda: self.record.step(loss, leaves, seconds)):
            self.record.reason, is_enough = "the callback has ended it", True
        return is_enough

    def _is_enough(self, sums: Mapping[str, Any]) -> bool:
        """Note the metric of the held-out rows; return whether it has stopped improving."""
        if math.isnan(sums["held"]):
            return False
        self.record.validation.append(sums["held"])
        if not self._stopping.is_over(self.record.validation):
            return False
        self.record.reason = f"the {self.metric.name} of the rows held out does not get better any more"
        return True

    def forest(self) -> Forest:
        """Return the trees; where rows are held out, those up to the best metric of these."""
        found = self.record.validation
        objective, base = self._problem.objective, np.array(self._problem.base)
        trees = self.trees[: objective.width * (1 + self._stopping.best(found))] if found else self.trees
        before = () if self._problem.initial is None else self._problem.initial.trees
        forest = Forest((*before, *trees), base, self._problem.dim, objective.loss, objective.shape)
        return replace(forest, absent=self._problem.absent)

    def history(self) -> TrainingHistory:
        """Return how it went; with it, the leaves of each round."""
        width = self._problem.objective.width
        leaves = tuple(self._leaves(end) for end in range(width, len(self.trees) + 1, width))
        return replace(self.record.history(), metrics={"leaves": leaves})

    def _leaves(self, end: int) -> int:
        """Return how many leaves the trees of a round have, whose last tree is the one before ``end``."""
        return sum(tree.leaf_count for tree in self.trees[end - self._problem.objective.width : end])
