"""The training of vectors: a run, and what the driver does between its clocks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ps2.algorithms.embeddings.choosing import Choice, choose
from ps2.algorithms.embeddings.drawing import Draws
from ps2.algorithms.embeddings.footprint import check_room
from ps2.algorithms.embeddings.part import Plan
from ps2.algorithms.embeddings.problem import Fitted, Float32s, Recipe
from ps2.algorithms.embeddings.schedule import Clocks, clock_tokens
from ps2.algorithms.embeddings.slices import Slices, put_aliases
from ps2.algorithms.embeddings.tables import BYTES, REPORTED, STALENESS, TOKENS, OnFleet
from ps2.algorithms.embeddings.training_kernels import LOSS, LOSSES, PAIRS
from ps2.algorithms.embeddings.worker import Half, Read
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record, StepReport, TrainingHistory, Words
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.errors import PS2Error
from ps2.ops.kernels import Float64s, Int64s
from ps2.run.message import Message
from ps2.run.slots import cores_each
from ps2.server.memory import available_bytes

log = logging.getLogger(__name__)

WORDS = Words("epoch", "loss")


@dataclass(frozen=True, eq=False)
class Trainer:
    """A training that is to be.

    Attributes:
        ps: the PS2Context.
        frame: DataFrame or RDD whose rows ``read`` makes sentences of, in the workers.
        read: called with the worker and its rows.
        frequencies: int64, shape (vocabulary,): how often each word comes, or is an edge's target.
        workers: how many parts the rows are dealt out to.
        on_step: called in the driver after each epoch.
        first: clock that it begins with, where others have trained before it.
        kept: what is on the servers is given back with this one, if the training has a name: until then a checkpoint
            holds it, for a driver that goes on with what comes next; None: at the end of the training.
        longest: words of a sentence at most.
    """

    ps: Any
    frame: Any
    read: Read
    recipe: Recipe
    frequencies: Int64s
    workers: int
    on_step: Callable[[StepReport], None] = lambda step: None
    first: int = 0
    kept: ExitStack | None = None
    longest: int = 1

    def fit(self) -> Fitted:
        """Train with both tables on the servers of the context, or go on in one that was restored.

        Raises:
            LimitError: tables, or what a worker draws for its sentences, do not fit.
            NotFoundError, ConfigError: the context was restored from a checkpoint without a training of this name, or
                with another one.
            PS2Error: the training has diverged: vectors or loss are not finite, or the loss is beyond all bounds.
            SlotsError, WorkerError...: as ``ps.run`` raises.
        """
        check_room(self.recipe, self.longest, available_bytes())
        driver = _Driver(self)
        with ExitStack() as taken:
            taken.callback(driver.free)
            driver.go_on()
            fitted = driver.fitted() if driver.is_over else driver.run()
            if self.kept is not None and self.recipe.name:
                self.kept.push(taken.pop_all())
        return fitted


class _Driver:
    """The driver's half."""

    def __init__(self, training: Trainer) -> None:
        recipe = training.recipe
        self._training, self._names = training, CheckpointNames.of(recipe.name, training.ps, training.first)
        settings = {**asdict(recipe), "workers": training.workers}
        del settings["name"]
        self._journal = ReplayJournal.of(self._names, settings)
        self._record = Record(training.on_step, WORDS)
        self._threads = cores_each(training.ps.sparkContext, training.workers)
        servers, frequencies = len(training.ps.servers), training.frequencies
        seconds = self._journal.hear(
            lambda: choose(recipe, frequencies, servers, training.workers, self._threads).seconds
        )
        self._recipe, why = Choice(seconds).of(recipe)
        self._record.completed = f"all epochs were trained {why}"
        log.info("training %s", why)
        tokens = clock_tokens(self._recipe, training.workers)
        self._clocks = Clocks.of(self._recipe, training.workers, tokens, training.first)
        self._fleet = OnFleet.make(self._recipe, servers, self._names)
        self._reports: list[Float64s] = []  # of each clock, the sums of the workers'
        self._told: list[dict[str, float]] = []
        self._begin()

    def _begin(self) -> None:
        """Fill tables; those of a driver before have been, but may be cut among other servers now, without aliases."""
        fleet, training = self._fleet, self._training
        if not self._names.begun:
            fleet.vectors.fill(self._recipe.seed)
        if isinstance(fleet.vectors, Slices) and isinstance(fleet.contexts, Slices):
            draws = Draws.of(self._recipe, training.frequencies)
            put_aliases(fleet.vectors, fleet.contexts, draws.whole, draws.others)

    @property
    def is_over(self) -> bool:
        return len(self._told) >= self._recipe.epochs

    def go_on(self) -> None:
        """Come to where a driver before was, if there was one."""
        self._record.start()
        for clock in range(min(self._names.begun, self._clocks.count)):
            self.on_clock(clock, [])

    def run(self) -> Fitted:
        training, results = self._training, list[Fitted]()
        shared = training.ps.sparkContext.broadcast(training.frequencies)
        plan = Plan(self._recipe, self._clocks, self._fleet, self._threads)
        half = Half(plan, lambda: shared.value)
        training.ps.run(
            *(training.frame, half, training.workers, STALENESS),
            read=training.read,
            onClock=lambda clock, reports: self.on_clock(clock - training.first, reports),
            onEnd=lambda: results.append(self.fitted()),
            firstClock=training.first + self._names.begun,
            seed=self._recipe.seed,
        )
        return results[-1]

    def on_clock(self, clock: int, reports: Sequence[Float64s]) -> Message | None:
        """Go on after a clock; it may be one again, when the fleet has gone back."""
        record = self._record
        record.enter(clock)
        del self._told[len(record.seconds) :], self._reports[clock:]
        with self._journal.page(clock):
            # An earlier driver may have ended before it heard of the clocks that workers were ahead.
            heard: list[Any] = self._journal.hear(lambda: [reports[0] if reports else np.zeros(REPORTED), record.lap_s])
        sums, lap_s = heard
        self._reports.append(sums)
        if self._clocks.is_last(clock):
            self._end_epoch(clock, lap_s)
        return self._journal.message(opening=clock == 0)

    def _end_epoch(self, clock: int, lap_s: float) -> None:
        record = self._record
        sums = np.sum(self._reports[-self._clocks.each :], axis=0).tolist()
        loss = sums[LOSS] / sums[LOSSES] if sums[LOSSES] else math.nan
        if sums[LOSSES]:
            self._check(loss)
        record.bytes += int(sums[BYTES])
        self._told.append(
            {
                "pairs_per_s": sums[PAIRS] / lap_s,
                "words_per_s": sums[TOKENS] / lap_s,
                "step_size": self._recipe.rate(self._clocks.epoch(clock) + 1),
            }
        )
        if self._names.begun > clock:
            record.step_before(loss, lap_s)
        else:
            record.step(loss, self._told[-1])

    def fitted(self) -> Fitted:
        """Return what was learned."""
        fleet, keys, counts = self._fleet, None, None
        if self._recipe.keyed:
            keys, counts = fleet.counted()
            fleet = fleet.known(keys)
        contexts = None
        if fleet.contexts is not None and not self._recipe.shares_table:
            contexts = self._finite(fleet.contexts.pull())
        clocks = self._training.first + self._clocks.count
        return Fitted(self._finite(fleet.vectors.pull()), contexts, self._history(), clocks, keys, counts)

    def free(self) -> None:
        """Give all back that is on the servers."""
        self._fleet.free()

    def _check(self, loss: float) -> None:
        recipe = self._recipe
        if recipe.has_diverged(loss):
            raise self._diverged(
                f"epoch {len(self._told) + 1}: the loss is {loss:g}, where that of vectors of zeros is "
                f"{recipe.loss_of_zeros:.3g}"
            )

    def _finite(self, table: Float32s) -> Float32s:
        """Return a table that is one: NaN and infinity are the least, or the largest, of all numbers."""
        if not (math.isfinite(table.min()) and math.isfinite(table.max())):
            raise self._diverged("after the last epoch some vectors are not finite")
        return table

    def _diverged(self, what: str) -> PS2Error:
        return PS2Error(
            f"{what}: the training has diverged; a smaller stepSize than {self._recipe.step_size:g} may help"
        )

    def _history(self) -> TrainingHistory:
        names = self._told[0] if self._told else {}
        self._record.metrics = {name: tuple(told[name] for told in self._told) for name in names}
        return self._record.history()
