"""FTSGD: local iterations with adaptive momentum (Zhang et al., "FTSGD", Algorithm 3).

Workers turn round at the first sign of overshooting and stop at the second in a row; the driver halves the learning
rate when half of them did. After the first round, local iterations go on only if the workers' models agree
(docs/decisions/0011).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.linear.fast_turn import cosine_of, fast_turn, is_gaussian, shrunk
from ps2.algorithms.linear.losses.loss import Array, Float64Array, Loss
from ps2.algorithms.linear.parameters import Parameters, columns_of
from ps2.algorithms.linear.problem import Recipe
from ps2.algorithms.linear.solvers.averaging import Averaging
from ps2.algorithms.linear.solvers.solver import Data, SolverPart
from ps2.algorithms.linear.view import LOCAL_STEPS, NORM, OSCILLATED, SHRINK, STEP_SIZE, TALLY, ModelView, SentValues
from ps2.algorithms.training.tally import HELD_LOSS, HELD_WEIGHT, LOSS, ROWS, STOP, WEIGHT
from ps2.client.dcv import DCV

# Times 1 + cos, at most 2: what is left of a velocity after a step.
MOMENTUM = 0.45
MIN_NORM = 1e-300


@dataclass(frozen=True, eq=False)
class FastTurnPart:
    """Local iterations from the averaged model.

    Attributes:
        weight: of all workers' rows.
        similarities: of each worker's first model to their average.
    """

    loss: Loss
    recipe: Recipe
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
            w, b, told = view.pull(self.model, columns)
            if told[STOP]:
                break
            tally = np.zeros(TALLY)
            tally[[LOSS, WEIGHT]] = self.loss.loss(data.rows, w, b)
            if data.held is not None:
                tally[[HELD_LOSS, HELD_WEIGHT]] = self.loss.loss(data.held, w, b)
            if clock == self.first_clock + self.recipe.steps:
                view.tell(tally)
                continue
            begin = np.concatenate([w, b])
            steps = int(told[LOCAL_STEPS])
            if clock == self.first_clock + 1:
                steps = self._agreed_steps(worker, mine, begin, told[NORM])
            shard = _Shard(self.loss, data, self.recipe.fraction, worker.rng(), len(w))
            found = fast_turn(shard, begin, slope, MOMENTUM, told[STEP_SIZE], steps)
            mine, slope = found.w if share else None, found.gradient
            shrink = shrunk(found.momenta, 0.5 * told[STEP_SIZE] * self.loss.problem.l2)
            tally[ROWS], tally[SHRINK], tally[OSCILLATED] = shard.rows, share * shrink, found.oscillated
            change = SentValues(share * (found.w[: len(w)] - shrink * w), columns)
            view.add(self.changes, change, share * (found.w[len(w) :] - b), tally)

    def _agreed_steps(self, worker: Any, mine: Array | None, average: Array, norm: float) -> int:
        """Return how many local iterations the workers' first models allow."""
        # An attempt that was started again knows no first model, and one without rows has none.
        similarity = 1.0 if mine is None else cosine_of(float(mine @ average), float(np.linalg.norm(mine)), norm)
        self.similarities.push(np.array([similarity]), np.array([worker.rank]))
        worker.barrier()
        return self.recipe.local_steps if is_gaussian(self.similarities.pull()) else 1


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


class FastTurn(Averaging):
    """The driver's half: averages models, and halves the learning rate."""

    def _part(self) -> SolverPart:
        bench = self._bench
        told = np.array([bench.recipe.step_size, bench.recipe.local_steps])
        bench.tally.control.push(told, np.array([STEP_SIZE, LOCAL_STEPS]))
        self._similarities = bench.space.small(bench.workers)
        return FastTurnPart(
            bench.loss,
            bench.recipe,
            self.model,
            self.changes,
            self._similarities,
            bench.facts.weight,
            bench.first_clock,
        )

    def on_clock(self, clock: int) -> None:
        sums = self._average(clock)
        if sums is None:
            return
        control = self._bench.tally.control
        if sums[OSCILLATED] >= 0.5 * self._bench.workers:
            # Kept on the fleet alone: it goes back with it.
            control.push(control.pull(np.array([STEP_SIZE])) / 2.0, np.array([STEP_SIZE]))
        if clock == 0:
            norm = float(np.hypot(self.model.weight.norm2(), self.model.bias.norm2()))
            control.push(np.array([norm]), np.array([NORM]))
        elif clock == 1 and not is_gaussian(self._similarities.pull()):
            control.push(np.array([1.0]), np.array([LOCAL_STEPS]))
