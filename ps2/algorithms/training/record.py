"""What a training has done so far, and whom that is shown to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ps2.algorithms.training.parameters import BYTES, LOSS, ROWS, WEIGHT, Float64Array
from ps2.algorithms.training.problem import TrainingHistory


@dataclass(frozen=True)
class StepReport:
    """One step.

    Attributes:
        number: from 1.
        objective: after it, or the mean loss of its rows as it began.
        seconds: since the first step began.
        rows: whose loss was computed, in all steps so far.
        bytes: that have travelled so far.
    """

    number: int
    objective: float
    seconds: float
    rows: int
    bytes: int


@dataclass
class Record:
    """Grows into a ``TrainingHistory``.

    Attributes:
        on_step: called after each step.
    """

    on_step: Callable[[StepReport], None]
    objective: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    reason: str = ""
    inverse_diagonal: tuple[float, ...] = ()
    _began_s: float = 0.0
    _last_s: float = 0.0
    _marks: list[tuple[int, int, int, int]] = field(default_factory=list)

    def start(self) -> None:
        """The data have been read, and the first step begins."""
        self._began_s = self._last_s = time.monotonic()

    def enter(self, clock: int) -> None:
        """A clock of the solver is over; if it was before, the fleet has gone back: forget what came after."""
        if clock < len(self._marks):
            objectives, validations, self.rows, self.bytes = self._marks[clock]
            steps = max(0, len(self.seconds) - len(self.objective) + objectives)
            del self.seconds[steps:], self.objective[objectives:], self.validation[validations:]
            del self._marks[clock:]
        self._marks.append((len(self.objective), len(self.validation), self.rows, self.bytes))

    def add(self, sums: Float64Array) -> None:
        """Take in the workers' tally of a clock."""
        self.rows += int(sums[ROWS])
        self.bytes += int(sums[BYTES])

    def step_of(self, sums: Float64Array) -> None:
        """End a step whose clock had this tally."""
        self.add(sums)
        self.step(float(sums[LOSS] / sums[WEIGHT]) if sums[WEIGHT] else math.nan)

    def step(self, objective: float) -> None:
        now_s = time.monotonic()
        self.objective.append(float(objective))
        self.seconds.append(now_s - self._last_s)
        self._last_s = now_s
        self.on_step(StepReport(len(self.seconds), objective, now_s - self._began_s, self.rows, self.bytes))

    def history(self) -> TrainingHistory:
        return TrainingHistory(
            self.objective,
            self.seconds,
            self.validation,
            len(self.seconds),
            self.rows,
            self.bytes,
            self.reason or "all steps were taken",
            self.inverse_diagonal,
        )
