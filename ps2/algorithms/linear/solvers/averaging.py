"""Model averaging: local SGD in every worker, averaged by the servers ("MLlib*", Zhang et al., Algorithms 3 and 4).

The servers replace the paper's reduce-scatter and all-gather: each owns a part of the model. During a worker's pass,
the penalties shrink the weights of all features that its rows do not use, by the same factor and soft threshold. So a
worker sends this factor, this threshold and, for the keys of its rows, the difference between its model and the global
model shrunk in the same way. The servers compute the exact average from these values.

An L2 penalty makes the step size fall with the number of steps (``LocalSteps``). Without L2, or with an L1 penalty, the
driver also halves the step size when the objective hardly falls (docs/decisions/0063).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask, DoTask, Steps, Task
from ps2.algorithms.linear.loss_kernels import RowArrays, margin_slope, row_margin
from ps2.algorithms.linear.losses import MARGIN_CODES, Loss, check_matrix, labels_and_weights
from ps2.algorithms.linear.parameters import ModelView, Parameters
from ps2.algorithms.linear.plan import LinearPlan, Problem
from ps2.algorithms.linear.program import Evaluate, SteppingProgram
from ps2.algorithms.linear.solvers.solver import Data, SolverContext
from ps2.algorithms.training.sent_gradients import SentValues
from ps2.array_types import Float64s, Int64s
from ps2.client.batch import batch
from ps2.data.rows import LocalRows
from ps2.errors import ConfigError, OutOfRangeError
from ps2.ops.kernels import inline, kernel
from ps2.ops.table import Array

# The step size is halved if a step lowers the objective by less than this fraction of the objective.
MIN_FALL = 1e-3
# ``sgd_pass`` stores the weights as scale * u. When the scale is below this value, u is multiplied by it: often enough
# to keep u finite, and too rarely to cost much.
MIN_SCALE = 1e-6


@dataclass(frozen=True)
class PassLocally(Task):
    """Start from the model after ``step`` averages, take local steps over the rows, and add the model's change."""

    step: int
    step_size: float


@dataclass(frozen=True, eq=False)
class AveragingWork:
    """The workers' part of the solver; picklable. ``weight`` is the weight of all workers' rows."""

    loss: Loss
    plan: LinearPlan
    model: Parameters
    changes: Parameters
    weight: float

    def __call__(self, data: Data) -> DoTask:
        def do(worker: Any, task: PassLocally | Evaluate) -> None:
            view = ModelView(worker)
            w, b = view.pull(self.model, data.columns)
            loss, held_out_loss = self.loss.loss(data.rows, w, b), data.held_out_loss(self.loss, w, b)
            if isinstance(task, Evaluate):
                view.report(loss, held_out_loss)
                return
            fraction, rng, rows = data.rows.weight / self.weight, worker.rng(), data.local_rows
            order = np.concatenate([rng.permutation(len(rows)) for _ in range(self.plan.settings.localPasses)])
            batch_rows = max(1, self.plan.settings.localBatchSize or len(rows))
            first_step, problem = task.step * -(-len(order) // batch_rows), self.loss.problem
            steps = LocalSteps(batch_rows, task.step_size, problem.l2, first_step, problem.l1)
            local = local_sgd(self.loss, rows, w, b, order, steps)
            change = SentValues(fraction * (local.w - local.shrink_unused(w)), data.columns)
            view.add(self.changes, change, fraction * (local.b - b))
            shrinking = np.zeros((worker.workers, 2))
            shrinking[worker.rank] = fraction * local.shrink, local.threshold
            view.report(loss, held_out_loss, len(order), shrinking=shrinking)

        return do


def check_problem(problem: Problem) -> None:
    """Raise ConfigError for an objective that this solver does not minimise."""
    if not is_supported(problem.loss):
        is_softmax = problem.loss == "softmax"
        raise unsupported_error(f"family: {problem.width} classes" if is_softmax else f"loss {problem.loss!r}")


def unsupported_error(got: str) -> ConfigError:
    """Return the error for a model that the solver does not train; ``got`` names the model."""
    return ConfigError(
        "solver: 'ma-sgd' expects two classes (family 'binomial') or regression (a loss other than 'huber'), got "
        f"{got}; 'l-bfgs', 'minibatch' and 'ftsgd' take it"
    )


class Averaging(SteppingProgram):
    """The program of solver "ma-sgd"."""

    def __init__(self, context: SolverContext) -> None:
        check_problem(context.problem)
        super().__init__(context)
        self._changes = context.space.new()

    def drive(self, ask: Ask) -> Steps[Parameters]:
        yield from self.prepare(ask)
        step_size = float(self.plan.settings.stepSize)
        for step in itertools.count():
            report, is_last = yield from self.step_or_evaluate(ask, step, PassLocally(step, step_size))
            if self.end_step(ask, step, report, ask(self.penalty), is_last):
                break
            ask(partial(self._average, report.shrinking))
            if step and self._hardly_falls(*self.record.objective[-2:]):
                step_size /= 2.0
        return self.validation.best

    def _hardly_falls(self, earlier: float, later: float) -> bool:
        """Return whether to halve the step size, which the L2 penalty alone would not shorten enough."""
        problem = self.context.problem
        return bool(problem.l1 or not problem.l2) and later > (1.0 - MIN_FALL) * earlier

    def _average(self, shrinking: Float64s) -> None:
        """Average the models; ``shrinking``, shape (workers, 2): each worker's factor times fraction, and threshold."""
        factors, thresholds = shrinking.T
        with batch():
            if thresholds.any():
                # Workers with the same number of steps have the same threshold, and form one group.
                distinct, groups = np.unique(thresholds, return_inverse=True)
                group_factors = np.bincount(groups, factors, len(distinct))
                weights = self.model.weight.zip(self._changes.weight)
                weights.apply("linear.average", factors=group_factors, thresholds=distinct)
            else:
                self.model.weight.combine([self.model.weight, self._changes.weight], [float(factors.sum()), 1.0])
            self.model.bias.add(self._changes.bias)
            self._changes.zero()

    def solver_work(self) -> AveragingWork:
        context = self.context
        return AveragingWork(context.loss, self.plan, self.model, self._changes, context.facts.weight)


@dataclass(frozen=True)
class LocalSteps:
    """The parameters of a pass of SGD steps.

    Attributes:
        batch: the number of rows of a step; 0 or more than all rows: one step has all rows.
        step_size: the size of step 0; step t has step_size / (1 + step_size l2 t) (Bottou 2012, equation 13).
        l2: the strength of the L2 penalty: a step multiplies the weights by 1 - (step size) l2.
        first_step: the number t of the first step.
        l1: the strength of the L1 penalty: after that, a step moves weights towards 0 by (step size) l1, at most to 0.
    """

    batch: int
    step_size: float
    l2: float = 0.0
    first_step: int = 0
    l1: float = 0.0


@dataclass(frozen=True, eq=False)
class LocalModel:
    """The result of a pass.

    Attributes:
        w: the weights, float64, shape (k,).
        b: the intercept, float64, shape (1,).
        shrink, threshold: the pass turns the weight v of a feature that no row uses into shrink * soft(v, threshold).
        next_step: the number t of the step after the pass.
    """

    w: Float64s
    b: Float64s
    shrink: float
    next_step: int
    threshold: float = 0.0

    def shrink_unused(self, w: Array) -> Float64s:
        """Return what the pass makes of the weights of features that no row uses."""
        w = np.asarray(w, np.float64)
        if self.threshold == 0.0:
            return self.shrink * w
        return self.shrink * np.sign(w) * np.maximum(np.abs(w) - self.threshold, 0.0)


def is_supported(loss: str) -> bool:
    """Return whether ``local_sgd`` supports a loss of one margin: all but Huber's, which trains a scale."""
    return loss in MARGIN_CODES and loss != "huber"


def local_sgd(loss: Loss, rows: LocalRows, w: Array, b: Float64s, order: Int64s, steps: LocalSteps) -> LocalModel:
    """Take SGD steps over rows in the given order. The time depends on the rows' entries, not on the number of weights.

    ``order`` contains indices of rows, with or without repetition. Wrong arguments raise a ``UsageError``.
    """
    problem = loss.problem
    if not is_supported(problem.loss):
        raise ConfigError(f"local SGD: expected a loss of one margin other than huber, got {problem.loss!r}")
    if steps.batch < 0 or not steps.step_size > 0.0 or min(steps.l1, steps.l2) < 0.0 or steps.first_step < 0:
        raise ConfigError(f"local SGD: expected a positive step size, and no negative field, got {steps}")
    check_matrix(problem, rows.x, w, b)
    y, weights = labels_and_weights(rows)
    order = np.asarray(order, np.int64)
    if len(order) and not 0 <= order.min() <= order.max() < len(rows):
        raise OutOfRangeError(f"order: expected rows in [0, {len(rows)}), got {order.min()} to {order.max()}")
    batch = min(steps.batch or len(order), len(order)) or 1
    u, intercept, x = w.astype(np.float64), b.astype(np.float64), rows.x
    strengths = float(steps.step_size), float(steps.l1), float(steps.l2)
    arrays, code = (x.indptr, x.indices, x.data, y, weights), MARGIN_CODES[problem.loss]
    fit_intercept, first_step = problem.fit_intercept, steps.first_step
    shrink, threshold = sgd_pass(arrays, order, u, intercept, code, fit_intercept, batch, strengths, first_step)
    return LocalModel(u, intercept, shrink, steps.first_step - (-len(order) // batch), threshold)


@kernel
def sgd_pass(  # noqa: PLR0913
    rows: RowArrays, order: Int64s, u: Float64s, b: Float64s, code: int, intercept: bool, batch: int,
    strengths: tuple[float, float, float], first_step: int,
) -> tuple[float, float]:  # fmt: skip
    """Change ``u`` and ``b`` by a step for each ``batch`` rows; return ``shrink`` and ``threshold`` of ``LocalModel``.

    ``strengths`` are the step size and the strengths of the L1 and the L2 penalty.

    The weights are scale * u. So a step shrinks them by changing the scale, and a row costs only its entries (Bottou
    2012, section 5.1). A step's soft threshold eta l1 of the weights is eta l1 / abs(scale) for u. Soft thresholds add
    up, so u[k] is brought up to date only when a row uses feature k: ``total`` is the sum of all thresholds,
    ``applied[k]`` the part that u[k] already has (Langford et al., 2009, section 4). eta is the step size.
    """
    indptr, columns, values, y, weights = rows
    step_size, l1, l2 = strengths
    scale, shrink, threshold = 1.0, 1.0, 0.0
    total = 0.0  # is 0 again whenever u is multiplied by the scale
    applied = np.zeros(len(u) if l1 > 0.0 else 0)
    slopes = np.empty(min(batch, len(order)))
    step = first_step
    for start in range(0, len(order), batch):
        count = min(batch, len(order) - start)
        eta = step_size / (1.0 + step_size * l2 * step)
        batch_weight, slope_sum = 0.0, 0.0
        for i in range(count):
            row = order[start + i]
            c = weights[row] if len(weights) else 1.0
            slopes[i] = 0.0
            if c == 0.0:
                continue
            if l1 > 0.0:
                for position in range(indptr[row], indptr[row + 1]):
                    k = columns[position]
                    u[k] = soft(u[k], total - applied[k])
                    applied[k] = total
            margin = scale * row_margin(columns, values, indptr[row], indptr[row + 1], u) + b[0]
            slopes[i] = c * margin_slope(code, margin, y[row])
            slope_sum += slopes[i]
            batch_weight += c
        factor = 1.0 - eta * l2
        shrink *= factor
        scale *= factor
        if abs(scale) < MIN_SCALE:
            for k in range(len(u)):
                if l1 > 0.0:
                    u[k] = soft(u[k], total - applied[k])
                    applied[k] = 0.0
                u[k] *= scale
            scale, total = 1.0, 0.0
        step += 1
        step_threshold = eta * l1 / abs(scale) if l1 > 0.0 else 0.0
        if l1 > 0.0:
            threshold += eta * l1 / abs(shrink) if shrink != 0.0 else np.inf
        if batch_weight == 0.0:
            total += step_threshold
            continue
        if intercept:
            b[0] -= eta * slope_sum / batch_weight
        for i in range(count):
            if slopes[i] == 0.0:
                continue
            change = eta * slopes[i] / batch_weight / scale
            row = order[start + i]
            for position in range(indptr[row], indptr[row + 1]):
                u[columns[position]] -= change * values[position]
        total += step_threshold
    for k in range(len(u)):
        if l1 > 0.0:
            u[k] = soft(u[k], total - applied[k])
        u[k] *= scale
    return shrink, threshold


@inline
def soft(value: float, threshold: float) -> float:
    """Return the value after a move towards 0 by the threshold, at most to 0."""
    if value > threshold:
        return value - threshold
    if value < -threshold:
        return value + threshold
    return 0.0
