"""All tokens of a training and all counts in one process, whose threads sample as workers do with servers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics.assignments import Assignments
from ps2.algorithms.topics.corpus import Corpus, Prior, document_numbers, iteration_key, topic_dtype
from ps2.algorithms.topics.local_turns import ThreadTurns, document_bounds
from ps2.algorithms.topics.plan import SamplingPlan
from ps2.array_types import Int32s, Int64s
from ps2.data.rows import LocalRows

Array = npt.NDArray[Any]


@dataclass(eq=False)
class _Part:
    """One thread's tokens, of all words, block by block.

    Attributes:
        corpus: the tokens.
        tokens: their topics.
        own: int64: tokens of each topic.
    """

    corpus: Corpus
    tokens: Assignments
    own: Int64s


class LocalSampling:
    """Tokens, their topics, and the counts.

    Each thread has some documents. With as many threads as there would be workers on servers, and the same documents in
    each, "rotation" and "average" give the same topics, bit for bit; so does one thread, however counts are shared.

    Attributes:
        words: int64, shape (words,): numbers of the words that occur, block by block.
        counts: int32, shape (words, topics): tokens of each word in each topic.
    """

    def __init__(self, plan: SamplingPlan, rows: LocalRows, threads: int, bounds: Sequence[int] | None = None) -> None:
        """Give all tokens random topics.

        Args:
            rows: documents.
            threads: the number of threads; those beyond the number of documents do nothing.
            bounds: the first document of each thread, and the end; None: so that all have equally many tokens.
        """
        by_document = np.asarray(rows.x.sum(axis=1)).reshape(-1).astype(np.int64)
        bounds = document_bounds(by_document, threads) if bounds is None else bounds
        frequencies = np.asarray(rows.x.sum(axis=0)).reshape(-1).astype(np.int64)
        self._plan, self._rows = plan, rows
        self._turns = ThreadTurns.from_plan(plan, rows.keys, frequencies, len(bounds) - 1)
        self._order = np.argsort(self._turns.word_blocks, kind="stable")
        self._begins = np.append(0, np.cumsum(np.bincount(self._turns.word_blocks, minlength=self._turns.blocks)))
        self.words = rows.keys[self._order]
        self._parts = [self._part(rank, begin, end) for rank, (begin, end) in enumerate(pairwise(bounds))]
        self._threads = ThreadPoolExecutor(len(self._parts), "ps2-topics")
        self._begin()

    def _part(self, rank: int, begin: int, end: int) -> _Part:
        plan = self._plan
        numbers = document_numbers(rank, end - begin)
        corpus = Corpus.from_counts(self._rows.x[begin:end], self._rows.keys, numbers, self._order, keeps=True)
        tokens = Assignments.random(corpus, plan.topics, iteration_key(plan.seed, 0), plan.settings.sampler)
        return _Part(corpus, tokens, np.zeros(plan.topics, np.int64))

    def _begin(self) -> None:
        """Count all topics."""
        self.counts: Int32s = np.zeros((len(self.words), self._plan.topics), np.int32)
        for part in self._parts:
            listed = part.tokens.listed(0, len(self.words))
            rows = np.repeat(np.arange(len(self.words)), listed.sizes)
            self.counts[rows, listed.topics] += listed.by  # a word lists a topic once
            part.own = np.bincount(part.tokens.topics, minlength=self._plan.topics)
        own = [part.own for part in self._parts]
        # What each thread had in each topic when the last turns ended, the oldest first.
        self._past = deque([own] * max(self._turns.age, 1), maxlen=max(self._turns.age, 1))

    @property
    def size(self) -> int:
        """Number of tokens."""
        return sum(part.corpus.size for part in self._parts)

    def sample(self, iteration: int, prior: Prior) -> None:
        """Draw new topics for all tokens.

        Args:
            iteration: from 1 on.
        """
        key = iteration_key(self._plan.seed, iteration)
        for blocks in self._turns.iteration_turns(iteration):
            one = partial(self._sample, known=self._past[0], prior=prior, key=key)
            # A list: errors of threads are raised when results are taken.
            list(self._threads.map(one, range(len(blocks)), blocks))
            if self._turns.age:
                self._past.append([part.own for part in self._parts])
        if not self._turns.age:
            self._past.append([part.own for part in self._parts])

    def _sample(self, thread: int, block: int, known: list[Int64s], prior: Prior, key: np.uint64) -> None:
        if block < 0:
            return
        part, begin, end = self._parts[thread], int(self._begins[block]), int(self._begins[block + 1])
        others = np.zeros_like(part.own)
        for other, own in enumerate(known):
            if other != thread:
                others += own
        totals = others + part.own
        part.tokens.sample(begin, end, self.counts[begin:end], totals, prior, key)
        part.own = totals - others

    def likelihood(self, prior: Prior) -> float:
        """Return log p(z), the documents' part of the joint likelihood."""
        return sum(self._threads.map(lambda part: part.tokens.likelihood(prior), self._parts))

    def histogram(self) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Return topics, occurrences and documents as ``Assignments.counts_of_counts`` does, and documents' lengths."""
        histograms = [part.tokens.counts_of_counts() for part in self._parts]
        topics, counts, documents = (np.concatenate(arrays) for arrays in zip(*histograms, strict=True))
        return topics, counts, documents, np.concatenate([part.corpus.lengths for part in self._parts])

    @property
    def whole(self) -> Corpus:
        """All tokens, word by word, however many threads there are."""
        return Corpus.from_counts(self._rows.x, self._rows.keys, document_numbers(0, len(self._rows)))

    @property
    def topics(self) -> Array:
        """The topic of each token of ``whole``."""
        topics = np.empty(self.size, topic_dtype(self._plan.topics))
        for part, positions in zip(self._parts, self._positions(), strict=True):
            topics[positions] = part.tokens.topics
        return topics

    def give(self, topics: Array) -> None:
        """Give all tokens topics, those of ``whole``; count them."""
        for part, positions in zip(self._parts, self._positions(), strict=True):
            part.tokens = Assignments(part.corpus, self._plan.topics, topics[positions], self._plan.settings.sampler)
        self._begin()

    def _positions(self) -> list[Int64s]:
        """Return, for each part, where its tokens are among those of ``whole``."""
        # Of each word and part, in the words' own order: a word's tokens are by document, so by part.
        sizes = np.zeros((len(self.words), len(self._parts)), np.int64)
        for at, part in enumerate(self._parts):
            sizes[self._order, at] = np.diff(part.corpus.begins)
        starts = (np.cumsum(sizes.reshape(-1)) - sizes.reshape(-1)).reshape(sizes.shape)
        positions = []
        for number, part in enumerate(self._parts):
            shift = starts[self._order, number] - part.corpus.begins[:-1]
            positions.append(np.repeat(shift, np.diff(part.corpus.begins)) + np.arange(part.corpus.size))
        return positions

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()
