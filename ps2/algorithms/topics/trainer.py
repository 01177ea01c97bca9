"""The training of topics by collapsed Gibbs sampling: a run, and what the driver does between its clocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics.on_fleet import BYTES, LIKELIHOOD, TOKENS, OnFleet
from ps2.algorithms.topics.problem import Fitted, Recipe
from ps2.algorithms.topics.worker import Half
from ps2.algorithms.training.names import UNNAMED
from ps2.algorithms.training.record import Record, StepReport, Words
from ps2.algorithms.training.run import FIRST_CLOCK, Training, run_training
from ps2.algorithms.training.table import Table

Int64s = npt.NDArray[np.int64]


def train(
    ps: Any,
    table: Table,
    recipe: Recipe,
    tokens: int,
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> Fitted:
    """Find topics by sampling, with the counts on the servers of a context.

    Args:
        ps: the PS2Context.
        table: documents: features are counts of words.
        recipe: how to sample.
        tokens: the sum of all counts.
        on_step: called in the driver after each iteration.

    Raises:
        LimitError: counts cannot fit the servers.
        InputError: a row cannot be used; says how many, and names one.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    driver = _Driver(table, recipe, tokens, Record(on_step, Words("iteration", "-log p a token")))
    try:
        run_training(ps, Training(table, recipe.form, driver.half, driver.on_clock, recipe.staleness, recipe.seed))
        return driver.fitted()
    finally:
        driver.free()


class _Driver:
    """The driver's half."""

    def __init__(self, table: Table, recipe: Recipe, tokens: int, record: Record) -> None:
        self._recipe, self._tokens, self._record = recipe, tokens, record
        self._fleet = OnFleet.make(recipe, table.workers, recipe.staleness, UNNAMED)
        self.half = Half(recipe, self._fleet)

    def on_clock(self, clock: int) -> None:
        """Go on after a clock, counted from ``FIRST_CLOCK``; it may be one again, when the fleet has gone back."""
        record = self._record
        record.enter(clock)
        if not clock:
            record.start()
            return
        report = self._fleet.take_reports(FIRST_CLOCK + clock)
        likelihood = float(report[LIKELIHOOD]) + self._words_likelihood()
        record.bytes += int(report[BYTES])
        told = {"log_likelihood": likelihood, "tokens_per_s": float(report[TOKENS]) / record.lap_s}
        record.step(-likelihood / self._tokens, told)

    def fitted(self) -> Fitted:
        recipe = self._recipe
        counts = self._fleet.counts.pull(columns=np.arange(recipe.vocabulary))
        return Fitted(counts, recipe.alphas, recipe.beta, self._record.history())

    def free(self) -> None:
        self._fleet.free()

    def _words_likelihood(self) -> float:
        """Compute log p(w | z): Griffiths and Steyvers (2004), equation 2."""
        recipe, fleet = self._recipe, self._fleet
        totals = fleet.all_totals()
        of_counts = fleet.counts.apply("topics.words_likelihood", beta=[recipe.beta])
        all_beta = recipe.beta * recipe.vocabulary
        of_totals = sum(math.lgamma(all_beta) - math.lgamma(n + all_beta) for n in totals.tolist())
        return float(of_counts) + of_totals
