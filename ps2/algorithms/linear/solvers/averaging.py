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
from ps2.algorithms.linear.losses.loss import Loss
from ps2.algorithms.linear.parameters import Parameters, columns_of
from ps2.algorithms.linear.problem import Recipe
from ps2.algorithms.linear.solvers.objective_monitor import ObjectiveMonitor
from ps2.algorithms.linear.solvers.solver import Bench, Data, SolverPart
from ps2.algorithms.linear.validation import Validation
from ps2.algorithms.linear.view import ModelView, SentValues, Sums
from ps2.client.batch import batch
from ps2.errors import ConfigError
from ps2.run.message import Message, Stop


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
            w, b = view.pull(self.model, columns)
            loss, held = self.loss.loss(data.rows, w, b), data.held_loss(self.loss, w, b)
            if clock == self.first_clock + self.recipe.steps:
                view.report(loss, held, shrink=0.0)
                continue
            rng, rows = worker.rng(), data.rows
            order = np.concatenate([rng.permutation(len(rows)) for _ in range(self.recipe.local_passes)])
            size = max(1, self.recipe.local_batch or len(rows))
            number = (clock - self.first_clock) * -(-len(order) // size)
            found = local_sgd(self.loss, rows, w, b, order, LocalSteps(size, self.recipe.step_size, self.l2, number))
            change = SentValues(share * (found.w - found.shrink * w), columns)
            view.add(self.changes, change, share * (found.b - b))
            view.report(loss, held, len(order), shrink=share * found.shrink)

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
        self._validation = Validation.make(bench.recipe, bench.space, self.model, bench.record.validation)
        self._objective = ObjectiveMonitor(bench)
        self.clocks = bench.recipe.steps + 1
        self.part = self._part()

    def _part(self) -> SolverPart:
        bench = self._bench
        check_loss(bench.problem)
        return AveragingPart(bench.loss, bench.recipe, self.model, self.changes, bench.facts.weight, bench.first_clock)

    def on_clock(self, clock: int, sums: Sums) -> Message | Stop | None:
        """Average the workers' models."""
        bench = self._bench
        with batch():
            penalty = self._objective.penalty(self.model)
        self._objective.note(clock, sums["loss"], sums["weight"], penalty())
        reason = self._validation.look(sums, self.model) if bench.recipe.validate else None
        if reason is not None:
            return bench.stop(reason)
        if clock == bench.recipe.steps:
            self._objective.end()
            return None
        with batch():
            self.model.weight.combine([self.model.weight, self.changes.weight], [sums["shrink"], 1.0])
            self.model.bias.add(self.changes.bias)
            self.changes.zero()
        return None

    def result(self) -> Parameters:
        return self._validation.best
