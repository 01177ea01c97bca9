"""Model averaging: local SGD in every worker, averaged by the servers ("MLlib*", Zhang et al., Algorithms 3 and 4).

The servers are the paper's reduce-scatter and all-gather: each owns a part of the model. A worker sends, at its own
keys, by how much its model differs from the global one shrunk by its penalty; as the penalty shrinks all other columns
alike, the servers can make the exact average of whole models from that and each worker's factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.linear.local_sgd import LocalSteps, check_loss, local_sgd
from ps2.algorithms.linear.losses.loss import Float64Array, Loss
from ps2.algorithms.linear.parameters import Parameters, columns_of
from ps2.algorithms.linear.problem import Recipe
from ps2.algorithms.linear.solvers.course import Course
from ps2.algorithms.linear.solvers.solver import Bench, Data, SolverPart
from ps2.algorithms.linear.validation import Validation
from ps2.algorithms.linear.view import SHRINK, TALLY, ModelView, SentValues
from ps2.algorithms.training.tally import HELD_LOSS, HELD_WEIGHT, LOSS, ROWS, STOP, WEIGHT
from ps2.client.batch import batch
from ps2.errors import ConfigError


@dataclass(frozen=True, eq=False)
class AveragingPart:
    """Local passes from the averaged model."""

    loss: Loss
    recipe: Recipe
    model: Parameters
    changes: Parameters
    weight: float
    first_clock: int

    def __call__(self, worker: Any, data: Data, view: ModelView, clocks: int) -> None:
        columns = columns_of(data.rows.keys, self.model.width)
        share = data.weight / self.weight
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
            rng, rows = worker.rng(), data.rows
            order = np.concatenate([rng.permutation(len(rows)) for _ in range(self.recipe.local_passes)])
            size = max(1, self.recipe.local_batch or len(rows))
            number = (clock - self.first_clock) * -(-len(order) // size)
            found = local_sgd(self.loss, rows, w, b, order, LocalSteps(size, self.recipe.step_size, self.l2, number))
            tally[ROWS], tally[SHRINK] = len(order), share * found.shrink
            change = SentValues(share * (found.w - found.shrink * w), columns)
            view.add(self.changes, change, share * (found.b - b), tally)

    @property
    def l2(self) -> float:
        return self.loss.problem.l2


class Averaging:
    """The driver's half.

    Raises:
        ConfigError: the problem has an L1 penalty, or a loss that is not for local steps.
    """

    def __init__(self, bench: Bench) -> None:
        if bench.problem.l1:
            raise ConfigError(f"{bench.recipe.solver}: takes L2 penalties only, got l1={bench.problem.l1:g}")
        self._bench = bench
        self.model, self.changes = bench.beginning, bench.space.new()
        self._best = bench.space.new() if bench.recipe.validate else self.model
        self._validation = Validation(bench.recipe.validation_tol, self._best, bench.record.validation)
        self._course = Course(bench)
        self.clocks = bench.recipe.steps + 1
        self.part = self._part()

    def _part(self) -> SolverPart:
        bench = self._bench
        check_loss(bench.problem)
        return AveragingPart(bench.loss, bench.recipe, self.model, self.changes, bench.facts.weight, bench.first_clock)

    def on_clock(self, clock: int) -> None:
        self._average(clock)

    def _average(self, clock: int) -> Float64Array | None:
        """Take in the workers' models; return what they added up, or None if that was the last."""
        bench = self._bench
        with batch():
            taken = bench.tally.take_later()
            penalty = self._course.penalty(self.model)
        sums = taken.result()
        bench.record.add(sums)
        self._course.note(clock, sums[LOSS], sums[WEIGHT], penalty())
        reason = self._validation.look(sums, self.model) if bench.recipe.validate else None
        if reason is not None:
            bench.stop(reason)
            return None
        if clock == bench.recipe.steps:
            self._course.end()
            return None
        with batch():
            self.model.weight.combine([self.model.weight, self.changes.weight], [sums[SHRINK], 1.0])
            self.model.bias.add(self.changes.bias)
            self.changes.zero()
        return sums

    def result(self) -> Parameters:
        return self._best if self._bench.record.validation else self.model
