"""Sampling by the threads of one worker that has all documents, without requests to servers.

In a turn, no two threads have the same words, so the counts of words are exact. A thread knows the other threads'
totals of topics as they were after an earlier turn.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics import ops
from ps2.algorithms.topics.alpha import AlphaSchedule
from ps2.algorithms.topics.assignments import Assignments
from ps2.algorithms.topics.corpus import (
    Corpus,
    Prior,
    corpus_hash,
    document_numbers,
    iteration_key,
    topic_dtype,
    word_frequencies,
)
from ps2.algorithms.topics.plan import SamplingPlan
from ps2.algorithms.topics.sampling_worker import NO_REQUEST, START, new_notices, report_histogram
from ps2.algorithms.topics.shared_counts import CountsSummary, SharedCounts
from ps2.algorithms.training.reading import Reading, SpillableReading
from ps2.algorithms.training.table import deal_by_cost
from ps2.array_types import Int32s, Int64s
from ps2.data.spilled_rows import KeptRows
from ps2.run.rotation import IDLE, RotationSchedule

Array = npt.NDArray[Any]

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class LocalLoop:
    """The loop of the only worker; picklable. An iteration is a clock.

    As in other trainings, the topics of tokens are saved on the servers (``SavedTopics``). A restarted worker computes
    all other state from them. The counts are sent to the servers at the end.
    """

    plan: SamplingPlan
    shared: SharedCounts

    def __call__(self, worker: Any, reading: Reading | SpillableReading) -> None:
        plan, settings = self.plan, self.plan.settings
        with closing(LocalSampling(plan, reading.training, plan.threads)) as sampling:
            tokens_hash, saved, did_start = corpus_hash(sampling.corpus()), self.shared.saved, False
            fits = AlphaSchedule(settings.optimizeDocConcentration, plan.lateness)
            alphas = {fits.first - 1: plan.alphas}
            for _ in worker.clocks(START + 1):
                did_start = True
                if saved is not None:
                    saved.announce_size(worker.rank, sampling.size)
            if not did_start:  # a crashed worker, or a worker of another driver, has done the first clock
                topics = None if saved is None else saved.load(worker.rank, tokens_hash, sampling.size)
                if topics is None:
                    log.warning("topics of tokens were not saved, and are drawn again")
                else:
                    sampling.restore(topics)
            for clock in worker.clocks(START + 1 + settings.maxIter):
                iteration = clock - START
                alphas.update({notice.fit: notice.alpha for notice in new_notices(worker)})
                alpha = alphas[fits.fit_used_in(iteration)] if settings.optimizeDocConcentration else plan.alphas
                prior = Prior(alpha, plan.beta, plan.vocabulary)
                sampling.sample(iteration, prior)
                worker.report({"finished": iteration, "request": NO_REQUEST}, "max")
                summary = CountsSummary.from_reply(ops.look(sampling.counts, np.array([plan.beta])))
                if plan.check:
                    summary.check(sampling.size, iteration)
                likelihood = sampling.likelihood(prior) + summary.words_likelihood(plan)
                worker.report({"likelihood": likelihood, "tokens": sampling.size, "bytes": 0})
                if fits.fit_after(iteration) is not None:
                    report_histogram(worker, plan.topics, *sampling.histogram())
                if saved is not None and iteration % plan.save_interval == 0:
                    saved.save(worker.rank, tokens_hash, sampling.topics)
                if iteration == settings.maxIter:
                    self._push(sampling)

    def _push(self, sampling: LocalSampling) -> None:
        """Send the counts to the servers. A restarted worker may repeat this."""
        width = self.plan.width
        for begin in range(0, len(sampling.words), width):
            words = sampling.words[begin : begin + width]
            self.shared.counts.push(columns=words, values=sampling.counts[begin : begin + width])


@dataclass(eq=False)
class _Part:
    """One thread's tokens of all words, block by block; ``totals`` has the number of its tokens in each topic."""

    assignments: Assignments
    totals: Int64s


class LocalSampling:
    """Tokens, their topics, and the counts.

    Each thread has some of the documents. With ``sync`` "rotation" and "average", topics are bit for bit those of
    workers with servers that have the same documents as the threads. With one thread, this holds for every ``sync``.

    Attributes:
        words: the words that occur, block by block.
        counts: the number of tokens of each word in each topic, shape (words, topics).
    """

    def __init__(self, plan: SamplingPlan, rows: KeptRows, threads: int, bounds: Sequence[int] | None = None) -> None:
        """Give all tokens random topics.

        ``bounds``: the first document of each thread, and the number of documents; None: about equally many tokens.
        """
        lengths = np.concatenate(
            [np.zeros(0), *(np.asarray(block.x.sum(axis=1)).reshape(-1) for block in rows.blocks())]
        ).astype(np.int64)
        bounds = document_bounds(lengths, threads) if bounds is None else bounds
        frequencies = word_frequencies(rows)
        self._plan, self._rows = plan, rows
        self._turns = ThreadTurns(plan, rows.keys, frequencies, len(bounds) - 1)
        self._order = np.argsort(self._turns.word_blocks, kind="stable")
        self._begins = np.append(0, np.cumsum(np.bincount(self._turns.word_blocks, minlength=self._turns.blocks)))
        self.words = rows.keys[self._order]
        self._parts = [self._part(rank, begin, end) for rank, (begin, end) in enumerate(pairwise(bounds))]
        self._threads = ThreadPoolExecutor(len(self._parts), "ps2-topics")
        self._count_topics()

    def _part(self, rank: int, begin: int, end: int) -> _Part:
        plan, numbers = self._plan, document_numbers(rank, end - begin)
        corpus = Corpus.from_rows(self._rows, numbers, self._order, keep_empty=True, begin=begin)
        assignments = Assignments.random(corpus, plan.topics, iteration_key(plan.seed, 0), plan.settings.sampler)
        return _Part(assignments, np.zeros(plan.topics, np.int64))

    def _count_topics(self) -> None:
        self.counts: Int32s = np.zeros((len(self.words), self._plan.topics), np.int32)
        for part in self._parts:
            for begin, end in part.assignments.corpus.slices(len(self.words)):
                changes = part.assignments.changes_since(begin, end)
                rows = np.repeat(np.arange(begin, end), changes.sizes)
                self.counts[rows, changes.topics] += changes.deltas  # each pair of word and topic occurs once
            part.totals = part.assignments.topic_totals()
        totals = [part.totals for part in self._parts]
        # Each thread's totals at the end of the last turns, the oldest first.
        self._past = deque([totals] * max(self._turns.age, 1), maxlen=max(self._turns.age, 1))

    @property
    def size(self) -> int:
        """The number of tokens."""
        return sum(part.assignments.corpus.size for part in self._parts)

    def sample(self, iteration: int, prior: Prior) -> None:
        """Draw new topics for all tokens; iterations count from 1."""
        key = iteration_key(self._plan.seed, iteration)
        for blocks in self._turns.iteration_turns(iteration):
            sample_block = partial(self._sample_block, known_totals=self._past[0], prior=prior, key=key)
            # ``list`` waits for all results, and raises the errors of threads.
            list(self._threads.map(sample_block, range(len(blocks)), blocks))
            if self._turns.age:
                self._past.append([part.totals for part in self._parts])
        if not self._turns.age:
            self._past.append([part.totals for part in self._parts])

    def _sample_block(self, thread: int, block: int, known_totals: list[Int64s], prior: Prior, key: np.uint64) -> None:
        if block == IDLE:
            return
        part, begin, end = self._parts[thread], int(self._begins[block]), int(self._begins[block + 1])
        other_totals = np.zeros_like(part.totals)
        for other, thread_totals in enumerate(known_totals):
            if other != thread:
                other_totals += thread_totals
        totals = other_totals + part.totals
        part.assignments.sample(begin, end, self.counts[begin:end], totals, prior, key)
        part.totals = totals - other_totals

    def likelihood(self, prior: Prior) -> float:
        """Return log p(z), the documents' term of the joint likelihood."""
        return sum(self._threads.map(lambda part: part.assignments.likelihood(prior), self._parts))

    def histogram(self) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Return ``Assignments.counts_of_counts`` of all documents, and the lengths of documents."""
        histograms = [part.assignments.counts_of_counts() for part in self._parts]
        topics, counts, documents = (np.concatenate(arrays) for arrays in zip(*histograms, strict=True))
        return topics, counts, documents, np.concatenate([part.assignments.corpus.lengths for part in self._parts])

    def corpus(self) -> Corpus:
        """Return all tokens, word by word; the order does not depend on the number of threads."""
        return Corpus.from_rows(self._rows, document_numbers(0, len(self._rows)))

    @property
    def topics(self) -> Array:
        """The topic of each token of ``corpus``."""
        topics = np.empty(self.size, topic_dtype(self._plan.topics))
        for part, tokens, positions in self._positions():
            topics[positions] = part.assignments.topics[tokens]
        return topics

    def restore(self, topics: Array) -> None:
        """Set the topics of the tokens of ``corpus``."""
        plan = self._plan
        for part, tokens, positions in self._positions():
            part.assignments.topics[tokens][:] = topics[positions]
        for part in self._parts:
            assignments = part.assignments
            sampler = plan.settings.sampler
            part.assignments = Assignments.of(assignments.corpus, plan.topics, assignments.topics, sampler)
        self._count_topics()

    def _positions(self) -> Iterator[tuple[_Part, slice, Int64s]]:
        """Yield some tokens of each part, and their positions in ``corpus``."""
        # The number of tokens of each ascending word in each part. A word's tokens are ordered by document, so by part.
        sizes = np.zeros((len(self.words), len(self._parts)), np.int64)
        for number, part in enumerate(self._parts):
            sizes[self._order, number] = np.diff(part.assignments.corpus.begins)
        starts = (np.cumsum(sizes.reshape(-1)) - sizes.reshape(-1)).reshape(sizes.shape)
        for number, part in enumerate(self._parts):
            corpus = part.assignments.corpus
            shift = starts[self._order, number] - corpus.begins[:-1]
            for begin, end in corpus.slices(len(self.words)):
                tokens, sizes = corpus.tokens(begin, end), np.diff(corpus.begins[begin : end + 1])
                yield part, tokens, np.repeat(shift[begin:end], sizes) + np.arange(tokens.start, tokens.stop)

    def close(self) -> None:
        self._threads.shutdown()


class ThreadTurns:
    """The blocks of words, and the turns in which threads sample them.

    With "rotation" and "average", the turns are those of equally many workers with servers. With "ssp", threads
    exchange blocks of about equally many tokens.

    Attributes:
        word_blocks: the block of each word.
        age: the number of turns before the current turn whose changes a thread does not know of other threads' totals;
            0: it knows the totals at the beginning of the iteration.
    """

    def __init__(self, plan: SamplingPlan, words: Int64s, frequencies: Int64s, threads: int) -> None:
        """Plan the turns for ascending words with these frequencies."""
        self._seed, self._threads = plan.seed, threads
        self.blocks, self.age = threads, 1
        # The schedule of "rotation".
        self._ring: RotationSchedule | None = None
        if plan.settings.sync == "rotation":
            self._ring = plan.ring(threads)
            self.blocks, self.age = self._ring.blocks, plan.lateness + 1
            all_frequencies = np.zeros(plan.vocabulary, np.int64)
            all_frequencies[words] = frequencies
            self.word_blocks = deal_by_cost(all_frequencies, self.blocks)[words]
        elif plan.settings.sync == "average":
            self.age = 0
            bounds = plan.vocabulary * np.arange(1, threads) // threads
            self.word_blocks = np.searchsorted(bounds, words, side="right").astype(np.int32)
        else:
            self.word_blocks = deal_by_cost(frequencies, threads) if threads > 1 else np.zeros(len(words), np.int32)

    def iteration_turns(self, iteration: int) -> Sequence[Sequence[int]]:
        """Return the block of each thread, or ``IDLE``, turn by turn; iterations count from 1."""
        threads = range(self._threads)
        if self._ring is None:
            return [[(thread + turn) % self._threads for thread in threads] for turn in range(self.blocks)]
        thread_turns = [self._ring.worker_blocks(self._seed, iteration - 1, thread) for thread in threads]
        turns: list[list[int]] = np.stack(thread_turns, axis=1).tolist()
        return turns


def document_bounds(lengths: Int64s, threads: int) -> list[int]:
    """Divide documents of these lengths into consecutive ranges of about equally many tokens, one for each thread.

    Return the first document of each range, and the number of documents. There are at most as many ranges as documents.
    """
    threads = min(threads, len(lengths))
    ends = np.cumsum(lengths)
    targets = ends[-1] * np.arange(1, threads) / threads
    bounds = np.searchsorted(ends, targets).astype(np.int64) + 1
    # Each thread gets at least one document, even if some documents are very long.
    for thread in range(threads - 1):
        low = bounds[thread - 1] + 1 if thread else 1
        bounds[thread] = min(max(bounds[thread], low), len(lengths) - (threads - 1 - thread))
    return [0, *bounds.tolist(), len(lengths)]
