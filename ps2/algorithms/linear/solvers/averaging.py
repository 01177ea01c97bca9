"""Model averaging: local SGD in every worker, averaged by the servers ("MLlib*", Zhang et al., Algorithms 3 and 4).

The servers are the paper's reduce-scatter and all-gather: each owns a part of the model. A worker sends, at its own
keys, by how much its model differs from the global one shrunk by its penalties; as these shrink all other columns
alike, the servers can make the exact average of whole models from that and each worker's factor and soft threshold.

Steps get shorter by the L2 penalty (``LocalSteps``). Where there is none, or an L1 penalty too, the driver also halves
the step size when the objective hardly falls (docs/decisions/0063).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.linear.local_sgd import LocalSteps, local_sgd, takes
from ps2.algorithms.linear.losses.loss import Loss
from ps2.algorithms.linear.parameters import Parameters, columns_of
from ps2.algorithms.linear.problem import Problem, SolverOptions
from ps2.algorithms.linear.solvers.objective_monitor import ObjectiveMonitor
from ps2.algorithms.linear.solvers.solver import Data, SolverContext, SolverWorker
from ps2.algorithms.linear.validation import Validation
from ps2.algorithms.linear.view import ModelView, Sums
from ps2.algorithms.training.sent_gradients import SentValues
from ps2.client.batch import batch
from ps2.errors import ConfigError
from ps2.run.message import Message, Stop

# A step by which the objective falls by a smaller part of it halves the step size.
MIN_FALL = 1e-3


@dataclass(frozen=True, eq=False)
class AveragingWorker:
    """Local passes from the averaged model."""

    loss: Loss
    options: SolverOptions
    model: Parameters
    changes: Parameters
    weight: float
    first_clock: int
    workers: int

    def __call__(self, worker: Any, data: Data, view: ModelView, clocks: int) -> None:
        columns = columns_of(data.rows.keys, self.model.width)
        share = data.weight / self.weight
        for clock in worker.clocks(clocks):
            w, b = view.pull(self.model, columns)
            loss, held = self.loss.loss(data.rows, w, b), data.held_loss(self.loss, w, b)
            if clock == self.first_clock + self.options.steps:
                view.report(loss, held, shrinking=np.zeros((self.workers, 2)))
                continue
            rng, rows = worker.rng(), data.whole
            order = np.concatenate([rng.permutation(len(rows)) for _ in range(self.options.local_passes)])
            size = max(1, self.options.local_batch or len(rows))
            number = (clock - self.first_clock) * -(-len(order) // size)
            step_size = float(view.told("step_size", self.options.step_size))
            steps = LocalSteps(size, step_size, self.l2, number, self.loss.problem.l1)
            found = local_sgd(self.loss, rows, w, b, order, steps)
            change = SentValues(share * (found.w - found.unused(w)), columns)
            view.add(self.changes, change, share * (found.b - b))
            shrinking = np.zeros((self.workers, 2))
            shrinking[worker.rank] = share * found.shrink, found.threshold
            view.report(loss, held, len(order), shrinking=shrinking)

    @property
    def l2(self) -> float:
        return self.loss.problem.l2


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


class Averaging:
    """The driver's program.

    Raises:
        ConfigError: the problem has a loss that is not for local steps, or a penalty that the solver does not take.
    """

    def __init__(self, context: SolverContext) -> None:
        self._context = context
        self.model, self.changes = context.beginning, context.space.new()
        self._validation = Validation.make(context.options, context.space, self.model, context.record.validation)
        self._objective = ObjectiveMonitor(context)
        self.clocks = context.options.steps + 1
        # By clock; the fleet may roll back.
        self._step_sizes = [context.options.step_size]
        self.worker = self._worker()

    def _worker(self) -> SolverWorker:
        context = self._context
        check_problem(context.problem)
        return AveragingWorker(
            context.loss,
            context.options,
            self.model,
            self.changes,
            context.facts.weight,
            context.first_clock,
            context.workers,
        )

    def _average(self, sums: Sums) -> None:
        """Make the average of the workers' weights; within ``batch()``."""
        factors, thresholds = sums["shrinking"].T
        if thresholds.any():
            # Workers with as many steps have the same threshold.
            each, which = np.unique(thresholds, return_inverse=True)
            shares = np.bincount(which, factors, len(each))
            self.model.weight.zip(self.changes.weight).apply("linear.average", factors=shares, thresholds=each)
        else:
            self.model.weight.combine([self.model.weight, self.changes.weight], [float(factors.sum()), 1.0])

    def on_clock(self, clock: int, sums: Sums) -> Message | Stop | None:
        """Average the workers' models."""
        context = self._context
        with batch():
            penalty = self._objective.penalty(self.model)
        self._objective.note(clock, sums["loss"], sums["weight"], penalty())
        reason = self._validation.look(sums, self.model) if context.options.validate else None
        if reason is not None:
            self._objective.end()
            return context.stop(reason)
        if clock == context.options.steps:
            self._objective.end()
            return None
        with batch():
            self._average(sums)
            self.model.bias.add(self.changes.bias)
            self.changes.zero()
        del self._step_sizes[clock + 1 :]
        return self._next(clock, sums)

    def _next(self, clock: int, sums: Sums) -> Message | None:
        """Return what the workers need for the clock after this one."""
        problem, objective = self._context.problem, self._context.record.objective
        step_size = self._step_sizes[clock]
        if clock and (problem.l1 or not problem.l2) and objective[clock] > (1.0 - MIN_FALL) * objective[clock - 1]:
            step_size /= 2.0
        self._step_sizes.append(step_size)
        return Message(step_size=step_size) if step_size != self._context.options.step_size else None

    def result(self) -> Parameters:
        return self._validation.best
