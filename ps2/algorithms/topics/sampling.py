"""Train topics by collapsed Gibbs sampling: the run, and the driver's program between its clocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ps2.algorithms.topics.alpha import AlphaSchedule, fit_alpha
from ps2.algorithms.topics.blocks import ring_of
from ps2.algorithms.topics.local_worker import LocalProgram
from ps2.algorithms.topics.options import FittedTopics, SamplingOptions
from ps2.algorithms.topics.sampling_worker import (
    ALPHA,
    ANEW,
    BYTES,
    EPOCH,
    FIT,
    LIKELIHOOD,
    NOT_ASKED,
    START,
    TOKENS,
    due_after,
)
from ps2.algorithms.topics.shared_counts import SharedCounts, Sizes
from ps2.algorithms.topics.worker import SamplingProgram
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record, StepReport, TrainingHistory, Words
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.training.run import FIRST_CLOCK, NotWhole, Training, run_training
from ps2.algorithms.training.table import Table
from ps2.array_types import Float64s, Int64s
from ps2.errors import ConfigError, PS2Error
from ps2.run.message import Message

# A field of an iteration's record in the journal, beside those of the workers' reports.
SECONDS = "seconds"
WORDS = Words("iteration", "-log p a token")


def train(
    ps: Any,
    table: Table,
    options: SamplingOptions,
    tokens: int,
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> FittedTopics:
    """Find topics by sampling, with the counts on the servers; in a restored context, continue.

    Args:
        ps: the PS2Context.
        table: documents; features are counts of words.
        options: the options.
        tokens: the sum of all counts.
        on_step: called in the driver after each iteration.

    Raises:
        LimitError: the counts do not fit on the servers.
        NotFoundError, ConfigError: the context was restored from a checkpoint without a training of this name, or with
            another one.
        InputError: rows cannot be used; says how many, and names one.
        NotWhole: with a staleness, servers were lost just before the end.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    if options.via == "local" and table.workers != 1:
        raise ConfigError(f"via: expected one worker, which has all documents, with 'local', got {table.workers}")
    names = CheckpointNames.of(options.name, ps)
    driver = _Driver(Sizes(options, tokens, table.workers), Record(on_step, WORDS), names)
    try:
        driver.go_on()
        if driver.is_over:
            return driver.fitted()
        program, on_clock = driver.program(), driver.on_clock
        training = Training(
            table, options.form, program, on_clock, options.lateness, options.seed, names.begun, driver.journal
        )
        return run_training(ps, training, driver.fitted)
    finally:
        driver.free()


def settings_of(sizes: Sizes) -> dict[str, Any]:
    """Return the settings that determine the topics; a continued training may have more iterations."""
    settings = {**asdict(sizes.options), "tokens": sizes.tokens, "workers": sizes.workers}
    # Threads may be others: the saved topics are in an order that does not depend on them.
    return {name: value for name, value in settings.items() if name not in ("iterations", "name", "threads")}


class _Driver:
    """The driver's program."""

    def __init__(self, sizes: Sizes, record: Record, names: CheckpointNames) -> None:
        self._sizes, self._options, self._record, self._names = sizes, sizes.options, record, names
        self.journal = ReplayJournal.of(names, settings_of(sizes))
        self._fleet = SharedCounts.make(sizes, names)
        self._fits = AlphaSchedule(self._options.optimize_alpha, self._options.lateness)
        self._alphas = {self._fits.first - 1: self._options.alphas}
        self._anew: set[int] = set()  # clocks in which the workers make all counts anew
        self._told: list[tuple[float, float]] = []  # by iteration: log-likelihood, and tokens a second
        # The first clock of this run's iterations, counted from ``FIRST_CLOCK``, and the clocks per iteration.
        self._first, self._clocks = max(names.begun, START + 1) - FIRST_CLOCK, 1
        if self._options.sync == "rotation" and self._options.via == "servers":
            self._clocks = ring_of(sizes.workers, self._options.vocabulary, self._options.width).turns

    @property
    def is_over(self) -> bool:
        return len(self._told) >= self._options.iterations

    def go_on(self) -> None:
        """Replay the clocks of an earlier driver, if there was one."""
        self._record.start()
        if 0 < self._names.begun <= START:
            self._fleet.clear()
        for clock in range(self._names.called - FIRST_CLOCK):
            self.on_clock(clock)

    def program(self) -> SamplingProgram | LocalProgram:
        """Return the workers' program."""
        if self._options.via == "local":
            return LocalProgram(self._options, self._fleet)
        pending = range(self._names.called - FIRST_CLOCK, self._names.begun - FIRST_CLOCK)
        done = len(self._told) + sum(map(self._ends_iteration, pending))
        return SamplingProgram(self._options, self._fleet, done)

    def on_clock(self, clock: int, reports: Sequence[Any] = ()) -> Message | None:
        """Do the driver's work after a clock, counted from ``FIRST_CLOCK``; after a rollback a clock comes again."""
        record = self._record
        record.enter(clock)
        del self._told[len(record.seconds) :]
        if not clock:
            record.start()
            return None
        told = self._asked_anew(clock, reports)
        with self.journal.page(clock):
            heard = self.journal.hear(lambda: self._end_clock(clock, reports))
            if heard is not None:
                told |= self._end_iteration(heard)
        return self.journal.message(**told)

    def _asked_anew(self, clock: int, reports: Sequence[Any]) -> dict[str, Any]:
        """Return the part of the message that names a clock for rebuilding the counts, if a worker asked for it."""
        epoch = reports[0] if reports else NOT_ASKED
        if epoch == NOT_ASKED:
            return {}
        due = due_after(FIRST_CLOCK + clock, self._options.lateness)
        self._anew.add(due)
        return {ANEW: due, EPOCH: epoch}

    def _end_iteration(self, heard: dict[str, Any]) -> dict[str, Any]:
        """Record an iteration; return the part of the message with a new fit of alpha, if there is one."""
        likelihood, lap_s, record = heard[LIKELIHOOD], heard[SECONDS], self._record
        record.bytes += heard[BYTES]
        self._told.append((likelihood, heard[TOKENS] / lap_s))
        if self.journal.is_replaying:
            record.step_before(-likelihood / self._sizes.tokens, lap_s)
        else:
            record.step(-likelihood / self._sizes.tokens, self._told_by_name(-1))
        fit = self._fits.made_after(len(self._told))
        if fit is None:
            return {}
        self._alphas[fit] = heard[ALPHA]
        return {FIT: fit, ALPHA: heard[ALPHA]}

    def fitted(self) -> FittedTopics:
        """Return the result."""
        options = self._options
        look = self._fleet.look(options.beta)
        if look.negative or look.totals.sum() != self._sizes.tokens:
            raise NotWhole(
                f"counts were being made anew when the last iteration ended, as servers were lost just before: "
                f"expected counts of {self._sizes.tokens:,} tokens, none negative, got {look.totals.sum():,} tokens, "
                f"and {look.negative:,} negative counts; train again, or a few iterations more"
            )
        counts = self._fleet.counts.pull(columns=np.arange(options.vocabulary))
        last = self._fits.last(len(self._told))
        alpha = options.alphas if last is None else self._alphas[last]
        return FittedTopics(counts, alpha, options.beta, self._history())

    def free(self) -> None:
        """Free the state on the servers."""
        self._fleet.free()

    def _history(self) -> TrainingHistory:
        names = self._told_by_name(0) if self._told else {}
        self._record.metrics = {
            name: tuple(self._told_by_name(at)[name] for at in range(len(self._told))) for name in names
        }
        return self._record.history()

    def _told_by_name(self, at: int) -> dict[str, float]:
        likelihood, speed = self._told[at]
        return {"log_likelihood": likelihood, "tokens_per_s": speed}

    def _end_clock(self, clock: int, reports: Sequence[Any]) -> dict[str, Any] | None:
        """Return the record of an iteration if one ends with this clock, else None."""
        if not self._ends_iteration(clock):
            return None
        iteration = len(self._told) + 1
        _, report, *histogram = reports
        likelihood, look = report[LIKELIHOOD], None
        if self._options.via == "servers":
            look = self._fleet.look(self._options.beta)
            likelihood += look.words_likelihood(self._options)
        following = FIRST_CLOCK + clock + 1
        if not self._anew.isdisjoint(range(following, due_after(following, self._options.lateness))):
            likelihood = math.nan
        elif not math.isfinite(likelihood):
            raise PS2Error(
                f"iteration {iteration}: the log-likelihood is {likelihood}: the training has diverged; other values "
                "of docConcentration and topicConcentration may help"
            )
        elif look is not None and self._options.check:
            look.check(self._sizes.tokens, iteration)
        heard = {**report, LIKELIHOOD: likelihood, SECONDS: self._record.lap_s}
        if (fit := self._fits.made_after(iteration)) is not None:
            heard[ALPHA] = self._fitted_alpha(fit, **histogram[0])
        return heard

    def _ends_iteration(self, clock: int) -> bool:
        # An earlier driver began with clock 1, or with a whole iteration after that.
        begun = self._first if clock >= self._first else 1
        return clock > 0 and (clock - begun + 1) % self._clocks == 0

    def _fitted_alpha(self, fit: int, keys: Int64s, documents: Int64s) -> Float64s:
        keys, places = np.unique(keys, return_inverse=True)
        of_keys = np.zeros(len(keys), np.int64)
        np.add.at(of_keys, places, documents)
        return fit_alpha(self._alphas[fit - 1], keys, of_keys)
