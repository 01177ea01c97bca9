"""How far a factorization is, as the driver knows it from the workers' reports. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ps2.algorithms.factors.following import ASKS, BYTES, HELD_LOSS, HELD_WEIGHT, LOSS, RATINGS, WEIGHT
from ps2.algorithms.factors.plan import LAST, RESTART, Kind, Lengths, Plan, due_after

# A field that the driver adds.
SECONDS = "seconds"


@dataclass(frozen=True)
class Stopping:
    """When a training ends early.

    Attributes:
        tolerance: the least relative decrease of the validation RMSE that counts as progress.
        patience: iterations without progress after which it ends; 0: it does not.
    """

    tolerance: float = 0.0
    patience: int = 0


@dataclass(frozen=True)
class Iteration:
    """Results of an iteration.

    Attributes:
        rmse: of the ratings, each as it was visited.
        validation: RMSE of the held-out rows after it; NaN without any.
        ratings: how many were trained on.
        bytes: that travelled.
        seconds: that it took.
    """

    rmse: float
    validation: float
    ratings: int
    bytes: int
    seconds: float


class Progress:
    """Results so far, and what follows from them.

    Attributes:
        plan: of all clocks.
        results: of each iteration.
        saved: the iteration whose vectors were saved last; 0: those of the beginning.
        is_over: the last iteration is saved.
        stopped_early: validation ended the training.
    """

    def __init__(self, lengths: Lengths, stopping: Stopping) -> None:
        self.plan = Plan(lengths)
        self._stopping = stopping
        self.results: list[Iteration] = []
        self.saved = 0
        self.is_over = self.stopped_early = False
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
        if place.kind is Kind.CLOSE and self.plan.saves(place.iteration):
            self.saved = place.iteration
        told: dict[str, Any] = self._told_last() if place.kind is Kind.BEGIN else {}
        if self.plan.is_end(place):
            told = self._end_iteration(place.iteration)
            self.is_over = self.saved == self.plan.last
        return told

    def go_on_to(self, iterations: int) -> None:
        """Let another driver decide on the last iteration; workers hear it when they begin."""
        if iterations != self.plan.last and not self.stopped_early:
            self._wanted = iterations
            self.is_over = self.saved >= iterations

    def _begin_again(self, due: int) -> dict[str, Any]:
        self._restart = due
        told: dict[str, Any] = {RESTART: [due, self.saved], **self._told_last()}
        self.plan.read(told)
        del self.results[self.saved :]
        self._sums.clear()
        return told

    def _told_last(self) -> dict[str, Any]:
        """Return the part of a message with the last iteration, if workers have not heard it."""
        wanted, self._wanted = self._wanted, None
        told = {} if wanted is None else {LAST: wanted}
        self.plan.read(told)
        return told

    def _end_iteration(self, iteration: int) -> dict[str, Any]:
        sums = {name: self._sums.get(name, 0.0) for name in (LOSS, WEIGHT, HELD_LOSS, HELD_WEIGHT)}
        ratings, size, seconds = (self._sums.get(name, 0.0) for name in (RATINGS, BYTES, SECONDS))
        self._sums.clear()
        rmse, validation = _rmse(sums[LOSS], sums[WEIGHT]), _rmse(sums[HELD_LOSS], sums[HELD_WEIGHT])
        self.results.append(Iteration(rmse, validation, int(ratings), int(size), seconds))
        if self._is_stuck() and iteration + 1 < self.plan.last:
            # Workers have begun the next iteration.
            self.stopped_early = True
            told = {LAST: iteration + 1}
            self.plan.read(told)
            return told
        return {}

    def _is_stuck(self) -> bool:
        """Return whether the validation RMSE has made no progress for as many iterations as patience allows."""
        patience, best, since = self._stopping.patience, math.inf, 0
        if not patience:
            return False
        for result in self.results:
            if result.validation < best * (1 - self._stopping.tolerance):
                best, since = result.validation, 0
            else:
                since += 1
        return since >= patience


def _rmse(loss: float, weight: float) -> float:
    return math.sqrt(loss / weight) if weight > 0 and loss >= 0 else math.nan
