"""The sentences that one worker trains on, in batches. Sources: sentences in memory, keys, random walks, and edges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.embeddings.settings import BiasedWalkSettings
from ps2.algorithms.embeddings.walks import Graph
from ps2.algorithms.frame.arrow_batches import blocks_of
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.data.ids import Ids, Names

Array = npt.NDArray[Any]

# The tokens of sentences, concatenated, and the bounds of the sentences.
Batch = tuple[Int32s, Int64s]

# The approximate number of tokens of a batch; a longer sentence is a batch of its own.
BATCH_TOKENS = 20_000
# The approximate number of edges whose vertices are looked up together.
BLOCK_EDGES = 1 << 20
# The approximate number of vertices in the walks that are computed together.
WALKED_AT_ONCE = 1 << 22
# The golden ratio's fraction: multiples of it are spread evenly.
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, eq=False)
class InMemorySentences:
    """Sentences in memory: their words, concatenated, and the bounds of the sentences."""

    words: Int32s
    offsets: Int64s

    @property
    def tokens(self) -> int:
        """The number of tokens of an epoch."""
        return len(self.words)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the sentences, in the same order in each epoch."""
        for first, last in split(self.offsets, BATCH_TOKENS):
            begin, end = self.offsets[first], self.offsets[last]
            yield self.words[begin:end], self.offsets[first : last + 1] - begin


def split(offsets: Int64s, limit: int) -> Iterator[tuple[int, int]]:
    """Yield bounds of consecutive sentences of at most ``limit`` tokens together; a longer sentence is on its own."""
    first = 0
    while first < len(offsets) - 1:
        last = max(int(np.searchsorted(offsets, offsets[first] + limit, side="right")) - 1, first + 1)
        yield first, last
        first = last


@dataclass(frozen=True, eq=False)
class KeyedSentences:
    """Sentences of keys: integers such as the ids of an unbounded graph.

    A worker numbers the keys of its own sentences; it has at least one key. It draws negatives from them, by their
    frequencies in its sentences. Only the driver's result has all keys.
    """

    sentences: Sentences
    keys: Int64s
    frequencies: Int64s


def number_words(lists: pa.Array, words: Names) -> tuple[Int32s, Int64s]:
    """Return the numbers of the words that are in the vocabulary, and how many of them each sentence has."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    numbers = words.positions(lists.values[offsets[0] : offsets[-1]])
    is_known = numbers >= 0
    known_before = np.append(0, np.cumsum(is_known))
    return numbers[is_known].astype(np.int32), np.diff(known_before[offsets - offsets[0]])


def split_long(lengths: Int64s, longest: int) -> Int64s:
    """Split sentences of these lengths into pieces of at most ``longest`` words; return the bounds of the pieces."""
    pieces = -(-lengths // longest)
    begins = np.append(0, np.cumsum(lengths))
    first_piece = np.repeat(np.append(0, np.cumsum(pieces))[:-1], pieces)
    number_in_sentence = np.arange(pieces.sum()) - first_piece
    return np.append(np.repeat(begins[:-1], pieces) + number_in_sentence * longest, begins[-1])


@dataclass(frozen=True, eq=False)
class WalkSentences:
    """A worker's walks through a graph, new ones in each epoch. ``numbers`` has the word index of each vertex.
    All workers' walks of an epoch have about ``visits`` vertices."""

    graph: Graph
    settings: BiasedWalkSettings
    numbers: Int32s
    visits: int
    rank: int
    workers: int

    @property
    def tokens(self) -> int:
        """The approximate number of tokens of an epoch."""
        return self.visits // self.workers

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield this worker's walks of an epoch."""
        for walkers in self._walkers(epoch):
            walks = self.graph.walk(self.settings, walkers)
            step = max(1, BATCH_TOKENS // self.settings.walkLength)
            for begin in range(0, len(walkers), step):
                vertices, lengths = walks.block(begin, begin + step)
                yield self.numbers[vertices], np.append(0, np.cumsum(lengths))

    def _walkers(self, epoch: int) -> Iterator[Int64s]:
        """Yield blocks of walkers, as arrays of their numbers; a worker's vertices are scattered over the graph."""
        vertices, passes = self.graph.vertices, self.settings.numWalks
        begin, end = (vertices * turn // self.workers for turn in (self.rank, self.rank + 1))
        step = max(1, WALKED_AT_ONCE // self.settings.walkLength)
        # A block covers several passes through a small graph, or a part of one pass through a large graph.
        passes_at_once = max(1, step // max(1, end - begin))
        for first in range(epoch * passes, (epoch + 1) * passes, passes_at_once):
            numbers = range(first, min(first + passes_at_once, (epoch + 1) * passes))
            for start in range(begin, end, step):
                indices = np.arange(start, min(start + step, end))
                yield np.concatenate([number * vertices + scatter(indices, vertices, number) for number in numbers])


@dataclass(frozen=True, eq=False)
class EdgeSentences:
    """Edges as sentences of two words; an epoch has ``count`` edges, drawn by weight, or each edge once."""

    sources: Int32s
    targets: Int32s
    weights: Float64s | None
    count: int
    seed: int
    rank: int

    @property
    def tokens(self) -> int:
        """The number of tokens of an epoch."""
        return 2 * self.count

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the edges of an epoch, in random order."""
        sums = None if self.weights is None else np.cumsum(self.weights)
        order = None if sums is not None else self._rng(epoch, 0).permutation(len(self.sources))
        step = BATCH_TOKENS // 2
        for number, begin in enumerate(range(0, self.count, step)):
            edges = min(step, self.count - begin)
            if order is not None:
                chosen = order[begin : begin + edges]
            else:
                assert sums is not None
                draws = self._rng(epoch, number + 1).random(edges) * sums[-1]
                chosen = np.minimum(np.searchsorted(sums, draws, side="right"), len(sums) - 1)
            tokens = np.stack([self.sources[chosen], self.targets[chosen]], axis=1).reshape(-1)
            yield tokens, np.arange(0, 2 * edges + 1, 2)

    def _rng(self, epoch: int, number: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.rank, epoch, number])


# The sentences of one worker, created in the worker. ``batches`` yields about ``BATCH_TOKENS`` tokens at a time, the
# same in each attempt of a task.
Sentences = InMemorySentences | WalkSentences | EdgeSentences


def scatter(numbers: Int64s, count: int, turn: int) -> Int64s:
    """Apply a permutation of ``[0, count)`` that moves neighbours apart; each ``turn`` has another permutation."""
    step = max(1, round(count * GOLDEN))
    while math.gcd(step, count) != 1:
        step += 1
    return (numbers * step + turn * (step // 2 + 1)) % count


def rank_by_frequency(counts: Int64s) -> tuple[Int64s, Int32s]:
    """Number vertices by frequency, the most frequent first; equal frequencies by position. Return the positions in
    this order, and the rank of each position."""
    order = np.argsort(-counts, kind="stable")
    numbers = np.empty(len(counts), np.int32)
    numbers[order] = np.arange(len(counts), dtype=np.int32)
    return order, numbers


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges between vertices, which are numbers or keys; positive weights, or None for edges without weights."""

    sources: Array
    targets: Array
    weights: Float64s | None = None

    def both_directions(self) -> Edges:
        """Return these edges and the reverse ones; a loop stays one edge."""
        is_edge = self.sources != self.targets
        sources = np.append(self.sources, self.targets[is_edge])
        targets = np.append(self.targets, self.sources[is_edge])
        return Edges(sources, targets, None if self.weights is None else np.append(self.weights, self.weights[is_edge]))


def edges_of(batches: Iterable[pa.RecordBatch], vertices: Ids) -> Iterator[Edges]:
    """Read edges from columns source, target and optionally weight; skip those of weight 0."""
    for parts in blocks_of((batch for batch in batches if batch.num_rows), lambda batch: batch.num_rows, BLOCK_EDGES):
        block = pa.Table.from_batches(parts)
        sources, targets = (vertices.numbers(block.column(i).combine_chunks()) for i in (0, 1))
        yield _positive(sources, targets, block)


def _positive(sources: Array, targets: Array, columns: pa.Table | pa.RecordBatch) -> Edges:
    """Return the edges whose weight, the third column if there is one, is above 0."""
    if columns.num_columns == 2:
        return Edges(sources, targets)
    weights = columns.column(2).to_numpy()
    is_positive = weights > 0
    return Edges(sources[is_positive], targets[is_positive], weights[is_positive])


@dataclass(frozen=True)
class EdgeReader:
    """Makes a worker's sentences. In an epoch, all workers together have ``edges`` edges of total weight ``weight``."""

    directed: bool
    edges: int
    weight: float
    seed: int

    def join(self, parts: Iterable[Edges]) -> Edges:
        """Return all edges as one object; undirected edges in both directions."""
        joined = [part if self.directed else part.both_directions() for part in parts]
        if not joined:
            return Edges(np.empty(0, np.int32), np.empty(0, np.int32))
        sources, targets = (np.concatenate([getattr(part, name) for part in joined]) for name in ("sources", "targets"))
        weights = [part.weights for part in joined if part.weights is not None]
        return Edges(sources, targets, np.concatenate(weights) if weights else None)

    def sentences(self, edges: Edges, rank: int) -> EdgeSentences:
        """Return the sentences of edges between numbered vertices, int32."""
        count = len(edges.sources)
        if edges.weights is not None:
            count = round(self.edges * float(edges.weights.sum()) / self.weight)
        return EdgeSentences(edges.sources, edges.targets, edges.weights, count, self.seed, rank)


@dataclass(frozen=True)
class ReadEdges(EdgeReader):
    """Reads edges between ``vertices()``; ``numbers()`` has the word index of each vertex."""

    vertices: Callable[[], Ids]
    numbers: Callable[[], Int32s]

    def __call__(self, worker: Any, batches: Iterable[pa.RecordBatch]) -> EdgeSentences:
        numbers = self.numbers()
        parts = edges_of(batches, self.vertices())
        numbered = (Edges(numbers[part.sources], numbers[part.targets], part.weights) for part in parts)
        return self.sentences(self.join(numbered), worker.rank)


class ReadKeys(EdgeReader):
    """Reads edges between keys, which the worker numbers."""

    def __call__(self, worker: Any, batches: Iterable[pa.RecordBatch]) -> KeyedSentences:
        edges = self.join(self._edges(batch) for batch in batches if batch.num_rows)
        keys, numbers = np.unique(np.concatenate([edges.sources, edges.targets]), return_inverse=True)
        sources, targets = np.split(numbers.astype(np.int32), 2)
        occurrences = np.bincount(targets, edges.weights, minlength=len(keys)) * (self.edges / self.weight)
        frequencies = np.maximum(np.rint(occurrences).astype(np.int64), occurrences > 0)
        sentences = self.sentences(Edges(sources, targets, edges.weights), worker.rank)
        if not len(keys):  # a vocabulary must not be empty
            keys, frequencies = np.zeros(1, np.int64), np.zeros(1, np.int64)
        return KeyedSentences(sentences, keys, frequencies)

    def _edges(self, batch: pa.RecordBatch) -> Edges:
        sources, targets = (batch.column(i).cast(pa.int64()).to_numpy() for i in (0, 1))
        return _positive(sources, targets, batch)
