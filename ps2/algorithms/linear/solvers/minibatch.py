"""Minibatch gradients of workers, and an optimizer on the servers (PS2 paper, sections 3.3 and 5.2.1, Figure 3).

Under BSP, the driver requests one step of the optimizer for the sum of all workers' gradients. Under SSP and ASP, each
worker requests a step for its own gradient, and does not wait for tasks from the driver.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask, DoTask, Steps, Task
from ps2.algorithms.linear.losses import Loss
from ps2.algorithms.linear.parameters import NO_LOSS, ModelView, Parameters
from ps2.algorithms.linear.preparation import FIRST_SOLVER_CLOCK, PREPARATION
from ps2.algorithms.linear.program import Evaluate, LinearWork, SteppingProgram
from ps2.algorithms.linear.solvers.optimizer import CatchUp, Optimizer, follows_from_sums, states_of
from ps2.algorithms.linear.solvers.solver import Data, GradientForm, SolverContext
from ps2.algorithms.training.run import FIRST_CLOCK, clocks_until_rollback
from ps2.algorithms.training.sent_gradients import FormChoice
from ps2.array_types import Float64s
from ps2.client.batch import batch
from ps2.data.rows import columns_of


@dataclass(frozen=True)
class AddGradient(Task):
    """Add the gradient of a minibatch after ``step`` steps."""

    step: int


@dataclass(frozen=True, eq=False)
class MinibatchWork:
    """The workers' part of the solver; picklable.

    Attributes:
        optimizer: takes a step for the worker's gradient in each clock; None: the driver takes the steps.
        catch_up: applies skipped penalties to the columns of a minibatch before a pull; None: no penalties are skipped.
        fraction: the fraction of the rows in a minibatch.
        scale: the factor from the summed gradient of a minibatch to the estimated mean gradient of all workers' rows.
        interval: the number of clocks from one evaluation of the held-out rows to the next.
    """

    loss: Loss
    form: GradientForm
    model: Parameters
    gradient: Parameters
    optimizer: Optimizer | None
    catch_up: CatchUp | None
    fraction: float
    scale: float
    interval: int

    def __call__(self, data: Data) -> DoTask:
        def do(worker: Any, task: AddGradient | Evaluate) -> None:
            view, is_last = ModelView(worker), isinstance(task, Evaluate)
            rows = data.rows if is_last else data.rows.sample(self.fraction, worker.rng())
            columns = data.columns if rows is data.rows else columns_of(rows.keys, self.model.width)
            catch_up = None if self.catch_up is None else self.catch_up.to_step(task.step)
            w, b = view.pull(self.model, columns, catch_up)
            if is_last:
                view.report(self.loss.loss(rows, w, b), self._held_out_loss(data, view, catch_up))
                return
            sums, sent = self.form.gradient(self.gradient.weight, rows, w, b, columns, self.scale)
            held_out_loss = self._held_out_loss(data, view, catch_up) if task.step % self.interval == 0 else NO_LOSS
            own_step = None if self.optimizer is None else partial(self.optimizer.step, task.step + 1)
            view.add(self.gradient, sent, sums.db * self.scale, own_step)
            view.report((sums.loss, sums.weight), held_out_loss, len(rows), **self.form.choice.take_report())

        return do

    def _held_out_loss(self, data: Data, view: ModelView, catch_up: Any) -> tuple[float, float]:
        if data.held_out is None:
            return NO_LOSS
        return self.loss.loss(data.held_out, *view.pull(self.model, data.columns, catch_up))


@dataclass(frozen=True, eq=False)
class AsynchronousLoop:
    """The loop of a worker under SSP or ASP, which knows its tasks without the driver; picklable."""

    work: LinearWork
    steps: int

    def __call__(self, worker: Any, reading: Any) -> None:
        do = self.work(reading)
        for clock in clocks_until_rollback(worker, FIRST_SOLVER_CLOCK + self.steps + 1):
            step = clock - FIRST_SOLVER_CLOCK
            if step < 0:
                worker.barrier()  # a preparation task needs the sums of all workers
                do(worker, PREPARATION[clock - FIRST_CLOCK])
            else:
                do(worker, AddGradient(step) if step < self.steps else Evaluate(step))


class Minibatch(SteppingProgram):
    """The program of solver "minibatch"."""

    def __init__(self, context: SolverContext) -> None:
        model, plan, self._gradient = context.initial_model, context.plan, context.space.new()
        states = {name: context.space.new() for name in states_of(plan.optimizer)}
        steps_per_clock = 1 if plan.staleness == 0 else context.workers
        self._optimizer = Optimizer(context.problem, plan, model, self._gradient, states, steps_per_clock)
        super().__init__(context, self._optimizer.penalised)
        self._catch_up = self._optimizer.catch_up()
        self._interval = math.ceil(1.0 / self.plan.settings.miniBatchFraction)

    def initial_biases(self) -> Float64s:
        biases = super().initial_biases()
        # Such an optimizer ignores initial values: from sums of 0, it computes 0.
        return np.zeros_like(biases) if follows_from_sums(self.plan.optimizer) else biases

    def drive(self, ask: Ask) -> Steps[Parameters]:
        yield from self.prepare(ask)
        step, penalty = 0, 0.0
        while True:
            report, is_last = yield from self.step_or_evaluate(ask, step, AddGradient(step))
            # One request to the servers computes the penalty and takes the step. With held-out rows, the step must
            # wait: if this model is the best one so far, it is copied first.
            penalty = ask(partial(self._compute_penalty_and_step, step, is_last, penalty))
            if self.end_step(ask, step, report, penalty, is_last):
                return self.validation.best
            if self.plan.validate:
                ask(partial(self._take_step, step))
            step += 1

    def _compute_penalty_and_step(self, step: int, is_last: bool, last_penalty: float) -> float:
        """Return the model's penalty, or ``last_penalty`` if none is due; take a BSP step, unless rows are held out."""
        driver_takes_step = self.staleness == 0
        # The penalty needs all columns, but a lazy step reads only its minibatch's. So compute it once per pass.
        is_due = is_last or self._catch_up is None or step % self._interval == 0
        # Under SSP and ASP, this clock's penalties would replace those that workers have applied in later clocks.
        if is_due and self._catch_up is not None and (driver_takes_step or is_last):
            self._catch_up.to_step(step)(None)
        with batch():
            penalty = self.monitor.penalty(self.model) if is_due else None
            if driver_takes_step and not (is_last or self.plan.validate):
                self._optimizer.step(step + 1)
        return last_penalty if penalty is None else penalty()

    def _take_step(self, step: int) -> None:
        with batch():
            self._optimizer.step(step + 1)

    def solver_work(self) -> MinibatchWork:
        context, plan = self.context, self.plan
        return MinibatchWork(
            context.loss,
            GradientForm(context.loss, FormChoice(plan.factors)),
            self.model,
            self._gradient,
            None if self.staleness == 0 else self._optimizer,
            self._catch_up,
            plan.settings.miniBatchFraction,
            1.0 / (plan.settings.miniBatchFraction * context.facts.weight),
            self._interval,
        )

    def loop(self) -> Any:
        return super().loop() if self.staleness == 0 else AsynchronousLoop(self.worker(), self.plan.settings.maxIter)
