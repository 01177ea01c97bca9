"""Metric learning as a durable program: minibatches of pairs in workers, and an optimizer on the servers."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from ps2.algorithms.frame.program import Ask, DoTask, Program, Steps, Task
from ps2.algorithms.metric.model import Metric
from ps2.algorithms.metric.pairs import Pairs, draw_pairs, evaluate, read_pairs
from ps2.algorithms.metric.plan import MetricPlan
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import DIVERGED, WORSE, WORSE_SAMPLE, Record, Trained
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.algorithms.training.sent_gradients import FactorsName, FormChoice, SentFactors, SentValues, gradients_of
from ps2.array_types import Float64s, Int64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.data.rows import LocalRows, columns_of, number_columns
from ps2.errors import DivergedError, InputError

log = logging.getLogger(__name__)

# Features are divided by a scale. It must be above this value, or the quotients may overflow.
MIN_SCALE = 2.0**-1022
# The clock of step 0 in a training that no driver has resumed. Seeds of minibatches are FIRST_STEP + step.
FIRST_STEP = FIRST_CLOCK + 1
# Differences with at least this fraction of stored values are sent as dense arrays, which need no column indices.
DENSE_FROM = 0.8
# The columns of the survey, which has a row for each worker: the numbers of similar and of dissimilar pairs; the
# largest absolute value of a difference; the sum of squares of differences' values, divided by its square.
SIMILAR, DISSIMILAR, LARGEST, SQUARES = range(4)


@dataclass(frozen=True, eq=False)
class Survey(Task):
    """Report the numbers of similar and dissimilar pairs, and the size of their differences."""


@dataclass(frozen=True, eq=False)
class AddGradient(Task):
    """Add the gradient of a minibatch to the sum on the servers, and report its loss.

    ``scale`` divides the features; ``pairs`` counts all workers' pairs, and ``step`` the steps before this one.
    """

    scale: float
    pairs: float
    step: int


@dataclass(frozen=True, eq=False)
class Evaluate(Task):
    """Report the loss of all pairs; ``scale`` is the divisor of the features."""

    scale: float


class MetricProgram(Program[Trained[Metric]]):
    """The program of metric learning.

    With ``factors`` other than "auto", at most two workers and the same rows in each, results are bit for bit the same
    for any number of servers.
    """

    number = 2

    def __init__(self, plan: MetricPlan, record: Record, names: CheckpointNames) -> None:
        super().__init__(plan, plan.form, record)
        dtype, rank = "float64" if plan.is_small else "float32", plan.settings.rank
        states = 0 if plan.settings.optimizer == "sgd" else 1
        self.weight = names.vector(lambda name: DCV.dense(plan.num_values, 2 + states, dtype, align=rank, name=name))
        self._states = [names.vector(self.weight.derive) for _ in range(states)]
        self.gradient = names.vector(self.weight.derive)

    def drive(self, ask: Ask) -> Steps[float]:
        report = yield Survey()
        scale, pairs = ask(partial(self._draw_metric, report.surveys))
        ask.start_timer()
        step = 0
        while True:
            is_last = step >= ask.setting(lambda: self.plan.settings.maxIter)
            report = yield Evaluate(scale) if is_last else AddGradient(scale, pairs, step)
            # A driver that resumes the training may have a larger maxIter.
            if is_last and step < ask.setting(lambda: self.plan.settings.maxIter):
                continue
            value = report.loss / report.pairs if report.pairs else math.nan
            if report.pairs and not math.isfinite(value):
                raise DivergedError(
                    f"after step {step} the objective is {value}: stepSize {self.plan.settings.stepSize:g} is too large"
                )
            self.record.add_gradients(gradients_of(vars(report)))
            ask.record_objective(value, int(report.pairs), int(report.bytes))
            if is_last:
                return scale
            ask(self._take_step)
            step += 1

    def _draw_metric(self, surveys: Float64s) -> tuple[float, float]:
        """Draw an initial L with a mean |L d|^2 of about 1; return the divisor of features, and the number of pairs."""
        similar, dissimilar = surveys[:, SIMILAR].sum(), surveys[:, DISSIMILAR].sum()
        for count, kind in ((similar, "similar"), (dissimilar, "dissimilar")):
            if not count:
                raise InputError(
                    f"expected similar and dissimilar pairs, got no {kind} pair: all pairs have the same label, or the "
                    "rows of each worker are all of one class or all of different classes"
                )
        largest = surveys[:, LARGEST].max()
        if not math.isfinite(largest):
            raise InputError(
                "features: the difference of two values is not finite: the values are too large; scale them"
            )
        if largest == 0.0:
            raise InputError("features: the two vectors of each pair are equal, so no metric can separate pairs")
        squares = float((surveys[:, SQUARES] * (surveys[:, LARGEST] / largest) ** 2).sum())
        scale = float(largest * math.sqrt(squares / (similar + dissimilar)))
        if not (math.isfinite(scale) and scale > MIN_SCALE):
            raise InputError("features: the differences of pairs are too large, or too small, to be scaled")
        plan = self.plan
        self.weight.matrix().fillRandom("normal", plan.seed, [0], std=1.0 / math.sqrt(plan.settings.rank))
        return scale, float(similar + dissimilar)

    def _take_step(self) -> None:
        plan = self.plan
        lazy = {"lazy": True} if plan.settings.optimizer == "adagrad" else {}
        with batch():
            rows = self.weight.zip(*self._states, self.gradient)
            rows.apply(plan.settings.optimizer, lr=plan.settings.stepSize, **lazy)
            self.gradient.zero()

    def worker(self) -> MetricWork:
        return MetricWork(self.plan, self.weight, self.gradient)

    def result(self, scale: float) -> Trained[Metric]:
        rank = self.plan.settings.rank
        columns = self.weight.pull().astype(np.float64).reshape(-1, rank)
        with np.errstate(over="ignore", invalid="ignore"):
            components = np.ascontiguousarray(columns.T) / scale
        if not np.isfinite(columns).all():
            raise DivergedError(f"L is not finite: stepSize {self.plan.settings.stepSize:g} is too large")
        if not np.isfinite(components).all():
            raise InputError("features: the differences of pairs are too small for L to be finite; scale them")
        self._check_progress()
        return Trained(Metric(components), self.record.history())

    def _check_progress(self) -> None:
        """Warn if the objective has not improved; raise DivergedError if it is far worse than at first."""
        settings = self.plan.settings
        factor, text = self.record.growth()
        if math.isnan(factor) and self.record.objective:
            log.warning(
                "no minibatch had a pair, so L still has its random initial values: use a miniBatchFraction above %g",
                settings.miniBatchFraction,
            )
        message = f"{text}: stepSize {settings.stepSize:g} is too large"
        if DIVERGED < factor < math.inf:
            raise DivergedError(message)
        if factor > (WORSE if settings.miniBatchFraction == 1.0 else WORSE_SAMPLE):
            log.warning("%s", message)

    def free(self) -> None:
        for vector in (*self._states, self.gradient, self.weight):
            vector.free()


@dataclass(frozen=True, eq=False)
class MetricWork:
    """The workers' part of the program; picklable. Called with a worker's rows, it returns the worker's ``DoTask``.

    ``weight`` is L for scaled features, with ``rank`` adjacent columns for each feature.
    """

    plan: MetricPlan
    weight: DCV
    gradient: DCV

    def __call__(self, reading: Reading) -> DoTask:
        return _MetricWorker(self, reading.training).do


class _MetricWorker:
    """Does the tasks of one worker, with pairs of its rows."""

    def __init__(self, work: MetricWork, rows: LocalRows) -> None:
        self.plan, self.weight, self.gradient = work.plan, work.weight, work.gradient
        self._rows = rows
        self._form = FormChoice(cast(FactorsName, self.plan.settings.factors))
        self._pairs: Pairs | None = None

    def do(self, worker: Any, task: Any) -> None:
        pairs = self._pairs = self._pairs or self._make_pairs(worker.rank)
        match task:
            case Survey():
                worker.report({"surveys": _survey(pairs)}, merge="concat")
            case AddGradient():
                sequence = np.random.SeedSequence(self.plan.seed, spawn_key=(worker.rank, FIRST_STEP + task.step))
                generator = np.random.Generator(np.random.Philox(sequence))
                indices = pairs.sample(self.plan.settings.miniBatchFraction, generator)
                loss, moved_bytes = self._add_gradient(pairs, indices, task.scale, task.pairs)
                worker.report({"loss": loss, "pairs": len(indices), "bytes": moved_bytes, **self._form.take_report()})
            case Evaluate():
                worker.report(self._evaluate(pairs, task.scale))

    def _make_pairs(self, rank: int) -> Pairs:
        plan, rows = self.plan, self._rows
        if not plan.draws_pairs:
            return read_pairs(rows, plan.dim).with_differences()
        return draw_pairs(rows, plan.settings.pairsPerRow, np.random.default_rng([plan.seed, rank])).with_differences()

    def _add_gradient(self, pairs: Pairs, indices: Int64s, scale: float, all_pairs: float) -> tuple[float, int]:
        """Add the gradient of a minibatch; return its summed loss, and the bytes sent and received."""
        if not len(indices):
            return 0.0, 0
        rank = self.plan.settings.rank
        x = pairs.differences(indices)
        used, inverse = number_columns(x.indices)
        x = type(x)((x.data / scale, inverse, x.indptr), shape=(len(indices), len(used)))
        keys = pairs.keys[used]
        columns = columns_of(keys, rank)
        w = self.weight.pull(columns)
        settings = self.plan.settings
        evaluation = evaluate(x, pairs.similar[indices], w.reshape(len(keys), rank), settings.dissimilarWeight)
        has_gradient = np.flatnonzero(evaluation.slopes.any(axis=1))
        if not len(has_gradient):
            return evaluation.loss, w.nbytes
        x = x[has_gradient]
        slopes = evaluation.slopes[has_gradient] / (settings.miniBatchFraction * all_pairs)
        if x.nnz >= DENSE_FROM * x.shape[0] * x.shape[1]:
            x = x.toarray()
        factor_bytes = self._form.factor_bytes(self.gradient, rank, x, keys)
        sent: SentFactors | SentValues
        if factor_bytes is not None:
            sent = SentFactors(slopes, x, keys, factor_bytes)
        else:
            sent = SentValues(np.asarray(x.T @ slopes, self.gradient.dtype).reshape(-1), columns)
        sent.add_to(self.gradient)
        return evaluation.loss, w.nbytes + sent.nbytes

    def _evaluate(self, pairs: Pairs, scale: float) -> dict[str, Any]:
        rank, loss = self.plan.settings.rank, 0.0
        w = self.weight.pull(columns_of(pairs.keys, rank))
        columns = w.reshape(len(pairs.keys), rank).astype(np.float64) / scale
        for indices in pairs.blocks():
            x, similar = pairs.differences(indices), pairs.similar[indices]
            loss += evaluate(x, similar, columns, self.plan.settings.dissimilarWeight).loss
        return {"loss": loss, "pairs": len(pairs), "bytes": w.nbytes}


def _survey(pairs: Pairs) -> Any:
    """Return a worker's row of the survey, shape (1, 4)."""
    largest, squares = 0.0, 0.0  # squares: divided by the square of the largest value so far
    with np.errstate(over="ignore"):
        for indices in pairs.blocks():
            values = np.abs(pairs.differences(indices).data).astype(np.float64)
            new_largest = max(largest, float(values.max(initial=0.0)))
            if new_largest > 0.0 and np.isfinite(new_largest):
                squares = squares * (largest / new_largest) ** 2 + float(((values / new_largest) ** 2).sum())
            largest = new_largest
    similar = int(pairs.similar.sum())
    return np.array([[similar, len(pairs) - similar, largest, squares]], np.float64)
