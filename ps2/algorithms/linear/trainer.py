"""The training of a linear model: a program of one of the solvers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ps2.algorithms.frame.journal import Journal
from ps2.algorithms.frame.program import run_program
from ps2.algorithms.linear.centering import Center
from ps2.algorithms.linear.footprint import check_fleet, rows_of
from ps2.algorithms.linear.losses.choice import loss_of
from ps2.algorithms.linear.parameters import SPARSE_FROM, Space
from ps2.algorithms.linear.plan import LinearPlan
from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.linear.program import LinearProgram, TrainedModel, journal_settings
from ps2.algorithms.linear.solvers.averaging import Averaging
from ps2.algorithms.linear.solvers.ftsgd import Ftsgd
from ps2.algorithms.linear.solvers.lbfgs import Lbfgs
from ps2.algorithms.linear.solvers.minibatch import Minibatch
from ps2.algorithms.linear.solvers.normal import Normal
from ps2.algorithms.linear.solvers.regions import Box
from ps2.algorithms.linear.solvers.sap import Sap
from ps2.algorithms.linear.solvers.solver import SolverContext
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record, StepReport
from ps2.algorithms.training.table import Facts, Table

SOLVERS: dict[str, Callable[[SolverContext], LinearProgram]] = {
    "l-bfgs": Lbfgs,
    "normal": Normal,
    "minibatch": Minibatch,
    "ma-sgd": Averaging,
    "ftsgd": Ftsgd,
    "sap": Sap,
}


def train(
    ps: Any,
    table: Table,
    problem: Problem,
    plan: LinearPlan,
    facts: Facts,
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> TrainedModel:
    """Train a model on the servers of a context.

    Args:
        ps: the PS2Context.
        table: the rows.
        problem: the objective.
        plan: how to find its minimum.
        facts: statistics of the rows' labels and weights.
        on_step: called in the driver after each step.

    Raises:
        ConfigError: the training in the checkpoint is another one.
        LimitError: the vectors cannot fit the servers, or a worker's share of them its machine.
        InputError: a row cannot be used; says how many, and names one.
        DivergedError: the step size is too large.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    names = CheckpointNames.of(plan.name, ps)
    # Checked first: a training with other settings has other vectors.
    Journal.of(names, journal_settings(problem, plan), LinearProgram.number)
    if not names.begun:
        check_fleet(problem, plan, ps.memory())
    space = Space(problem, rows_of(plan), names, plan.all_columns)
    try:
        context = SolverContext(
            problem,
            replace(plan, start=None),  # weights do not travel to workers with the plan
            facts,
            loss_of(problem),
            space,
            space.new(),
            Record(on_step),
            table.workers,
            table.columns,
            space.weight() if plan.scales(problem) else None,
            Center(space.weight(), problem.outputs) if _centers(problem, plan) else None,
            None if plan.bounds is None else Box.make(plan.bounds, space),
            plan.start,
        )
        return run_program(ps, SOLVERS[plan.solver](context), table, names)
    except BaseException:
        if not names.begun:  # else the vectors may be another training's
            space.free()
        raise


def _centers(problem: Problem, plan: LinearPlan) -> bool:
    """Return whether the solver subtracts means; features of long sparse vectors have small ones."""
    if plan.solver == "normal":
        return problem.fit_intercept
    return (
        plan.solver == "l-bfgs"
        and plan.scales(problem)
        and problem.fit_intercept
        and problem.size < SPARSE_FROM
        and not (plan.bounds is not None and plan.bounds.are_on_biases)
    )
