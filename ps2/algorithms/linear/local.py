"""A training in the process of the only worker, which has all rows: the same programs, and no clock waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ps2.algorithms.linear.plan import Bounds, LinearPlan
from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.linear.program import form_of
from ps2.algorithms.linear.settings import SolverSettings
from ps2.algorithms.linear.trainer import train
from ps2.algorithms.linear.weights import Weights
from ps2.algorithms.training.only_worker import Outcome, result_of, train_in_process
from ps2.algorithms.training.reading import KeptReading, Reading
from ps2.algorithms.training.record import Record, StepReport, TrainingHistory
from ps2.algorithms.training.run import Training, run_alone
from ps2.algorithms.training.table import Facts, Table
from ps2.data.rows import LocalRows
from ps2.run.message import Message


@dataclass(frozen=True, eq=False)
class Task:
    """A training of the only worker.

    Attributes:
        facts: statistics of the rows' labels and weights.
    """

    problem: Problem
    plan: LinearPlan
    facts: Facts

    def message(self) -> Message:
        """Return the task as plain data."""
        assert self.plan.path is None
        assert self.plan.start is None
        plan = asdict(self.plan) | {"settings": vars(self.plan.settings)}
        return Message(problem=asdict(self.problem), plan=plan, facts=asdict(self.facts))

    @staticmethod
    def of(message: Mapping[str, Any]) -> Task:
        """Return the task of a ``message``."""
        plan, facts = dict(message["plan"]), dict(message["facts"])
        plan["settings"] = SolverSettings(**plan["settings"])
        if plan["bounds"] is not None:
            plan["bounds"] = Bounds(**plan["bounds"])
        for name in ("class_weights", "label_range"):
            facts[name] = tuple(facts[name])
        return Task(Problem(**message["problem"]), LinearPlan(**plan), Facts(**facts))


@dataclass(frozen=True, eq=False)
class _Program:
    table: Table
    task: Task
    servers: int

    def __call__(self, worker: Any, reading: Reading | KeptReading) -> Outcome:
        problem, plan, facts = self.task.problem, self.task.plan, self.task.facts

        def run(ps: Any, on_step: Callable[[StepReport], None]) -> tuple[Weights, TrainingHistory]:
            model = train(ps, self.table, problem, plan, facts, on_step)
            return Weights.of(problem, model.weight, model.biases), model.history

        return train_in_process(self.servers, reading, run)


@dataclass(frozen=True, eq=False)
class AfterSurvey:
    """Trains with the rows that the worker has surveyed: the program of a ``SurveyedTraining``, for a ``Task``."""

    table: Table
    servers: int

    def __call__(self, held: tuple[Reading, Any], message: Mapping[str, Any]) -> Outcome:
        task = Task.of(message)
        task = replace(task, plan=task.plan.with_settings(spill="never"))
        return _Program(self.table, task, self.servers)(None, _times(held[0], task.facts.weight_unit))


def _times(reading: Reading, unit: float) -> Reading:
    """Multiply weights, as the table's rows are where Spark has surveyed them."""
    if unit == 1.0:
        return reading

    def multiplied(rows: LocalRows) -> LocalRows:
        return rows if rows.weights is None else replace(rows, weights=rows.weights * unit)

    held_out = None if reading.held_out is None else multiplied(reading.held_out)
    return replace(reading, training=multiplied(reading.training), held_out=held_out)


def train_locally(
    ps: Any,
    table: Table,
    problem: Problem,
    plan: LinearPlan,
    facts: Facts,
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> tuple[Weights, TrainingHistory]:
    """Train as ``trainer.train`` does, with the same result, in the process of one worker.

    Args:
        table: rows in one rdd_partition.
        on_step: called for each step when the training has ended.
    """
    # The rows are read before the training in the worker begins.
    task = Task(problem, plan.with_settings(spill="never"), facts)
    program = _Program(replace(table, frame=None), task, len(ps.servers))
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
