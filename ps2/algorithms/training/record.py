"""Record the history of a training step by step."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, TypeVar

from ps2.data.row_spill import Spilled, spill_message

# "local": the only worker, which has all rows, stores the model. "servers": the servers store the model and compute
# with it. "rows" (embeddings): the servers store the model, and workers pull its rows and compute with them.
Via = Literal["local", "rows", "servers"]
ViaName = Literal["auto", "local", "servers"]


@dataclass(frozen=True)
class Placement:
    """Where a training runs, and why.

    Attributes:
        workers: the number of tasks that train.
        threads: the number of threads of each worker.
        via: where the model is: in the only worker's process, or on the servers.
        reason: the reason for this placement, in words.
    """

    workers: int
    threads: int
    via: Via
    reason: str

    def __str__(self) -> str:
        size = f"{self.workers} worker{'s' * (self.workers != 1)} of {self.threads} thread{'s' * (self.threads != 1)}"
        return f"{self.via}, {size}: {self.reason}"


M = TypeVar("M")
T = TypeVar("T")

log = logging.getLogger(__name__)

# A training whose objective has grown by a factor above DIVERGED has diverged. A factor above WORSE causes a warning,
# or above WORSE_SAMPLE if the objective is computed from samples of the rows.
DIVERGED, WORSE, WORSE_SAMPLE = 1000.0, 1.01, 2.0
# The maximum number of rows in a table of steps.
ROWS_SHOWN = 10


@dataclass(frozen=True)
class Words:
    """A family's words for a step and for the quantity that is minimised."""

    step: str = "step"
    objective: str = "objective"

    @property
    def a_step(self) -> str:
        """The word for a step, with its article."""
        return f"{'an' if self.step[0] in 'aeiou' else 'a'} {self.step}"

    @property
    def steps(self) -> str:
        return f"{self.step}es" if self.step.endswith("s") else f"{self.step}s"


@dataclass(frozen=True)
class Gradients:
    """The gradients of a training that could be sent value by value or as sufficient factors.

    Attributes:
        count: the number of gradients of all workers and steps.
        factored: the number of gradients that were sent as factors.
        factor_bytes: the approximate size if all gradients had been sent as factors.
        value_bytes: the approximate size if all gradients had been sent value by value.
    """

    count: int = 0
    factored: int = 0
    factor_bytes: int = 0
    value_bytes: int = 0

    def __add__(self, other: Gradients) -> Gradients:
        return Gradients(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(self)))

    def __str__(self) -> str:
        sizes = f"{self.factor_bytes:,} bytes as factors, {self.value_bytes:,} as values"
        return f"{self.factored:,} of {self.count:,} gradients as factors: all take {sizes}"


@dataclass(frozen=True)
class TrainingHistory:
    """The history of a training.

    Attributes:
        objective: the objective before the first step and after each step, or the mean loss of each step's rows at the
            beginning of the step. Linear models have the objective of all rows, with all penalties. With minibatches,
            each value but the last is estimated from the rows of the next step; if the next step had no row, the
            previous value is repeated.
        seconds: the duration of each step.
        validation: the mean loss of the held-out rows after each step; empty: no rows were held out.
        steps: the number of steps.
        rows: the number of rows whose loss was computed, summed over steps.
        bytes: the size of the arrays that workers exchanged with servers.
        reason: the reason why the training ended, in words.
        metrics: other measures of this kind of training, by name.
        words: the words for a step and the objective.
        placement: where the training ran; None: the family has no choice.
        best: the step, from 1, after which held-out rows had the smallest loss; None: the result is the last model.
        gradients: the gradients that could be sent in two forms; None: no gradient could.
        spilled: the bytes and the folder of each file to which a worker wrote rows.
        oob_score: the out-of-bag score of a random forest; None: it was not requested.
    """

    objective: list[float]
    seconds: list[float]
    validation: list[float]
    steps: int
    rows: int
    bytes: int
    reason: str
    metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    words: Words = Words()
    placement: Placement | None = None
    best: int | None = None
    gradients: Gradients | None = None
    spilled: tuple[Spilled, ...] = ()
    oob_score: float | None = None


@dataclass(frozen=True, eq=False)
class Trained(Generic[M]):
    """The result of a training: the model's arrays, and the history."""

    model: M
    history: TrainingHistory


@dataclass(frozen=True)
class StepReport:
    """One step.

    Attributes:
        number: the step's number, from 1.
        objective: the objective after the step, or the mean loss of the step's rows before the step.
        seconds: the time since the first step began.
        rows: the number of rows whose loss was computed in all steps so far.
        bytes: the size of the arrays exchanged with servers so far.
        validation: the mean loss of the held-out rows; None: not known.
        metrics: other measures of this kind of training, by name.
        words: the words for a step and the objective.
    """

    number: int
    objective: float
    seconds: float
    rows: int
    bytes: int
    validation: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    words: Words = Words()


@dataclass
class Record:
    """The steps of a training so far, from which ``history`` makes a ``TrainingHistory``.

    Attributes:
        on_step: a function to call after each step. Some trainings end if it returns True.
        reason: the reason why the training ends early, in words; "": it does not end early.
        completed: the reason in the history of a training that does not end early.
        objective, seconds, validation, rows, bytes, metrics, words, best, gradients, spilled: see ``TrainingHistory``.
    """

    on_step: Callable[[StepReport], Any]
    words: Words = Words()
    objective: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    reason: str = ""
    completed: str = "all steps were taken"
    metrics: dict[str, tuple[float, ...]] = field(default_factory=dict)
    best: int | None = None
    gradients: Gradients | None = None
    spilled: tuple[Spilled, ...] = ()
    _began_s: float = 0.0
    _last_s: float = 0.0
    # At the beginning of each clock: the numbers of objectives and validation losses, the rows, bytes and gradients.
    _states: list[tuple[int, int, int, int, Gradients | None]] = field(default_factory=list)

    def start_timer(self) -> None:
        """Start to measure the duration of the first step."""
        self._began_s = self._last_s = time.monotonic()

    def forget(self) -> None:
        """Drop all records: the training is recorded again from its start."""
        del self.objective[:], self.seconds[:], self.validation[:], self._states[:]
        self.rows = self.bytes = 0
        self.reason, self.best, self.gradients = "", None, None

    def enter(self, clock: int) -> None:
        """Begin to record a clock. If it was recorded before, the fleet has rolled back: drop all later records."""
        self.reason = ""
        if clock < len(self._states):
            objectives, validations, self.rows, self.bytes, self.gradients = self._states[clock]
            steps = max(0, len(self.seconds) - len(self.objective) + objectives)
            del self.seconds[steps:], self.objective[objectives:], self.validation[validations:]
            del self._states[clock:]
        self._states.append((len(self.objective), len(self.validation), self.rows, self.bytes, self.gradients))

    def truncate(self, steps: int, rows: int, bytes: int) -> None:
        """Keep the first ``steps`` steps, which had these rows and bytes; the training repeats the later steps."""
        del self.seconds[steps:], self.objective[steps:], self.validation[steps:]
        self.rows, self.bytes = rows, bytes

    def add(self, rows: int, bytes: int) -> None:
        """Add a clock's rows, and the bytes that it exchanged with servers."""
        self.rows += rows
        self.bytes += bytes

    def add_gradients(self, gradients: Gradients | None) -> None:
        """Add the gradients of a clock that could be sent in two forms; None: no gradient could."""
        if gradients is not None:
            self.gradients = gradients + (self.gradients or Gradients())

    def add_spilled(self, spilled: Sequence[Spilled]) -> None:
        """Record and log that workers have written rows to files."""
        self.spilled = tuple(spilled)
        log.warning("%s", spill_message(spilled))

    @property
    def lap_s(self) -> float:
        """Seconds since the last step ended."""
        return time.monotonic() - self._last_s

    def growth(self, rounding: float = 0.0) -> tuple[float, str]:
        """Return the factor by which the objective has grown, and a sentence about it; NaN: no objective is known.

        Objectives below ``rounding`` are rounding errors.
        """
        objectives = [value for value in self.objective if not math.isnan(value)] or [math.nan]
        first, last = max(objectives[0], rounding), objectives[-1]
        factor = last / first if first else (math.inf if last else 1.0)
        return factor, f"the objective has grown from {objectives[0]:g} to {last:g}"

    def fill_missing(self, objective: float) -> float:
        """Return the objective of a step, or of the previous step if it is NaN because the step had no rows.

        If all earlier steps had no rows, they get this objective, because their models were about the same.
        """
        if math.isnan(objective):
            return self.objective[-1] if self.objective else objective
        self.objective[:] = [objective if math.isnan(value) else value for value in self.objective]
        return objective

    def add_earlier_step(self, objective: float, seconds: float) -> None:
        """Add a step that an earlier driver took."""
        self.objective.append(float(objective))
        self.seconds.append(seconds)
        self._began_s -= seconds

    def add_objective(self, objective: float, earlier_s: float | None = None) -> None:
        """Add the objective after a step (NaN: the step had no rows); the first call is for the initial model.

        ``earlier_s`` is the duration of a step that an earlier driver took; None: this driver took the step.
        """
        objective = self.fill_missing(objective)
        if not self.objective:
            self.objective.append(float(objective))
        elif earlier_s is None:
            self.add_step(objective)
        else:
            self.add_earlier_step(objective, earlier_s)

    def add_step(
        self, objective: float, metrics: Mapping[str, float] | None = None, seconds: float | None = None
    ) -> bool:
        """Add a step; return whether ``on_step`` requests the end of the training.

        ``seconds`` is the step's duration; None: the time since the last step.
        """
        now_s = time.monotonic()
        self.objective.append(float(objective))
        self.seconds.append(now_s - self._last_s if seconds is None else seconds)
        self._last_s = now_s
        number, since_s = len(self.seconds), now_s - self._began_s
        validation = self.validation[-1] if self.validation else None
        step = StepReport(number, objective, since_s, self.rows, self.bytes, validation, metrics or {}, self.words)
        return bool(self.on_step(step))

    def history(self) -> TrainingHistory:
        reason = self.reason or self.completed
        return TrainingHistory(
            *(self.objective, self.seconds, self.validation, len(self.seconds), self.rows, self.bytes, reason),
            *(self.metrics, self.words, None, self.best, self.gradients, self.spilled),
        )


@dataclass(frozen=True)
class Step:
    """The values of one step in a ``TrainingHistory``. ``number`` counts from 1; ``validation`` None: not known."""

    number: int
    objective: float
    validation: float | None
    metrics: Mapping[str, float]
    seconds: float


def by_step(history: TrainingHistory) -> list[Step]:
    objectives = history.objective[len(history.objective) - history.steps :]
    # The first steps can lack a validation loss, or there can be a loss before the first step.
    missing = [None] * max(0, history.steps - len(history.validation))
    validations = [*missing, *history.validation[max(0, len(history.validation) - history.steps) :]]
    # Only metrics that have a value for each step: some have, for example, a value for each feature.
    metrics = {name: values for name, values in history.metrics.items() if len(values) == history.steps}
    return [
        Step(
            number=index + 1,
            objective=objectives[index],
            validation=validations[index],
            metrics={name: values[index] for name, values in metrics.items()},
            seconds=history.seconds[index],
        )
        for index in range(history.steps)
    ]


def titles(history: TrainingHistory) -> list[str]:
    """Return the titles of the columns of ``cells``."""
    words, steps = history.words, by_step(history)[:1]
    metrics = list(steps[0].metrics) if steps else []
    return [words.step, words.objective, *(["validation"] if history.validation else []), *metrics, "ms"]


def cells(history: TrainingHistory) -> list[list[str]]:
    """Return a row of text for each step."""
    return [
        [
            str(step.number),
            f"{step.objective:.4f}",
            *([] if not history.validation else ["" if step.validation is None else f"{step.validation:.4f}"]),
            *(f"{value:,.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:g}" for value in step.metrics.values()),
            f"{1e3 * step.seconds:.1f}",
        ]
        for step in by_step(history)
    ]


def thin(rows: Sequence[T]) -> list[T]:
    """Return at most ``ROWS_SHOWN`` rows: the first, the last and evenly spaced rows between them."""
    count = min(ROWS_SHOWN, len(rows))
    return [rows[i] for i in sorted({round(i * (len(rows) - 1) / max(count - 1, 1)) for i in range(count)})]


def best_step(history: TrainingHistory) -> int | None:
    """Return the number of the step with the smallest validation loss; None: no rows were held out."""
    steps = [step for step in by_step(history) if step.validation is not None]
    return min(steps, key=lambda step: step.validation or 0.0).number if steps else None


def steps_without_progress(losses: Sequence[float], tolerance: float) -> int:
    """Return the number of last steps whose loss was not below the smallest before by the relative ``tolerance``."""
    smallest, count = math.inf, 0
    for loss in losses:
        smallest, count = (loss, 0) if loss < smallest * (1 - tolerance) else (smallest, count + 1)
    return count
