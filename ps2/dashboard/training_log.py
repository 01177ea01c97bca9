"""Records the progress of trainings for the live page, the metrics and traces."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from ps2.dashboard.series import downsample
from ps2.dashboard.snapshot import HistoryView, TrainingView

MAX_HISTORY = 200
# The maximum number of stored steps of one training. If there are more, every second step is dropped.
MAX_STEPS = 20_000
# The maximum number of shown params, and the maximum length of a value.
MAX_PARAMS, MAX_PARAM_CHARS = 40, 60
MAX_OUTCOME_CHARS = 300
# The maximum number of charts of a family's further metrics.
MAX_METRICS = 6


class Words(Protocol):
    """A family's names of a step and of the objective, such as "iteration" and "loss"."""

    @property
    def step(self) -> str: ...
    @property
    def objective(self) -> str: ...


class Step(Protocol):
    """One step of a training, as its family reports it. ``seconds``, ``rows`` and ``bytes`` are totals."""

    @property
    def number(self) -> int: ...
    @property
    def objective(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def validation(self) -> float | None: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...
    @property
    def words(self) -> Words: ...


@dataclass
class _Training:
    """A training.

    Attributes:
        steps: the maximum number of steps.
        at_s: the start, in seconds since 1970.
        began_s, ended_s: start and end on the monotonic clock; no end: the training is in progress.
        points: (number, objective, validation, total seconds, metrics) of each step.
    """

    name: str
    steps: int
    params: tuple[tuple[str, str], ...]
    at_s: float
    began_s: float
    state: str = "reading"
    last: Step | None = None
    ended_s: float | None = None
    points: list[tuple[int, float, float | None, float, Mapping[str, float]]] = field(default_factory=list)

    def add(self, step: Step) -> None:
        if self.last is not None and step.number <= self.last.number:  # the fleet has rolled back
            self.points = [point for point in self.points if point[0] < step.number]
        self.state, self.last = "training", step
        self.points.append((step.number, step.objective, step.validation, step.seconds, dict(step.metrics)))
        if len(self.points) > MAX_STEPS:
            self.points = self.points[::2]


class _ThisThread(threading.local):
    name = ""


class TrainingLog:
    """The trainings of a process, of which several may be in progress. Thread-safe.

    Attributes:
        fit_context: function that returns the context in which a training runs, given (name, steps); None: no context.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._this_thread = _ThisThread()
        self._current: _Training | None = None
        self.fit_context: Callable[[str, int], AbstractContextManager[None]] | None = None
        self._history: deque[_Training] = deque(maxlen=MAX_HISTORY)

    @contextmanager
    def training(self, name: str, steps: int, params: Mapping[str, object]) -> Iterator[Callable[[Step], None]]:
        """Record a training that runs in the with-block; yield the function to call after each step."""
        shown_params = tuple((key, _shortened(value)) for key, value in list(params.items())[:MAX_PARAMS])
        training = _Training(name, steps, shown_params, time.time(), time.monotonic())
        with self._lock:
            if self._current is not None:
                self._current.points.clear()  # only the newest training has charts
            self._current = training
            self._history.append(training)

        def add_step(step: Step) -> None:
            with self._lock:
                training.add(step)

        outcome, self._this_thread.name = "interrupted", name
        try:
            with nullcontext() if self.fit_context is None else self.fit_context(name, steps):
                yield add_step
            outcome = "done"
        except Exception as error:
            outcome = failure_outcome(error)
            raise
        finally:
            self._this_thread.name = ""
            with self._lock:
                training.state, training.ended_s = outcome, time.monotonic()

    @property
    def active_name(self) -> str:
        """The name of the training in progress in the calling thread; "" if there is none."""
        return self._this_thread.name

    def current(self) -> TrainingView | None:
        """Return the training that has begun last; None: there is none."""
        with self._lock:
            training = self._current
            if training is None:
                return None
            points, last = list(training.points), training.last
            state, ended_s = training.state, training.ended_s
        seconds = (time.monotonic() if ended_s is None else ended_s) - training.began_s
        numbers = [number for number, *_ in points]
        step_s = [point[3] - previous[3] for previous, point in pairwise(points)]
        series = [downsample("objective", numbers, [objective for _, objective, *_ in points])]
        if any(validation is not None for _, _, validation, *_ in points):
            validated = [(number, value) for number, _, value, *_ in points if value is not None]
            series.append(
                downsample("validation", [number for number, _ in validated], [value for _, value in validated])
            )
        series.append(downsample("seconds of a step", numbers[1:], step_s))
        names = list(points[-1][4])[:MAX_METRICS] if points else []
        for name in names:
            series.append(downsample(name, numbers, [metrics.get(name, float("nan")) for *_, metrics in points]))
        remaining_s = None
        if last is not None and ended_s is None and last.number:
            remaining_s = max(0, training.steps - last.number) * last.seconds / last.number
        return TrainingView(
            training.name,
            unit=last.words.step if last is not None else "step",
            objective=last.words.objective if last is not None else "objective",
            step=last.number if last is not None else 0,
            steps=training.steps,
            seconds=seconds,
            left_s=remaining_s,
            rows_per_s=last.rows / last.seconds if last is not None and last.seconds and last.rows else None,
            bytes=last.bytes if last is not None else 0,
            state=state,
            params=training.params,
            numbers=tuple((name, float(points[-1][4][name])) for name in names),
            series=tuple(series),
            value=None if last is None else last.objective,
            validation=None if last is None else last.validation,
            step_s=step_s[-1] / (numbers[-1] - numbers[-2]) if step_s else None,
        )

    def history(self) -> list[HistoryView]:
        """Return all trainings, oldest first."""
        with self._lock:
            return [
                HistoryView(
                    *("fit", training.name, training.at_s),
                    None if training.ended_s is None else training.ended_s - training.began_s,
                    training.state,
                    ""
                    if training.last is None
                    else f"{training.last.number} of at most {training.steps} "
                    f"{training.last.words.step}s, {training.last.words.objective} {training.last.objective:.6g}",
                )
                for training in self._history
            ]


# The trainings of this process.
TRAININGS = TrainingLog()


def failure_outcome(error: Exception) -> str:
    """Return the outcome of a run or training that has failed: the class and the first line of its error."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:MAX_OUTCOME_CHARS]


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_PARAM_CHARS else text[: MAX_PARAM_CHARS - 1] + "…"
