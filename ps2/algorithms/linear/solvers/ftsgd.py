"""FTSGD: averages of local SGD (Zhang et al., "FTSGD", Algorithms 2 and 3), and MLlib's SGD (Algorithm 1).

In Algorithm 3 a worker drops its momentum when two consecutive gradients oppose each other (their inner product is
negative), and stops when this happens twice in a row. The driver halves the learning rate if at least half of the
workers have stopped. In Algorithm 2 the learning rate is divided by the square root of the step. After the first step,
workers continue local iterations only if their models agree (docs/decisions/0011). Otherwise the training falls back to
MLlib's SGD (docs/decisions/0066).
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

# The minimum divisor of a summed gradient: a sum of rows' weights may be 0.
MIN_WEIGHT = 1e-300
# The 68-95-99.7 rule: this fraction of normal values lies within this number of standard deviations of the mean.
NORMAL_FRACTION, DEVIATIONS = 0.997, 3.0
# The maximum standard deviation of similarities, as a fraction of the mean.
MAX_DEVIATION = 0.25
# Values with a smaller relative difference are considered equal: the difference may be rounding.
ROUNDING = 1e-9


@dataclass(frozen=True)
class SearchLocally(Task):
    """Take local iterations from the averaged model; with ``falls_back``, only add the gradient at that model.

    ``norm`` is the norm of the first averaged model, which only step 1 needs.
    """

    step: int
    step_size: float
    falls_back: bool
    norm: float


@dataclass
class _WorkerState:
    """The state of a worker between tasks. A rollback of the fleet does not change it.

    Attributes:
        first_model: the worker's local model after step 0, shape (weights + biases,); None: there is none.
        last_gradient: the last gradient of local iterations; None: there were none.
        step: the step of ``last_gradient``.
    """

    first_model: Array | None = None
    last_gradient: Float64s | None = None
    step: int = -2


@dataclass(frozen=True, eq=False)
class FtsgdWork:
    """The workers' part; picklable. ``weight`` is that of all rows; ``states`` are this process's workers', by rank."""

    loss: Loss
    plan: LinearPlan
    model: Parameters
    changes: Parameters
    similarities: DCV
    weight: float
    states: dict[int, _WorkerState] = field(default_factory=dict)

    def __call__(self, data: Data) -> DoTask:
        def do(worker: Any, task: SearchLocally | Evaluate) -> None:
            view = ModelView(worker)
            w, b = view.pull(self.model, data.columns)
            held_out_loss = data.held_out_loss(self.loss, w, b)
            if isinstance(task, Evaluate):
                view.report(self.loss.loss(data.rows, w, b), held_out_loss)
                return
            # If minibatches have all rows, the first gradient includes the loss of all rows.
            loss = None if self.plan.settings.miniBatchFraction == 1.0 else self.loss.loss(data.rows, w, b)
            state = self.states.setdefault(worker.rank, _WorkerState())
            start, falls_back = np.concatenate([w, b]), task.falls_back
            if task.step == 1 and self.plan.settings.localSearch == "auto":
                falls_back = not self._agree(worker, state.first_model, start, task.norm)
            if falls_back:
                rows = data.sample(self.plan.settings.miniBatchFraction, worker.rng())
                gradient = self.loss.gradient(rows, w, b)  # Algorithm 1: the driver takes the step
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
            fraction = data.rows.weight / self.weight
            gradients = _MinibatchGradients(self.loss, data, self.plan.settings.miniBatchFraction, worker.rng(), len(w))
            local = self._search(gradients, start, state.last_gradient if state.step == task.step - 1 else None, task)
            state.last_gradient, state.step = local.gradient, task.step
            if task.step == 0:
                state.first_model = local.w if fraction else None
            change = SentValues(fraction * (local.w[: len(w)] - local.shrink * w), data.columns)
            view.add(self.changes, change, fraction * (local.w[len(w) :] - b))
            view.report(
                *(loss or gradients.first_loss or NO_LOSS, held_out_loss, gradients.num_rows),
                shrink=fraction * local.shrink,
                oscillated=int(local.oscillated),
                fell_back=0,
                sampled=0.0,
            )

        return do

    def _search(self, gradients: Any, start: Float64s, last: Float64s | None, task: SearchLocally) -> LocalResult:
        """Take a clock's local iterations. ``last`` is the last gradient of the previous step; None: unknown."""
        plan, steps, l2 = self.plan, self.plan.settings.localSteps, self.loss.problem.l2
        # If the model overflows, the driver raises the error.
        with np.errstate(over="ignore", invalid="ignore"):
            if plan.settings.adaptiveMomentum:
                return ftsgd(gradients, start, last, plan.settings.momentum, task.step_size, steps, l2)
            return descend(gradients, start, decayed_rate(plan.settings.stepSize, task.step), steps, l2)

    def _agree(self, worker: Any, local_model: Array | None, average: Array, norm: float) -> bool:
        """Return whether the workers' models after step 0 agree, by their similarity to the average of that norm."""
        with np.errstate(over="ignore", invalid="ignore"):
            # A restarted worker has lost this model, and a worker without rows has none.
            similarity = 1.0
            if local_model is not None:
                similarity = cosine_of(float(local_model @ average), float(np.linalg.norm(local_model)), norm)
        self.similarities.push(np.array([similarity]), np.array([worker.rank]))
        worker.barrier()
        return is_gaussian(self.similarities.pull())


class _MinibatchGradients:
    """Computes the mean gradient of a new minibatch of the worker in each call, with the L2 penalty; counts rows."""

    def __init__(self, loss: Loss, data: Data, fraction: float, rng: np.random.Generator, num_weights: int) -> None:
        self._loss, self._data, self._fraction, self._rng, self._num_weights = loss, data, fraction, rng, num_weights
        self.num_rows = 0
        self.first_loss: tuple[float, float] | None = None  # the summed loss and weight of the first minibatch

    def __call__(self, model: Float64s) -> Float64s:
        rows = self._data.sample(self._fraction, self._rng)
        w, b = model[: self._num_weights], model[self._num_weights :]
        gradient = self._loss.gradient(rows, w, b)
        self.num_rows += len(rows)
        self.first_loss = self.first_loss or (gradient.loss, gradient.weight)
        factor = 1.0 / max(gradient.weight, MIN_WEIGHT)
        return np.concatenate([gradient.dw * factor + self._loss.problem.l2 * w, gradient.db * factor])


class Ftsgd(SteppingProgram):
    """The program of solver "ftsgd"."""

    def __init__(self, context: SolverContext) -> None:
        if context.problem.l1:
            raise ConfigError(f"ftsgd: takes L2 penalties only, got l1={context.problem.l1:g}")
        super().__init__(context)
        self._changes = context.space.new()
        self._similarities = context.space.new_small(context.workers)

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
        """Average the workers' models, or take a gradient step; return the model's norm after step 0, else 0."""
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

    def solver_work(self) -> FtsgdWork:
        weight = self.context.facts.weight
        return FtsgdWork(self.context.loss, self.plan, self.model, self._changes, self._similarities, weight)


@dataclass(frozen=True, eq=False)
class LocalResult:
    """The result of local steps.

    Attributes:
        w: the weights and biases, float64, shape (k,).
        gradient: the last gradient, shape (k,).
        oscillated: whether the steps ended early because two gradients in a row opposed their predecessors.
        momenta: the momentum of each step.
        shrink: the factor by which the penalty changed the weight of a feature that no row uses.
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

    cos is the cosine of the angle between a gradient and the previous gradient. In a step with a negative cosine, alpha
    is 0. After two negative cosines in a row, the learning rate must be too large, and the steps end.

    Args:
        gradient_of: computes the gradient of a new minibatch at weights, with the penalty.
        w: the initial weights and biases, float32 or float64, shape (k,).
        old_gradient: the last gradient of the previous call; None: unknown, and the first cosine is 0.
        alpha, beta: the momentum, and the learning rate.
        local_steps: the maximum number of steps.
    """
    w, last_gradient = np.array(w, np.float64), old_gradient
    velocity = np.zeros_like(w)
    was_opposed = False
    momenta: list[float] = []
    for _ in range(local_steps):
        gradient = gradient_of(w)
        similarity = 0.0 if last_gradient is None else cosine(last_gradient, gradient)
        last_gradient = gradient
        if similarity < 0.0 and was_opposed:
            return LocalResult(w, gradient, True, momenta, shrink_factor(momenta, beta / 2.0 * l2))
        was_opposed = similarity < 0.0
        momentum = 0.0 if was_opposed else alpha * (1.0 + similarity)
        momenta.append(momentum)
        velocity = momentum * velocity + beta / 2.0 * gradient
        w -= velocity
    gradient = np.zeros_like(w) if last_gradient is None else last_gradient
    return LocalResult(w, gradient, False, momenta, shrink_factor(momenta, beta / 2.0 * l2))


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
    """Return the learning rate of MLlib's SGD in a clock; the first clock is 0 (FTSGD, equation 4)."""
    return step_size / math.sqrt(clock + 1)


def shrink_factor(momenta: Sequence[float], rate: float) -> float:
    """Return the factor by which steps shrink a weight whose gradient is only l2 w; ``rate`` is beta / 2 times l2."""
    scale, velocity = 1.0, 0.0
    for momentum in momenta:
        velocity = momentum * velocity + rate * scale
        scale -= velocity
    return scale


def cosine(u: Array, v: Array) -> float:
    """Return the cosine of the angle between two vectors (FTSGD, equation 3); 0 if one of them is 0."""
    return cosine_of(float(np.dot(u, v)), float(np.linalg.norm(u)), float(np.linalg.norm(v)))


def cosine_of(dot: float, norm_u: float, norm_v: float) -> float:
    """Return the cosine, given inner product and norms; 0 if a norm is 0, NaN if an argument is not finite."""
    if norm_u == 0.0 or norm_v == 0.0:
        return 0.0
    if not math.isfinite(dot) or not math.isfinite(norm_u + norm_v):
        return math.nan
    return min(1.0, max(-1.0, dot / norm_u / norm_v))


def is_gaussian(similarities: Array) -> bool:
    """Return whether workers agree enough for several local steps (FTSGD's 68-95-99.7 rule, section III-B).

    ``similarities`` has the cosine between each worker's weights and the mean weights. There are two conditions
    (docs/decisions/0011): at least 99.7% of the cosines lie within 3 standard deviations of their mean, and the
    standard deviation is at most a quarter of the mean's absolute value. Cosines that differ only by rounding agree
    unless they are 0. With a NaN, the workers do not agree.
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
    is_within = np.abs(values - mean) <= DEVIATIONS * deviation * (1.0 + ROUNDING)
    return bool(np.mean(is_within) >= NORMAL_FRACTION and deviation <= MAX_DEVIATION * abs(mean))
