"""The sentences that one worker trains on, batch by batch: in memory, of keys, of walks and of edges."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from ps2.algorithms.embeddings.settings import BiasedWalkSettings
from ps2.algorithms.embeddings.walks import Graph
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.data.ids import Names

# Tokens of all sentences, concatenated; bounds of the sentences.
Batch = tuple[Int32s, Int64s]

# The approximate tokens of a batch; a longer sentence is a batch of its own.
BATCH_TOKENS = 20_000
# The vertices of walks made at once.
WALKED_AT_ONCE = 1 << 22
GOLDEN = (math.sqrt(5) - 1) / 2


class Sentences(Protocol):
    """The sentences of one worker; created in the worker."""

    @property
    def tokens(self) -> int:
        """The approximate tokens of an epoch."""

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the sentences of an epoch, about ``BATCH_TOKENS`` tokens at a time; the same in each attempt."""


@dataclass(frozen=True, eq=False)
class InMemorySentences:
    """Sentences in memory: the words of all, int32, concatenated, and the bounds of the sentences, int64."""

    words: Int32s
    offsets: Int64s

    @property
    def tokens(self) -> int:
        """The tokens of an epoch."""
        return len(self.words)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the sentences, in the same order in each epoch."""
        for first, last in split(self.offsets, BATCH_TOKENS):
            begin, end = self.offsets[first], self.offsets[last]
            yield self.words[begin:end], self.offsets[first : last + 1] - begin


def split(offsets: Int64s, limit: int) -> Iterator[tuple[int, int]]:
    """Yield bounds of runs of whole sentences, of at most ``limit`` tokens; a longer sentence is a run of its own."""
    first = 0
    while first < len(offsets) - 1:
        last = max(int(np.searchsorted(offsets, offsets[first] + limit, side="right")) - 1, first + 1)
        yield first, last
        first = last


@dataclass(frozen=True, eq=False)
class KeyedSentences:
    """Sentences of keys: integers without numbering, such as the ids of an unbounded graph.

    A worker numbers the keys of its own sentences, at least one, and draws negatives from them, by their frequencies in
    this worker. Nothing has the length of the list of all keys, except the driver's result.
    """

    sentences: Sentences
    keys: Int64s
    frequencies: Int64s


def number_words(lists: pa.Array, words: Names) -> tuple[Int32s, Int64s]:
    """Return the numbers of all words in the vocabulary, and the number of those in each sentence."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    numbers = words.positions(lists.values[offsets[0] : offsets[-1]])
    known = numbers >= 0
    before = np.append(0, np.cumsum(known))
    return numbers[known].astype(np.int32), np.diff(before[offsets - offsets[0]])


def split_long(lengths: Int64s, longest: int) -> Int64s:
    """Split sentences at a maximum length; return the bounds of the pieces."""
    pieces = -(-lengths // longest)
    begins = np.append(0, np.cumsum(lengths))
    first = np.repeat(np.append(0, np.cumsum(pieces))[:-1], pieces)
    within = np.arange(pieces.sum()) - first
    return np.append(np.repeat(begins[:-1], pieces) + within * longest, begins[-1])


@dataclass(frozen=True, eq=False)
class WalkSentences:
    """A worker's walks through a graph, new ones in each epoch; ``numbers`` are the vertices' numbers in the training,
    and ``visits`` the estimated number of vertices of all workers' walks in an epoch."""

    graph: Graph
    settings: BiasedWalkSettings
    numbers: Int32s
    visits: int
    rank: int
    workers: int

    @property
    def tokens(self) -> int:
        """The approximate tokens of an epoch."""
        return self.visits // self.workers

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield this worker's walks of an epoch: tokens, and the bounds of the walks."""
        for walkers in self._walkers(epoch):
            walks = self.graph.walk(self.settings, walkers)
            step = max(1, BATCH_TOKENS // self.settings.walkLength)
            for begin in range(0, len(walkers), step):
                vertices, lengths = walks.block(begin, begin + step)
                yield self.numbers[vertices], np.append(0, np.cumsum(lengths))

    def _walkers(self, epoch: int) -> Iterator[Int64s]:
        """Yield numbers of walkers, as many as walk at once; a worker's vertices are scattered over the graph."""
        vertices, passes = self.graph.vertices, self.settings.numWalks
        begin, end = (vertices * turn // self.workers for turn in (self.rank, self.rank + 1))
        step = max(1, WALKED_AT_ONCE // self.settings.walkLength)
        # As many whole passes as fit at once; of a large graph, parts of one.
        together = max(1, step // max(1, end - begin))
        for first in range(epoch * passes, (epoch + 1) * passes, together):
            numbers = range(first, min(first + together, (epoch + 1) * passes))
            for start in range(begin, end, step):
                own = np.arange(start, min(start + step, end))
                yield np.concatenate([number * vertices + scatter(own, vertices, number) for number in numbers])


@dataclass(frozen=True, eq=False)
class EdgeSentences:
    """Edges as sentences of two: ``count`` in an epoch, drawn in proportion to their weights; None: each comes once an
    epoch."""

    sources: Int32s
    targets: Int32s
    weights: Float64s | None
    count: int
    seed: int
    rank: int

    @property
    def tokens(self) -> int:
        """The tokens of an epoch."""
        return 2 * self.count

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the edges of an epoch, in an order of its own."""
        sums = None if self.weights is None else np.cumsum(self.weights)
        order = None if sums is not None else self._rng(epoch, 0).permutation(len(self.sources))
        step = BATCH_TOKENS // 2
        for number, begin in enumerate(range(0, self.count, step)):
            size = min(step, self.count - begin)
            if order is not None:
                chosen = order[begin : begin + size]
            else:
                assert sums is not None
                draws = self._rng(epoch, number + 1).random(size) * sums[-1]
                chosen = np.minimum(np.searchsorted(sums, draws, side="right"), len(sums) - 1)
            tokens = np.stack([self.sources[chosen], self.targets[chosen]], axis=1).reshape(-1)
            yield tokens, np.arange(0, 2 * size + 1, 2)

    def _rng(self, epoch: int, number: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.rank, epoch, number])


def scatter(numbers: Int64s, count: int, turn: int) -> Int64s:
    """Apply a permutation of ``[0, count)``, another one each turn, that moves neighbours apart."""
    step = max(1, round(count * GOLDEN))
    while math.gcd(step, count) != 1:
        step += 1
    return (numbers * step + turn * (step // 2 + 1)) % count


def rank_by_frequency(counts: Int64s) -> tuple[Int64s, Int32s]:
    """Number vertices by frequency, the most frequent first; of equals, the first. Return them in this order, and each
    one's number."""
    order = np.argsort(-counts, kind="stable")
    numbers = np.empty(len(counts), np.int32)
    numbers[order] = np.arange(len(counts), dtype=np.int32)
    return order, numbers
