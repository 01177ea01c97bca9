"""Metric learning (``objective.py``) as a durable program: minibatches of pairs, and an optimizer on the servers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask, Program, Steps, run_program
from ps2.algorithms.metric.model import Metric
from ps2.algorithms.metric.plan import MetricPlan
from ps2.algorithms.metric.worker import (
    DISSIMILAR,
    LARGEST,
    SIMILAR,
    SQUARES,
    AddGradient,
    Evaluate,
    MetricWork,
    Survey,
)
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record, StepReport, TrainingHistory
from ps2.algorithms.training.sent_gradients import gradients_of
from ps2.algorithms.training.table import Table
from ps2.array_types import Float64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.errors import DivergedError, InputError

log = logging.getLogger(__name__)


# Features are divided by their scale. A quotient by a smaller scale overflows.
MIN_SCALE = 2.0**-1022
# Growth of the objective that is divergence; that is worth a warning; the same for minibatches, which are samples.
DIVERGED, WORSE, WORSE_SAMPLE = 1000.0, 1.01, 2.0


@dataclass(frozen=True)
class TrainedMetric:
    """The result of a training."""

    metric: Metric
    history: TrainingHistory


def train(
    ps: Any,
    table: Table,
    plan: MetricPlan,
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> TrainedMetric:
    """Train a metric on the servers of a context; in a restored context, continue: see ``Plan.name``.

    With ``factors`` other than "auto", up to two workers and the same rows in each, results are the same to the bit on
    any number of servers.

    Args:
        ps: the PS2Context.
        table: rows with labels, or pairs: see ``MetricPlan.draws_pairs``.
        plan: the training.
        on_step: called in the driver after each step.

    Raises:
        ConfigError, LimitError: the rank is too large.
        InputError: a row cannot be used, there are no pairs of one kind, or differences cannot be scaled.
        DivergedError: the step size is too large.
        NotFoundError, ConfigError: the context was restored from a checkpoint of another training.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    plan.check()
    names = CheckpointNames.of(plan.name, ps)
    return run_program(ps, MetricProgram(plan, Record(on_step), names), table, names)


class MetricProgram(Program[TrainedMetric]):
    """Metric learning."""

    number = 2

    def __init__(self, plan: MetricPlan, record: Record, names: CheckpointNames) -> None:
        super().__init__(plan, plan.form, record)
        dtype, rank = "float64" if plan.is_small else "float32", plan.settings.rank
        states = 0 if plan.settings.optimizer == "sgd" else 1
        self.weight = names.give(lambda name: DCV.dense(plan.numbers, 2 + states, dtype, align=rank, name=name))
        self._states = [names.give(self.weight.derive) for _ in range(states)]
        self.gradient = names.give(self.weight.derive)

    # -- the algorithm -------------------------------------------------------------------------------------------------

    def drive(self, ask: Ask) -> Steps[float]:
        report = yield Survey()
        scale, pairs = ask(partial(self._draw_metric, report.surveys))
        ask.start_timer()
        step = 0
        while True:
            is_last = step >= ask.setting(lambda: self.plan.settings.maxIter)
            report = yield Evaluate(scale) if is_last else AddGradient(scale, pairs, step)
            if is_last and step < ask.setting(lambda: self.plan.settings.maxIter):  # another driver wants more steps
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
        """Draw an L whose mean squared length of L d is 1; return the divisor of features, and the number of pairs.

        Args:
            surveys: the workers' reports on their pairs, shape (workers, 4).
        """
        similar, dissimilar = surveys[:, SIMILAR].sum(), surveys[:, DISSIMILAR].sum()
        for count, kind in ((similar, "similar"), (dissimilar, "dissimilar")):
            if not count:
                raise InputError(
                    f"expected similar and dissimilar pairs, and no pair is {kind}: labels tell pairs of one kind, or "
                    "each worker's rows are of one class or of as many as there are rows"
                )
        largest = surveys[:, LARGEST].max()
        if not math.isfinite(largest):
            raise InputError("features: the difference of two values is too large to be a number; scale them")
        if largest == 0.0:
            raise InputError("features: the vectors of each pair are equal, so no metric tells them apart")
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

    # -- what the frame calls ------------------------------------------------------------------------------------------

    def worker(self) -> MetricWork:
        return MetricWork(self.plan, self.weight, self.gradient)

    def result(self, scale: float) -> TrainedMetric:
        rank = self.plan.settings.rank
        columns = self.weight.pull().astype(np.float64).reshape(-1, rank)
        with np.errstate(over="ignore", invalid="ignore"):
            components = np.ascontiguousarray(columns.T) / scale
        if not np.isfinite(columns).all():
            raise DivergedError(f"L is not finite: stepSize {self.plan.settings.stepSize:g} is too large")
        if not np.isfinite(components).all():
            raise InputError("features: the differences of pairs are too small for L to be finite; scale them")
        self._check_progress()
        return TrainedMetric(Metric(components), self.record.history())

    def _check_progress(self) -> None:
        """Warn if the training has not improved L.

        Raises:
            DivergedError: the objective is far worse than at the beginning.
        """
        plan = self.plan
        known = [value for value in self.record.objective if not math.isnan(value)]
        if not known:
            if self.record.objective:
                log.warning(
                    "no minibatch had a pair, so L is the random one that the training began with: use a "
                    "miniBatchFraction above %g",
                    plan.settings.miniBatchFraction,
                )
            return
        first, last = known[0], known[-1]
        message = (
            f"the objective has grown from {first:g} to {last:g}: stepSize {plan.settings.stepSize:g} is too large"
        )
        if last > DIVERGED * first > 0.0:
            raise DivergedError(message)
        if last > (WORSE if plan.settings.miniBatchFraction == 1.0 else WORSE_SAMPLE) * first:
            log.warning("%s", message)

    def free(self) -> None:
        for vector in (*self._states, self.gradient, self.weight):
            vector.free()
