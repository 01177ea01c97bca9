"""A worker's state in a training: its clocks, sentences, progress and report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from ps2.algorithms.embeddings.damping import ALL, ChangeDamping, UpdateRates
from ps2.algorithms.embeddings.plan import EmbeddingPlan
from ps2.algorithms.embeddings.sampling import SampledBatch, Sampler
from ps2.algorithms.embeddings.sentences import Batch, Sentences
from ps2.algorithms.embeddings.tables import ServerTables, VectorTable
from ps2.algorithms.embeddings.training_kernels import LOSS, LOSSES, PAIRS
from ps2.array_types import Float32s, Float64s, Int64s
from ps2.cgroups import usable_cores

# The minimum tokens of a worker in a clock; the maximum bytes of tables exchanged for each of them.
CLOCK_TOKENS, TOKEN_BYTES = 20_000, 500
# A single worker's clocks are longer by this factor: only checkpoints need its changes.
ONLY_WORKER_FACTOR = 10
# The minimum clocks of a training; workers see each other's changes between clocks.
MIN_CLOCKS = 10


@dataclass(frozen=True)
class EpochSchedule:
    """The clocks of a training, which begins with the run's clock ``first``."""

    epochs: int
    clocks_per_epoch: int
    first: int = 0

    @staticmethod
    def from_plan(plan: EmbeddingPlan, workers: int, tokens: int, first: int = 0) -> EpochSchedule:
        """Return the clocks in which a worker handles about ``tokens`` tokens."""
        own = plan.total * plan.tokens_per_example / workers
        each = max(-(-own // tokens), -(-MIN_CLOCKS // plan.settings.maxIter))
        return EpochSchedule(plan.settings.maxIter, int(min(each, own)) or 1, first)

    @property
    def count(self) -> int:
        return self.epochs * self.clocks_per_epoch

    def epoch(self, clock: int) -> int:
        return clock // self.clocks_per_epoch


class ClockReader:
    """Reads a worker's batches clock by clock, or from any clock on; ``progress``: the epochs before the current batch.

    A batch belongs to the clock that follows from the share of the worker's tokens before it in the epoch. To begin in
    the middle of an epoch, the reader makes its sentences from the beginning.
    """

    def __init__(self, sentences: Sentences, schedule: EpochSchedule) -> None:
        self._sentences, self._schedule = sentences, schedule
        self._next, self._before, self._number, self.progress = -1, 0, 0, 0.0
        self._batches: Iterator[Batch] = iter(())

    def batches(self, clock: int) -> Iterator[tuple[int, Batch]]:
        """Yield the batches of a clock with their numbers in the epoch."""
        turn, each = clock % self._schedule.clocks_per_epoch, self._schedule.clocks_per_epoch
        if clock != self._next or not turn:
            self._batches = iter(self._sentences.batches(self._schedule.epoch(clock)))
            self._before = self._number = 0
        self._next = -1
        whole = max(self._sentences.tokens, 1)
        for batch in self._batches:
            own_turn = min(self._before * each // whole, each - 1)
            if own_turn > turn:
                self._batches = chain([batch], self._batches)
                break
            number = self._number
            self.progress = self._schedule.epoch(clock) + min(self._before / whole, 1.0)
            self._number += 1
            self._before += len(batch[0])
            if own_turn == turn:
                yield number, batch
        self._next = clock + 1


def clock_tokens(plan: EmbeddingPlan, workers: int) -> int:
    """Return the tokens of a worker in a clock, so that exchanging tables takes little time in comparison."""
    exchanged = plan.tables * plan.table_bytes if plan.settings.via == "local" else 0
    return max(CLOCK_TOKENS, exchanged // TOKEN_BYTES) * (ONLY_WORKER_FACTOR if workers == 1 else 1)


def key_of(seed: int, epoch: int, rank: int, number: int) -> np.uint64:
    """Return the random key of a batch."""
    key: Any = np.random.SeedSequence([seed % 2**64, epoch, rank, number]).generate_state(1, np.uint64)[0]
    return np.uint64(key)


@dataclass(frozen=True, eq=False)
class WorkerSetup:
    """The common part of all workers; picklable. The plan has a strategy; a worker uses no more threads than its
    cores."""

    plan: EmbeddingPlan
    schedule: EpochSchedule
    tables: ServerTables
    threads: int

    def for_keys(self, keys: Int64s) -> WorkerSetup:
        """Return the setup of a worker with these keys as words."""
        return replace(self, plan=replace(self.plan, vocabulary=len(keys)), tables=self.tables.for_keys(keys))


@dataclass
class ClockReport:
    """The work of workers in a clock, or in several: the summed loss of some pairs of a prediction and its negatives,
    the number of these (``losses``) and of all pairs, and the bytes moved to and from the servers."""

    loss: float = 0.0
    losses: float = 0.0
    pairs: float = 0.0
    tokens: float = 0.0
    bytes: float = 0.0

    @property
    def mean_loss(self) -> float:
        """The mean loss; NaN without any losses."""
        return self.loss / self.losses if self.losses else math.nan

    def add(self, report: Any) -> None:
        """Add another report, or an object with the same attributes."""
        for name, value in vars(report).items():
            setattr(self, name, getattr(self, name) + value)

    def add_statistics(self, statistics: Float64s) -> None:
        """Add statistics of ``training_kernels``."""
        self.loss += float(statistics[LOSS])
        self.losses += float(statistics[LOSSES])
        self.pairs += float(statistics[PAIRS])


class WorkerContext:
    """The part of a worker that all strategies share: its sentences, sampler, expected updates, threads and current
    report."""

    def __init__(self, worker: Any, setup: WorkerSetup, sentences: Sentences, frequencies: Int64s) -> None:
        plan = self.plan = setup.plan
        self.tables, self.workers = setup.tables, worker.workers
        self.threads = min(setup.threads, usable_cores())
        self._worker, self._schedule = worker, setup.schedule
        self._reader = ClockReader(sentences, setup.schedule)
        self.sampler = Sampler.from_frequencies(plan, frequencies)
        self.updates = UpdateRates.from_frequencies(plan, frequencies, self.sampler.chances)
        self._damping = ChangeDamping(plan, self.updates)
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
            key = key_of(self.plan.seed, self._schedule.epoch(clock), self._worker.rank, number)
            yield self.sampler.subsample(batch, key), key
            self.report.tokens += len(batch[0])

    def prefetch(self, table: VectorTable, words: Int64s) -> Any:
        """Prefetch rows of a table; they hold all changes that this worker made before."""
        return self._worker.prefetch(table.matrix, columns=table.columns(words), ahead=0)

    @property
    def rate(self) -> float:
        """The current step size, by this worker's own progress (as in gensim): the same when a clock is repeated."""
        return self.plan.rate(self._reader.progress)

    @property
    def epoch(self) -> int:
        """The number of the fleet's rollbacks."""
        return int(self._worker.epoch)

    def damp(self, changes: list[Float32s], tables: list[Float32s], tokens: float, words: Sequence[Any] = ALL) -> None:
        """Damp this worker's changes, in place, as all workers add theirs."""
        if self.workers > 1:
            self._damping.damp(changes, tables, tokens, self.rate, self.workers, words)
