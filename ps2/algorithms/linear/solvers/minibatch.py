"""Gradients of minibatches, and an optimizer on the servers (PS2 paper, sections 3.3 and 5.2.1, Figure 3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ps2.algorithms.linear.gradient_form import GradientForm
from ps2.algorithms.linear.losses.loss import Loss
from ps2.algorithms.linear.parameters import Parameters, columns_of
from ps2.algorithms.linear.preparation import END
from ps2.algorithms.linear.solvers.objective_monitor import ObjectiveMonitor
from ps2.algorithms.linear.solvers.optimizer import CatchUp, Optimizer
from ps2.algorithms.linear.solvers.solver import Data, SolverContext
from ps2.algorithms.linear.validation import Validation
from ps2.algorithms.linear.view import NOTHING, ModelView, Sums
from ps2.algorithms.training.run import clocks_until_rollback
from ps2.algorithms.training.sent_gradients import FormChoice
from ps2.array_types import Int64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.run.message import Message, Stop

# In the report of a clock without a step.
LAST = "last"


@dataclass(frozen=True, eq=False)
class MinibatchWorker:
    """The gradient of a minibatch in each clock; in the last one, the loss of all rows.

    Attributes:
        form: of gradients on the network.
        optimizer: takes a step of this worker's own in each clock, as workers may be ahead of each other (SSP, ASP);
            None: the driver takes one of all workers' gradients.
        catch_up: brings the columns of a minibatch up to date before they are read; None: they are.
        steps: how many there are.
        fraction: of the rows.
        scale: factor of gradients.
        every: clocks between two looks at the rows held out.
        looks: number of clocks without a step, in which workers of earlier drivers looked at the last model; a vector
            that holds it where this driver may find one more.
    """

    loss: Loss
    form: GradientForm
    model: Parameters
    gradient: Parameters
    optimizer: Optimizer | None
    catch_up: CatchUp | None
    first_clock: int
    steps: int
    fraction: float
    scale: float
    every: int
    looks: int | DCV = 0

    def __call__(self, worker: Any, data: Data, view: ModelView, clocks: int) -> None:
        all_columns = columns_of(data.rows.keys, self.model.width)
        looks = self.looks
        for clock in clocks_until_rollback(worker, clocks):
            if not isinstance(looks, int):
                looks = int(looks.pull()[0])
            step = clock - self.first_clock - looks
            if step > self.steps:
                return
            is_last = step == self.steps
            rows = data.rows if is_last else data.rows.sample(self.fraction, worker.rng())
            columns = all_columns if rows is data.rows else columns_of(rows.keys, self.model.width)
            before = None if self.catch_up is None else self.catch_up.to_step(step)
            w, b = view.pull(self.model, columns, before)
            if is_last:
                view.report(self.loss.loss(rows, w, b), self._held_loss(data, view, all_columns, before), last=1.0)
                continue
            found, sent = self.form.gradient(self.gradient.weight, rows, w, b, columns, self.scale)
            held = self._held_loss(data, view, all_columns, before) if step % self.every == 0 else NOTHING
            view.add(self.gradient, sent, found.db * self.scale, self._step(step + 1))
            view.report((found.loss, found.weight), held, len(rows), **self.form.choice.reported())

    def _step(self, number: int) -> Callable[[], None] | None:
        """Return the call for a step of this worker's own, if it takes any."""
        optimizer = self.optimizer
        return None if optimizer is None else lambda: optimizer.step(number)

    def _held_loss(self, data: Data, view: ModelView, columns: Int64s, before: Any) -> tuple[float, float]:
        return NOTHING if data.held is None else self.loss.loss(data.held, *view.pull(self.model, columns, before))


class Minibatch:
    """The driver's program."""

    def __init__(self, context: SolverContext) -> None:
        self._context = context
        self._model, self._gradient = context.beginning, context.space.new()
        self._optimizer = Optimizer.make(context, self._model, self._gradient)
        self._catch_up = self._optimizer.catching_up()
        self._validation = Validation.make(context.options, context.space, self._model, context.record.validation)
        options = context.options
        if self._optimizer.follows_sums and not context.space.is_resumed:
            self._model.bias.zero()  # such weights begin at 0
        self._objective = ObjectiveMonitor(context, self._optimizer.decayed)
        self._penalties: dict[int, float] = {}  # by clock; the fleet may roll back
        self._every = math.ceil(1.0 / options.fraction)
        self._takes_steps = options.staleness == 0
        # Clocks without a step: how many there were for earlier drivers, and this one's, which a rollback repeats.
        looks = context.space.kept(1) if options.name else None
        self._looks = int(looks.pull()[0]) if looks is not None and context.space.is_resumed else 0
        self._looked, self._kept_looks = set[int](), looks
        begun, called = context.space.clocks
        # One that workers have finished, and that was not called, may have no step either.
        may_find = called < begun <= END + options.steps + self._looks
        self.clocks = options.steps + 1 + self._looks + may_find
        self.worker = MinibatchWorker(
            context.loss,
            GradientForm(context.loss, FormChoice(options.factors)),
            self._model,
            self._gradient,
            None if self._takes_steps else self._optimizer,
            self._catch_up,
            END,
            options.steps,
            options.fraction,
            1.0 / (options.fraction * context.facts.weight),
            self._every,
            looks if looks is not None and may_find and self._takes_steps else self._looks,
        )

    def on_clock(self, clock: int, sums: Sums) -> Message | Stop | None:
        context, is_last = self._context, LAST in sums
        step = clock - self._looks - sum(look < clock for look in self._looked)
        if is_last and self._kept_looks is not None:
            self._looked.add(clock)
            self._kept_looks.add([1.0], [0])
        # A lazy step costs as much as its minibatch; work on all columns is done once per pass over the rows.
        looks = is_last or self._catch_up is None or step % self._every == 0
        # While workers are ahead, penalties of this clock would replace those of later ones.
        if looks and self._catch_up is not None and (self._takes_steps or is_last):
            self._catch_up.to_step(step)(None)
        with batch():
            penalty = self._objective.penalty(self._model) if looks else None
            if self._takes_steps and not (is_last or context.options.validate):
                self._optimizer.step(step + 1)
        self._penalties[clock] = self._penalties.get(clock - 1, 0.0) if penalty is None else penalty()
        value = self._objective.objective(step, sums["loss"], sums["weight"], self._penalties[clock])
        context.record.evaluated(value)
        reason = ""
        if context.options.validate:
            reason = self._validation.look(lambda f: f(), SimpleNamespace(**sums), self._model)
        if reason:
            self._objective.end()
            return context.stop(reason)
        if is_last:
            self._objective.end()
        elif context.options.validate:
            with batch():
                self._optimizer.step(step + 1)
        keeps = context.options.name and context.options.validate and sums["held_weight"]
        return Message(validation=context.record.validation[-1]) if keeps else None  # for a later driver

    def result(self) -> Parameters:
        return self._validation.best
