"""What a training in the only worker's process returns to the driver: its result, or its error, and what was told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ps2.algorithms.training.record import StepReport
from ps2.errors import PS2Error

# All of ours.
log = logging.getLogger("ps2")


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the worker returns.

    Attributes:
        result: of the training; None: it has failed.
        steps: what would have been reported after each one.
        warnings: name of the logger, and text.
        error: what ended the training; None: it has succeeded.
    """

    result: Any = None
    steps: list[StepReport] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    error: PS2Error | None = None


def outcome_of(train: Callable[[Callable[[StepReport], None]], Any]) -> Outcome:
    """Train in the worker.

    Args:
        train: called with what is to be called after each step.
    """
    steps: list[StepReport] = []
    heard = _Warnings()
    log.addHandler(heard)
    try:
        return Outcome(train(steps.append), steps, heard.told)
    except PS2Error as error:
        # The driver raises it, as it does where servers are between.
        return Outcome(warnings=heard.told, error=error)
    finally:
        log.removeHandler(heard)


def result_of(outcome: Outcome, on_step: Callable[[StepReport], None]) -> Any:
    """Return the result in the driver; warn, raise and report as a training there would have."""
    for name, text in outcome.warnings:
        logging.getLogger(name).warning("%s", text)
    if outcome.error is not None:
        raise outcome.error
    for step in outcome.steps:
        on_step(step)
    return outcome.result


class _Warnings(logging.Handler):
    """Keeps what the driver's part of the training warns of: the driver is elsewhere."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append((record.name, record.getMessage()))
