"""FTSGD: local iterations, averaged (Zhang et al., "FTSGD", Algorithms 2 and 3), and MLlib's SGD (Algorithm 1).

In Algorithm 3 workers turn round at the first sign of overshooting and stop at the second in a row; the driver halves
the learning rate when half of them did. In Algorithm 2 the learning rate falls with the square root of the step. After
the first step, local iterations go on only if the workers' models agree (docs/decisions/0011); else the training falls
back to MLlib's SGD (docs/decisions/0066).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.linear.ftsgd import LocalResult, cosine_of, descend, ftsgd, is_gaussian
from ps2.algorithms.linear.losses.loss import Array, Loss
from ps2.algorithms.linear.parameters import Parameters, columns_of
from ps2.algorithms.linear.problem import SolverOptions
from ps2.algorithms.linear.solvers.averaging import Averaging
from ps2.algorithms.linear.solvers.solver import Data, SolverWorker
from ps2.algorithms.linear.view import NOTHING, ModelView, Sums
from ps2.algorithms.training.sent_gradients import SentValues
from ps2.array_types import Float64s
from ps2.client.dcv import DCV
from ps2.errors import ConfigError
from ps2.run.message import Message, Stop

MIN_NORM = 1e-300


def decayed(step_size: float, clock: int) -> float:
    """Return the learning rate of MLlib's SGD in a clock, from 0 (FTSGD, equation 4)."""
    return step_size / math.sqrt(clock + 1)


@dataclass(frozen=True, eq=False)
class FtsgdWorker:
    """Local iterations from the averaged model, or a gradient at it.

    Attributes:
        weight: of all workers' rows.
        similarities: of each worker's first model to their average.
    """

    loss: Loss
    options: SolverOptions
    model: Parameters
    changes: Parameters
    similarities: DCV
    weight: float
    first_clock: int

    def __call__(self, worker: Any, data: Data, view: ModelView, clocks: int) -> None:
        columns = columns_of(data.rows.keys, self.model.width)
        share = data.weight / self.weight
        first = slope = None  # where clock 0 ended, and the last gradient of the clock before
        before = -1
        for clock in worker.clocks(clocks):
            number = clock - self.first_clock
            if number != before + 1:
                slope = None  # the fleet has rolled back: that gradient is gone
            before = number
            w, b = view.pull(self.model, columns)
            held = data.held_loss(self.loss, w, b)
            if number == self.options.steps:
                view.report(self.loss.loss(data.rows, w, b), held, shrink=0.0, oscillated=0, fell_back=0, sampled=0.0)
                continue
            # The first gradient of all rows brings the loss along.
            loss = None if self.options.fraction == 1.0 else self.loss.loss(data.rows, w, b)
            begin = np.concatenate([w, b])
            falls_back = bool(view.told("falls_back", self.options.local_search == "never"))
            if number == 1 and self.options.local_search == "auto":
                falls_back = not self._agree(worker, first, begin, float(view.told("norm", 0.0)))
            if falls_back:
                rows = data.sample(self.options.fraction, worker.rng())
                step = self.loss.gradient(rows, w, b)  # of which the driver takes one (FTSGD, Algorithm 1)
                view.add(self.changes, SentValues(step.dw, columns), step.db)
                loss = loss or (step.loss, step.weight)
                view.report(loss, held, len(rows), shrink=0.0, oscillated=0, fell_back=1, sampled=step.weight)
                continue
            shard = _Shard(self.loss, data, self.options.fraction, worker.rng(), len(w))
            found = self._search(shard, begin, slope, number, float(view.told("step_size", self.options.step_size)))
            slope = found.gradient
            if number == 0:
                first = found.w if share else None
            change = SentValues(share * (found.w[: len(w)] - found.shrink * w), columns)
            view.add(self.changes, change, share * (found.w[len(w) :] - b))
            loss = loss or shard.first or NOTHING
            view.report(
                loss,
                held,
                shard.rows,
                shrink=share * found.shrink,
                oscillated=int(found.oscillated),
                fell_back=0,
                sampled=0.0,
            )

    def _search(
        self, shard: _Shard, begin: Float64s, slope: Float64s | None, number: int, step_size: float
    ) -> LocalResult:
        """Take a clock's local iterations."""
        options, l2 = self.options, self.loss.problem.l2
        # What overflows has diverged: the driver says so.
        with np.errstate(over="ignore", invalid="ignore"):
            if options.adaptive_momentum:
                return ftsgd(shard, begin, slope, options.momentum, step_size, options.local_steps, l2)
            return descend(shard, begin, decayed(options.step_size, number), options.local_steps, l2)

    def _agree(self, worker: Any, first: Array | None, average: Array, norm: float) -> bool:
        """Return whether the workers' first models allow local iterations."""
        with np.errstate(over="ignore", invalid="ignore"):
            # An attempt that was started again knows no first model, and one without rows has none.
            similarity = 1.0 if first is None else cosine_of(float(first @ average), float(np.linalg.norm(first)), norm)
        self.similarities.push(np.array([similarity]), np.array([worker.rank]))
        worker.barrier()
        return is_gaussian(self.similarities.pull())


class _Shard:
    """The mean gradient of a worker's minibatches, its part of the penalty included; counts rows.

    Attributes:
        first: summed loss of the first minibatch, and the summed weight of its rows; None before it.
    """

    def __init__(self, loss: Loss, data: Data, fraction: float, rng: np.random.Generator, weights: int) -> None:
        self._loss = loss
        self._data = data
        self._fraction = fraction
        self._rng = rng
        self._weights = weights
        self.rows = 0
        self.first: tuple[float, float] | None = None

    def __call__(self, at: Float64s) -> Float64s:
        rows = self._data.sample(self._fraction, self._rng)
        w, b = at[: self._weights], at[self._weights :]
        found = self._loss.gradient(rows, w, b)
        self.rows += len(rows)
        self.first = self.first or (found.loss, found.weight)
        mean = 1.0 / max(found.weight, MIN_NORM)
        return np.concatenate([found.dw * mean + self._loss.problem.l2 * w, found.db * mean])


class Ftsgd(Averaging):
    """The driver's program: averages models, and halves the learning rate; or steps along the workers' gradient."""

    def _worker(self) -> SolverWorker:
        context = self._context
        if context.problem.l1:
            raise ConfigError(f"ftsgd: takes L2 penalties only, got l1={context.problem.l1:g}")
        self._clock = 0
        self._similarities = context.space.small(context.workers)
        return FtsgdWorker(
            context.loss,
            context.options,
            self.model,
            self.changes,
            self._similarities,
            context.facts.weight,
            context.first_clock,
        )

    def _average(self, sums: Sums) -> None:
        kept, step = float(sums["shrink"]), 1.0
        if sums["fell_back"]:
            rate = decayed(self._context.options.step_size, self._clock) if sums["sampled"] else 0.0
            kept, step = 1.0 - rate * self._context.problem.l2, -rate / max(float(sums["sampled"]), MIN_NORM)
            self.changes.bias.mul(step)
        self.model.weight.combine([self.model.weight, self.changes.weight], [kept, step])

    def on_clock(self, clock: int, sums: Sums) -> Message | Stop | None:
        self._clock = clock
        return super().on_clock(clock, sums)

    def _next(self, clock: int, sums: Sums) -> Message:
        step_size = self._step_sizes[clock]  # of Algorithm 3
        if sums["oscillated"] >= 0.5 * self._context.workers:
            step_size /= 2.0
        self._step_sizes.append(step_size)
        norm = float(np.hypot(self.model.weight.norm2(), self.model.bias.norm2())) if clock == 0 else 0.0
        return Message(step_size=step_size, falls_back=bool(sums["fell_back"]), norm=norm)
