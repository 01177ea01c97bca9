"""How a training went, step by step: rows for tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ps2.algorithms.training.record import TrainingHistory

T = TypeVar("T")

ROWS_SHOWN = 10


@dataclass(frozen=True)
class Step:
    """One step, with the attributes of ``TrainingHistory``; None: not known.

    Attributes:
        number: the step's number, from 1.
    """

    number: int
    objective: float
    validation: float | None
    metrics: Mapping[str, float]
    seconds: float


def by_step(history: TrainingHistory) -> list[Step]:
    """Return all steps of a training."""
    objectives = history.objective[len(history.objective) - history.steps :]
    # The first steps may have no validation loss, or there may be a loss from before the first step.
    unknown = [None] * max(0, history.steps - len(history.validation))
    validations = [*unknown, *history.validation[max(0, len(history.validation) - history.steps) :]]
    # Entries with a number per step; there may be others, such as one per feature.
    metrics = {name: values for name, values in history.metrics.items() if len(values) == history.steps}
    return [
        Step(
            number=at + 1,
            objective=objectives[at],
            validation=validations[at],
            metrics={name: values[at] for name, values in metrics.items()},
            seconds=history.seconds[at],
        )
        for at in range(history.steps)
    ]


def titles(history: TrainingHistory) -> list[str]:
    """Return the names of the columns of ``cells``."""
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


def spaced(rows: Sequence[T]) -> list[T]:
    """Return at most ``ROWS_SHOWN`` rows: the first, the last and evenly spaced rows between them."""
    count = min(ROWS_SHOWN, len(rows))
    return [rows[i] for i in sorted({round(i * (len(rows) - 1) / max(count - 1, 1)) for i in range(count)})]


def best_step(history: TrainingHistory) -> int | None:
    """Return the number of the step with the least loss of the held-out rows; None: there are no such rows."""
    steps = [step for step in by_step(history) if step.validation is not None]
    return min(steps, key=lambda step: step.validation or 0.0).number if steps else None
