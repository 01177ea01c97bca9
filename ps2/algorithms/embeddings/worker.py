"""A worker in a training: its clocks, batches and reports, and the loops of the strategies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.batch_kernels import add_batch_losses
from ps2.algorithms.embeddings.damping import ALL, ChangeDamping, UpdateRates
from ps2.algorithms.embeddings.plan import EmbeddingPlan
from ps2.algorithms.embeddings.sampling import SampledBatch, Sampler, kind_of
from ps2.algorithms.embeddings.sampling_kernels import index_words, list_distinct
from ps2.algorithms.embeddings.sentences import BATCH_TOKENS, Batch, Sentences, split
from ps2.algorithms.embeddings.tables import ServerTables, SlicedTable, VectorTable
from ps2.algorithms.embeddings.training_kernels import LOSS, LOSS_INTERVAL, LOSSES, PAIRS, STATISTICS
from ps2.array_types import Float32s, Float64s, Int32s, Int64s
from ps2.cgroups import usable_cores
from ps2.ops.guards import readable

# The minimum number of tokens of a worker in a clock, and the maximum bytes of tables that "local" sends per token.
CLOCK_TOKENS, TOKEN_BYTES = 20_000, 500
# A single worker's clocks have more tokens by this factor, because no other worker waits for its changes.
ONLY_WORKER_FACTOR = 10
# The minimum number of clocks of a training. Workers get each other's changes after a clock.
MIN_CLOCKS = 10
# The maximum bytes of a minibatch's rows in a table, and of the dot products of a request.
MAX_ROW_BYTES, MAX_PRODUCT_BYTES = 64 << 20, 8 << 20
# Limits of a minibatch that takes two requests, because its dot products are computed before its updates: the number of
# tokens, and the number of updates of the most frequent word, times the step size. ``batch_kernels`` would scale more
# updates down. MIN_UPDATES avoids a division by 0.
MINIBATCH_TOKENS, MAX_UPDATES, MIN_UPDATES = 1_000, 10.0, 1e-9
# The difference between the random keys of consecutive minibatches of a batch.
NEXT_MINIBATCH = np.uint64(0xD1342543DE82EF95)


@dataclass(frozen=True)
class EpochSchedule:
    """The clocks of a training; its first clock is the run's clock ``first``."""

    epochs: int
    clocks_per_epoch: int
    first: int = 0

    @staticmethod
    def from_plan(plan: EmbeddingPlan, workers: int, tokens: int, first: int = 0) -> EpochSchedule:
        """Return the schedule with about ``tokens`` tokens per worker and clock."""
        worker_tokens = plan.total * plan.tokens_per_example / workers
        clocks = max(-(-worker_tokens // tokens), -(-MIN_CLOCKS // plan.settings.maxIter))
        return EpochSchedule(plan.settings.maxIter, int(min(clocks, worker_tokens)) or 1, first)

    @property
    def count(self) -> int:
        """The number of clocks."""
        return self.epochs * self.clocks_per_epoch

    def epoch(self, clock: int) -> int:
        return clock // self.clocks_per_epoch


class ClockReader:
    """Reads a worker's batches clock by clock, from any clock on.

    The fraction of the epoch's tokens that come before a batch determines its clock. To start in the middle of an
    epoch, the reader skips the batches of earlier clocks. ``progress`` is the number of epochs before the current
    batch, including a fraction.
    """

    def __init__(self, sentences: Sentences, schedule: EpochSchedule) -> None:
        self._sentences, self._schedule = sentences, schedule
        self._next_clock, self._tokens_before, self._batch_index, self.progress = -1, 0, 0, 0.0
        self._batches: Iterator[Batch] = iter(())

    def batches(self, clock: int) -> Iterator[tuple[int, Batch]]:
        """Yield the batches of a clock with their indices in the epoch."""
        clocks, epoch, tokens = self._schedule.clocks_per_epoch, self._schedule.epoch(clock), self._sentences.tokens
        clock_in_epoch, tokens = clock % clocks, max(tokens, 1)
        if clock != self._next_clock or not clock_in_epoch:
            self._batches = iter(self._sentences.batches(epoch))
            self._tokens_before = self._batch_index = 0
        self._next_clock = -1
        for batch in self._batches:
            batch_clock = min(self._tokens_before * clocks // tokens, clocks - 1)
            if batch_clock > clock_in_epoch:
                self._batches = itertools.chain([batch], self._batches)
                break
            index = self._batch_index
            self.progress = epoch + min(self._tokens_before / tokens, 1.0)
            self._batch_index += 1
            self._tokens_before += len(batch[0])
            if batch_clock == clock_in_epoch:
                yield index, batch
        self._next_clock = clock + 1


def clock_tokens(plan: EmbeddingPlan, workers: int) -> int:
    """Return the number of tokens of a worker in a clock: so many that sending tables takes little time."""
    exchanged = plan.tables * plan.table_bytes if plan.settings.via == "local" else 0
    return max(CLOCK_TOKENS, exchanged // TOKEN_BYTES) * (ONLY_WORKER_FACTOR if workers == 1 else 1)


def key_of(seed: int, epoch: int, rank: int, batch_index: int) -> np.uint64:
    """Return the random key of a worker's batch in an epoch."""
    key: Any = np.random.SeedSequence([seed % 2**64, epoch, rank, batch_index]).generate_state(1, np.uint64)[0]
    return np.uint64(key)


@dataclass(frozen=True, eq=False)
class WorkerSetup:
    """What all workers need; picklable. ``plan`` names a strategy; a worker uses at most ``threads`` threads."""

    plan: EmbeddingPlan
    schedule: EpochSchedule
    tables: ServerTables
    threads: int

    def for_keys(self, keys: Int64s) -> WorkerSetup:
        """Return the setup of a worker whose words are these keys."""
        return replace(self, plan=replace(self.plan, vocabulary=len(keys)), tables=self.tables.for_keys(keys))


@dataclass
class ClockReport:
    """The statistics of workers in some clocks.

    ``loss`` is the sum over a sample of ``losses`` of all ``pairs`` inputs; see ``training_kernels``. ``tokens`` are
    counted before subsampling. ``bytes`` were sent to and from the servers.
    """

    loss: float = 0.0
    losses: float = 0.0
    pairs: float = 0.0
    tokens: float = 0.0
    bytes: float = 0.0

    @property
    def mean_loss(self) -> float:
        """The mean loss of an input; NaN without losses."""
        return self.loss / self.losses if self.losses else math.nan

    def add(self, report: Any) -> None:
        """Add the attributes of another report, or of an object with the same attributes."""
        for name, value in vars(report).items():
            setattr(self, name, getattr(self, name) + value)

    def add_statistics(self, statistics: Float64s) -> None:
        """Add statistics of ``training_kernels``."""
        self.loss += float(statistics[LOSS])
        self.losses += float(statistics[LOSSES])
        self.pairs += float(statistics[PAIRS])


class WorkerContext:
    """What all strategies need in a worker: tables, sentences, the sampler, and the report of the current clock."""

    def __init__(self, worker: Any, setup: WorkerSetup, sentences: Sentences, frequencies: Int64s) -> None:
        plan = self.plan = setup.plan
        self.tables, self.workers = setup.tables, worker.workers
        self.threads = min(setup.threads, usable_cores())
        self._worker, self._schedule = worker, setup.schedule
        self._reader = ClockReader(sentences, setup.schedule)
        self.sampler = Sampler.from_frequencies(plan, frequencies)
        self.updates = UpdateRates.from_frequencies(plan, frequencies, self.sampler.negative_probabilities)
        self._damping = ChangeDamping(plan, self.updates)
        self._frequencies = frequencies
        self.report = ClockReport()

    def clocks(self) -> Iterator[int]:
        """Yield the training's clocks from 0 on; send ``report`` at the end of each clock."""
        first = self._schedule.first
        for clock in self._worker.clocks(first + self._schedule.count):
            clock -= first
            self.report = ClockReport()
            if clock == 0:
                self.tables.count_keys(self._frequencies)
            yield clock
            self._worker.report(asdict(self.report))

    def batches(self, clock: int) -> Iterator[SampledBatch]:
        """Yield a clock's sampled batches."""
        for batch, key in self.sentences(clock):
            yield self.sampler.sample(batch, key, self.threads)

    def sentences(self, clock: int) -> Iterator[tuple[Batch, np.uint64]]:
        """Yield a clock's batches after subsampling, each with its random key."""
        for index, batch in self._reader.batches(clock):
            key = key_of(self.plan.seed, self._schedule.epoch(clock), self._worker.rank, index)
            yield self.sampler.subsample(batch, key), key
            self.report.tokens += len(batch[0])

    def prefetch(self, table: VectorTable, words: Int64s) -> Any:
        """Request vectors of a table in the background. They include all earlier changes of this worker."""
        return self._worker.prefetch(table.matrix, columns=table.columns(words), ahead=0)

    @property
    def rate(self) -> float:
        """The current step size: like gensim's, it depends on this worker's progress only."""
        return self.plan.rate(self._reader.progress)

    @property
    def epoch(self) -> int:
        """The number of rollbacks of the fleet."""
        return int(self._worker.epoch)

    def damp(self, changes: list[Float32s], tables: list[Float32s], tokens: float, words: Sequence[Any] = ALL) -> None:
        """Damp this worker's changes, in place, if there are several workers; see ``ChangeDamping.damp``."""
        if self.workers > 1:
            self._damping.damp(changes, tables, tokens, self.rate, self.workers, words)


def train_local(context: WorkerContext) -> None:
    """Train in all clocks: pull the tables, train them, and add the changes on the servers.

    A single worker pulls the tables only at the start, and after a rollback of the fleet.
    """
    copies: list[_Copy] = []
    epoch = -1
    for clock in context.clocks():
        if not copies:
            copies = [_Copy(table) for table in _vector_tables(context)]
        if context.workers > 1 or context.epoch != epoch:
            context.report.bytes += sum(copy.pull() for copy in copies)
            epoch = context.epoch
        vectors, contexts = copies[0].values, copies[-1].values
        for batch in context.batches(clock):
            context.report.add_statistics(batch.train(vectors, contexts, context.rate, context.threads))
        changes = [copy.changes() for copy in copies]
        context.damp(changes, [copy.values for copy in copies], context.report.tokens)
        context.report.bytes += sum(copy.add(change) for copy, change in zip(copies, changes, strict=True))


class _Copy:
    """A worker's copy of a table; ``values`` are trained in place."""

    def __init__(self, table: VectorTable) -> None:
        self._table = table
        self.values: Float32s = np.empty((table.matrix.dim, table.matrix.rows), np.float32)
        self._before = np.empty_like(self.values)

    def pull(self) -> int:
        """Pull the table; return the bytes received."""
        self._table.pull(out=self.values)
        self._before[:] = self.values
        return self.values.nbytes

    def changes(self) -> Float32s:
        """Return the changes since the last ``pull`` or ``add``. The next ``pull`` or ``add`` overwrites the array."""
        np.subtract(self.values, self._before, out=self._before)
        return self._before

    def add(self, changes: Float32s) -> int:
        """Add changes to the table on the servers; return the bytes sent."""
        words = np.flatnonzero(changes.any(axis=1))
        rows = changes[words]
        self._table.add(words, rows)
        self._before[:] = self.values
        return rows.nbytes


@dataclass(frozen=True, eq=False)
class PrefetchedMinibatch:
    """A minibatch with rows of the pulled arrays instead of words; for each table, the words, and a future of rows."""

    batch: SampledBatch
    words: tuple[Int64s, ...]
    rows: tuple[Any, ...]


def train_rows(context: WorkerContext) -> None:
    """Train in all clocks, minibatch by minibatch; the next minibatch's rows are pulled at the same time."""
    tables, numbering = _vector_tables(context), RowNumbering(context.plan)
    for clock in context.clocks():
        previous = None
        for batch in context.batches(clock):
            for minibatch in batch.minibatches(minibatch_groups(context.plan)):
                renumbered, words = numbering.renumber(minibatch)
                rows = tuple(itertools.starmap(context.prefetch, zip(tables, words, strict=True)))
                if previous is not None:
                    _train_minibatch(context, tables, previous)
                previous = PrefetchedMinibatch(renumbered, words, rows)
        if previous is not None:
            _train_minibatch(context, tables, previous)


def minibatch_groups(plan: EmbeddingPlan) -> int:
    """Return the maximum number of words (or edges) of a minibatch, by ``MAX_ROW_BYTES``."""
    return max(1, MAX_ROW_BYTES // (4 * plan.size * (1 + plan.settings.negative)))


def batch_tokens(plan: EmbeddingPlan) -> int:
    """Return the number of tokens whose rows "rows" pulls at once."""
    return min(BATCH_TOKENS, minibatch_groups(plan) * plan.tokens_per_example)


def _vector_tables(context: WorkerContext) -> list[VectorTable]:
    return [table for table in (context.tables.vectors, context.tables.contexts) if isinstance(table, VectorTable)]


def _train_minibatch(context: WorkerContext, tables: list[VectorTable], minibatch: PrefetchedMinibatch) -> None:
    rows: list[Float32s] = [
        table.to_vectors(words, future.result())
        for table, words, future in zip(tables, minibatch.words, minibatch.rows, strict=True)
    ]
    before = [table_rows.copy() for table_rows in rows]
    tokens = len(minibatch.batch.tokens)
    context.report.add_statistics(minibatch.batch.train(rows[0], rows[-1], context.rate, context.threads))
    changes = [np.subtract(new, old, out=old) for new, old in zip(rows, before, strict=True)]
    context.damp(changes, rows, tokens, minibatch.words)
    for table, words, change in zip(tables, minibatch.words, changes, strict=True):
        table.add(words, change)
        context.report.bytes += 2 * change.nbytes


class RowNumbering:
    """Replaces the words of a minibatch by rows of the arrays that are pulled for the minibatch."""

    def __init__(self, plan: EmbeddingPlan) -> None:
        self._plan = plan
        self._cells = np.full(plan.vocabulary, -1, np.int32)

    def renumber(self, batch: SampledBatch) -> tuple[SampledBatch, tuple[Int64s, ...]]:
        """Return the minibatch with rows instead of words, and for each table the words of its rows, ascending."""
        plan, tokens, negatives = self._plan, batch.tokens, batch.negatives
        inputs, outputs = tokens, tokens
        if plan.architecture == "edges":
            inputs, outputs = tokens[::2], tokens[1::2]
        if plan.shares_table:
            inputs = outputs = tokens
        words = np.concatenate([outputs, negatives.reshape(-1)])
        context_words, rows = self._index(words)
        targets, negative_rows = rows[: len(outputs)], rows[len(outputs) :].reshape(negatives.shape)
        if plan.shares_table:
            return batch.with_rows(targets, targets, negative_rows), (context_words,)
        vector_words, input_rows = self._index(inputs)
        if plan.architecture == "edges":
            input_rows, targets = np.repeat(input_rows, 2), np.repeat(targets, 2)
        return batch.with_rows(input_rows, targets, negative_rows), (vector_words, context_words)

    def _index(self, words: Int32s) -> tuple[Int64s, Int32s]:
        """Return the distinct words, ascending, and the index of each word among them."""
        words = readable(words)
        distinct = np.empty(len(words), np.int32)
        distinct = np.sort(distinct[: list_distinct(words, self._cells, distinct)])
        indices = np.empty(len(words), np.int32)
        index_words(words, distinct, self._cells, indices)
        return distinct.astype(np.int64), indices


def train_servers(context: WorkerContext) -> None:
    """Train in all clocks, in one request per minibatch if one server has all columns, else in two requests."""
    vectors, contexts = context.tables.vectors, context.tables.contexts
    assert isinstance(vectors, SlicedTable)
    assert isinstance(contexts, SlicedTable)
    limit = minibatch_tokens(context.plan, context.updates.max_per_token * context.workers, vectors.num_slices)
    train = _train_at_once if vectors.num_slices == 1 else _train_by_products
    for clock in context.clocks():
        for batch, key in context.sentences(clock):
            for tokens, offsets, minibatch_key in _minibatches(batch, key, limit):
                arguments = arguments_of(context.plan, tokens, offsets, minibatch_key)
                train(context, vectors, {"contexts": contexts.matrix, **arguments})


def minibatch_tokens(plan: EmbeddingPlan, updates: float, num_slices: int) -> int:
    """Return the tokens of a minibatch; ``updates``: of the most frequent word if each worker trains one token."""
    limit = MAX_PRODUCT_BYTES / (4 * plan.inputs_per_token * (1 + plan.settings.negative))
    if num_slices > 1:
        limit = min(limit, MINIBATCH_TOKENS, MAX_UPDATES / max(updates * plan.settings.stepSize, MIN_UPDATES))
    return max(int(limit), 1)


def _minibatches(batch: Batch, key: np.uint64, limit: int) -> Iterator[tuple[Any, Any, np.uint64]]:
    tokens, offsets = batch
    for first, last in split(offsets, limit):
        begin, end = offsets[first], offsets[last]
        yield tokens[begin:end], offsets[first : last + 1] - begin, key
        with np.errstate(over="ignore"):
            key = key + NEXT_MINIBATCH


def arguments_of(plan: EmbeddingPlan, tokens: Any, offsets: Any, key: np.uint64) -> dict[str, Any]:
    """Return the arguments that all operations of ``skipgrams.ops`` take for a minibatch."""
    return {
        "tokens": _narrow(tokens, plan.vocabulary),
        "offsets": _narrow(offsets, len(tokens)),
        "words": plan.vocabulary,
        "key": int(np.array(key).view(np.int64)),
        "window": plan.window,
        "negative": plan.settings.negative,
        "kind": kind_of(plan),
    }


def _narrow(values: Any, limit: int) -> npt.NDArray[Any]:
    """Convert integers up to ``limit`` to the smallest unsigned dtype that operations take."""
    return np.ascontiguousarray(values).astype(np.uint16 if limit < 2**16 else np.uint32)


def _train_at_once(context: WorkerContext, vectors: SlicedTable, arguments: dict[str, Any]) -> None:
    statistics = vectors.matrix.apply("skipgrams.train_sentences", rate=context.rate, **arguments)
    context.report.add_statistics(statistics)
    context.report.bytes += arguments["tokens"].nbytes + arguments["offsets"].nbytes


def _train_by_products(context: WorkerContext, vectors: SlicedTable, arguments: dict[str, Any]) -> None:
    products = vectors.matrix.apply("skipgrams.find_products", **arguments)
    if not len(products):
        return
    vectors.matrix.apply(
        "skipgrams.learn_from_products",
        wait=False,
        products=products,
        rate=context.rate,
        workers=context.workers,
        **arguments,
    )
    statistics = np.zeros(STATISTICS)
    add_batch_losses(readable(products[::LOSS_INTERVAL]), statistics)
    statistics[PAIRS] = len(products)
    server_bytes = 2 * products.nbytes + 2 * (arguments["tokens"].nbytes + arguments["offsets"].nbytes)
    context.report.add_statistics(statistics)
    context.report.bytes += server_bytes * vectors.num_slices
