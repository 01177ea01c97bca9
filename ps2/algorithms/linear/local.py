"""A training in the process of the only worker, which has all rows: the same programs, and no clock waits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ps2.algorithms.linear.problem import Bounds, Problem, SolverOptions
from ps2.algorithms.linear.trainer import form_of, train
from ps2.algorithms.linear.weights import Weights
from ps2.algorithms.training.in_process import in_process
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import StepReport, TrainingHistory
from ps2.algorithms.training.run import Training, run_alone
from ps2.algorithms.training.table import Facts, Table
from ps2.data.rows import LocalRows
from ps2.errors import PS2Error
from ps2.run.message import Message
from ps2.server.memory import free_bytes

# All of ours.
log = logging.getLogger("ps2")

# Of the worker's free memory, for the vectors of the training.
SHARE_OF_MEMORY = 0.5


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the worker returns.

    Attributes:
        steps: what would have been reported after each one.
        warnings: name of the logger, and text.
        error: what ended the training; None: it has succeeded.
    """

    weights: Weights | None = None
    history: TrainingHistory | None = None
    steps: list[StepReport] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    error: PS2Error | None = None


@dataclass(frozen=True, eq=False)
class Task:
    """What the worker has to know to train.

    Attributes:
        facts: of the rows' labels and weights.
    """

    problem: Problem
    options: SolverOptions
    facts: Facts

    def message(self) -> Message:
        """Return it as plain data."""
        assert self.options.path is None
        return Message(problem=asdict(self.problem), options=asdict(self.options), facts=asdict(self.facts))

    @staticmethod
    def of(message: Mapping[str, Any]) -> Task:
        """Read what ``message`` has made."""
        options, facts = dict(message["options"]), dict(message["facts"])
        if options["bounds"] is not None:
            options["bounds"] = Bounds(**options["bounds"])
        for name in ("class_weights", "label_range"):
            facts[name] = tuple(facts[name])
        return Task(Problem(**message["problem"]), SolverOptions(**options), Facts(**facts))


@dataclass(frozen=True, eq=False)
class _Program:
    table: Table
    task: Task
    servers: int

    def __call__(self, worker: Any, reading: Reading) -> Outcome:
        steps: list[StepReport] = []
        heard = _Warnings()
        log.addHandler(heard)
        problem, options, facts = self.task.problem, self.task.options, self.task.facts
        try:
            with in_process(self.servers, int(free_bytes() * SHARE_OF_MEMORY), reading) as ps:
                trained = train(ps, self.table, problem, options, facts, steps.append)
                weights = Weights.of(problem, trained.weight, trained.biases)
                return Outcome(weights, trained.history, steps, heard.told)
        except PS2Error as error:
            # The driver raises it, as it does where servers are between.
            return Outcome(warnings=heard.told, error=error)
        finally:
            log.removeHandler(heard)


@dataclass(frozen=True, eq=False)
class AfterSurvey:
    """Trains with rows that the worker has surveyed: the program of a ``SurveyedTraining``, told a ``Task``."""

    table: Table
    servers: int

    def __call__(self, held: tuple[Reading, Any], message: Mapping[str, Any]) -> Outcome:
        task = Task.of(message)
        return _Program(self.table, task, self.servers)(None, _times(held[0], task.facts.weight_unit))


def _times(reading: Reading, unit: float) -> Reading:
    """Multiply weights, as the table's rows are where Spark has surveyed them."""
    if unit == 1.0:
        return reading

    def multiplied(rows: LocalRows) -> LocalRows:
        return rows if rows.weights is None else replace(rows, weights=rows.weights * unit)

    held_out = None if reading.held_out is None else multiplied(reading.held_out)
    return replace(reading, training=multiplied(reading.training), held_out=held_out)


class _Warnings(logging.Handler):
    """Keeps what the driver's part of the training warns of: the driver is elsewhere."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append((record.name, record.getMessage()))


def train_locally(
    ps: Any,
    table: Table,
    problem: Problem,
    options: SolverOptions,
    facts: Facts,
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> tuple[Weights, TrainingHistory]:
    """Train as ``trainer.train`` does, with the same result, in the process of one worker.

    Args:
        table: rows in one rdd_partition.
        on_step: called for each step when the training has ended.
    """
    program = _Program(replace(table, frame=None), Task(problem, options, facts), len(ps.servers))
    training = Training(table, form_of(problem), program, staleness=options.staleness, seed=options.seed)
    return heard(run_alone(ps, training), on_step)


def heard(outcome: Outcome, on_step: Callable[[StepReport], None]) -> tuple[Weights, TrainingHistory]:
    """Return what the worker has trained; warn, raise and report what it would have, had it been here."""
    for name, text in outcome.warnings:
        logging.getLogger(name).warning("%s", text)
    if outcome.error is not None:
        raise outcome.error
    assert outcome.weights is not None
    assert outcome.history is not None
    for step in outcome.steps:
        on_step(step)
    return outcome.weights, outcome.history
