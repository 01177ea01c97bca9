"""A worker of collapsed Gibbs sampling: its tokens, and its loop for each ``sync`` mode."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.frame.program import NextClock, Task
from ps2.algorithms.topics.alpha import AlphaSchedule, histogram_keys
from ps2.algorithms.topics.assignments import Assignments, Changes
from ps2.algorithms.topics.corpus import (
    Corpus,
    Prior,
    corpus_hash,
    document_numbers,
    iteration_key,
    word_frequencies,
)
from ps2.algorithms.topics.plan import SamplingPlan
from ps2.algorithms.topics.shared_counts import SharedCounts
from ps2.algorithms.training.reading import Reading, SpillableReading
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.algorithms.training.table import deal_by_cost
from ps2.client.dcv import DCV
from ps2.data.block_file import StoredArray
from ps2.data.spilled_rows import KeptRows
from ps2.ops.blocks import fold, narrow_unsigned
from ps2.ops.kernels import Int64s
from ps2.run.rotation import RotationSchedule

Array = npt.NDArray[Any]

log = logging.getLogger(__name__)

# The clock in which tokens get their first topics. Iterations begin in the next clock.
START = FIRST_CLOCK
# The values that mean: no clock; no fit of alpha; a worker does not request that counts are rebuilt.
NO_CLOCK = NO_FIT = NO_REQUEST = -1
# With a time budget (budgetS), the time is checked after this many tokens.
PIECE_TOKENS = 1 << 12
# With ``sync`` "ssp", the number of groups of words for each worker. With two, a worker reaches a group only after the
# servers have received the previous worker's changes of this group.
GROUPS = 2


@dataclass(frozen=True, eq=False)
class Notice(NextClock):
    """The driver's message to all workers.

    Attributes:
        rebuild_clock: the clock in which all workers rebuild the counts.
        epoch: the epoch of the worker that requested the rebuild.
        fit: the number of a fit of alpha.
        alpha: the result of the fit, shape (topics,).
    """

    rebuild_clock: int = NO_CLOCK
    epoch: int = NO_REQUEST
    fit: int = NO_FIT
    alpha: Any = None


def new_notices(worker: Any) -> Iterator[Notice]:
    """Yield the driver's notices that this worker has not read before."""
    for task in map(Task.of, worker.messages):
        if isinstance(task, Notice):
            yield task


class SamplingWorker:
    """The part of a worker's loop that all ``sync`` modes share.

    After sampling some words, a worker sends one request, which changes their counts from the previous topics of its
    tokens to the current topics. The worker pulls the counts of a word only after it has sent all its changes to the
    word. So the counts that it pulls include its tokens, whatever other workers do, and no count is negative.

    This does not hold after a crash, because the restarted worker does not know the latest topics of its tokens, and
    after the fleet has rolled back to a checkpoint. The worker then stops sampling, and requests that all counts are
    rebuilt. The driver answers with a notice, which has the first clock that no worker enters before reading the
    notice. In this clock, the workers wait for each other, set the counts to 0, and add all their tokens.

    For each clock, a worker reports "finished", the number of finished iterations, and "request", its epoch if it
    requests a rebuild. In the last clock of an iteration it also reports its terms of the log-likelihood, the number of
    tokens that it has sampled, and the bytes that it has exchanged with servers.

    Attributes:
        totals: the number of all workers' tokens in each topic, as far as this worker knows; sampling updates it.
    """

    def __init__(self, worker: Any, plan: SamplingPlan, shared: SharedCounts, corpus: Corpus) -> None:
        self.corpus, self.plan = corpus, plan
        self._worker, self._shared, self._ring = worker, shared, shared.totals_ring
        self._fits = AlphaSchedule(plan.settings.optimizeDocConcentration, self._ring.staleness)
        self._alphas, self._alpha = {self._fits.first - 1: plan.alphas}, plan.alphas
        self._assignments = Assignments.random(corpus, plan.topics, iteration_key(plan.seed, 0), plan.settings.sampler)
        self._own_totals, self._other_totals = self._count_own(), np.zeros(plan.topics, np.int64)
        self.totals = self._own_totals.copy()
        self._is_counted = False  # whether the counts include this worker's tokens with their current topics
        self._requested_clock, self._epoch = NO_CLOCK, worker.epoch
        self._rebuilds: dict[int, int] = {}  # the epoch of the request, by the clock in which counts are rebuilt
        self._prefetched_totals: tuple[int, Any] = (NO_CLOCK, None)  # the clock that uses them, and their future
        self._tokens = self._bytes = 0  # sampled tokens and exchanged bytes of this iteration

    @property
    def topics(self) -> StoredArray:
        """The topic of each token."""
        return self._assignments.topics

    def start(self) -> None:
        """Add all tokens to the counts, in the first clock; a restarted worker may repeat this."""
        self._is_counted = True
        self._add_all()
        self._push_totals([self._ring.row(self._worker.rank, START)])

    def enter(self, clock: int, iteration: int, is_last: bool = True) -> bool:
        """Begin a clock; return whether to sample in it. ``is_last``: it is the last clock of the iteration."""
        finished, request = iteration if is_last else iteration - 1, self._request_rebuild(clock)
        self._worker.report({"finished": finished, "request": request}, "max")
        for notice in new_notices(self._worker):
            self._rebuilds[notice.rebuild_clock] = notice.epoch
            self._alphas[notice.fit] = notice.alpha
        if self._prefetched_totals[0] != clock:
            self._prefetch_totals(clock, 0)
        # A rebuild that was announced before a rollback is ignored: some workers may already have finished its clock.
        if self._rebuilds.get(clock) == self._epoch:
            self._rebuild(clock)
        _, totals = self._prefetched_totals
        self._other_totals = np.zeros_like(self._own_totals) if totals is None else totals.result().sum(axis=0)
        self.totals = self._other_totals + self._own_totals
        self._prefetch_totals(clock + 1, 1)
        if self._fits.is_fitted:
            self._alpha = self._alphas[self._fits.fit_used_in(iteration)]
        return self._is_counted

    def leave(self, clock: int) -> None:
        """End a clock: publish this worker's totals."""
        if self._is_counted and not self._worker.goesBack:
            self._own_totals = self.totals - self._other_totals
            self._push_totals([self._ring.row(self._worker.rank, clock)])

    def end_iteration(self, iteration: int) -> None:
        """End an iteration: report on it, and save the topics if they are due."""
        likelihood = self._assignments.likelihood(self._prior)
        self._worker.report({"likelihood": likelihood, "tokens": int(self._tokens), "bytes": int(self._bytes)})
        self._tokens = self._bytes = 0
        if self._fits.fit_after(iteration) is not None:
            counts_of_counts = self._assignments.counts_of_counts()
            report_histogram(self._worker, self.plan.topics, *counts_of_counts, self.corpus.lengths)
        saved = self._shared.saved
        if saved is not None and iteration % self.plan.save_interval == 0:
            saved.save(self._worker.rank, corpus_hash(self.corpus), self.topics[:])

    def prefetch(self, begin: int, end: int, ahead: int = 0) -> Any:
        """Prefetch the counts of a range of words, for use in the clock ``ahead`` clocks later."""
        return self._worker.prefetch(self._shared.counts, columns=self.corpus.words[begin:end], ahead=ahead)

    def word_topics(self, begin: int, end: int) -> Array:
        """Return a copy of the topics of some words' tokens."""
        return self.topics[self.corpus.tokens(begin, end)].copy()

    def sample(self, begin: int, end: int, counts: Array, iteration: int) -> None:
        """Draw new topics for the tokens of some words; ``counts`` were pulled from the servers, and are updated."""
        if self._worker.goesBack:  # the counts are a checkpoint's, and lack the newest topics of these tokens
            return
        key = iteration_key(self.plan.seed, iteration)
        self._assignments.sample(begin, end, counts, self.totals, self._prior, key)
        self._tokens += self.corpus.begins[end] - self.corpus.begins[begin]
        self._bytes += counts.nbytes

    def send_changes(self, begin: int, end: int, before: Array) -> None:
        """Send the changes of some words' counts to the servers; ``before`` has the tokens' previous topics."""
        self._add(self._assignments.changes_since(begin, end, before))

    def _request_rebuild(self, clock: int) -> int:
        """If the counts do not match this worker's tokens, return its epoch, in one clock only; else NO_REQUEST."""
        if self._worker.epoch != self._epoch:
            self._epoch, self._requested_clock, self._is_counted = self._worker.epoch, NO_CLOCK, False
        if self._is_counted or self._requested_clock != NO_CLOCK:
            return NO_REQUEST
        self._requested_clock = rebuild_after(clock, self._ring.staleness)
        return self._epoch

    def resume(self) -> None:
        """Continue after a crash, or for another driver, with the tokens' saved topics if there are any."""
        saved = self._shared.saved
        topics = None if saved is None else saved.load(self._worker.rank, corpus_hash(self.corpus), self.corpus.size)
        if topics is None:
            log.warning("rank %d: topics of its tokens were not saved, and are drawn again", self._worker.rank)
        else:
            self._assignments = Assignments.of(self.corpus, self.plan.topics, topics, self.plan.settings.sampler)
            self._own_totals = self._count_own()

    def _rebuild(self, clock: int) -> None:
        """Rebuild all counts, together with all other workers."""
        worker, words = self._worker, self.plan.vocabulary
        self._own_totals = self._count_own()
        worker.barrier()
        begin, end = (words * rank // worker.workers for rank in (worker.rank, worker.rank + 1))
        self._shared.counts.apply("topics.clear", begin=begin, end=end)
        worker.barrier()
        self._add_all()
        self._push_totals(self._ring.worker_rows(worker.rank))
        worker.barrier()
        if clock == self._requested_clock:
            self._is_counted, self._requested_clock = True, NO_CLOCK

    def _count_own(self) -> Int64s:
        return self._assignments.topic_totals()

    def _add_all(self) -> None:
        for begin, end in self.corpus.slices(self.plan.width):
            self._add(self._assignments.changes_since(begin, end))

    def _add(self, changes: Changes) -> None:
        is_changed = changes.sizes > 0
        words, max_size = changes.words[is_changed], int(changes.sizes.max(initial=0))
        sizes, deltas = narrow_unsigned(changes.sizes[is_changed], max_size), fold(changes.deltas)
        topics = narrow_unsigned(changes.topics, self.plan.topics - 1)
        if len(words):
            self._shared.counts.apply(
                "columns_add_some", wait=False, slots=words, sizes=sizes, positions=topics, changes=deltas
            )
        self._bytes += words.nbytes + sizes.nbytes + topics.nbytes + deltas.nbytes

    def _push_totals(self, rows: list[int]) -> None:
        self._shared.worker_totals.push(
            rows, np.broadcast_to(self._own_totals, (len(rows), len(self._own_totals))), wait=False
        )

    def _prefetch_totals(self, clock: int, ahead: int) -> None:
        """Prefetch the other workers' totals after the newest clock that all workers have finished."""
        worker = self._worker
        clock_rows = self._ring.clock_rows(max(clock - self._ring.staleness - 1, START))
        rows = [row for rank, row in enumerate(clock_rows) if rank != worker.rank]
        self._prefetched_totals = (
            clock,
            worker.prefetch(self._shared.worker_totals, rows, ahead=ahead) if rows else None,
        )

    @property
    def _prior(self) -> Prior:
        return Prior(self._alpha, self.plan.beta, self.plan.vocabulary)


def report_histogram(
    worker: Any, num_topics: int, topics: Int64s, counts: Int64s, documents: Int64s, lengths: Int64s
) -> None:
    """Report the histogram for ``fit_alpha``: ``Assignments.counts_of_counts``, and the lengths of documents."""
    lengths, length_documents = np.unique(lengths, return_counts=True)
    keys = np.concatenate([histogram_keys(topics, counts), histogram_keys(np.full_like(lengths, num_topics), lengths)])
    worker.report({"keys": keys, "documents": np.concatenate([documents, length_documents])}, "concat")


def rebuild_after(clock: int, staleness: int) -> int:
    """Return the first clock that no worker enters before it has read the driver's notice that follows ``clock``."""
    return clock + staleness + 1


@dataclass(frozen=True, eq=False)
class Blocks:
    """The words of each block in a worker's corpus: block b has the words ``begins[b]`` to ``begins[b + 1]``."""

    ring: RotationSchedule
    begins: Int64s

    def bounds(self, block: int) -> tuple[int, int]:
        return int(self.begins[block]), int(self.begins[block + 1])


@dataclass(frozen=True, eq=False)
class SamplingLoop:
    """The loop of each worker; picklable. It starts after the iterations that an earlier driver has recorded."""

    plan: SamplingPlan
    shared: SharedCounts
    recorded_iterations: int = 0

    def __call__(self, worker: Any, reading: Reading | SpillableReading) -> None:
        rows, frequencies = reading.training, self.shared.frequencies
        part, blocks = None, None
        for _ in worker.clocks(START + 1):
            if frequencies is not None:
                frequencies.add(word_frequencies(rows), rows.keys)
                worker.barrier()
            part, blocks = self._part(worker, rows)
            if self.shared.saved is not None:
                self.shared.saved.announce_size(worker.rank, part.corpus.size)
            part.start()
            worker.barrier()
        if part is None:  # a crashed worker, or a worker of another driver, has done the first clock
            part, blocks = self._part(worker, rows)
            part.resume()
        if blocks is not None:
            rotation(worker, part, blocks, self.recorded_iterations)
        elif self.plan.settings.sync == "average":
            average(worker, part)
        else:
            ssp(worker, part)

    def _part(self, worker: Any, rows: KeptRows) -> tuple[SamplingWorker, Blocks | None]:
        order, blocks = None, None
        if self.shared.frequencies is not None:
            order, blocks = self._by_block(self.shared.frequencies, rows, worker.workers)
        corpus = Corpus.from_rows(rows, document_numbers(worker.rank, len(rows)), order)
        return SamplingWorker(worker, self.plan, self.shared, corpus), blocks

    def _by_block(self, frequencies: DCV, rows: KeptRows, workers: int) -> tuple[Any, Blocks]:
        """Return the order of a worker's words, block by block, and the blocks."""
        ring = self.plan.ring(workers)
        word_blocks = deal_by_cost(frequencies.pull(), ring.blocks)[rows.keys]
        # The corpus lacks words without tokens: they belong to no block.
        word_blocks = np.where(word_frequencies(rows) > 0, word_blocks, ring.blocks)
        ends = np.cumsum(np.bincount(word_blocks, minlength=ring.blocks)[: ring.blocks])
        return np.argsort(word_blocks, kind="stable"), Blocks(ring, np.append(0, ends))


def ssp(worker: Any, part: SamplingWorker) -> None:
    """Sample with counts that may lack other workers' changes of the last ``staleness`` clocks.

    An iteration is one clock. Workers pull and update slices of words concurrently (Xing et al., "Strategies and
    Principles of Distributed Machine Learning on Big Data", section 3.2). Each worker begins with different words: if
    all workers sampled the same slice at the same time, no worker would see the changes of the others.
    """
    slices = list(chain(*word_groups(part.corpus, part.plan, GROUPS, worker.rank, worker.workers)))
    prefetched = None
    for clock in worker.clocks(START + 1 + part.plan.settings.maxIter):
        iteration = clock - START
        for index, (begin, end) in enumerate(slices if part.enter(clock, iteration) else ()):
            counts = (part.prefetch(begin, end) if prefetched is None else prefetched).result()
            next_index = (index + 1) % len(slices)
            prefetched = part.prefetch(*slices[next_index], ahead=int(next_index == 0))
            before = part.word_topics(begin, end)
            part.sample(begin, end, counts, iteration)
            part.send_changes(begin, end, before)
        part.leave(clock)
        part.end_iteration(iteration)


def average(worker: Any, part: SamplingWorker) -> None:
    """Sample with the counts at the beginning of a round; at the end of the round, add up the changes of all workers.

    This is model averaging for counts (Zhang et al., "MLlib*: Fast Training of GLMs using Spark MLlib", 4.1; Newman et
    al., "Distributed Algorithms for Topic Models", section 3.1). An iteration is one clock with as many rounds as there
    are workers; in each round the workers sample different words.
    """
    rounds = word_groups(part.corpus, part.plan, 1, worker.rank, worker.workers)
    for clock in worker.clocks(START + 1 + part.plan.settings.maxIter):
        iteration = clock - START
        is_counted = part.enter(clock, iteration)
        for slices in rounds:
            _sample_round(worker, part, slices if is_counted else [], iteration)
        part.leave(clock)
        part.end_iteration(iteration)


def _sample_round(worker: Any, part: SamplingWorker, slices: list[tuple[int, int]], iteration: int) -> None:
    """Sample in one round, and send the changes after all workers have sampled."""
    before = [part.word_topics(begin, end) for begin, end in slices]
    prefetched = None
    for index, (begin, end) in enumerate(slices):
        counts = (part.prefetch(begin, end) if prefetched is None else prefetched).result()
        prefetched = part.prefetch(*slices[index + 1]) if index + 1 < len(slices) else None
        part.sample(begin, end, counts, iteration)
    worker.barrier()
    for (begin, end), topics in zip(slices, before, strict=True):
        part.send_changes(begin, end, topics)
    worker.barrier()


def word_groups(
    corpus: Corpus, plan: SamplingPlan, groups_per_worker: int, rank: int, workers: int
) -> list[list[tuple[int, int]]]:
    """Divide the vocabulary into groups, which are the same for all workers; return each group's slices, in order.

    A worker's order begins ``groups_per_worker`` groups after the order of the previous worker.
    """
    count = groups_per_worker * workers
    bounds = np.searchsorted(corpus.words, plan.vocabulary * np.arange(count + 1) // count)
    groups = [corpus.slices(plan.width, int(begin), int(end)) for begin, end in pairwise(bounds)]
    return groups[groups_per_worker * rank :] + groups[: groups_per_worker * rank]


def rotation(worker: Any, part: SamplingWorker, blocks: Blocks, recorded_iterations: int) -> None:
    """Sample with exclusive access to the counts of a block of words; an iteration is one rotation of all blocks.

    Zhang et al., "Parallelizing Big Data Machine Learning Algorithms with Model Rotation", section IV.
    """
    settings = part.plan.settings

    def fetch(block: int) -> Any:
        return part.prefetch(*blocks.bounds(block), ahead=1)

    ring = blocks.ring
    rotations = settings.maxIter - recorded_iterations
    for turn in worker.rotate(ring.blocks, rotations, ring.slices, budgetS=settings.budgetS, fetch=fetch):
        clock, iteration = worker.clock, recorded_iterations + turn.rotation + 1
        if part.enter(clock, iteration, turn.isLast):
            counts = turn.pull()
            first, last = blocks.bounds(turn.block)
            piece_tokens = None if settings.budgetS is None else PIECE_TOKENS
            pieces = part.corpus.slices(last - first, first, last, piece_tokens)
            before = part.word_topics(first, last)
            for begin, end in turn.parts(pieces):
                part.sample(begin, end, counts[begin - first : end - first], iteration)
            for begin, end in part.corpus.slices(last - first, first, last):
                tokens = slice(*(int(part.corpus.begins[word] - part.corpus.begins[first]) for word in (begin, end)))
                part.send_changes(begin, end, before[tokens])
        part.leave(clock)
        if turn.isLast:
            part.end_iteration(iteration)
