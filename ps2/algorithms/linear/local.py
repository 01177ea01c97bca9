"""A training in the process of the only worker, which has all rows: the same programs, and no clock waits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ps2.algorithms.linear.problem import Problem, SolverOptions
from ps2.algorithms.linear.trainer import form_of, train
from ps2.algorithms.linear.weights import Weights
from ps2.algorithms.training.in_process import in_process
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import StepReport, TrainingHistory
from ps2.algorithms.training.run import Training, run_alone
from ps2.algorithms.training.table import Facts, Table
from ps2.errors import PS2Error
from ps2.server.memory import free_bytes

# All of ours.
log = logging.getLogger("ps2")

# Of the worker's free memory, for the vectors of the training.
SHARE_OF_MEMORY = 0.5


@dataclass(frozen=True, eq=False)
class _Outcome:
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
class _Program:
    table: Table
    problem: Problem
    options: SolverOptions
    facts: Facts
    servers: int

    def __call__(self, worker: Any, reading: Reading) -> _Outcome:
        steps: list[StepReport] = []
        heard = _Warnings()
        log.addHandler(heard)
        try:
            with in_process(self.servers, int(free_bytes() * SHARE_OF_MEMORY), reading) as ps:
                trained = train(ps, self.table, self.problem, self.options, self.facts, steps.append)
                weights = Weights.of(self.problem, trained.weight, trained.biases)
                return _Outcome(weights, trained.history, steps, heard.told)
        except PS2Error as error:
            # The driver raises it, as it does where servers are between.
            return _Outcome(warnings=heard.told, error=error)
        finally:
            log.removeHandler(heard)


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
    program = _Program(replace(table, frame=None), problem, options, facts, len(ps.servers))
    training = Training(table, form_of(problem), program, staleness=options.staleness, seed=options.seed)
    outcome: _Outcome = run_alone(ps, training)
    for name, text in outcome.warnings:
        logging.getLogger(name).warning("%s", text)
    if outcome.error is not None:
        raise outcome.error
    assert outcome.weights is not None
    assert outcome.history is not None
    for step in outcome.steps:
        on_step(step)
    return outcome.weights, outcome.history
