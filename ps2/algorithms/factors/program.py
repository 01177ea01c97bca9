"""What the programs of both solvers share: the problem, the results of iterations, and the end of a training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ps2.algorithms.factors.dealing import Assignment
from ps2.algorithms.factors.plan import FactorizationPlan, FittedFactors
from ps2.algorithms.factors.ratings import RatingsSurvey
from ps2.algorithms.factors.rows import Vectors
from ps2.algorithms.frame.program import Ask, NextClock, Program, Steps
from ps2.algorithms.training.record import Record, StepReport, steps_without_progress
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.data.ids import CHANGED_IDS
from ps2.data.row_spill import Spilled
from ps2.errors import InputError

# The field of a worker's first report with the number of its rows whose ids the survey does not have.
UNKNOWN_ROWS = "unknown_rows"
# The field of a worker's first report with the bytes and the folder of its files, if it has files.
SPILLED = "spilled"
# The fields of a worker's later reports; the driver gets their sums over all workers.
# ASKS: 1 if the worker has no vectors, and so asks for a restart of the iteration; else 0.
# LOSS, WEIGHT: the weighted sum of squared errors of the training ratings, and the sum of their weights.
# HELD_LOSS, HELD_WEIGHT: the same for held-out ratings. RATINGS: the number of training ratings.
# BYTES: the bytes of vectors that were sent. PENALTY: the penalty of all vectors; only "ccd" reports it.
ASKS, LOSS, WEIGHT, HELD_LOSS, HELD_WEIGHT = "asks", "loss", "weight", "held_loss", "held_weight"
RATINGS, BYTES, PENALTY = "ratings", "bytes", "penalty"
ZERO_SUMS = dict.fromkeys((ASKS, LOSS, WEIGHT, HELD_LOSS, HELD_WEIGHT, RATINGS, BYTES), 0.0)


@dataclass(frozen=True, eq=False)
class Problem:
    """The input of a training. ``survey`` includes the users and items of the initial model."""

    survey: RatingsSurvey
    assignment: Assignment
    plan: FactorizationPlan
    initial_model: FittedFactors | None = None

    @property
    def keeps_best(self) -> bool:
        """Whether held-out rows choose the iteration whose vectors are the result."""
        return self.survey.held_out > 0 and self.plan.settings.patience > 0


@dataclass(frozen=True)
class Iteration:
    """The results of an iteration.

    Attributes:
        objective: the RMSE of the training ratings, or the mean loss of implicit feedback. "sgd" measures the error of
            each rating before its gradient step.
        validation: the objective on the held-out ratings after the iteration; NaN without held-out ratings.
        bytes: the bytes of vectors that workers pushed and pulled.
    """

    objective: float
    validation: float
    ratings: int
    bytes: int
    metrics: Mapping[str, float]

    @staticmethod
    def from_sums(sums: Mapping[str, float], implicit: bool = False) -> Iteration:
        return Iteration(
            _mean(sums[LOSS], sums[WEIGHT], implicit),
            _mean(sums[HELD_LOSS], sums[HELD_WEIGHT], implicit),
            int(sums[RATINGS]),
            int(sums[BYTES]),
            {"objective": sums[LOSS] + sums[PENALTY]} if PENALTY in sums else {},
        )


class FactorsProgram(Program[FittedFactors]):
    """A factorization whose vectors are on the servers.

    Attributes:
        scale: the factor from the errors that workers report to errors of ratings.
        step_size: the first step size; None: the solver has no step size.
    """

    number = 3
    first_clock = 0
    scale, mean = 1.0, 0.0
    step_size: float | None = None

    def __init__(self, problem: Problem, on_step: Callable[[StepReport], None]) -> None:
        super().__init__(problem.plan, None, Record(on_step, problem.plan.words))
        self.problem = problem
        # Without held-out ratings there is no validation that could stop the training early.
        self._patience = problem.plan.settings.patience if problem.keeps_best else 0

    def settings(self) -> dict[str, Any]:
        survey, layout = self.problem.survey, self.problem.assignment.layout
        return {
            **super().settings(),
            "workers": layout.rotation.workers,
            "groups": layout.groups,
            "users": layout.users,
            "items": layout.items,
            "ratings": survey.rows,
            "mean": survey.mean,
            "std": survey.std,
        }

    def check_ratings(self, ask: Ask) -> Steps[None]:
        """Raise InputError if workers have read rows with ids that the survey does not have; record their files."""
        report = yield NextClock()
        if files := getattr(report, SPILLED, None):
            ask(partial(self.record.add_spilled, [Spilled(*file) for file in files]))
        if unknown_rows := getattr(report, UNKNOWN_ROWS):
            raise InputError(f"{int(unknown_rows)} {CHANGED_IDS}")

    def last_iteration(self, results: Sequence[Iteration], iterations: int) -> int:
        """Return the number of the last iteration, at most ``iterations``, given the results so far.

        After ``patience`` iterations without progress, ``staleness`` more follow: workers may have started them.
        """
        losses, tolerance = [result.validation for result in results], self.plan.settings.validationTol
        for number in range(1, len(losses) + 1):
            if 0 < self._patience <= steps_without_progress(losses[:number], tolerance):
                return min(iterations, number + (self.staleness or 0))
        return iterations

    def best_iteration(self, results: Sequence[Iteration]) -> int:
        """Return the iteration, from 1, whose vectors are the result: the last, or the best on the held-out rows."""
        losses = [(result.validation, i) for i, result in enumerate(results, 1) if not math.isnan(result.validation)]
        return min(losses)[1] if losses and self.problem.keeps_best else len(results)

    def end_iteration(self, ask: Ask, results: list[Iteration], result: Iteration) -> None:
        """Append ``result`` to ``results``, and record it in the history."""
        if not math.isnan(result.validation):
            self.record.validation.append(self.scale * result.validation)
        ratings, objective = result.ratings, self.scale * result.objective
        metrics = ask.record_step(objective, ratings, result.bytes, result.metrics, ratings=ratings)
        results.append(replace(result, metrics=metrics))

    def end(self, results: Sequence[Iteration], is_early: bool) -> int:
        """Record why the training ends (``is_early``: validation has not improved); return ``best_iteration``."""
        record, best = self.record, self.best_iteration(results)
        record.metrics = {name: tuple(result.metrics[name] for result in results) for name in results[-1].metrics}
        if is_early:
            record.reason = f"no progress on the held-out rows for {self._patience} iterations"
        if best < len(results):
            record.best = best
            record.reason = f"{record.reason or record.completed}; the vectors are those of iteration {best}"
        return best

    def fitted(self, users: Vectors, items: Vectors, halvings: int = 0) -> FittedFactors:
        """Return the result of the training; ``halvings`` is the number of restarts with half the step."""
        survey, step_size = self.problem.survey, self.step_size
        (user_factors, user_bias), (item_factors, item_bias) = users, items
        vectors = survey.users, survey.items, user_factors, item_factors, user_bias, item_bias
        step_size = None if step_size is None else step_size / 2**halvings
        return FittedFactors(*vectors, self.mean, self.record.history(), step_size, halvings)


@dataclass(frozen=True, eq=False)
class CheckAndTrain:
    """The loop of each worker; picklable. The worker reports its number of rows with unknown ids, and then trains."""

    train: Callable[[Any, Any], None]

    def __call__(self, worker: Any, ratings: Any) -> None:
        for _ in worker.clocks(FIRST_CLOCK):  # clock 0
            spilled = ratings.spilled
            worker.report({UNKNOWN_ROWS: ratings.unknown_rows})
            worker.report({SPILLED: [] if spilled is None else [[spilled.bytes, spilled.folder]]}, "concat")
        self.train(worker, ratings)


def _mean(loss: float, weight: float, implicit: bool) -> float:
    """Return the mean loss of implicit feedback, or the RMSE of explicit feedback; NaN if the weight is 0."""
    if weight <= 0:
        return math.nan
    # ``math.sqrt`` would raise an error for a negative loss.
    return loss / weight if implicit or not loss >= 0 else math.sqrt(loss / weight)
