"""The training of topics by collapsed Gibbs sampling: a run, and what the driver does between its clocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics.blocks import ring_of
from ps2.algorithms.topics.hyperparameters import Fits, fitted, row_of
from ps2.algorithms.topics.on_fleet import BYTES, LIKELIHOOD, TOKENS, Look, OnFleet, Sizes
from ps2.algorithms.topics.part import START
from ps2.algorithms.topics.problem import Fitted, Recipe
from ps2.algorithms.topics.worker import Half
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record, StepReport, TrainingHistory, Words
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.training.run import FIRST_CLOCK, NotWhole, Training, run_training
from ps2.algorithms.training.table import Table
from ps2.errors import PS2Error
from ps2.run.message import Message

Float64s = npt.NDArray[np.float64]

# What the driver hears of an iteration: its log-likelihood, tokens that were sampled, bytes that moved, seconds.
HEARD = 4
WORDS = Words("iteration", "-log p a token")


def train(
    ps: Any,
    table: Table,
    recipe: Recipe,
    tokens: int,
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> Fitted:
    """Find topics by sampling, with the counts on the servers of a context, or go on in one that was restored.

    Args:
        ps: the PS2Context.
        table: documents: features are counts of words.
        recipe: how to sample.
        tokens: the sum of all counts.
        on_step: called in the driver after each iteration.

    Raises:
        LimitError: counts cannot fit the servers.
        NotFoundError, ConfigError: the context was restored from a checkpoint without a training of this name, or with
            another one.
        InputError: a row cannot be used; says how many, and names one.
        NotWhole: with a staleness, servers were lost just before the end.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    names = CheckpointNames.of(recipe.name, ps)
    driver = _Driver(Sizes(recipe, tokens, table.workers), Record(on_step, WORDS), names)
    try:
        driver.go_on()
        if driver.is_over:
            return driver.fitted()
        half, on_clock = driver.half(), driver.on_clock
        training = Training(
            table, recipe.form, half, on_clock, recipe.lateness, recipe.seed, names.begun, driver.journal
        )
        return run_training(ps, training, driver.fitted)
    finally:
        driver.free()


def settings_of(sizes: Sizes) -> dict[str, Any]:
    """Return what topics depend on; a training may go on for more iterations."""
    settings = {**asdict(sizes.recipe), "tokens": sizes.tokens, "workers": sizes.workers}
    return {name: value for name, value in settings.items() if name not in ("iterations", "name")}


class _Driver:
    """The driver's half."""

    def __init__(self, sizes: Sizes, record: Record, names: CheckpointNames) -> None:
        self._sizes, self._recipe, self._record, self._names = sizes, sizes.recipe, record, names
        self.journal = ReplayJournal.of(names, settings_of(sizes))
        self._fleet = OnFleet.make(sizes, names)
        self._fits = Fits(self._recipe.optimize_alpha, self._recipe.lateness)
        self._told: list[tuple[float, float]] = []  # by iteration: log-likelihood, and tokens a second
        # The first clock of iterations in this run, counted from ``FIRST_CLOCK``, and clocks of an iteration.
        self._first, self._clocks = max(names.begun, START + 1) - FIRST_CLOCK, 1
        if self._recipe.sync == "rotation":
            self._clocks = ring_of(sizes.workers, self._recipe.vocabulary, self._recipe.width).turns

    @property
    def is_over(self) -> bool:
        return len(self._told) >= self._recipe.iterations

    def go_on(self) -> None:
        """Come to where a driver before was, if there was one."""
        self._record.start()
        if 0 < self._names.begun <= START:
            self._fleet.clear()
        for clock in range(self._names.begun - FIRST_CLOCK):
            self.on_clock(clock)

    def half(self) -> Half:
        """Return what workers do."""
        return Half(self._recipe, self._fleet, len(self._told))

    def on_clock(self, clock: int, reports: Sequence[Any] = ()) -> Message | None:
        """Go on after a clock, counted from ``FIRST_CLOCK``; it may be one again, when the fleet has gone back."""
        record = self._record
        record.enter(clock)
        del self._told[len(record.seconds) :]
        if not clock:
            record.start()
            return None
        with self.journal.page(clock):
            heard = self.journal.hear(lambda: self._end_clock(clock))
            if len(heard):
                likelihood, tokens, moved, lap_s = heard.tolist()
                record.bytes += int(moved)
                self._told.append((likelihood, tokens / lap_s))
                if self.journal.is_replaying:
                    record.step_before(-likelihood / self._sizes.tokens, lap_s)
                else:
                    record.step(-likelihood / self._sizes.tokens, self._told_by_name(-1))
        return self.journal.message()

    def fitted(self) -> Fitted:
        """Return what was found, and leave the totals on the servers as they are in the end."""
        recipe = self._recipe
        look = self._fleet.look(recipe.beta)
        if look.negative or look.totals.sum() != self._sizes.tokens:
            raise NotWhole(
                f"counts were being made anew when the last iteration ended, as servers were lost just before: "
                f"expected counts of {self._sizes.tokens:,} tokens, none negative, got {look.totals.sum():,} tokens, "
                f"and {look.negative:,} negative counts; train again, or a few iterations more"
            )
        counts = self._fleet.counts.pull(columns=np.arange(recipe.vocabulary))
        last = self._fits.last(len(self._told))
        alpha = recipe.alphas if last is None else self._fleet.alpha(last)
        return Fitted(counts, alpha, recipe.beta, self._history())

    def free(self) -> None:
        """Give all back that is on the servers."""
        self._fleet.free()

    def _history(self) -> TrainingHistory:
        names = self._told_by_name(0) if self._told else {}
        self._record.told = {
            name: tuple(self._told_by_name(at)[name] for at in range(len(self._told))) for name in names
        }
        return self._record.history()

    def _told_by_name(self, at: int) -> dict[str, float]:
        likelihood, speed = self._told[at]
        return {"log_likelihood": likelihood, "tokens_per_s": speed}

    def _end_clock(self, clock: int) -> Float64s:
        """See how an iteration went, if one ends with a clock; nothing else."""
        # A checkpoint may lack what a driver before has heard of its last clock; mostly that one began with clock 1.
        begun = self._first if clock >= self._first else 1
        if (clock - begun + 1) % self._clocks:
            return np.zeros(0)
        iteration = len(self._told) + 1
        report, look = self._fleet.reported(FIRST_CLOCK + clock), self._fleet.look(self._recipe.beta)
        self._fleet.totals.push(look.totals)
        likelihood = float(report[LIKELIHOOD]) + self._words_likelihood(look)
        if self._fleet.is_made_anew(FIRST_CLOCK + clock + 1):
            likelihood = math.nan
        elif not math.isfinite(likelihood):
            raise PS2Error(
                f"iteration {iteration}: the log-likelihood is {likelihood}: the training has diverged; other values "
                "of docConcentration and topicConcentration may help"
            )
        elif self._recipe.check:
            self._check(look, iteration)
        if (fit := self._fits.made_after(iteration)) is not None:
            self._fit_alpha(fit)
        return np.array([likelihood, report[TOKENS], report[BYTES], self._record.lap_s])

    def _words_likelihood(self, look: Look) -> float:
        """Compute log p(w | z): Griffiths and Steyvers (2004), equation 2."""
        all_beta = self._recipe.beta * self._recipe.vocabulary
        of_totals = (math.lgamma(all_beta) - math.lgamma(n + all_beta) for n in look.totals.tolist())
        return look.likelihood + sum(of_totals)

    def _fit_alpha(self, fit: int) -> None:
        fleet = self._fleet
        keys, documents = fleet.histogram.pull()
        fleet.histogram.zero()
        alpha = fitted(fleet.alpha(fit - 1), keys, documents)
        fleet.alphas.push([row_of(fit)], alpha[None])

    def _check(self, look: Look, iteration: int) -> None:
        if look.negative or look.totals.sum() != self._sizes.tokens:
            raise PS2Error(
                f"iteration {iteration}: expected counts of {self._sizes.tokens:,} tokens, none negative, got "
                f"{look.totals.sum():,} tokens, and {look.negative:,} negative counts"
            )
