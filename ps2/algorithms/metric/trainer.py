"""The training of a metric: minibatches of pairs, and an optimizer on the servers, which hold L."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ps2.algorithms.metric.model import Metric
from ps2.algorithms.metric.options import MetricOptions
from ps2.algorithms.metric.worker import (
    DISSIMILAR,
    LARGEST,
    LAST,
    LOOKS,
    PAIRS,
    SCALE,
    SIMILAR,
    SQUARES,
    STEPS,
    MetricProgram,
)
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record, StepReport, TrainingHistory
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.training.run import FIRST_CLOCK, Training, run_training
from ps2.algorithms.training.sent_gradients import gradients_of
from ps2.algorithms.training.table import Table
from ps2.array_types import Float64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.errors import DivergedError, InputError
from ps2.run.message import Message, Stop

log = logging.getLogger(__name__)


# Features are divided by their scale: that of a smaller one overflows.
TINIEST = 2.0**-1022
# Growth of the objective since the first step that counts as divergence, and that is worth a warning: of all pairs; of
# minibatches, which are samples.
DIVERGED, WORSE, WORSE_SAMPLE = 1000.0, 1.01, 2.0


@dataclass(frozen=True)
class TrainedMetric:
    """The result of a training."""

    metric: Metric
    history: TrainingHistory


def train(
    ps: Any,
    table: Table,
    options: MetricOptions,
    size: tuple[int, int],
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> TrainedMetric:
    """Train a metric on the servers of a context; in a restored context, go on: see ``MetricOptions.name``.

    With ``factors`` other than "auto", up to two workers and the same rows in each, results are the same to the bit on
    any number of servers.

    Args:
        ps: the PS2Context.
        table: rows with labels, or pairs: see ``MetricOptions.pairs``.
        options: how to train.
        size: number of features, and of classes (2: pairs are similar or not).
        on_step: called in the driver after each step.

    Raises:
        ConfigError, LimitError: the rank is too large.
        InputError: a row cannot be used, there are no pairs of one kind, or differences cannot be scaled.
        DivergedError: the step size is too large.
        NotFoundError, ConfigError: the context was restored from a checkpoint of another training.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    dim, classes = size
    options.check(dim)
    names = CheckpointNames.of(options.name, ps)
    driver = _Driver(options, dim, Record(on_step), names)
    try:
        if names.begun - driver.looks > STEPS + options.steps:
            return driver.trained()
        form, first = options.form(dim, classes), names.begun
        training = Training(table, form, driver.program, driver.on_clock, 0, options.seed, first, driver.journal)
        return run_training(ps, training, driver.trained)
    finally:
        driver.free()


class _Driver:
    """The driver's program."""

    def __init__(self, options: MetricOptions, dim: int, record: Record, names: CheckpointNames) -> None:
        self._options, self._record = options, record
        # Clocks of steps that an earlier driver has recorded.
        self._before = max(0, names.called - STEPS)
        settings = {**asdict(options), "features": dim}
        self.journal = ReplayJournal.of(names, {n: v for n, v in settings.items() if n not in ("steps", "name")})
        dtype, rank = "float64" if options.is_small(dim) else "float32", options.rank
        states = 0 if options.optimizer == "sgd" else 1
        weight = names.give(lambda name: DCV.dense(dim * rank, 2 + states, dtype, align=rank, name=name))
        self._states = [names.give(weight.derive) for _ in range(states)]
        control = names.give(lambda name: DCV.dense(3, 1, "float64", name=name))
        # Clocks without a step: how many there were for earlier drivers, and this one's, which a rollback repeats.
        self.looks = int(control.pull()[LOOKS]) if names.begun else 0
        self._looked: set[int] = set()
        # One that workers have finished, and that was not called, may have no step either.
        clocks = STEPS + options.steps + 1 + self.looks + (names.begun > names.called)
        self.program = MetricProgram(options, dim, weight, weight.derive(), control, clocks)
        record.start()

    def on_clock(self, clock: int, reports: Sequence[Any]) -> Message | Stop | None:
        """Take the step of a clock after all workers have added their gradients."""
        step = clock + FIRST_CLOCK - STEPS
        if step < 0:
            self._begin(np.asarray(reports[0]))
            return None
        record, report = self._record, reports[0]
        record.enter(step - self._before)
        step -= self.looks + sum(look < clock for look in self._looked)
        record.add(int(report["pairs"]), int(report["bytes"]))
        record.add_gradients(gradients_of(report))
        value = report["loss"] / report["pairs"] if report["pairs"] else math.nan
        if report["pairs"] and not math.isfinite(value):
            raise DivergedError(
                f"after step {step} the objective is {value}: stepSize {self._options.step_size:g} is too large"
            )
        record.evaluated(value)
        if LAST in report:
            self._looked.add(clock)
            self.program.control.add([1.0], [LOOKS])
        else:
            self._step()
        return None

    def trained(self) -> TrainedMetric:
        """Return the result."""
        rank, weight = self._options.rank, self.program.weight
        scale = self.program.control.pull()[SCALE]
        columns = weight.pull().astype(np.float64).reshape(-1, rank)
        with np.errstate(over="ignore", invalid="ignore"):
            components = np.ascontiguousarray(columns.T) / scale
        if not np.isfinite(columns).all():
            raise DivergedError(f"L is not finite: stepSize {self._options.step_size:g} is too large")
        if not np.isfinite(components).all():
            raise InputError("features: the differences of pairs are too small for L to be finite; scale them")
        self._judge()
        return TrainedMetric(Metric(components), self._record.history())

    def _judge(self) -> None:
        """Warn if the training was of no use.

        Raises:
            DivergedError: the objective is far worse than at the beginning.
        """
        options = self._options
        known = [value for value in self._record.objective if not math.isnan(value)]
        if not known:
            if self._record.objective:
                log.warning(
                    "no minibatch had a pair, so L is the random one that the training began with: use a "
                    "miniBatchFraction above %g",
                    options.fraction,
                )
            return
        first, last = known[0], known[-1]
        said = f"the objective has grown from {first:g} to {last:g}: stepSize {options.step_size:g} is too large"
        if last > DIVERGED * first > 0.0:
            raise DivergedError(said)
        if last > (WORSE if options.fraction == 1.0 else WORSE_SAMPLE) * first:
            log.warning("%s", said)

    def free(self) -> None:
        """Free the state on the servers."""
        program = self.program
        for vector in (*self._states, program.gradient, program.control, program.weight):
            vector.free()

    def _begin(self, found: Float64s) -> None:
        """Scale the features, and draw L so that the mean squared length of L d is 1.

        Args:
            found: the workers' reports on their pairs.
        """
        similar, dissimilar = found[:, SIMILAR].sum(), found[:, DISSIMILAR].sum()
        for count, kind in ((similar, "similar"), (dissimilar, "dissimilar")):
            if not count:
                raise InputError(
                    f"expected similar and dissimilar pairs, and no pair is {kind}: labels tell pairs of one kind, or "
                    "each worker's rows are of one class or of as many as there are rows"
                )
        largest = found[:, LARGEST].max()
        if not math.isfinite(largest):
            raise InputError("features: the difference of two values is too large to be a number; scale them")
        if largest == 0.0:
            raise InputError("features: the vectors of each pair are equal, so no metric tells them apart")
        squares = float((found[:, SQUARES] * (found[:, LARGEST] / largest) ** 2).sum())
        scale = float(largest * math.sqrt(squares / (similar + dissimilar)))
        if not (math.isfinite(scale) and scale > TINIEST):
            raise InputError("features: the differences of pairs are too large, or too small, to be scaled")
        weight, options = self.program.weight, self._options
        weight.matrix().fillRandom("normal", options.seed, [0], std=1.0 / math.sqrt(options.rank))
        control = np.zeros(3)
        control[[SCALE, PAIRS]] = scale, similar + dissimilar
        self.program.control.push(control)

    def _step(self) -> None:
        options, program = self._options, self.program
        lazy = {"lazy": True} if options.optimizer == "adagrad" else {}
        with batch():
            rows = program.weight.zip(*self._states, program.gradient)
            rows.apply(options.optimizer, lr=options.step_size, **lazy)
            program.gradient.zero()
