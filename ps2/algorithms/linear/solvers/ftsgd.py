"""FTSGD: local iterations, averaged (Zhang et al., "FTSGD", Algorithms 2 and 3), and MLlib's SGD (Algorithm 1).

In Algorithm 3 a worker turns round at the first sign of overshooting, and stops at the second in a row. The driver
halves the learning rate if at least half of the workers did so. In Algorithm 2 the learning rate falls with the square
root of the step. After the first step, local iterations continue only if the workers' models agree
(docs/decisions/0011). Otherwise the training falls back to MLlib's SGD (docs/decisions/0066).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask, DoTask, Steps, Task
from ps2.algorithms.linear.ftsgd import LocalResult, cosine_of, descend, ftsgd, is_gaussian
from ps2.algorithms.linear.losses.loss import Array, Loss
from ps2.algorithms.linear.parameters import Parameters
from ps2.algorithms.linear.plan import LinearPlan
from ps2.algorithms.linear.solvers.solver import Data, SolverContext
from ps2.algorithms.linear.solvers.stepping import Evaluate, SteppingProgram
from ps2.algorithms.linear.view import NOTHING, ModelView
from ps2.algorithms.training.sent_gradients import SentValues
from ps2.array_types import Float64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.errors import ConfigError

MIN_NORM = 1e-300


def decayed(step_size: float, clock: int) -> float:
    """Return the learning rate of MLlib's SGD in a clock, from 0 (FTSGD, equation 4)."""
    return step_size / math.sqrt(clock + 1)


@dataclass(frozen=True)
class SearchLocally(Task):
    """Take local iterations from the averaged model, or add the gradient at it.

    Attributes:
        step: the number of averages so far.
        step_size: the learning rate of Algorithm 3.
        falls_back: whether the training has fallen back to MLlib's SGD.
        norm: the length of the first averaged model; only step 1 reads it.
    """

    step: int
    step_size: float
    falls_back: bool
    norm: float


@dataclass
class _Memory:
    """A worker's state from one step to the next; a rollback of the fleet does not change it.

    Attributes:
        first: its first local model; None: it had no row.
        slope: the last gradient of the last step with local iterations.
        step: the number of that step.
    """

    first: Array | None = None
    slope: Float64s | None = None
    step: int = -2


@dataclass(frozen=True, eq=False)
class FtsgdWork:
    """Makes a worker of its rows; picklable.

    Attributes:
        similarities: the similarity of each worker's first model to their average.
        weight: the weight of all workers' rows.
        memories: the states of this process's workers by rank.
    """

    loss: Loss
    plan: LinearPlan
    model: Parameters
    changes: Parameters
    similarities: DCV
    weight: float
    memories: dict[int, _Memory] = field(default_factory=dict)

    def __call__(self, data: Data) -> DoTask:
        def do(worker: Any, task: SearchLocally | Evaluate) -> None:
            view = ModelView(worker)
            w, b = view.pull(self.model, data.columns)
            held = data.held_loss(self.loss, w, b)
            if isinstance(task, Evaluate):
                view.report(self.loss.loss(data.rows, w, b), held)
                return
            # The first gradient comes with the loss, if it is of all rows.
            loss = None if self.plan.settings.miniBatchFraction == 1.0 else self.loss.loss(data.rows, w, b)
            memory = self.memories.setdefault(worker.rank, _Memory())
            begin, falls_back = np.concatenate([w, b]), task.falls_back
            if task.step == 1 and self.plan.settings.localSearch == "auto":
                falls_back = not self._agree(worker, memory.first, begin, task.norm)
            if falls_back:
                rows = data.sample(self.plan.settings.miniBatchFraction, worker.rng())
                gradient = self.loss.gradient(rows, w, b)  # the driver takes the step (Algorithm 1)
                view.add(self.changes, SentValues(gradient.dw, data.columns), gradient.db)
                sampled = gradient.weight
                view.report(
                    *(loss or (gradient.loss, sampled), held, len(rows)),
                    shrink=0.0,
                    oscillated=0,
                    fell_back=1,
                    sampled=sampled,
                )
                return
            share = data.weight / self.weight
            shard = _Shard(self.loss, data, self.plan.settings.miniBatchFraction, worker.rng(), len(w))
            local = self._search(shard, begin, memory.slope if memory.step == task.step - 1 else None, task)
            memory.slope, memory.step = local.gradient, task.step
            if task.step == 0:
                memory.first = local.w if share else None
            change = SentValues(share * (local.w[: len(w)] - local.shrink * w), data.columns)
            view.add(self.changes, change, share * (local.w[len(w) :] - b))
            view.report(
                *(loss or shard.first or NOTHING, held, shard.rows),
                shrink=share * local.shrink,
                oscillated=int(local.oscillated),
                fell_back=0,
                sampled=0.0,
            )

        return do

    def _search(self, shard: _Shard, begin: Float64s, slope: Float64s | None, task: SearchLocally) -> LocalResult:
        """Take a clock's local iterations.

        Args:
            slope: the last gradient of the step before; None: it is not known.
        """
        plan, l2 = self.plan, self.loss.problem.l2
        # The driver raises an error if a model overflows.
        with np.errstate(over="ignore", invalid="ignore"):
            if plan.settings.adaptiveMomentum:
                return ftsgd(shard, begin, slope, plan.settings.momentum, task.step_size, plan.settings.localSteps, l2)
            return descend(shard, begin, decayed(plan.settings.stepSize, task.step), plan.settings.localSteps, l2)

    def _agree(self, worker: Any, first: Array | None, average: Array, norm: float) -> bool:
        """Return whether the workers' first models allow local iterations."""
        with np.errstate(over="ignore", invalid="ignore"):
            # An attempt that was started again knows no first model, and one without rows has none.
            similarity = 1.0 if first is None else cosine_of(float(first @ average), float(np.linalg.norm(first)), norm)
        self.similarities.push(np.array([similarity]), np.array([worker.rank]))
        worker.barrier()
        return is_gaussian(self.similarities.pull())


class _Shard:
    """Computes the mean gradient of a worker's minibatches, penalty included; counts rows.

    Attributes:
        first: the summed loss of the first minibatch, and the summed weight of its rows; None before it.
    """

    def __init__(self, loss: Loss, data: Data, fraction: float, rng: np.random.Generator, weights: int) -> None:
        self._loss = loss
        self._data = data
        self._fraction = fraction
        self._rng = rng
        self._weights = weights
        self.rows = 0
        self.first: tuple[float, float] | None = None

    def __call__(self, model: Float64s) -> Float64s:
        rows = self._data.sample(self._fraction, self._rng)
        w, b = model[: self._weights], model[self._weights :]
        gradient = self._loss.gradient(rows, w, b)
        self.rows += len(rows)
        self.first = self.first or (gradient.loss, gradient.weight)
        mean = 1.0 / max(gradient.weight, MIN_NORM)
        return np.concatenate([gradient.dw * mean + self._loss.problem.l2 * w, gradient.db * mean])


class Ftsgd(SteppingProgram):
    """FTSGD."""

    def __init__(self, context: SolverContext) -> None:
        if context.problem.l1:
            raise ConfigError(f"ftsgd: takes L2 penalties only, got l1={context.problem.l1:g}")
        super().__init__(context)
        self._changes = context.space.new()
        self._similarities = context.space.small(context.workers)

    # -- the algorithm -------------------------------------------------------------------------------------------------

    def drive(self, ask: Ask) -> Steps[Parameters]:
        yield from self.prepare(ask)
        step_size, falls_back, norm = float(self.plan.settings.stepSize), self.plan.settings.localSearch == "never", 0.0
        for step in itertools.count():
            task = SearchLocally(step, step_size, falls_back, norm)
            report, is_last = yield from self.step_or_evaluate(ask, step, task)
            if self.record_objective(ask, step, report, ask(self.penalty), is_last):
                break
            norm, falls_back = ask(partial(self._update_model, step, report)), bool(report.fell_back)
            if report.oscillated >= 0.5 * self.context.workers:
                step_size /= 2.0
        return self.validation.best

    def _update_model(self, step: int, report: Any) -> float:
        """Average the workers' models, or take a step along their gradient; return the first average's length."""
        factor, rate = float(report.shrink), 1.0
        with batch():
            if report.fell_back:
                step_size = decayed(self.plan.settings.stepSize, step) if report.sampled else 0.0
                factor, rate = 1.0 - step_size * self.context.problem.l2, -step_size / max(report.sampled, MIN_NORM)
                self._changes.bias.mul(rate)
            self.model.weight.combine([self.model.weight, self._changes.weight], [factor, rate])
            self.model.bias.add(self._changes.bias)
            self._changes.zero()
        return float(np.hypot(self.model.weight.norm2(), self.model.bias.norm2())) if step == 0 else 0.0

    # -- what the frame calls ------------------------------------------------------------------------------------------

    def solver_work(self) -> FtsgdWork:
        weight = self.context.facts.weight
        return FtsgdWork(self.context.loss, self.plan, self.model, self._changes, self._similarities, weight)
