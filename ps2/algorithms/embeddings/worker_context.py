"""A worker's state in a training: sentences, progress, report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ps2.algorithms.embeddings.corpus import Batch, Sentences
from ps2.algorithms.embeddings.damping import ALL, ChangeDamping, UpdateRates
from ps2.algorithms.embeddings.sampling import SampledBatch, Sampler
from ps2.algorithms.embeddings.schedule import ClockReader, EpochSchedule, key_of
from ps2.algorithms.embeddings.settings import EmbeddingSettings
from ps2.algorithms.embeddings.tables import BYTES, REPORT_LENGTH, TOKENS, ServerTables, VectorTable
from ps2.array_types import Float32s, Float64s, Int64s
from ps2.cgroups import usable_cores


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """What all workers have in common; picklable.

    Attributes:
        settings: with a strategy that is not "auto".
        schedule: clocks of the training.
        tables: on the servers.
        threads: of each worker; it uses no more than its cores.
    """

    settings: EmbeddingSettings
    schedule: EpochSchedule
    tables: ServerTables
    threads: int

    def for_keys(self, keys: Int64s) -> TrainingPlan:
        """Return the plan of a worker with these keys as words."""
        return replace(self, settings=replace(self.settings, vocabulary=len(keys)), tables=self.tables.for_keys(keys))


class WorkerContext:
    """What the strategies share in a worker.

    Attributes:
        tables: on the servers.
        updates: expected updates of each word.
        threads: of this worker.
        workers: number of workers.
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
        self._report = np.zeros(REPORT_LENGTH)

    def clocks(self) -> Iterator[int]:
        """Yield clocks; report each at its end."""
        first = self._schedule.first
        for clock in self._worker.clocks(first + self._schedule.count):
            clock -= first
            self._report = np.zeros(REPORT_LENGTH)
            if clock == 0:
                self.tables.count(self._frequencies)
            yield clock
            self._worker.report(self._report)

    def batches(self, clock: int) -> Iterator[SampledBatch]:
        """Yield a clock's sampled batches."""
        for batch, key in self.sentences(clock):
            yield self.sampler.sample(batch, key, self.threads)

    def sentences(self, clock: int) -> Iterator[tuple[Batch, np.uint64]]:
        """Yield a clock's batches after subsampling, each with its random key."""
        for number, batch in self._reader.batches(clock):
            key = key_of(self.settings.seed, self._schedule.epoch(clock), self._worker.rank, number)
            yield self.sampler.subsample(batch, key), key
            self._report[TOKENS] += len(batch[0])

    def prefetch(self, table: VectorTable, words: Int64s) -> Any:
        """Prefetch rows of a table; they hold all changes that this worker made before."""
        return self._worker.prefetch(table.matrix, columns=table.columns(words), ahead=0)

    @property
    def rate(self) -> float:
        """The current step size, by this worker's own progress (as in gensim): the same when a clock is repeated."""
        return self.settings.rate(self._reader.progress)

    @property
    def clock_tokens(self) -> float:
        """Tokens of this worker in this clock."""
        return float(self._report[TOKENS])

    @property
    def epoch(self) -> int:
        """How often the fleet has rolled back."""
        return int(self._worker.epoch)

    def damp(self, changes: list[Float32s], tables: list[Float32s], tokens: float, words: Sequence[Any] = ALL) -> None:
        """Damp this worker's changes, in place, as all workers add theirs."""
        if self.workers > 1:
            self._damping.damp(changes, tables, tokens, self.rate, self.workers, words)

    def add_statistics(self, statistics: Float64s, moved: int = 0) -> None:
        """Add statistics of kernels, and bytes moved, to the report of this clock."""
        self._report[: len(statistics)] += statistics
        self._report[BYTES] += moved
