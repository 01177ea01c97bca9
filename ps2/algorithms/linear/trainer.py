"""The training of a linear model: a run, and a solver."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ps2.algorithms.frame.program import run_program
from ps2.algorithms.linear.centering import Center
from ps2.algorithms.linear.coordinates.path import PathPoint
from ps2.algorithms.linear.footprint import Room, check_fleet, check_worker, rows_of
from ps2.algorithms.linear.losses.choice import loss_of
from ps2.algorithms.linear.parameters import SPARSE_FROM, Space
from ps2.algorithms.linear.preparation import CLOCKS, END, Preparation, begin_with
from ps2.algorithms.linear.program import TrainedModel, form_of
from ps2.algorithms.linear.problem import Problem, SolverOptions
from ps2.algorithms.linear.solvers.averaging import Averaging
from ps2.algorithms.linear.solvers.ftsgd import Ftsgd
from ps2.algorithms.linear.solvers.lbfgs import Lbfgs
from ps2.algorithms.linear.solvers.minibatch import Minibatch
from ps2.algorithms.linear.solvers.normal import Normal
from ps2.algorithms.linear.solvers.objective_monitor import diverged
from ps2.algorithms.linear.solvers.regions import Box
from ps2.algorithms.linear.solvers.sap import Sap
from ps2.algorithms.linear.solvers.solver import Solver, SolverContext, SolverWorker
from ps2.algorithms.linear.view import ModelView
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.reading import KeptReading, Reading
from ps2.algorithms.training.record import Record, StepReport, TrainingHistory
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.training.run import FIRST_CLOCK, Training, run_training
from ps2.algorithms.training.sent_gradients import gradients_of
from ps2.algorithms.training.table import Facts, Table
from ps2.array_types import Float64s
from ps2.client.dcv import DCV
from ps2.data.rows import Float
from ps2.run.message import Message, Stop
from ps2.server.memory import free_bytes

SOLVERS: dict[str, Callable[[SolverContext], Any]] = {
    "l-bfgs": Lbfgs,
    "normal": Normal,
    "minibatch": Minibatch,
    "ma-sgd": Averaging,
    "ftsgd": Ftsgd,
    "sap": Sap,
}


@dataclass(frozen=True, eq=False)
class _Program:
    problem: Problem
    options: SolverOptions
    preparation: Preparation
    solver: SolverWorker
    clocks: int

    def __call__(self, worker: Any, reading: Reading | KeptReading) -> None:
        check_worker(self.problem, self.options, len(reading.training.keys), free_bytes())
        data = self.preparation.take_part(worker, reading)
        self.solver(worker, data, ModelView(worker), END + self.clocks)


def train(
    ps: Any,
    table: Table,
    problem: Problem,
    options: SolverOptions,
    facts: Facts,
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> TrainedModel:
    """Train a model on the servers of a context.

    Args:
        ps: the PS2Context.
        table: rows.
        problem: the objective.
        options: how to find its minimum.
        facts: of the rows' labels and weights.
        on_step: called in the driver after each step.

    Raises:
        ConfigError: the training in the checkpoint is another one.
        LimitError: the vectors cannot fit the servers, or a worker's share of them its machine.
        InputError: a row cannot be used; says how many, and names one.
        DivergedError: the step size is too large.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    loss = loss_of(problem)
    # Weights do not travel to workers with the options.
    start, options = options.start, replace(options, start=None)
    names = CheckpointNames.of(options.name, ps)
    begun, journal = names.begun, ReplayJournal.of(names, _settings(problem, options))
    if not begun:
        check_fleet(problem, options, [Room(*room) for room in ps.memory()])
    space = Space(problem, rows_of(options), names, options.all_columns)
    result: DCV | None = None
    try:
        beginning = space.new()
        record = Record(on_step)
        scale = space.weight() if options.scales(problem) else None
        box = None if options.bounds is None else Box.make(options.bounds, space)
        center = Center(space.weight(), problem.outputs) if _centers(problem, options) else None
        context = SolverContext(
            problem,
            options,
            facts,
            loss,
            space,
            beginning,
            record,
            table.workers,
            table.columns,
            scale,
            center,
            box,
            start,
        )
        if options.solver not in ("minibatch", "sap"):
            program_ = SOLVERS[options.solver](context)
            return run_program(ps, program_, table, names)
        if not begun:
            beginning.bias.push(loss.first_biases(facts))
        if context.conditions:
            scale.fill(1.0)
        preparation = Preparation.make(context)
        solver = SOLVERS[options.solver](context)
        form = form_of(problem)
        program = _Program(problem, options, preparation, solver.worker, solver.clocks)

        def on_clock(clock: int, reports: list[Any]) -> Message | Stop | None:
            if clock >= CLOCKS:
                record.enter(clock - max(CLOCKS, names.called - FIRST_CLOCK))
                record.add(reports[0]["rows"], reports[0]["bytes"])
                record.add_gradients(gradients_of(reports[0]))
                return solver.on_clock(clock - CLOCKS, reports[0])
            if clock == CLOCKS - 1:
                preparation.check_scales(reports[0], table.columns) if reports else None
                if start is not None:
                    begin_with(start, context)
                if box is not None:
                    box.prepare(scale, beginning)
                record.start()
                if center is not None and (box is not None or start is not None):
                    shifts = np.asarray(center.shifts(beginning.weight))
                    if start is not None:
                        beginning.bias.add(shifts, np.arange(len(shifts)))
                    return center.message(shifts)
            return None

        def trained() -> TrainedModel:
            found = solver.result()
            if scale is not None:
                found.weight.mul(scale)
            biases = np.asarray(found.bias.pull())
            if not math.isfinite(found.weight.norm1() + np.abs(biases).sum()):
                raise diverged(context, "weights are no finite numbers")
            path = solver.points if isinstance(solver, Sap) else ()
            return TrainedModel(found.weight, biases, record.history(), path)

        record.start()
        training = Training(
            *(table, form, program, on_clock, options.staleness, options.seed),
            spill=options.spilling,
            on_spilled=record.add_spilled,
            first=begun,
            journal=journal,
        )
        made = run_training(ps, training, trained)
        result = made.weight
        return made
    except BaseException:
        space.free()
        raise
    finally:
        if result is not None:
            space.free(keep=result)


def _settings(problem: Problem, options: SolverOptions) -> dict[str, Any]:
    """Return what a driver that goes on cannot change: the vectors on the servers are of it."""
    of_problem = ("loss", "dim", "width", "fit_intercept", "standardize")
    of_options = ("solver", "optimizer", "lazy", "validate")
    return {name: getattr(one, name) for one, names in ((problem, of_problem), (options, of_options)) for name in names}


def _centers(problem: Problem, options: SolverOptions) -> bool:
    """Return whether the solver subtracts means; features of long sparse vectors have small ones."""
    if options.solver == "normal":
        return problem.fit_intercept
    return (
        options.solver == "l-bfgs"
        and options.scales(problem)
        and problem.fit_intercept
        and problem.size < SPARSE_FROM
        and not (options.bounds is not None and options.bounds.are_on_biases)
    )
