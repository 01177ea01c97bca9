"""Model averaging: local SGD in every worker, averaged by the servers ("MLlib*", Zhang et al., Algorithms 3 and 4).

The servers are the paper's reduce-scatter and all-gather: each owns a part of the model. A worker's penalties
shrink all columns that its rows lack by the same amount. So it sends only, at its own keys, the difference of its
model from the shrunk global one, and its factor and soft threshold. From these the servers compute the exact average.

The L2 penalty makes steps shorter (``LocalSteps``). Where there is none, or an L1 penalty too, the driver also halves
the step size when the objective hardly falls (docs/decisions/0063).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask, DoTask, Steps, Task
from ps2.algorithms.linear.local_sgd import LocalSteps, local_sgd, takes
from ps2.algorithms.linear.losses.loss import Loss
from ps2.algorithms.linear.parameters import Parameters
from ps2.algorithms.linear.plan import LinearPlan
from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.linear.solvers.solver import Data, SolverContext
from ps2.algorithms.linear.solvers.stepping import Evaluate, SteppingProgram
from ps2.algorithms.linear.view import ModelView
from ps2.algorithms.training.sent_gradients import SentValues
from ps2.array_types import Float64s
from ps2.client.batch import batch
from ps2.errors import ConfigError

# The step size is halved if a step lowers the objective by less than this share of it.
MIN_FALL = 1e-3


@dataclass(frozen=True)
class PassLocally(Task):
    """Pass over the rows in local steps from the averaged model, and add the model's change.

    Attributes:
        step: the number of averages so far.
        step_size: the step size.
    """

    step: int
    step_size: float


@dataclass(frozen=True, eq=False)
class AveragingWork:
    """Makes a worker of its rows; picklable."""

    loss: Loss
    plan: LinearPlan
    model: Parameters
    changes: Parameters
    weight: float

    def __call__(self, data: Data) -> DoTask:
        def do(worker: Any, task: PassLocally | Evaluate) -> None:
            view = ModelView(worker)
            w, b = view.pull(self.model, data.columns)
            loss, held = self.loss.loss(data.rows, w, b), data.held_loss(self.loss, w, b)
            if isinstance(task, Evaluate):
                view.report(loss, held)
                return
            share, rng, rows = data.weight / self.weight, worker.rng(), data.whole
            order = np.concatenate([rng.permutation(len(rows)) for _ in range(self.plan.settings.localPasses)])
            size = max(1, self.plan.settings.localBatchSize or len(rows))
            number = task.step * -(-len(order) // size)
            problem = self.loss.problem
            steps = LocalSteps(size, task.step_size, problem.l2, number, problem.l1)
            local = local_sgd(self.loss, rows, w, b, order, steps)
            change = SentValues(share * (local.w - local.unused(w)), data.columns)
            view.add(self.changes, change, share * (local.b - b))
            shrinking = np.zeros((worker.workers, 2))
            shrinking[worker.rank] = share * local.shrink, local.threshold
            view.report(loss, held, len(order), shrinking=shrinking)

        return do


def check_problem(problem: Problem) -> None:
    """Raise ConfigError for an objective that this solver does not minimise."""
    if not takes(problem.loss):
        is_softmax = problem.loss == "softmax"
        raise refused(f"family: {problem.width} classes" if is_softmax else f"loss {problem.loss!r}")


def refused(got: str) -> ConfigError:
    """Return the error of a model that the solver does not train."""
    return ConfigError(
        "solver: 'ma-sgd' expects two classes (family 'binomial') or numbers (a loss other than 'huber'), got "
        f"{got}; 'l-bfgs', 'minibatch' and 'ftsgd' take it"
    )


class Averaging(SteppingProgram):
    """Model averaging.

    Raises:
        ConfigError: the problem has a loss that is not for local steps, or a penalty that the solver does not take.
    """

    def __init__(self, context: SolverContext) -> None:
        check_problem(context.problem)
        super().__init__(context)
        self._changes = context.space.new()

    # -- the algorithm -------------------------------------------------------------------------------------------------

    def drive(self, ask: Ask) -> Steps[Parameters]:
        yield from self.prepare(ask)
        step_size = float(self.plan.settings.stepSize)
        for step in itertools.count():
            report, is_last = yield from self.step_or_evaluate(ask, step, PassLocally(step, step_size))
            if self.record_objective(ask, step, report, ask(self.penalty), is_last):
                break
            ask(partial(self._average, report.shrinking))
            if step and self._hardly_falls(*self.record.objective[-2:]):
                step_size /= 2.0
        return self.validation.best

    def _hardly_falls(self, before: float, after: float) -> bool:
        """Return whether the objective shows that steps are too long, and no L2 penalty alone makes them shorter."""
        problem = self.context.problem
        return bool(problem.l1 or not problem.l2) and after > (1.0 - MIN_FALL) * before

    def _average(self, shrinking: Float64s) -> None:
        """Average the workers' models.

        Args:
            shrinking: shape (workers, 2): each worker's factor times its share of the rows, and its soft threshold.
        """
        factors, thresholds = shrinking.T
        with batch():
            if thresholds.any():
                # Workers that took the same number of steps have the same threshold.
                distinct, groups = np.unique(thresholds, return_inverse=True)
                shares = np.bincount(groups, factors, len(distinct))
                weights = self.model.weight.zip(self._changes.weight)
                weights.apply("linear.average", factors=shares, thresholds=distinct)
            else:
                self.model.weight.combine([self.model.weight, self._changes.weight], [float(factors.sum()), 1.0])
            self.model.bias.add(self._changes.bias)
            self._changes.zero()

    # -- what the frame calls ------------------------------------------------------------------------------------------

    def solver_work(self) -> AveragingWork:
        context = self.context
        return AveragingWork(context.loss, self.plan, self.model, self._changes, context.facts.weight)
