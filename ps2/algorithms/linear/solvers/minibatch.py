"""Gradients of minibatches, and an optimizer on the servers (PS2 paper, sections 3.3 and 5.2.1, Figure 3).

Under BSP the driver takes a step of all workers' gradients. Workers that may be ahead of each other take steps of their
own, and know their tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask, DoTask, Steps, Task
from ps2.algorithms.linear.gradient_form import GradientForm
from ps2.algorithms.linear.losses.loss import Loss
from ps2.algorithms.linear.parameters import Parameters, columns_of
from ps2.algorithms.linear.preparation import END, PREPARATION
from ps2.algorithms.linear.program import LinearWork
from ps2.algorithms.linear.solvers.optimizer import CatchUp, Optimizer
from ps2.algorithms.linear.solvers.solver import Data, SolverContext
from ps2.algorithms.linear.solvers.stepping import Evaluate, SteppingProgram
from ps2.algorithms.linear.view import NOTHING, ModelView
from ps2.algorithms.training.run import FIRST_CLOCK, clocks_until_rollback
from ps2.algorithms.training.sent_gradients import FormChoice
from ps2.array_types import Float64s
from ps2.client.batch import batch


@dataclass(frozen=True)
class AddGradient(Task):
    """Add the gradient of a minibatch.

    Attributes:
        step: the number of steps so far.
    """

    step: int


@dataclass(frozen=True, eq=False)
class MinibatchWork:
    """Makes a worker of its rows; picklable.

    Attributes:
        form: of gradients on the network.
        optimizer: takes a step of this worker's own in each clock; None: the driver takes one of all gradients.
        catch_up: brings the columns of a minibatch up to date before they are read; None: they are.
        fraction: of the rows.
        scale: factor of gradients.
        every: clocks between two looks at the rows held out.
    """

    loss: Loss
    form: GradientForm
    model: Parameters
    gradient: Parameters
    optimizer: Optimizer | None
    catch_up: CatchUp | None
    fraction: float
    scale: float
    every: int

    def __call__(self, data: Data) -> DoTask:
        def do(worker: Any, task: AddGradient | Evaluate) -> None:
            view, is_last = ModelView(worker), isinstance(task, Evaluate)
            rows = data.rows if is_last else data.rows.sample(self.fraction, worker.rng())
            columns = data.columns if rows is data.rows else columns_of(rows.keys, self.model.width)
            before = None if self.catch_up is None else self.catch_up.to_step(task.step)
            w, b = view.pull(self.model, columns, before)
            if is_last:
                view.report(self.loss.loss(rows, w, b), self._held_loss(data, view, before))
                return
            found, sent = self.form.gradient(self.gradient.weight, rows, w, b, columns, self.scale)
            held = self._held_loss(data, view, before) if task.step % self.every == 0 else NOTHING
            view.add(self.gradient, sent, found.db * self.scale, self._own_step(task.step + 1))
            view.report((found.loss, found.weight), held, len(rows), **self.form.choice.reported())

        return do

    def _own_step(self, number: int) -> Callable[[], None] | None:
        """Return the call for a step of this worker's own, if it takes any."""
        return None if self.optimizer is None else partial(self.optimizer.step, number)

    def _held_loss(self, data: Data, view: ModelView, before: Any) -> tuple[float, float]:
        if data.held is None:
            return NOTHING
        return self.loss.loss(data.held, *view.pull(self.model, data.columns, before))


@dataclass(frozen=True, eq=False)
class OwnSteps:
    """What each worker runs that may be ahead of others; picklable.

    Attributes:
        steps: number of steps.
    """

    work: LinearWork
    steps: int

    def __call__(self, worker: Any, reading: Any) -> None:
        do = self.work(reading)
        for clock in clocks_until_rollback(worker, END + self.steps + 1):
            step = clock - END
            if step < 0:
                worker.barrier()  # others may not have finished the clock before
                do(worker, PREPARATION[clock - FIRST_CLOCK])
            else:
                do(worker, AddGradient(step) if step < self.steps else Evaluate(step))


class Minibatch(SteppingProgram):
    """An optimizer's steps along gradients of minibatches."""

    def __init__(self, context: SolverContext) -> None:
        self._gradient = context.space.new()
        self._optimizer = Optimizer.make(context, context.beginning, self._gradient)
        super().__init__(context, self._optimizer.decayed)
        self._catch_up = self._optimizer.catching_up()
        self._every = math.ceil(1.0 / self.options.fraction)

    def first_biases(self) -> Float64s:
        biases = super().first_biases()
        return np.zeros_like(biases) if self._optimizer.follows_sums else biases  # such weights begin at 0

    # -- the algorithm -------------------------------------------------------------------------------------------------

    def drive(self, ask: Ask) -> Steps[Parameters]:
        yield from self.prepare(ask)
        step, penalty = 0, 0.0
        while True:
            report, is_last = yield from self.evaluation(ask, step, AddGradient(step))
            penalty = ask(partial(self._penalise, step, is_last, penalty))
            if self.is_over(ask, step, report, penalty, is_last):
                return self.validation.best
            if self.options.validate:
                ask(partial(self._take_step, step))
            step += 1

    def _penalise(self, step: int, is_last: bool, before: float) -> float:
        """Return the penalty of the model after a number of steps; take the next step, unless rows are held out.

        Args:
            before: the penalty of the model before.
        """
        takes_steps = self.staleness == 0
        # A lazy step costs as much as its minibatch; work on all columns is done once per pass over the rows.
        looks = is_last or self._catch_up is None or step % self._every == 0
        # While workers are ahead, penalties of this clock would replace those of later ones.
        if looks and self._catch_up is not None and (takes_steps or is_last):
            self._catch_up.to_step(step)(None)
        with batch():
            penalty = self.monitor.penalty(self.model) if looks else None
            if takes_steps and not (is_last or self.options.validate):
                self._optimizer.step(step + 1)
        return before if penalty is None else penalty()

    def _take_step(self, step: int) -> None:
        with batch():
            self._optimizer.step(step + 1)

    # -- what the frame calls ------------------------------------------------------------------------------------------

    def solver_work(self) -> MinibatchWork:
        context, options = self.context, self.options
        return MinibatchWork(
            context.loss,
            GradientForm(context.loss, FormChoice(options.factors)),
            self.model,
            self._gradient,
            None if self.staleness == 0 else self._optimizer,
            self._catch_up,
            options.fraction,
            1.0 / (options.fraction * context.facts.weight),
            self._every,
        )

    def loop(self) -> Any:
        return super().loop() if self.staleness == 0 else OwnSteps(self.worker(), self.options.steps)
