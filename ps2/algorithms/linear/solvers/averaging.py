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
from ps2.algorithms.linear.problem import SolverOptions
from ps2.algorithms.linear.solvers.objective_monitor import ObjectiveMonitor
from ps2.algorithms.linear.solvers.solver import Data, SolverContext, SolverWorker
from ps2.algorithms.linear.validation import Validation
from ps2.algorithms.linear.view import ModelView, Sums
from ps2.algorithms.training.sent_gradients import SentValues
from ps2.client.batch import batch
from ps2.errors import ConfigError
from ps2.run.message import Message, Stop


@dataclass(frozen=True, eq=False)
class AveragingWorker:
    """Local passes from the averaged model."""

    loss: Loss
    options: SolverOptions
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
            if clock == self.first_clock + self.options.steps:
                view.report(loss, held, shrink=0.0)
                continue
            rng, rows = worker.rng(), data.rows
            order = np.concatenate([rng.permutation(len(rows)) for _ in range(self.options.local_passes)])
            size = max(1, self.options.local_batch or len(rows))
            number = (clock - self.first_clock) * -(-len(order) // size)
            found = local_sgd(self.loss, rows, w, b, order, LocalSteps(size, self.options.step_size, self.l2, number))
            change = SentValues(share * (found.w - found.shrink * w), columns)
            view.add(self.changes, change, share * (found.b - b))
            view.report(loss, held, len(order), shrink=share * found.shrink)

    @property
    def l2(self) -> float:
        return self.loss.problem.l2


class Averaging:
    """The driver's program.

    Raises:
        ConfigError: the problem has an L1 penalty, or a loss that is not for local steps.
    """

    def __init__(self, context: SolverContext) -> None:
        if context.problem.l1:
            raise ConfigError(f"{context.options.solver}: takes L2 penalties only, got l1={context.problem.l1:g}")
        self._context = context
        self.model, self.changes = context.beginning, context.space.new()
        self._validation = Validation.make(context.options, context.space, self.model, context.record.validation)
        self._objective = ObjectiveMonitor(context)
        self.clocks = context.options.steps + 1
        self.worker = self._worker()

    def _worker(self) -> SolverWorker:
        context = self._context
        check_loss(context.problem)
        return AveragingWorker(
            context.loss, context.options, self.model, self.changes, context.facts.weight, context.first_clock
        )

    def on_clock(self, clock: int, sums: Sums) -> Message | Stop | None:
        """Average the workers' models."""
        context = self._context
        with batch():
            penalty = self._objective.penalty(self.model)
        self._objective.note(clock, sums["loss"], sums["weight"], penalty())
        reason = self._validation.look(sums, self.model) if context.options.validate else None
        if reason is not None:
            return context.stop(reason)
        if clock == context.options.steps:
            self._objective.end()
            return None
        with batch():
            self.model.weight.combine([self.model.weight, self.changes.weight], [sums["shrink"], 1.0])
            self.model.bias.add(self.changes.bias)
            self.changes.zero()
        return None

    def result(self) -> Parameters:
        return self._validation.best
