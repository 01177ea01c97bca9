"""A worker's state in a training: sentences, progress, report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ps2.algorithms.embeddings.corpus import Batch, Sentences
from ps2.algorithms.embeddings.damping import ALL, ChangeDamping, UpdateRates
from ps2.algorithms.embeddings.sampling import SampledBatch, Sampler
from ps2.algorithms.embeddings.schedule import ClockReader, EpochSchedule, key_of
from ps2.algorithms.embeddings.settings import EmbeddingSettings
from ps2.algorithms.embeddings.tables import ServerTables, VectorTable
from ps2.algorithms.embeddings.training_kernels import LOSS, LOSSES, PAIRS
from ps2.array_types import Float32s, Float64s, Int64s
from ps2.cgroups import usable_cores


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """What all workers have in common; picklable.

    Attributes:
        settings: the settings, with a strategy that is not "auto".
        schedule: clocks of the training.
        tables: the tables on the servers.
        threads: number of threads of each worker; it uses no more than its cores.
    """

    settings: EmbeddingSettings
    schedule: EpochSchedule
    tables: ServerTables
    threads: int

    def for_keys(self, keys: Int64s) -> TrainingPlan:
        """Return the plan of a worker with these keys as words."""
        return replace(self, settings=replace(self.settings, vocabulary=len(keys)), tables=self.tables.for_keys(keys))


@dataclass
class ClockReport:
    """What workers did in a clock, or in several.

    Attributes:
        loss: sum of the losses of some pairs: of a prediction and its negatives.
        losses: number of these pairs.
        pairs: number of pairs.
        tokens: number of tokens.
        bytes: bytes moved to and from the servers.
    """

    loss: float = 0.0
    losses: float = 0.0
    pairs: float = 0.0
    tokens: float = 0.0
    bytes: float = 0.0

    @property
    def mean_loss(self) -> float:
        """Mean loss; NaN: there is none."""
        return self.loss / self.losses if self.losses else math.nan

    def add(self, report: Any) -> None:
        """Add what has the same attributes."""
        for name, value in vars(report).items():
            setattr(self, name, getattr(self, name) + value)

    def add_statistics(self, statistics: Float64s) -> None:
        """Add statistics of ``training_kernels``."""
        self.loss += float(statistics[LOSS])
        self.losses += float(statistics[LOSSES])
        self.pairs += float(statistics[PAIRS])


class WorkerContext:
    """What the strategies share in a worker.

    Attributes:
        tables: the tables on the servers.
        updates: expected updates of each word.
        threads: number of threads of this worker.
        workers: number of workers.
        report: the report on the current clock.
    """

    def __init__(self, worker: Any, plan: TrainingPlan, sentences: Sentences, frequencies: Int64s) -> None:
        self.settings, self.tables, self.workers = plan.settings, plan.tables, worker.workers
        self.threads = min(plan.threads, usable_cores())
        self._worker, self._schedule = worker, plan.schedule
        self._reader = ClockReader(sentences, plan.schedule)
        self.sampler = Sampler.of(plan.settings, frequencies)
        self.updates = UpdateRates.of(plan.settings, frequencies, self.sampler.chances)
        self._damping = ChangeDamping(plan.settings, self.updates)
        self._frequencies = frequencies
        self.report = ClockReport()

    def clocks(self) -> Iterator[int]:
        """Yield clocks; report each at its end."""
        first = self._schedule.first
        for clock in self._worker.clocks(first + self._schedule.count):
            clock -= first
            self.report = ClockReport()
            if clock == 0:
                self.tables.count(self._frequencies)
            yield clock
            self._worker.report(asdict(self.report))

    def batches(self, clock: int) -> Iterator[SampledBatch]:
        """Yield a clock's sampled batches."""
        for batch, key in self.sentences(clock):
            yield self.sampler.sample(batch, key, self.threads)

    def sentences(self, clock: int) -> Iterator[tuple[Batch, np.uint64]]:
        """Yield a clock's batches after subsampling, each with its random key."""
        for number, batch in self._reader.batches(clock):
            key = key_of(self.settings.seed, self._schedule.epoch(clock), self._worker.rank, number)
            yield self.sampler.subsample(batch, key), key
            self.report.tokens += len(batch[0])

    def prefetch(self, table: VectorTable, words: Int64s) -> Any:
        """Prefetch rows of a table; they hold all changes that this worker made before."""
        return self._worker.prefetch(table.matrix, columns=table.columns(words), ahead=0)

    @property
    def rate(self) -> float:
        """The current step size, by this worker's own progress (as in gensim): the same when a clock is repeated."""
        return self.settings.rate(self._reader.progress)

    @property
    def epoch(self) -> int:
        """How often the fleet has rolled back."""
        return int(self._worker.epoch)

    def damp(self, changes: list[Float32s], tables: list[Float32s], tokens: float, words: Sequence[Any] = ALL) -> None:
        """Damp this worker's changes, in place, as all workers add theirs."""
        if self.workers > 1:
            self._damping.damp(changes, tables, tokens, self.rate, self.workers, words)
