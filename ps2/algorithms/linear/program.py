"""The base classes of all solvers' programs: the clocks before the first step, a worker's tasks, and the result."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import Ask, DoTask, NextClock, Program, Steps, SummarizedTask, Task
from ps2.algorithms.linear.footprint import check_features
from ps2.algorithms.linear.parameters import Parameters, is_small
from ps2.algorithms.linear.plan import LinearPlan, PathPoint, Problem
from ps2.algorithms.linear.preparation import PREPARATION, Preparation, PreparationTask, check_scales, push_start
from ps2.algorithms.linear.solvers.monitors import ObjectiveMonitor, Validation, diverged
from ps2.algorithms.linear.solvers.solver import Data, SolverContext
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.reading import Reading, SpillableReading
from ps2.algorithms.training.record import TrainingHistory
from ps2.algorithms.training.sent_gradients import gradients_of
from ps2.array_types import Float64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.server.memory import free_bytes

NO_SHIFTS = np.empty(0)
# The vectors on the servers depend on these fields of the problem, so a driver that resumes a training must keep them.
PROBLEM_FIELDS = "loss", "dim", "width", "fit_intercept", "standardize"


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """The result of a training.

    Attributes:
        weight: the weights for unscaled features, on the servers; the caller frees the vector.
        biases: float64, shape (biases,).
        path: the models of a regularization path, one for each strength of the penalties ("sap").
    """

    weight: DCV
    biases: Float64s
    history: TrainingHistory
    path: tuple[PathPoint, ...] = ()


@dataclass(frozen=True, eq=False)
class LinearWork:
    """The workers' part of a program; picklable. Called with a worker's rows, it returns the worker's ``DoTask``.

    ``solver``, called with the worker's scaled rows, returns the ``DoTask`` of the solver's own tasks.
    """

    problem: Problem
    plan: LinearPlan
    preparation: Preparation
    solver: Callable[[Data], DoTask]

    def __call__(self, reading: Reading | SpillableReading) -> DoTask:
        check_features(self.problem, self.plan, len(reading.training.keys), free_bytes())
        solve = cache(lambda: self.solver(self.preparation.data(reading)))

        def do(worker: Any, task: Any) -> None:
            if isinstance(task, PreparationTask):
                self.preparation.do(worker, task, reading.training)
            else:
                solve()(worker, task)

        return do


class LinearProgram(Program[TrainedModel]):
    """A solver's program. ``model`` holds the parameters that workers evaluate: for L-BFGS, the trial point."""

    def __init__(self, context: SolverContext) -> None:
        super().__init__(context.plan, form_of(context.problem), context.record)
        self.context, self.model = context, context.initial_model
        self.spill, self.staleness = context.plan.spilling, context.plan.staleness
        self._preparation = Preparation.make(context)
        self._result: DCV | None = None

    def settings(self) -> dict[str, Any]:
        return journal_settings(self.context.problem, self.plan)

    def prepare(self, ask: Ask) -> Steps[Float64s]:
        """Scale the features and set the initial parameters; return the shifts (``Center``), empty without a center."""
        ask(self._set_initial_biases)
        for task in PREPARATION:
            report = yield self._to_yield(task)
        check_scales(report.unscalable, self.context.columns)
        shifts = ask(self._set_initial_parameters)
        ask.start_timer()
        return shifts

    def _set_initial_biases(self) -> None:
        self.model.bias.push(self.initial_biases())
        if self.context.is_preconditioned and self.context.scale is not None:
            self.context.scale.fill(1.0)  # workers overwrite it for features of their rows

    def initial_biases(self) -> Float64s:
        return self.context.loss.initial_biases(self.context.facts)

    def _set_initial_parameters(self) -> Float64s:
        context = self.context
        box, center, start = context.box, context.center, context.start
        if start is not None:
            push_start(context)
        if box is not None:
            box.prepare(context.scale, self.model)
        if center is None or (box is None and start is None):
            return NO_SHIFTS
        shifts: Float64s = np.asarray(center.shifts(self.model.weight))
        if start is not None:
            self.model.bias.add(shifts, np.arange(len(shifts)))
        return shifts

    def clock(self, task: Task | SummarizedTask) -> Steps[Any]:
        """Let the workers do a task of the solver; record the rows and bytes, and return the report."""
        report = yield self._to_yield(task)
        self.record.add(report.rows, report.bytes)
        self.record.add_gradients(gradients_of(vars(report)))
        return report

    def _to_yield(self, task: Task | SummarizedTask) -> Task | SummarizedTask:
        """Return the task; with SSP and ASP ``NextClock()``, because those workers know their tasks."""
        return task if self.staleness == 0 else NextClock()

    def worker(self) -> LinearWork:
        return LinearWork(self.context.problem, self.plan, self._preparation, self.solver_work())

    @abstractmethod
    def solver_work(self) -> Callable[[Data], DoTask]:
        """Return a picklable function from a worker's scaled rows to the solver's ``DoTask``."""

    def result(self, parameters: Parameters) -> TrainedModel:
        if self.context.scale is not None:
            parameters.weight.mul(self.context.scale)
        biases = np.asarray(parameters.bias.pull())
        if not math.isfinite(parameters.weight.norm1() + np.abs(biases).sum()):
            raise diverged(self.context, "weights are not finite")
        self._result = parameters.weight
        return TrainedModel(parameters.weight, biases, self.record.history())

    def free(self) -> None:
        self.context.space.free(keep=self._result)


@dataclass(frozen=True)
class Evaluate(Task):
    """Report the loss of all rows after a number of steps."""

    step: int


class SteppingProgram(LinearProgram):
    """A solver with a fixed number of steps. In each step's clock, workers also evaluate the model before the step."""

    def __init__(
        self,
        context: SolverContext,
        penalised: Callable[[Parameters], tuple[DCV, ...]] = lambda model: (model.weight,),
    ) -> None:
        super().__init__(context)
        self.validation = Validation.make(context.plan, context.space, self.model, context.record.validation)
        self.monitor = ObjectiveMonitor(context, penalised)

    def step_or_evaluate(self, ask: Ask, step: int, task: Task) -> Steps[tuple[Any, bool]]:
        """Let the workers do a step's task, or evaluate the last model; return the report and ``is_last``."""
        is_last = self._is_last(ask, step)
        report = yield from self.clock(Evaluate(step) if is_last else task)
        if is_last and not self._is_last(ask, step):  # a driver that resumes the training has a larger maxIter
            report = yield from self.clock(task)
            is_last = False
        return report, is_last

    def _is_last(self, ask: Ask, step: int) -> bool:
        return step >= ask.setting(lambda: self.plan.settings.maxIter)

    def end_step(self, ask: Ask, step: int, report: Any, penalty: float, is_last: bool) -> bool:
        """Record the objective of the model after ``step`` steps; return whether the training ends with this model."""
        ask.record_objective(self.monitor.objective(step, report.loss, report.weight, penalty))
        reason = self.validation.add_loss(ask, report, self.model) if self.plan.validate else ""
        if not (reason or is_last):
            return False
        ask(self.monitor.check_end)
        self.record.reason = reason
        return True

    def penalty(self) -> float:
        """Return the sum of the model's penalties, computed by the servers."""
        with batch():
            penalty = self.monitor.penalty(self.model)
        return penalty()


def journal_settings(problem: Problem, plan: LinearPlan) -> dict[str, Any]:
    """Return the settings that a driver must keep when it resumes the training."""
    settings = {name: getattr(problem, name) for name in PROBLEM_FIELDS}
    settings |= {"solver": plan.solver, "optimizer": plan.optimizer, "lazy": plan.settings.lazy}
    settings["validate"] = plan.validate
    if plan.staleness != 0:
        # Workers that may be ahead of each other know their number of steps, so a later driver cannot change it.
        settings |= {"staleness": plan.staleness, "steps": plan.settings.maxIter}
    return settings


def form_of(problem: Problem) -> Form:
    """Return the number of features and classes, and the dtype, that rows must have."""
    return Form(problem.dim, problem.classes, "float64" if is_small(problem) else "float32")
