"""How far a factorization is, as the driver knows it from the workers' reports. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ps2.algorithms.factors.following import (
    ASKS,
    BYTES,
    HELD_LOSS,
    HELD_WEIGHT,
    LOSS,
    PENALTY,
    RATINGS,
    WEIGHT,
)
from ps2.algorithms.factors.plan import HALVED, LAST, RESTART, SLOT, Kind, Lengths, Plan, due_after

# A field that the driver adds.
SECONDS = "seconds"
# How often a training begins anew with half the step.
MAX_HALVINGS = 10


@dataclass(frozen=True)
class Stopping:
    """When a training ends early.

    Attributes:
        tolerance: the least relative decrease of the validation loss that counts as progress.
        patience: iterations without progress after which it ends; 0: it does not.
    """

    tolerance: float = 0.0
    patience: int = 0

    def is_stuck(self, results: Sequence[Iteration]) -> bool:
        """Return whether the validation loss has made no progress for as many iterations as patience allows."""
        best, since = math.inf, 0
        if not self.patience:
            return False
        for result in results:
            if result.validation < best * (1 - self.tolerance):
                best, since = result.validation, 0
            else:
                since += 1
        return since >= self.patience

    def best(self, results: Sequence[Iteration]) -> int | None:
        """Return the iteration, from 1, with the least validation loss; None: there is none, or it does not matter."""
        known = [(one.validation, at) for at, one in enumerate(results, 1) if not math.isnan(one.validation)]
        return min(known)[1] if known and self.patience else None


@dataclass(frozen=True)
class Iteration:
    """Results of an iteration.

    Attributes:
        objective: the RMSE of the ratings, or the mean loss of implicit feedback; with "sgd", of each rating as it was
            visited.
        validation: the same of the held-out rows after it; NaN without any.
        ratings: how many were trained on.
        bytes: that travelled.
        seconds: that it took.
        penalised: the sum of losses and penalties; NaN: it is not known.
    """

    objective: float
    validation: float
    ratings: int
    bytes: int
    seconds: float
    penalised: float = math.nan

    @staticmethod
    def of(sums: Mapping[str, float], implicit: bool = False) -> Iteration:
        """Return the results that sums of reports tell."""
        ratings, size, seconds = (sums.get(name, 0.0) for name in (RATINGS, BYTES, SECONDS))
        return Iteration(
            _mean(sums.get(LOSS, 0.0), sums.get(WEIGHT, 0.0), implicit),
            _mean(sums.get(HELD_LOSS, 0.0), sums.get(HELD_WEIGHT, 0.0), implicit),
            int(ratings),
            int(size),
            seconds,
            sums[LOSS] + sums[PENALTY] if PENALTY in sums else math.nan,
        )


class Progress:
    """Results so far of a training by rotation, and what follows from them.

    Attributes:
        plan: of all clocks.
        results: of each iteration.
        saved: the iteration whose vectors were saved last; 0: those of the beginning.
        halvings: how often the training has begun anew with half the step.
        is_over: the last iteration is saved.
        stopped_early: validation ended the training.
        failure: why the training cannot go on; "": it can.
    """

    def __init__(self, lengths: Lengths, stopping: Stopping, most: float = math.inf) -> None:
        """Args:
        most: an RMSE above it means that the training diverges.
        """
        self.plan = Plan(lengths)
        self._stopping, self._most = stopping, most
        self.results: list[Iteration] = []
        self.saved = self.halvings = 0
        self.is_over = self.stopped_early = False
        self.failure = ""
        self._restart = 0  # the clock of the newest restart
        self._wanted: int | None = None  # the last iteration, as workers have not heard yet
        self._sums: dict[str, float] = {}

    def hear(self, clock: int, heard: Mapping[str, float]) -> dict[str, Any]:
        """Take in the reports of a clock, from ``START`` on; return the message to the workers."""
        if self.is_over or clock < self._restart:
            return {}
        if heard.get(ASKS, 0):
            return self._begin_again(due_after(clock))
        place = self.plan.place(clock)
        for name, value in heard.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        told: dict[str, Any] = self._told_last() if place.kind is Kind.BEGIN else {}
        if not self.plan.is_end(place):
            return told
        one, weight = Iteration.of(self._sums), self._sums.get(WEIGHT, 0.0)
        self._sums.clear()
        if weight and not (one.objective <= self._most and math.isfinite(one.objective)):
            return self._diverged(clock, one)
        if self.plan.saves(place.iteration):
            self.saved = place.iteration
        told = self._end_iteration(place.iteration, one)
        self.is_over = self.saved >= self._last
        return told

    def go_on_to(self, iterations: int) -> None:
        """Let another driver decide on the last iteration; workers hear it when they begin."""
        if not self.stopped_early:
            self._wanted = None if iterations == self.plan.last else iterations
            self.is_over = self.saved >= iterations

    @property
    def best(self) -> int | None:
        """The iteration whose vectors are the result, if held-out rows choose it."""
        return self._stopping.best(self.results)

    @property
    def _last(self) -> int:
        """The last iteration, perhaps one that workers have not heard yet."""
        return self.plan.last if self._wanted is None else self._wanted

    def _begin_again(self, due: int, **more: Any) -> dict[str, Any]:
        self._restart = due
        told: dict[str, Any] = {RESTART: [due, self.saved], **self._told_last(), **more}
        self.plan.read(told)
        del self.results[self.saved :]
        self._sums.clear()
        return told

    def _diverged(self, clock: int, one: Iteration) -> dict[str, Any]:
        if self.halvings == MAX_HALVINGS:
            self.failure = (
                f"iteration {len(self.results) + 1}: the RMSE is {one.objective}: the training has diverged, also with "
                f"a step of 1/{2**self.halvings} of the first one; a smaller stepSize, or a smaller regParam, may help"
            )
            return {}
        self.halvings += 1
        self.saved = 0
        return self._begin_again(due_after(clock), **{HALVED: self.halvings})

    def _told_last(self) -> dict[str, Any]:
        """Return the part of a message with the last iteration, if workers have not heard it."""
        wanted, self._wanted = self._wanted, None
        told = {} if wanted is None else {LAST: wanted}
        self.plan.read(told)
        return told

    def _end_iteration(self, iteration: int, one: Iteration) -> dict[str, Any]:
        self.results.append(one)
        told: dict[str, Any] = {}
        if self._stopping.is_stuck(self.results) and iteration + 1 < self._last:
            # Workers have begun the next iteration.
            self.stopped_early, self._wanted = True, None
            told[LAST] = iteration + 1
        if self.plan.lengths.keeps_best:  # after the last iteration, too: another driver may go on
            kept = {self.plan.generation(at) for at in (iteration, self.best) if at is not None}
            told[SLOT] = [iteration + 1, min({0, 1, 2} - kept)]
        self.plan.read(told)
        return told


def _mean(loss: float, weight: float, implicit: bool) -> float:
    if weight <= 0:
        return math.nan
    return loss / weight if implicit or not loss >= 0 else math.sqrt(loss / weight)
