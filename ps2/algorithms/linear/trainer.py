"""The training of a linear model: runs a solver's program, on servers or in the process of the only worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from ps2.algorithms.frame.journal import Journal
from ps2.algorithms.frame.program import run_program
from ps2.algorithms.linear.footprint import check_fleet, rows_of
from ps2.algorithms.linear.losses import loss_of
from ps2.algorithms.linear.model import Weights
from ps2.algorithms.linear.parameters import Center, Space, is_small
from ps2.algorithms.linear.plan import Bounds, LinearPlan, Problem
from ps2.algorithms.linear.program import LinearProgram, TrainedModel, form_of, journal_settings
from ps2.algorithms.linear.settings import SolverSettings
from ps2.algorithms.linear.solvers.averaging import Averaging
from ps2.algorithms.linear.solvers.ftsgd import Ftsgd
from ps2.algorithms.linear.solvers.lbfgs import Lbfgs
from ps2.algorithms.linear.solvers.minibatch import Minibatch
from ps2.algorithms.linear.solvers.normal import Normal
from ps2.algorithms.linear.solvers.regions import Box
from ps2.algorithms.linear.solvers.sap import Sap
from ps2.algorithms.linear.solvers.solver import SolverContext
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.only_worker import OnStep, Outcome, result_of, run_only_worker
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Record, TrainingHistory
from ps2.algorithms.training.run import Training, run_alone
from ps2.algorithms.training.table import Facts, Table
from ps2.data.rows import LocalRows
from ps2.run.message import Message

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
    on_step: OnStep = lambda step: None,
) -> TrainedModel:
    """Train a model on the servers of the PS2Context ``ps``; call ``on_step`` in the driver after each step.

    Raises:
        ConfigError: the checkpoint is of a training with other settings.
        LimitError: the vectors do not fit into the memory of servers or workers.
    """
    names = CheckpointNames.of(plan.name, ps)
    # Compare the settings before vectors are made: the vectors in the checkpoint depend on them.
    Journal.of(names, journal_settings(problem, plan), LinearProgram.number)
    if not names.finished_clocks:
        check_fleet(problem, plan, ps.memory())
    space = Space(problem, rows_of(plan), names, plan.all_columns)
    try:
        context = SolverContext(
            problem,
            replace(plan, start=None),  # the plan is sent to workers, and must not contain weights
            facts,
            loss_of(problem),
            space,
            space.new(),
            Record(on_step),
            table.workers,
            table.columns,
            space.new_weight() if plan.scales(problem) else None,
            Center(space.new_weight(), problem.outputs) if _subtracts_means(problem, plan) else None,
            None if plan.bounds is None else Box(plan.bounds, *space.new_list(2)),
            plan.start,
        )
        return run_program(ps, SOLVERS[plan.solver](context), table, names)
    except BaseException:
        if not names.finished_clocks:  # otherwise the vectors belong to the checkpoint, and another driver can resume
            space.free()
        raise


def _subtracts_means(problem: Problem, plan: LinearPlan) -> bool:
    """Return whether the solver centres features. With long sparse vectors it does not: their means are small."""
    if plan.solver == "normal":
        return problem.fit_intercept
    has_bounded_bias = plan.bounds is not None and plan.bounds.are_on_biases
    scales = plan.solver == "l-bfgs" and plan.scales(problem)
    return scales and problem.fit_intercept and is_small(problem) and not has_bounded_bias


def train_weights(
    ps: Any, table: Table, problem: Problem, plan: LinearPlan, facts: Facts, on_step: OnStep
) -> tuple[Weights, TrainingHistory]:
    """Train as ``train`` does; return the weights, in the driver unless they are too many (``MAX_IN_DRIVER``)."""
    model = train(ps, table, problem, plan, facts, on_step)
    return Weights.from_servers(problem, model.weight, model.biases), model.history


@dataclass(frozen=True, eq=False)
class Task:
    """The training that the only worker runs."""

    problem: Problem
    plan: LinearPlan
    facts: Facts

    def message(self) -> Message:
        """Return the task as a message of plain data."""
        assert self.plan.path is None
        assert self.plan.start is None
        plan = asdict(self.plan) | {"settings": vars(self.plan.settings)}
        return Message(problem=asdict(self.problem), plan=plan, facts=asdict(self.facts))

    @staticmethod
    def of(message: Mapping[str, Any]) -> Task:
        plan, facts = dict(message["plan"]), dict(message["facts"])
        plan["settings"] = SolverSettings(**plan["settings"])
        if plan["bounds"] is not None:
            plan["bounds"] = Bounds(**plan["bounds"])
        for name in ("class_weights", "label_range"):
            facts[name] = tuple(facts[name])
        return Task(Problem(**message["problem"]), LinearPlan(**plan), Facts(**facts))


def train_task(ps: Any, table: Table, task: Task, /, *, on_step: OnStep) -> tuple[Weights, TrainingHistory]:
    return train_weights(ps, table, task.problem, task.plan, task.facts, on_step)


@dataclass(frozen=True, eq=False)
class AfterSurvey:
    """The program of a ``SurveyedTraining``: it trains with the rows that the worker has surveyed; picklable."""

    table: Table
    servers: int

    def __call__(self, surveyed: tuple[Reading, Any], message: Mapping[str, Any]) -> Outcome:
        task = Task.of(message)
        task = replace(task, plan=task.plan.with_settings(spill="never"))
        reading = _with_scaled_weights(surveyed[0], task.facts.weight_unit)
        return run_only_worker(train_task, self.table, task, self.servers, None, reading)


def _with_scaled_weights(reading: Reading, unit: float) -> Reading:
    """Multiply the rows' weights by ``unit`` (``Facts.weight_unit``), as Spark does when it surveys the table."""
    if unit == 1.0:
        return reading

    def scale_weights(rows: LocalRows) -> LocalRows:
        return rows if rows.weights is None else replace(rows, weights=rows.weights * unit)

    held_out = None if reading.held_out is None else scale_weights(reading.held_out)
    return replace(reading, training=scale_weights(reading.training), held_out=held_out)


def train_locally(
    ps: Any, table: Table, problem: Problem, plan: LinearPlan, facts: Facts, on_step: OnStep
) -> tuple[Weights, TrainingHistory]:
    """Train like ``train_weights`` in the only worker's process; call ``on_step`` for all steps after the training."""
    # ``Training`` spills rows when it reads the table, so the training in the worker must not spill them again.
    task = Task(problem, plan.with_settings(spill="never"), facts)
    program = partial(run_only_worker, train_task, replace(table, frame=None), task, len(ps.servers))
    record = Record(on_step)
    training = Training(
        *(table, form_of(problem), program),
        staleness=plan.staleness,
        seed=plan.seed,
        spill=plan.spilling,
        on_spilled=record.add_spilled,
    )
    weights, history = result_of(run_alone(ps, training), on_step)
    return weights, replace(history, spilled=record.spilled)
