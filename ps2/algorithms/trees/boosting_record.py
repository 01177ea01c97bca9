"""The driver's record of boosting: trees, losses of rounds, and the decision to stop. Pure, except for times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask
from ps2.algorithms.training.record import Record, Trained
from ps2.algorithms.trees.dropout import scaled_trees
from ps2.algorithms.trees.gradients import integer_scales
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.tree import Forest, Tree
from ps2.array_types import Float64s

# A tolerance is relative to the metric, or to this value if the metric is smaller, as in pyspark.ml.
MIN_SCALE = 0.01


@dataclass(frozen=True)
class EarlyStopping:
    """The rule by which the metric of the held-out rows ends a training.

    Attributes:
        patience: stop after this many consecutive rounds that do not improve the metric. 0: pyspark.ml's rule, which
            stops after one such round; with a tolerance of 0, an unchanged metric counts as improved.
        tolerance: the minimum improvement, relative to the metric.
    """

    patience: int = 0
    tolerance: float = 0.0
    is_larger_better: bool = False

    def is_over(self, values: Sequence[float]) -> bool:
        """Return whether the training ends; values: the metric after each round."""
        best_value, num_stale_rounds = np.inf, 0
        for value in self._with_smaller_better(values):
            gain = best_value - value
            scale = max(abs(value) if self.is_larger_better else value, MIN_SCALE)
            is_better = gain >= self.tolerance * scale and (gain > 0 or not self.patience)
            best_value, num_stale_rounds = (value, 0) if is_better else (best_value, num_stale_rounds + 1)
        return num_stale_rounds >= max(self.patience, 1)

    def best(self, values: Sequence[float]) -> int:
        """Return the number, from 0, of the best round; of equally good rounds, the first."""
        return int(np.argmin(self._with_smaller_better(values)))

    def _with_smaller_better(self, values: Sequence[float]) -> list[float]:
        """Return the values, negated if a larger value is better."""
        return [-value if self.is_larger_better else value for value in values]


class BoostingRecord:
    """The trees and the losses of each round; metric: that of the validation sets, of which the last one decides."""

    def __init__(self, problem: TreeProblem, plan: BoostingPlan, record: Record) -> None:
        self._problem, self._plan = problem, plan
        self.record = record
        self.metric = plan.metric
        self._stopping = EarlyStopping(
            plan.settings.earlyStoppingRounds or 0, plan.settings.validationTol, self.metric.is_larger_better
        )
        self.trees: list[Tree] = []  # with DART, before they are scaled
        # The metric of each of several validation sets after each round.
        self._by_set: dict[str, list[float]] = {f"validation {name}": [] for name in plan.validation_sets}
        self._counters: list[tuple[int, int]] = []  # rows and bytes until the end of each round

    @property
    def rounds(self) -> int:
        return len(self.trees) // self._problem.objective.width

    def begin(self, losses: Any) -> None:
        """Record the losses before the first round: a report of workers with the sums ``loss`` and ``weight``."""
        self.record.add(losses.rows, losses.bytes)
        self.record.objective.append(float(losses.loss / losses.weight))

    def end_round(self, ask: Ask, losses: Any, seconds: float | None = None) -> bool:
        """Record the losses after a round; return whether the training ends; seconds None: measure the time."""
        self.record.add(losses.rows, losses.bytes)
        self._counters.append((self.record.rows, self.record.bytes))
        has_stopped = self._plan.settings.validationIndicatorCol is not None and self._has_stopped(losses.held)
        by_set = {name: by_round[-1] for name, by_round in self._by_set.items()}
        metrics = {"leaves": self._leaves(len(self.trees)), **by_set}
        if ask.record_step_and_check_stop(float(losses.loss / losses.weight), metrics, seconds):
            self.record.reason, has_stopped = "the callback has ended it", True
        return has_stopped

    def drop_rounds_after(self, rounds: int) -> None:
        """Drop all but the first ``rounds`` rounds: a resumed training may want fewer rounds than have grown."""
        if rounds < self.rounds:
            del self.trees[rounds * self._problem.objective.width :]
            record = self.record
            del record.seconds[rounds:], record.objective[rounds + 1 :], record.validation[rounds:]
            for by_round in self._by_set.values():
                del by_round[rounds:]
            record.reason = ""
            record.rows, record.bytes = self._counters[rounds - 1] if rounds else (0, 0)

    def _has_stopped(self, values: Sequence[float]) -> bool:
        """Record the metric of each validation set; return whether that of the last set has stopped improving."""
        for by_round, set_value in zip(self._by_set.values(), values, strict=False):
            by_round.append(set_value)
        value = values[-1]
        if math.isnan(value):
            return False
        self.record.validation.append(value)
        if not self._stopping.is_over(self.record.validation):
            return False
        self.record.reason = f"the {self.metric.title} of the rows held out does not get better any more"
        return True

    def result(self) -> Trained[Forest]:
        """Return the forest of at most ``maxIter`` rounds; with held-out rows, up to the round of the best metric."""
        self.drop_rounds_after(self._plan.settings.maxIter)
        validation = self.record.validation
        objective, base = self._problem.objective, np.array(self._problem.base)
        trees = self.trees[: objective.width * (1 + self._stopping.best(validation))] if validation else self.trees
        if (dropout := self._plan.dropout) is not None:
            trees = [*scaled_trees(trees, dropout.scales_after(len(trees) // objective.width), objective.width)]
        initial = () if self._problem.initial is None else self._problem.initial.trees
        forest = Forest((*initial, *trees), base, self._problem.dim, objective.loss, objective.shape)
        width = objective.width
        leaves = tuple(self._leaves(end) for end in range(width, len(self.trees) + 1, width))
        by_set = {name: tuple(by_round) for name, by_round in self._by_set.items()}
        history = replace(self.record.history(), metrics={"leaves": leaves, **by_set})
        return Trained(replace(forest, absent=self._problem.absent), history)

    def _leaves(self, end: int) -> int:
        """Return the number of leaves of a round's trees; end: the number of trees up to the end of the round."""
        return sum(tree.leaf_count for tree in self.trees[end - self._problem.objective.width : end])


def sums_gradients_first(problem: TreeProblem, plan: BoostingPlan) -> bool:
    """Return whether the sums of a round's gradients must be known before its trees begin, which takes a clock."""
    return plan.is_goss or plan.dropout is not None or problem.objective.function is not None


def scales_of_round(plan: BoostingPlan, bounds: Float64s) -> tuple[float, float]:
    """Return factors that make a round's hessians and gradients integers; bounds: its ``sum_bounds``."""
    return integer_scales(*(bounds[:2] * plan.amplification))


def next_scales(
    problem: TreeProblem, plan: BoostingPlan, bounds: Float64s, last_trees: Sequence[Tree]
) -> tuple[float, float]:
    """Return factors that make the next round's hessians and gradients integers; bounds: the last ``sum_bounds``."""
    return integer_scales(*problem.objective.bounds_after(bounds, *_margin_changes(problem, plan, last_trees)))


def _margin_changes(problem: TreeProblem, plan: BoostingPlan, last_trees: Sequence[Tree]) -> tuple[float, float]:
    """Return the largest change of a margin by a round's trees, and the weighted sum of changes; infinity: unknown."""
    leaves = [abs(tree.value[tree.is_leaf]) for tree in last_trees]
    largest_change = max(float(values.max()) for values in leaves)
    if problem.objective.loss != "squared" or plan.settings.subsamplingRate < 1:
        return largest_change, math.inf
    return largest_change, math.fsum(last_trees[0].cover[last_trees[0].is_leaf] * leaves[0])
