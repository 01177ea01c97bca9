"""A worker of a metric's training: its tasks, and what it does for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ps2.algorithms.frame.program import DoTask, Task
from ps2.algorithms.metric.objective import evaluate
from ps2.algorithms.metric.pairs import Pairs, drawn_pairs, given_pairs
from ps2.algorithms.metric.plan import MetricPlan
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.algorithms.training.sent_gradients import FactorsName, FormChoice, SentFactors, SentValues
from ps2.array_types import Int64s
from ps2.client.dcv import DCV
from ps2.data.rows import LocalRows, number_columns

# The clock of the first step, unless another driver resumed a finished training. Random numbers depend on it.
FIRST_STEP = FIRST_CLOCK + 1
# Rows with at least this share of stored values travel as arrays: a stored value takes its sample's number, too.
DENSE_FROM = 0.8
# Columns of the survey, which has a row for each worker: pairs of each kind; the largest absolute difference of two
# values; the sum of squared differences.
SIMILAR, DISSIMILAR, LARGEST, SQUARES = range(4)


@dataclass(frozen=True, eq=False)
class Survey(Task):
    """Report the number of pairs of each kind, and the size of their differences."""


@dataclass(frozen=True, eq=False)
class AddGradient(Task):
    """Add the gradient of a minibatch to the servers'; report its loss.

    Attributes:
        scale: divisor of the features.
        pairs: number of all workers' pairs.
        step: number of the step, from 0.
    """

    scale: float
    pairs: float
    step: int


@dataclass(frozen=True, eq=False)
class Evaluate(Task):
    """Report the loss of all pairs."""

    scale: float


@dataclass(frozen=True, eq=False)
class MetricWork:
    """Makes a worker of its rows; picklable.

    Attributes:
        weight: L for scaled features, feature by feature: ``rank`` columns for each.
        gradient: the gradient of all workers' pairs, in the same order.
    """

    plan: MetricPlan
    weight: DCV
    gradient: DCV

    def __call__(self, reading: Reading) -> DoTask:
        return _Work(self, reading.training).do


class _Work:
    def __init__(self, work: MetricWork, rows: LocalRows) -> None:
        self.plan, self.weight, self.gradient = work.plan, work.weight, work.gradient
        self._rows = rows
        self._choice = FormChoice(cast(FactorsName, self.plan.settings.factors))
        self._pairs: Pairs | None = None

    def do(self, worker: Any, task: Any) -> None:
        pairs = self._pairs = self._pairs or self._make_pairs(worker.rank)
        match task:
            case Survey():
                worker.report({"surveys": _survey(pairs)}, merge="concat")
            case AddGradient():
                sequence = np.random.SeedSequence(self.plan.seed, spawn_key=(worker.rank, FIRST_STEP + task.step))
                generator = np.random.Generator(np.random.Philox(sequence))
                numbers = pairs.sample(self.plan.settings.miniBatchFraction, generator)
                loss, moved_bytes = self._add_gradient(pairs, numbers, task.scale, task.pairs)
                worker.report({"loss": loss, "pairs": len(numbers), "bytes": moved_bytes, **self._choice.reported()})
            case Evaluate():
                worker.report(self._evaluate(pairs, task.scale))

    def _make_pairs(self, rank: int) -> Pairs:
        plan, rows = self.plan, self._rows
        if not plan.draws_pairs:
            return given_pairs(rows, self.plan.dim).subtracted()
        return drawn_pairs(rows, plan.settings.pairsPerRow, np.random.default_rng([plan.seed, rank])).subtracted()

    def _add_gradient(self, pairs: Pairs, numbers: Int64s, scale: float, all_pairs: float) -> tuple[float, int]:
        """Add the gradient of a minibatch; return its summed loss, and the moved bytes."""
        if not len(numbers):
            return 0.0, 0
        rank = self.plan.settings.rank
        x = pairs.differences(numbers)
        used, inverse = number_columns(x.indices)
        x = type(x)((x.data / scale, inverse, x.indptr), shape=(len(numbers), len(used)))
        keys = pairs.keys[used]
        columns = columns_of(keys, rank)
        w = self.weight.pull(columns)
        evaluated = evaluate(x, pairs.similar[numbers], w.reshape(len(keys), rank), self.plan.settings.dissimilarWeight)
        active = np.flatnonzero(evaluated.slopes.any(axis=1))
        if not len(active):
            return evaluated.loss, w.nbytes
        x, slopes = x[active], evaluated.slopes[active] / (self.plan.settings.miniBatchFraction * all_pairs)
        if x.nnz >= DENSE_FROM * x.shape[0] * x.shape[1]:
            x = x.toarray()
        size = self._choice.factor_bytes(self.gradient, rank, x, keys)
        sent: SentFactors | SentValues
        if size is not None:
            sent = SentFactors(slopes, x, keys, size)
        else:
            sent = SentValues(np.asarray(x.T @ slopes, self.gradient.dtype).reshape(-1), columns)
        sent.add_to(self.gradient)
        return evaluated.loss, w.nbytes + sent.nbytes

    def _evaluate(self, pairs: Pairs, scale: float) -> dict[str, Any]:
        rank, loss = self.plan.settings.rank, 0.0
        w = self.weight.pull(columns_of(pairs.keys, rank))
        columns = w.reshape(len(pairs.keys), rank).astype(np.float64) / scale
        for numbers in pairs.blocks():
            x, similar = pairs.differences(numbers), pairs.similar[numbers]
            loss += evaluate(x, similar, columns, self.plan.settings.dissimilarWeight).loss
        return {"loss": loss, "pairs": len(pairs), "bytes": w.nbytes}


def columns_of(keys: Int64s, rank: int) -> Int64s:
    """Return the columns of L's numbers of some features, feature by feature."""
    return (keys[:, None] * rank + np.arange(rank)).reshape(-1)


def _survey(pairs: Pairs) -> Any:
    """Return a row of the survey: the sum of squares is in units of the squared largest difference."""
    largest, squares = 0.0, 0.0
    with np.errstate(over="ignore"):
        for numbers in pairs.blocks():
            values = np.abs(pairs.differences(numbers).data).astype(np.float64)
            unit = max(largest, float(values.max(initial=0.0)))
            if unit > 0.0 and np.isfinite(unit):
                squares = squares * (largest / unit) ** 2 + float(((values / unit) ** 2).sum())
            largest = unit
    similar = int(pairs.similar.sum())
    return np.array([[similar, len(pairs) - similar, largest, squares]], np.float64)
