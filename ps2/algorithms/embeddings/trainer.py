"""Train embeddings: the run, and the driver's work between its clocks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ps2.algorithms.embeddings.footprint import check_memory
from ps2.algorithms.embeddings.program import EmbeddingProgram, Read
from ps2.algorithms.embeddings.sampling import Sampler
from ps2.algorithms.embeddings.schedule import EpochSchedule, clock_tokens
from ps2.algorithms.embeddings.settings import EmbeddingSettings, FittedEmbeddings
from ps2.algorithms.embeddings.sliced_table import SlicedTable, put_aliases
from ps2.algorithms.embeddings.strategy import StrategyChoice, choose
from ps2.algorithms.embeddings.tables import BYTES, REPORT_LENGTH, STALENESS, TOKENS, ServerTables
from ps2.algorithms.embeddings.training_kernels import LOSS, LOSSES, PAIRS
from ps2.algorithms.embeddings.worker_context import TrainingPlan
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.placement import Placement, Via
from ps2.algorithms.training.record import Record, StepReport, TrainingHistory, Words
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.array_types import Float32s, Float64s, Int64s
from ps2.coordinator.training_host import training_host
from ps2.errors import PS2Error
from ps2.run.message import Message
from ps2.run.slots import cores_each
from ps2.server.memory import available_bytes

log = logging.getLogger(__name__)

WORDS = Words("epoch", "loss")


@dataclass(frozen=True)
class OnlyWorker:
    """The only worker, in whose process the training is, with servers of its own.

    Attributes:
        threads: that it trains with.
        why: the reason.
    """

    threads: int
    why: str


@dataclass(frozen=True, eq=False)
class Trainer:
    """One training.

    Attributes:
        ps: the PS2Context.
        frame: DataFrame or RDD of the rows.
        read: called in each worker with the worker and its rows; returns sentences.
        frequencies: int64, shape (vocabulary,): occurrences of each word; with edges, as a target.
        workers: number of workers.
        on_step: called in the driver after each epoch.
        first: the run's clock with which this training begins; earlier trainings have those before.
        kept: if the training has a name, frees the tables when it closes, so that checkpoints keep them for a driver
            that continues with the next training; None: the tables are freed at the end.
        longest: maximum words of a sentence.
        alone: of a training in the only worker's process; None: it is in the driver.
    """

    ps: Any
    frame: Any
    read: Read
    settings: EmbeddingSettings
    frequencies: Int64s
    workers: int
    on_step: Callable[[StepReport], None] = lambda step: None
    first: int = 0
    kept: ExitStack | None = None
    longest: int = 1
    alone: OnlyWorker | None = None

    def fit(self) -> FittedEmbeddings:
        """Train with both tables on the servers, or continue in a restored context.

        Raises:
            LimitError: the tables, or a worker's batch, do not fit.
            NotFoundError, ConfigError: the restored checkpoint has no training of this name, or a different one.
            PS2Error: the training has diverged: the vectors or the loss are not finite, or the loss is too large.
            SlotsError, WorkerError...: as ``ps.run`` raises.
        """
        check_memory(self.settings, self.longest, available_bytes())
        driver = _Driver(self)
        with ExitStack() as taken:
            taken.callback(driver.free)
            driver.go_on()
            fitted = driver.fitted() if driver.is_over else driver.run()
            if self.kept is not None and self.settings.name:
                self.kept.push(taken.pop_all())
        return fitted


class _Driver:
    """The driver's part of a training."""

    def __init__(self, training: Trainer) -> None:
        settings = training.settings
        self._training, self._names = training, CheckpointNames.of(settings.name, training.ps, training.first)
        compared = {**asdict(settings), "workers": training.workers}
        del compared["name"]
        self._journal = ReplayJournal.of(self._names, compared)
        self._record = Record(training.on_step, WORDS)
        alone = training.alone
        self._threads = alone.threads if alone else cores_each(training_host(training.ps).spark(), training.workers)
        servers, frequencies = len(training.ps.servers), training.frequencies
        hosts = [address.rpartition(":")[0] for address in training.ps.servers]
        seconds = self._journal.hear(
            lambda: choose(settings, frequencies, servers, training.workers, self._threads, hosts).seconds
        )
        self._settings, why = StrategyChoice(seconds).of(settings)
        self._placement = Placement(training.workers, self._threads, _way(self._settings), alone.why if alone else why)
        self._record.completed = f"all epochs were trained by {self._settings.via!r}, {self._placement.reason}"
        log.info("training %s", self._placement)
        tokens = clock_tokens(self._settings, training.workers)
        self._schedule = EpochSchedule.of(self._settings, training.workers, tokens, training.first)
        self._tables = ServerTables.make(self._settings, servers, self._names)
        self._reports: list[Float64s] = []  # of each clock, the sums of the workers'
        self._metrics: list[dict[str, float]] = []
        self._begin()

    def _begin(self) -> None:
        """Initialize the tables. An earlier driver's are initialized, but a repartitioned one has no alias table."""
        tables, training = self._tables, self._training
        if not self._names.begun:
            tables.vectors.fill(self._settings.seed)
        if isinstance(tables.vectors, SlicedTable) and isinstance(tables.contexts, SlicedTable):
            sampler = Sampler.of(self._settings, training.frequencies)
            put_aliases(tables.vectors, tables.contexts, sampler.thresholds, sampler.aliases)

    @property
    def is_over(self) -> bool:
        return len(self._metrics) >= self._settings.epochs

    def go_on(self) -> None:
        """Replay what an earlier driver heard, if there was one."""
        self._record.start()
        for clock in range(min(self._names.called, self._schedule.count)):
            self.on_clock(clock, [])

    def run(self) -> FittedEmbeddings:
        training, results = self._training, list[FittedEmbeddings]()
        share = self._shared()
        plan = TrainingPlan(self._settings, self._schedule, self._tables, self._threads)
        program = EmbeddingProgram(plan, share)
        training.ps.run(
            *(training.frame, program, training.workers, STALENESS),
            read=training.read,
            onClock=lambda clock, reports: self.on_clock(clock - training.first, reports),
            onEnd=lambda: results.append(self.fitted()),
            firstClock=training.first + self._names.begun,
            seed=self._settings.seed,
        )
        return results[-1]

    def _shared(self) -> Callable[[], Int64s]:
        """Return a function that gives workers the frequencies."""
        training = self._training
        if training.alone is not None:
            return lambda: training.frequencies
        shared = training_host(training.ps).spark().broadcast(training.frequencies)
        return lambda: shared.value

    def on_clock(self, clock: int, reports: Sequence[Float64s]) -> Message | None:
        """Note a finished clock; it comes again if the fleet rolled back."""
        record = self._record
        record.enter(clock)
        del self._metrics[len(record.seconds) :], self._reports[clock:]
        with self._journal.page(clock):
            # A checkpoint made by hand within a call lacks what that call heard.
            heard: list[Any] = self._journal.hear(
                lambda: [reports[0] if reports else np.zeros(REPORT_LENGTH), record.lap_s]
            )
        sums, lap_s = heard
        self._reports.append(sums)
        if self._schedule.is_last(clock):
            self._end_epoch(clock, lap_s)
        return self._journal.message(opening=clock == 0)

    def _end_epoch(self, clock: int, lap_s: float) -> None:
        record = self._record
        sums = np.sum(self._reports[-self._schedule.clocks_per_epoch :], axis=0).tolist()
        loss = sums[LOSS] / sums[LOSSES] if sums[LOSSES] else math.nan
        if sums[LOSSES]:
            self._check(loss)
        loss = record.known(loss)
        record.bytes += int(sums[BYTES])
        self._metrics.append(
            {
                "pairs_per_s": sums[PAIRS] / lap_s,
                "words_per_s": sums[TOKENS] / lap_s,
                "step_size": self._settings.rate(self._schedule.epoch(clock) + 1),
            }
        )
        if self._names.called > clock:
            record.step_before(loss, lap_s)
        else:
            record.step(loss, self._metrics[-1])

    def fitted(self) -> FittedEmbeddings:
        """Return the result."""
        tables, keys, counts = self._tables, None, None
        if self._settings.keyed:
            keys, counts = tables.counted()
            tables = tables.for_keys(keys)
        contexts = None
        if tables.contexts is not None and not self._settings.shares_table:
            contexts = self._finite(tables.contexts.pull())
        clocks = self._training.first + self._schedule.count
        return FittedEmbeddings(self._finite(tables.vectors.pull()), contexts, self._history(), clocks, keys, counts)

    def free(self) -> None:
        """Free everything on the servers."""
        self._tables.free()

    def _check(self, loss: float) -> None:
        settings = self._settings
        if settings.has_diverged(loss):
            raise self._diverged(
                f"epoch {len(self._metrics) + 1}: the loss is {loss:g}, where that of vectors of zeros is "
                f"{settings.zero_vectors_loss:.3g}"
            )

    def _finite(self, table: Float32s) -> Float32s:
        """Return a finite table, else raise: its minimum or maximum shows NaN and infinity."""
        if not (math.isfinite(table.min()) and math.isfinite(table.max())):
            raise self._diverged("after the last epoch some vectors are not finite")
        return table

    def _diverged(self, what: str) -> PS2Error:
        return PS2Error(
            f"{what}: the training has diverged; a smaller stepSize than {self._settings.step_size:g} may help"
        )

    def _history(self) -> TrainingHistory:
        names = self._metrics[0] if self._metrics else {}
        self._record.metrics = {name: tuple(step[name] for step in self._metrics) for name in names}
        return replace(self._record.history(), placement=self._placement)


def _way(settings: EmbeddingSettings) -> Via:
    """Return the chosen strategy."""
    assert settings.via != "auto"
    return settings.via
