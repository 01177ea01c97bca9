"""FTSGD: local iterations, averaged (Zhang et al., "FTSGD", Algorithms 2 and 3), and MLlib's SGD (Algorithm 1).

In Algorithm 3 a worker drops its momentum when consecutive gradients oppose each other, and stops when they do so twice
in a row. The driver halves the learning rate if at least half of the workers have stopped. In Algorithm 2 the learning
rate falls with the square root of the step. After the first step, local iterations continue only if the workers' models
agree (docs/decisions/0011). Otherwise the training falls back to MLlib's SGD (docs/decisions/0066).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask, DoTask, Steps, Task
from ps2.algorithms.linear.losses import Loss
from ps2.algorithms.linear.parameters import NO_LOSS, ModelView, Parameters
from ps2.algorithms.linear.plan import LinearPlan
from ps2.algorithms.linear.program import Evaluate, SteppingProgram
from ps2.algorithms.linear.solvers.solver import Data, SolverContext
from ps2.algorithms.training.sent_gradients import SentValues
from ps2.array_types import Float64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.errors import ConfigError, ShapeError
from ps2.ops.table import Array

# The minimum of a sum of weights by which a gradient is divided.
MIN_WEIGHT = 1e-300
# The 68-95-99.7 rule: this share of the similarities lies within this number of standard deviations.
SHARE, DEVIATIONS = 0.997, 3.0
# The maximum standard deviation of similarities, as a share of the mean.
MAX_DEVIATION = 0.25
# Numbers with a smaller relative difference are equal but for rounding.
ROUNDING = 1e-9


@dataclass(frozen=True)
class SearchLocally(Task):
    """Take local iterations from the averaged model; if the training has fallen back, add the gradient at that model.

    ``norm`` is the norm of the first averaged model; only step 1 reads it.
    """

    step: int
    step_size: float
    falls_back: bool
    norm: float


@dataclass
class _Memory:
    """State of a worker that a rollback of the fleet does not change.

    Attributes:
        first: the worker's first local model; None: it had no rows.
        slope: the last gradient of the last step with local iterations, whose number is ``step``.
    """

    first: Array | None = None
    slope: Float64s | None = None
    step: int = -2


@dataclass(frozen=True, eq=False)
class FtsgdWork:
    """Makes the function that does a worker's tasks from its rows; picklable.

    ``weight`` is the weight of all workers' rows; ``memories`` are by rank.
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
            held_out_loss = data.held_out_loss(self.loss, w, b)
            if isinstance(task, Evaluate):
                view.report(self.loss.loss(data.rows, w, b), held_out_loss)
                return
            # If minibatches have all rows, the first gradient's loss is that of all rows.
            loss = None if self.plan.settings.miniBatchFraction == 1.0 else self.loss.loss(data.rows, w, b)
            memory = self.memories.setdefault(worker.rank, _Memory())
            start, falls_back = np.concatenate([w, b]), task.falls_back
            if task.step == 1 and self.plan.settings.localSearch == "auto":
                falls_back = not self._agree(worker, memory.first, start, task.norm)
            if falls_back:
                rows = data.sample(self.plan.settings.miniBatchFraction, worker.rng())
                gradient = self.loss.gradient(rows, w, b)  # the driver takes the step (Algorithm 1)
                view.add(self.changes, SentValues(gradient.dw, data.columns), gradient.db)
                sampled = gradient.weight
                view.report(
                    *(loss or (gradient.loss, sampled), held_out_loss, len(rows)),
                    shrink=0.0,
                    oscillated=0,
                    fell_back=1,
                    sampled=sampled,
                )
                return
            share = data.rows.weight / self.weight
            shard = _Shard(self.loss, data, self.plan.settings.miniBatchFraction, worker.rng(), len(w))
            local = self._search(shard, start, memory.slope if memory.step == task.step - 1 else None, task)
            memory.slope, memory.step = local.gradient, task.step
            if task.step == 0:
                memory.first = local.w if share else None
            change = SentValues(share * (local.w[: len(w)] - local.shrink * w), data.columns)
            view.add(self.changes, change, share * (local.w[len(w) :] - b))
            view.report(
                *(loss or shard.first or NO_LOSS, held_out_loss, shard.rows),
                shrink=share * local.shrink,
                oscillated=int(local.oscillated),
                fell_back=0,
                sampled=0.0,
            )

        return do

    def _search(self, shard: _Shard, start: Float64s, slope: Float64s | None, task: SearchLocally) -> LocalResult:
        """Take a clock's local iterations; ``slope`` is the last gradient of the previous step, if it is known."""
        plan, l2 = self.plan, self.loss.problem.l2
        # If the model overflows, the driver raises the error.
        with np.errstate(over="ignore", invalid="ignore"):
            if plan.settings.adaptiveMomentum:
                return ftsgd(shard, start, slope, plan.settings.momentum, task.step_size, plan.settings.localSteps, l2)
            return descend(shard, start, decayed_rate(plan.settings.stepSize, task.step), plan.settings.localSteps, l2)

    def _agree(self, worker: Any, first: Array | None, average: Array, norm: float) -> bool:
        """Return whether the workers' first models allow local iterations."""
        with np.errstate(over="ignore", invalid="ignore"):
            # A restarted worker has lost its first model, and a worker without rows has none.
            similarity = 1.0 if first is None else cosine_of(float(first @ average), float(np.linalg.norm(first)), norm)
        self.similarities.push(np.array([similarity]), np.array([worker.rank]))
        worker.barrier()
        return is_gaussian(self.similarities.pull())


class _Shard:
    """Computes mean gradients of a worker's minibatches, with the penalty; counts their rows."""

    def __init__(self, loss: Loss, data: Data, fraction: float, rng: np.random.Generator, weights: int) -> None:
        self._loss, self._data, self._fraction, self._rng, self._weights = loss, data, fraction, rng, weights
        self.rows = 0
        self.first: tuple[float, float] | None = None  # the summed loss and weight of the first minibatch

    def __call__(self, model: Float64s) -> Float64s:
        rows = self._data.sample(self._fraction, self._rng)
        w, b = model[: self._weights], model[self._weights :]
        gradient = self._loss.gradient(rows, w, b)
        self.rows += len(rows)
        self.first = self.first or (gradient.loss, gradient.weight)
        mean = 1.0 / max(gradient.weight, MIN_WEIGHT)
        return np.concatenate([gradient.dw * mean + self._loss.problem.l2 * w, gradient.db * mean])


class Ftsgd(SteppingProgram):
    """FTSGD."""

    def __init__(self, context: SolverContext) -> None:
        if context.problem.l1:
            raise ConfigError(f"ftsgd: takes L2 penalties only, got l1={context.problem.l1:g}")
        super().__init__(context)
        self._changes = context.space.new()
        self._similarities = context.space.new_small(context.workers)

    # -- the algorithm -------------------------------------------------------------------------------------------------

    def drive(self, ask: Ask) -> Steps[Parameters]:
        yield from self.prepare(ask)
        step_size, falls_back, norm = float(self.plan.settings.stepSize), self.plan.settings.localSearch == "never", 0.0
        for step in itertools.count():
            task = SearchLocally(step, step_size, falls_back, norm)
            report, is_last = yield from self.step_or_evaluate(ask, step, task)
            if self.end_step(ask, step, report, ask(self.penalty), is_last):
                break
            norm, falls_back = ask(partial(self._update_model, step, report)), bool(report.fell_back)
            if report.oscillated >= 0.5 * self.context.workers:
                step_size /= 2.0
        return self.validation.best

    def _update_model(self, step: int, report: Any) -> float:
        """Average the workers' models, or take a step along their gradient; return the norm of the first average."""
        factor, rate = float(report.shrink), 1.0
        with batch():
            if report.fell_back:
                step_size = decayed_rate(self.plan.settings.stepSize, step) if report.sampled else 0.0
                factor, rate = 1.0 - step_size * self.context.problem.l2, -step_size / max(report.sampled, MIN_WEIGHT)
                self._changes.bias.mul(rate)
            self.model.weight.combine([self.model.weight, self._changes.weight], [factor, rate])
            self.model.bias.add(self._changes.bias)
            self._changes.zero()
        return float(np.hypot(self.model.weight.norm2(), self.model.bias.norm2())) if step == 0 else 0.0

    # -- hooks of the frame --------------------------------------------------------------------------------------------

    def solver_work(self) -> FtsgdWork:
        weight = self.context.facts.weight
        return FtsgdWork(self.context.loss, self.plan, self.model, self._changes, self._similarities, weight)


# -- local iterations --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LocalResult:
    """The result of local steps.

    Attributes:
        w: float64, shape (k,).
        gradient: the last gradient.
        oscillated: whether the steps ended early, as gradients opposed the ones before them twice in a row.
        momenta: the momentum of each step.
        shrink: the factor by which the steps change the weight of a feature that no row has.
    """

    w: Float64s
    gradient: Float64s
    oscillated: bool
    momenta: list[float]
    shrink: float = 1.0


def ftsgd(  # noqa: PLR0913
    gradient_of: Callable[[Float64s], Float64s],
    w: Array,
    old_gradient: Float64s | None,
    alpha: float,
    beta: float,
    local_steps: int,
    l2: float = 0.0,
) -> LocalResult:
    """Take local steps v = alpha (1 + cos) v + beta / 2 g, w = w - v, from v = 0 on (FTSGD, equation 6).

    cos is the cosine of the angle between a gradient and the one before it. When it is negative, alpha is 0 in that
    step. When it is negative twice in a row, the learning rate must be too large, and the steps end.

    Args:
        gradient_of: computes the gradient at weights, with the penalty; it chooses the rows itself.
        w: the initial weights, float32 or float64, shape (k,).
        old_gradient: the last gradient of the previous call; None: the first cosine is 0.
        alpha, beta: the momentum, and the learning rate.
        local_steps: the maximum number of steps.
    """
    w, old = np.array(w, np.float64), old_gradient
    velocity = np.zeros_like(w)
    was_opposed = False
    momenta: list[float] = []
    for _ in range(local_steps):
        gradient = gradient_of(w)
        similarity = 0.0 if old is None else cosine(old, gradient)
        old = gradient
        if similarity < 0.0 and was_opposed:
            return LocalResult(w, gradient, True, momenta, shrink_factor(momenta, beta / 2.0 * l2))
        was_opposed = similarity < 0.0
        momentum = 0.0 if was_opposed else alpha * (1.0 + similarity)
        momenta.append(momentum)
        velocity = momentum * velocity + beta / 2.0 * gradient
        w -= velocity
    return LocalResult(
        w, np.zeros_like(w) if old is None else old, False, momenta, shrink_factor(momenta, beta / 2.0 * l2)
    )


def descend(
    gradient_of: Callable[[Float64s], Float64s], w: Array, rate: float, local_steps: int, l2: float = 0.0
) -> LocalResult:
    """Take local steps w = w - rate g, without momentum (FTSGD, Algorithm 2); see ``ftsgd``."""
    w = np.array(w, np.float64)
    gradient = np.zeros_like(w)
    for _ in range(local_steps):
        gradient = gradient_of(w)
        w -= rate * gradient
    momenta = [0.0] * local_steps
    return LocalResult(w, gradient, False, momenta, shrink_factor(momenta, rate * l2))


def decayed_rate(step_size: float, clock: int) -> float:
    """Return the learning rate of MLlib's SGD in a clock, from 0 (FTSGD, equation 4)."""
    return step_size / math.sqrt(clock + 1)


def shrink_factor(momenta: Sequence[float], rate: float) -> float:
    """Return the factor by which steps shrink a weight that has only the penalty; ``rate`` is beta / 2 times l2."""
    scale, velocity = 1.0, 0.0
    for momentum in momenta:
        velocity = momentum * velocity + rate * scale
        scale -= velocity
    return scale


def cosine(u: Array, v: Array) -> float:
    """Return the cosine of the angle between two vectors (FTSGD, equation 3); 0 if one of them is 0."""
    return cosine_of(float(np.dot(u, v)), float(np.linalg.norm(u)), float(np.linalg.norm(v)))


def cosine_of(dot: float, norm_u: float, norm_v: float) -> float:
    """Return the cosine from inner product and norms, in [-1, 1]; 0 if a norm is 0, NaN if a number is not finite."""
    if norm_u == 0.0 or norm_v == 0.0:
        return 0.0
    if not math.isfinite(dot) or not math.isfinite(norm_u + norm_v):
        return math.nan
    return min(1.0, max(-1.0, dot / norm_u / norm_v))


def is_gaussian(similarities: Array) -> bool:
    """Return whether workers agree enough for several local steps (FTSGD's 68-95-99.7 rule, section III-B).

    There are two conditions (docs/decisions/0011): at least 99.7% of the values lie within 3 standard deviations of the
    mean, and the standard deviation is at most a quarter of the mean's size. Values that are equal but for rounding
    agree if they are not 0. ``similarities`` has the cosine between each worker's weights and the mean weights; with a
    NaN, the workers do not agree.
    """
    values = np.asarray(similarities, np.float64)
    if values.ndim != 1 or not len(values):
        raise ShapeError(f"similarities: expected shape (workers,), at least one, got {values.shape}")
    if not np.isfinite(values).all():
        return False
    # The standard deviation divides by the number of values (FTSGD, Table I).
    mean, deviation = float(np.mean(values)), float(np.std(values))
    if deviation <= ROUNDING * abs(mean):
        return mean != 0.0
    is_near = np.abs(values - mean) <= DEVIATIONS * deviation * (1.0 + ROUNDING)
    return bool(np.mean(is_near) >= SHARE and deviation <= MAX_DEVIATION * abs(mean))
