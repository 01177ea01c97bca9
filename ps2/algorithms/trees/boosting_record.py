"""The driver's record of boosting: trees, losses of rounds, and the decision to stop. Pure, except for the time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask
from ps2.algorithms.training.record import Record, Trained
from ps2.algorithms.trees.gradients import integer_scales
from ps2.algorithms.trees.metrics import Metric
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.tree import Forest, Tree
from ps2.array_types import Float64s

# Tolerances are relative to the metric, or to this number if that is larger, as in pyspark.ml.
MIN_SCALE = 0.01


@dataclass(frozen=True)
class EarlyStopping:
    """The rule by which the metric of the held-out rows ends a training.

    Attributes:
        patience: the training ends after this many consecutive rounds that do not improve the metric; 0: pyspark.ml's
            rule, which is the same as 1, but a metric that stays the same improves with a tolerance of 0.
        tolerance: the minimum improvement, relative to the metric.
        is_larger_better: whether a larger value of the metric is better.
    """

    patience: int = 0
    tolerance: float = 0.0
    is_larger_better: bool = False

    def is_over(self, values: Sequence[float]) -> bool:
        """Return whether the training ends; values: the metric after each round."""
        best, rounds = np.inf, 0  # the rounds since the last improvement
        for value in self._falling(values):
            gain = best - value
            scale = max(abs(value) if self.is_larger_better else value, MIN_SCALE)
            is_better = gain >= self.tolerance * scale and (gain > 0 or not self.patience)
            best, rounds = (value, 0) if is_better else (best, rounds + 1)
        return rounds >= max(self.patience, 1)

    def best(self, values: Sequence[float]) -> int:
        """Return the number of the best round, from 0; the first one of equals."""
        return int(np.argmin(self._falling(values)))

    def _falling(self, values: Sequence[float]) -> list[float]:
        """Return the values, negated if a larger value is better."""
        return [-value if self.is_larger_better else value for value in values]


class BoostingRecord:
    """The trees and the losses of each round; metric: the metric of the held-out rows."""

    def __init__(self, problem: TreeProblem, plan: BoostingPlan, record: Record) -> None:
        self._problem, self._plan = problem, plan
        self.record = record
        self.metric = Metric.parsed(plan.settings.evalMetric or "")
        self._stopping = EarlyStopping(
            plan.settings.earlyStoppingRounds or 0, plan.settings.validationTol, self.metric.is_larger_better
        )
        self.trees: list[Tree] = []
        self._counters: list[tuple[int, int]] = []  # rows and bytes until the end of each round

    @property
    def rounds(self) -> int:
        """Number of finished rounds."""
        return len(self.trees) // self._problem.objective.width

    def begin(self, losses: Any) -> None:
        """Record the losses before the first round; see ``end_round``."""
        self.record.add(losses.rows, losses.bytes)
        self.record.objective.append(float(losses.loss / losses.weight))

    def end_round(self, ask: Ask, losses: Any, seconds: float | None = None) -> bool:
        """Record the losses after a round; return whether the training ends. seconds: None: measure them."""
        self.record.add(losses.rows, losses.bytes)
        self._counters.append((self.record.rows, self.record.bytes))
        has_stopped = self._plan.settings.validationIndicatorCol is not None and self._has_stopped(losses.held)
        if ask.record_step_and_check_stop(
            float(losses.loss / losses.weight), {"leaves": self._leaves(len(self.trees))}, seconds
        ):
            self.record.reason, has_stopped = "the callback has ended it", True
        return has_stopped

    def cut(self, rounds: int) -> None:
        """Drop the rounds after the first ``rounds``: another driver may ask for fewer rounds than have grown."""
        if rounds < self.rounds:
            del self.trees[rounds * self._problem.objective.width :]
            record = self.record
            del record.seconds[rounds:], record.objective[rounds + 1 :], record.validation[rounds:]
            record.reason = ""
            record.rows, record.bytes = self._counters[rounds - 1] if rounds else (0, 0)

    def _has_stopped(self, value: float) -> bool:
        """Record the metric of the held-out rows; return whether it has stopped improving."""
        if math.isnan(value):
            return False
        self.record.validation.append(value)
        if not self._stopping.is_over(self.record.validation):
            return False
        self.record.reason = f"the {self.metric.name} of the rows held out does not get better any more"
        return True

    def result(self) -> Trained[Forest]:
        """Return the forest of at most ``maxIter`` rounds; with held-out rows, up to the round of the best metric."""
        self.cut(self._plan.settings.maxIter)
        validation = self.record.validation
        objective, base = self._problem.objective, np.array(self._problem.base)
        trees = self.trees[: objective.width * (1 + self._stopping.best(validation))] if validation else self.trees
        initial = () if self._problem.initial is None else self._problem.initial.trees
        forest = Forest((*initial, *trees), base, self._problem.dim, objective.loss, objective.shape)
        width = objective.width
        leaves = tuple(self._leaves(end) for end in range(width, len(self.trees) + 1, width))
        history = replace(self.record.history(), metrics={"leaves": leaves})
        return Trained(replace(forest, absent=self._problem.absent), history)

    def _leaves(self, end: int) -> int:
        """Return the number of leaves of a round's trees; end: the number of trees up to the end of the round."""
        return sum(tree.leaf_count for tree in self.trees[end - self._problem.objective.width : end])


def next_scales(problem: TreeProblem, plan: BoostingPlan, below: Float64s, last: Sequence[Tree]) -> tuple[float, float]:
    """Return the factors of hessians and gradients for the next round.

    Args:
        below: ``sum_bounds`` of the last round's gradients.
        last: the trees of the last round.
    """
    return integer_scales(*problem.objective.bounds_after(below, *_moves(problem, plan, last)))


def _moves(problem: TreeProblem, plan: BoostingPlan, last: Sequence[Tree]) -> tuple[float, float]:
    """Return the largest change of a margin in a round, and the sum of changes times weights; infinity: unknown."""
    leaves = [abs(tree.value[tree.leaves]) for tree in last]
    step = max(float(values.max()) for values in leaves)
    if problem.objective.loss != "squared" or plan.settings.subsamplingRate < 1:
        return step, math.inf
    return step, math.fsum(last[0].cover[last[0].leaves] * leaves[0])
