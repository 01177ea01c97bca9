"""FTSGD: local iterations with adaptive momentum (Zhang et al., "FTSGD", Algorithm 3).

Workers turn round at the first sign of overshooting and stop at the second in a row; the driver halves the learning
rate when half of them did. After the first round, local iterations go on only if the workers' models agree
(docs/decisions/0011).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.linear.ftsgd import cosine_of, ftsgd, is_gaussian, shrunk
from ps2.algorithms.linear.local_sgd import check_loss
from ps2.algorithms.linear.losses.loss import Array, Float64Array, Loss
from ps2.algorithms.linear.parameters import Parameters, columns_of
from ps2.algorithms.linear.problem import SolverOptions
from ps2.algorithms.linear.solvers.averaging import Averaging
from ps2.algorithms.linear.solvers.solver import Data, SolverWorker
from ps2.algorithms.linear.view import ModelView, Sums
from ps2.algorithms.training.sent_gradients import SentValues
from ps2.client.dcv import DCV
from ps2.errors import ConfigError
from ps2.run.message import Message, Stop

# The momentum is this times 1 + cos, which is at most 2.
MOMENTUM = 0.45
MIN_NORM = 1e-300


@dataclass(frozen=True, eq=False)
class FtsgdWorker:
    """Local iterations from the averaged model.

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
        mine = slope = None  # where the last round ended, and the gradient there
        for clock in worker.clocks(clocks):
            w, b = view.pull(self.model, columns)
            loss, held = self.loss.loss(data.rows, w, b), data.held_loss(self.loss, w, b)
            if clock == self.first_clock + self.options.steps:
                view.report(loss, held, shrink=0.0, oscillated=0)
                continue
            begin = np.concatenate([w, b])
            steps = int(view.told("local_steps", self.options.local_steps))
            step_size = float(view.told("step_size", self.options.step_size))
            if clock == self.first_clock + 1:
                steps = self._agreed_steps(worker, mine, begin, float(view.told("norm", 0.0)))
            shard = _Shard(self.loss, data, self.options.fraction, worker.rng(), len(w))
            found = ftsgd(shard, begin, slope, MOMENTUM, step_size, steps)
            mine, slope = found.w if share else None, found.gradient
            shrink = shrunk(found.momenta, 0.5 * step_size * self.loss.problem.l2)
            change = SentValues(share * (found.w[: len(w)] - shrink * w), columns)
            view.add(self.changes, change, share * (found.w[len(w) :] - b))
            view.report(loss, held, shard.rows, shrink=share * shrink, oscillated=int(found.oscillated))

    def _agreed_steps(self, worker: Any, mine: Array | None, average: Array, norm: float) -> int:
        """Return how many local iterations the workers' first models allow."""
        # An attempt that was started again knows no first model, and one without rows has none.
        similarity = 1.0 if mine is None else cosine_of(float(mine @ average), float(np.linalg.norm(mine)), norm)
        self.similarities.push(np.array([similarity]), np.array([worker.rank]))
        worker.barrier()
        return self.options.local_steps if is_gaussian(self.similarities.pull()) else 1


class _Shard:
    """The mean gradient of a worker's minibatches, its part of the penalty included; counts rows."""

    def __init__(self, loss: Loss, data: Data, fraction: float, rng: np.random.Generator, weights: int) -> None:
        self._loss = loss
        self._data = data
        self._fraction = fraction
        self._rng = rng
        self._weights = weights
        self.rows = 0

    def __call__(self, at: Float64Array) -> Float64Array:
        rows = self._data.sample(self._fraction, self._rng)
        w, b = at[: self._weights], at[self._weights :]
        found = self._loss.gradient(rows, w, b)
        self.rows += len(rows)
        mean = 1.0 / max(found.weight, MIN_NORM)
        return np.concatenate([found.dw * mean + self._loss.problem.l2 * w, found.db * mean])


class Ftsgd(Averaging):
    """The driver's program: averages models, and halves the learning rate."""

    def _worker(self) -> SolverWorker:
        context = self._context
        if context.problem.l1:
            raise ConfigError(f"ftsgd: takes L2 penalties only, got l1={context.problem.l1:g}")
        check_loss(context.problem)
        # By clock: the learning rate and the local iterations; the fleet may go back.
        self._steps = [(context.options.step_size, context.options.local_steps)]
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
        self.model.weight.combine([self.model.weight, self.changes.weight], [sums["shrink"], 1.0])

    def on_clock(self, clock: int, sums: Sums) -> Message | Stop | None:
        over = super().on_clock(clock, sums)
        if over is not None:
            return over
        del self._steps[clock + 1 :]
        step_size, local_steps = self._steps[clock]
        if sums["oscillated"] >= 0.5 * self._context.workers:
            step_size /= 2.0
        if clock == 1 and not is_gaussian(self._similarities.pull()):
            local_steps = 1
        self._steps.append((step_size, local_steps))
        norm = float(np.hypot(self.model.weight.norm2(), self.model.bias.norm2())) if clock == 0 else 0.0
        return Message(step_size=step_size, local_steps=local_steps, norm=norm)
