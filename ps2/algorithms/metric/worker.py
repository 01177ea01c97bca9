"""What each worker of a metric's training does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.metric.objective import evaluate
from ps2.algorithms.metric.options import MetricOptions
from ps2.algorithms.metric.pairs import Pairs, drawn_pairs, given_pairs
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.run import FIRST_CLOCK, clocks_until_rollback
from ps2.algorithms.training.sent_gradients import FormChoice, SentFactors, SentValues
from ps2.array_types import Int64s
from ps2.client.dcv import DCV
from ps2.data.rows import number_columns

# The clock in which workers report their pairs.
SURVEY = FIRST_CLOCK
# The clock of the first step.
STEPS = SURVEY + 1
# Rows with at least this share of stored values travel as arrays: a stored value takes its sample's number, too.
DENSE_FROM = 0.8
# In the report of a clock without a step.
LAST = "last"
# Columns of the report on pairs, a row for each worker; and of the control vector.
SIMILAR, DISSIMILAR, LARGEST, SQUARES = range(4)
SCALE, PAIRS, LOOKS = range(3)


@dataclass(frozen=True, eq=False)
class MetricProgram:
    """What each worker runs; picklable.

    Attributes:
        dim: number of features.
        weight: L, feature by feature: ``rank`` columns for each; of scaled features.
        gradient: of all workers' pairs.
        control: the scale of the features, the number of all pairs, and that of clocks without a step, in which earlier
            drivers' workers looked at the last L; the driver writes, the workers read.
        clocks: number of all clocks, or more.
    """

    options: MetricOptions
    dim: int
    weight: DCV
    gradient: DCV
    control: DCV
    clocks: int

    def __call__(self, worker: Any, reading: Reading) -> None:
        options, rows = self.options, reading.training
        if options.pairs is None:
            pairs = given_pairs(rows, self.dim)
        else:
            pairs = drawn_pairs(rows, options.pairs, np.random.default_rng([options.seed, worker.rank]))
        pairs, choice = pairs.subtracted(), FormChoice(options.factors)
        known: tuple[float, ...] | None = None  # the driver writes these once
        for clock in clocks_until_rollback(worker, self.clocks):
            if clock == SURVEY:
                worker.report(_surveyed(pairs), merge="concat")
                continue
            if known is None:
                known = tuple(self.control.pull().tolist())
            scale, count, looks = known
            step = clock - STEPS - looks
            if step > options.steps:
                return
            if step == options.steps:
                worker.report(self._report(pairs, scale))
                continue
            numbers = pairs.sample(options.fraction, worker.rng())
            loss, moved = self._add_gradient(pairs, numbers, scale, count, choice)
            worker.report({"loss": loss, "pairs": len(numbers), "bytes": moved, **choice.reported()})

    def _add_gradient(
        self, pairs: Pairs, numbers: Int64s, scale: float, count: float, choice: FormChoice
    ) -> tuple[float, int]:
        """Add the gradient of a minibatch; return its summed loss, and the bytes that travelled."""
        if not len(numbers):
            return 0.0, 0
        rank = self.options.rank
        x = pairs.differences(numbers)
        used, inverse = number_columns(x.indices)
        x = type(x)((x.data / scale, inverse, x.indptr), shape=(len(numbers), len(used)))
        keys = pairs.keys[used]
        columns = columns_of(keys, rank)
        w = self.weight.pull(columns)
        found = evaluate(x, pairs.similar[numbers], w.reshape(len(keys), rank), self.options.dissimilar_weight)
        active = np.flatnonzero(found.slopes.any(axis=1))
        if not len(active):
            return found.loss, w.nbytes
        x, slopes = x[active], found.slopes[active] / (self.options.fraction * count)
        if x.nnz >= DENSE_FROM * x.shape[0] * x.shape[1]:
            x = x.toarray()
        size = choice.factor_bytes(self.gradient, rank, x, keys)
        sent: SentFactors | SentValues
        if size is not None:
            sent = SentFactors(slopes, x, keys, size)
        else:
            sent = SentValues(np.asarray(x.T @ slopes, self.gradient.dtype).reshape(-1), columns)
        sent.add_to(self.gradient)
        return found.loss, w.nbytes + sent.nbytes

    def _report(self, pairs: Pairs, scale: float) -> dict[str, Any]:
        """Report the summed objective of all pairs."""
        rank, loss = self.options.rank, 0.0
        w = self.weight.pull(columns_of(pairs.keys, rank))
        columns = w.reshape(len(pairs.keys), rank).astype(np.float64) / scale
        for numbers in pairs.blocks():
            x, similar = pairs.differences(numbers), pairs.similar[numbers]
            loss += evaluate(x, similar, columns, self.options.dissimilar_weight).loss
        return {"loss": loss, "pairs": len(pairs), "bytes": w.nbytes, LAST: 1}


def columns_of(keys: Int64s, rank: int) -> Int64s:
    """Return the columns of L's numbers of some features, feature by feature."""
    return (keys[:, None] * rank + np.arange(rank)).reshape(-1)


def _surveyed(pairs: Pairs) -> Any:
    """Return pairs of both kinds, the largest difference, and the squares of all, in units of it: shape (1, 4)."""
    largest, squares = 0.0, 0.0
    with np.errstate(over="ignore"):
        for numbers in pairs.blocks():
            values = np.abs(pairs.differences(numbers).data).astype(np.float64)
            most = max(largest, float(values.max(initial=0.0)))
            if most > 0.0 and np.isfinite(most):
                squares = squares * (largest / most) ** 2 + float(((values / most) ** 2).sum())
            largest = most
    similar = int(pairs.similar.sum())
    return np.array([[similar, len(pairs) - similar, largest, squares]], np.float64)
