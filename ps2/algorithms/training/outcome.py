"""The outcome of a training in the only worker's process: its result or error, its steps and its warnings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ps2.algorithms.training.record import StepReport
from ps2.errors import PS2Error

# The parent of all loggers of PS2.
log = logging.getLogger("ps2")


@dataclass(frozen=True, eq=False)
class Outcome:
    """The worker's answer to the driver.

    Attributes:
        result: the training's result; None if it failed.
        steps: the report of each step.
        warnings: for each warning, the name of its logger and the text.
        error: the error that ended the training; None if it succeeded.
    """

    result: Any = None
    steps: list[StepReport] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    error: PS2Error | None = None


def outcome_of(train: Callable[[Callable[[StepReport], None]], Any]) -> Outcome:
    """Train in the worker.

    Args:
        train: trains; it gets a function to call after each step.
    """
    steps: list[StepReport] = []
    heard = _Warnings()
    log.addHandler(heard)
    try:
        return Outcome(train(steps.append), steps, heard.told)
    except PS2Error as error:
        # The driver raises the error, as in a training on servers.
        return Outcome(warnings=heard.told, error=error)
    finally:
        log.removeHandler(heard)


def result_of(outcome: Outcome, on_step: Callable[[StepReport], None]) -> Any:
    """Return the result in the driver, after repeating the worker's warnings, error and step reports there."""
    for name, text in outcome.warnings:
        logging.getLogger(name).warning("%s", text)
    if outcome.error is not None:
        raise outcome.error
    for step in outcome.steps:
        on_step(step)
    return outcome.result


class _Warnings(logging.Handler):
    """Collects warnings of the worker's process, which the driver logs later."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append((record.name, record.getMessage()))
