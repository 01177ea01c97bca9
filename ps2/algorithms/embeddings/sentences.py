"""The sentences that a worker trains on, in batches: sentences in memory, random walks, and edges."""

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

# The tokens of sentences, concatenated, as word indices; and the bounds of the sentences.
Batch = tuple[Int32s, Int64s]

# The maximum number of tokens of a batch. A longer sentence is a batch alone.
BATCH_TOKENS = 20_000
# The approximate number of edges whose vertices are looked up together.
BLOCK_EDGES = 1 << 20
# The maximum number of vertices of the walks that are computed together.
WALKED_AT_ONCE = 1 << 22
# The fractional part of the golden ratio. The fractional parts of its multiples are spread evenly.
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, eq=False)
class InMemorySentences:
    """Sentences in memory: the word indices, concatenated, and the bounds of the sentences."""

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
    """Yield bounds of consecutive sentences with at most ``limit`` tokens together; a longer sentence alone."""
    first = 0
    while first < len(offsets) - 1:
        last = max(int(np.searchsorted(offsets, offsets[first] + limit, side="right")) - 1, first + 1)
        yield first, last
        first = last


@dataclass(frozen=True, eq=False)
class KeyedSentences:
    """Sentences whose words are keys: integers such as the ids of a graph without a list of its vertices.

    Word i of a worker is ``keys[i]``, a key of its own sentences; there is at least one. A worker draws negatives from
    its keys, by their ``frequencies`` in its sentences. Only the driver's result has all keys.
    """

    sentences: Sentences
    keys: Int64s
    frequencies: Int64s


def encode_words(lists: pa.Array, words: Names) -> tuple[Int32s, Int64s]:
    """Return the indices of the words in the vocabulary, and the number of such words in each sentence."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    indices = words.positions(lists.values[offsets[0] : offsets[-1]])
    is_known = indices >= 0
    known_before = np.append(0, np.cumsum(is_known))
    return indices[is_known].astype(np.int32), np.diff(known_before[offsets - offsets[0]])


def split_long(lengths: Int64s, longest: int) -> Int64s:
    """Split sentences of these lengths into sentences of at most ``longest`` words; return the new bounds."""
    splits = -(-lengths // longest)
    begins = np.append(0, np.cumsum(lengths))
    first_split = np.repeat(np.append(0, np.cumsum(splits))[:-1], splits)
    index_in_sentence = np.arange(splits.sum()) - first_split
    return np.append(np.repeat(begins[:-1], splits) + index_in_sentence * longest, begins[-1])


@dataclass(frozen=True, eq=False)
class WalkSentences:
    """A worker's walks, new in each epoch; ``visits``: the approximate number of their vertices, over all workers."""

    graph: Graph
    settings: BiasedWalkSettings
    word_indices: Int32s
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
                yield self.word_indices[vertices], np.append(0, np.cumsum(lengths))

    def _walkers(self, epoch: int) -> Iterator[Int64s]:
        """Yield arrays of walkers (see ``Walks``). A worker's first vertices are scattered over the graph."""
        vertices, passes = self.graph.vertices, self.settings.numWalks
        begin, end = (vertices * rank // self.workers for rank in (self.rank, self.rank + 1))
        step = max(1, WALKED_AT_ONCE // self.settings.walkLength)
        # An array covers several passes over all vertices of a small graph, or a part of one pass over a large graph.
        passes_at_once = max(1, step // max(1, end - begin))
        for first in range(epoch * passes, (epoch + 1) * passes, passes_at_once):
            pass_numbers = range(first, min(first + passes_at_once, (epoch + 1) * passes))
            for start in range(begin, end, step):
                indices = np.arange(start, min(start + step, end))
                yield np.concatenate([i * vertices + scatter(indices, vertices, i) for i in pass_numbers])


@dataclass(frozen=True, eq=False)
class EdgeSentences:
    """Edges as sentences of two words. An epoch has ``count`` edges: drawn by weight or, without weights, all edges."""

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
        for batch, begin in enumerate(range(0, self.count, step)):
            num_edges = min(step, self.count - begin)
            if order is not None:
                edges = order[begin : begin + num_edges]
            else:
                assert sums is not None
                draws = self._rng(epoch, batch + 1).random(num_edges) * sums[-1]
                edges = np.minimum(np.searchsorted(sums, draws, side="right"), len(sums) - 1)
            tokens = np.stack([self.sources[edges], self.targets[edges]], axis=1).reshape(-1)
            yield tokens, np.arange(0, 2 * num_edges + 1, 2)

    def _rng(self, epoch: int, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.rank, epoch, stream])


# The sentences of a worker, made in the worker. ``batches`` yields the same batches, of about ``BATCH_TOKENS`` tokens,
# in each attempt of a task.
Sentences = InMemorySentences | WalkSentences | EdgeSentences


def scatter(indices: Int64s, count: int, shift: int) -> Int64s:
    """Apply a permutation of ``[0, count)`` that moves neighbours apart; each ``shift`` gives another permutation."""
    step = max(1, round(count * GOLDEN))
    while math.gcd(step, count) != 1:
        step += 1
    return (indices * step + shift * (step // 2 + 1)) % count


def rank_by_frequency(counts: Int64s) -> tuple[Int64s, Int32s]:
    """Sort vertices stably by frequency, the most frequent first; return them, and the rank of each vertex."""
    order = np.argsort(-counts, kind="stable")
    ranks = np.empty(len(counts), np.int32)
    ranks[order] = np.arange(len(counts), dtype=np.int32)
    return order, ranks


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges between vertices, which are indices or keys; ``weights`` are positive, or None: edges have no weights."""

    sources: Array
    targets: Array
    weights: Float64s | None = None

    def both_directions(self) -> Edges:
        """Return these edges and their reverse edges; a loop stays one edge."""
        has_reverse = self.sources != self.targets
        sources = np.append(self.sources, self.targets[has_reverse])
        targets = np.append(self.targets, self.sources[has_reverse])
        return Edges(
            sources, targets, None if self.weights is None else np.append(self.weights, self.weights[has_reverse])
        )


def edges_of(batches: Iterable[pa.RecordBatch], vertices: Ids) -> Iterator[Edges]:
    """Read edges from columns source, target and optionally weight; skip edges of weight 0."""
    for joined in blocks_of((batch for batch in batches if batch.num_rows), lambda batch: batch.num_rows, BLOCK_EDGES):
        block = pa.Table.from_batches(joined)
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
    """Makes a worker's sentences. An epoch of all workers has ``edges`` edges; all edges together weigh ``weight``."""

    directed: bool
    edges: int
    weight: float
    seed: int

    def join(self, blocks: Iterable[Edges]) -> Edges:
        """Concatenate edges; undirected edges are added in both directions."""
        joined = [edges if self.directed else edges.both_directions() for edges in blocks]
        if not joined:
            return Edges(np.empty(0, np.int32), np.empty(0, np.int32))
        sources, targets = (np.concatenate([getattr(edges, end) for edges in joined]) for end in ("sources", "targets"))
        weights = [edges.weights for edges in joined if edges.weights is not None]
        return Edges(sources, targets, np.concatenate(weights) if weights else None)

    def sentences(self, edges: Edges, rank: int) -> EdgeSentences:
        """Return the sentences of edges between word indices, int32."""
        count = len(edges.sources)
        if edges.weights is not None:
            count = round(self.edges * float(edges.weights.sum()) / self.weight)
        return EdgeSentences(edges.sources, edges.targets, edges.weights, count, self.seed, rank)


@dataclass(frozen=True)
class ReadEdges(EdgeReader):
    """Reads edges; tasks call ``get_vertices``, and ``get_word_indices`` for the word index of each vertex."""

    get_vertices: Callable[[], Ids]
    get_word_indices: Callable[[], Int32s]

    def __call__(self, worker: Any, batches: Iterable[pa.RecordBatch]) -> EdgeSentences:
        indices = self.get_word_indices()
        blocks = edges_of(batches, self.get_vertices())
        encoded = (Edges(indices[edges.sources], indices[edges.targets], edges.weights) for edges in blocks)
        return self.sentences(self.join(encoded), worker.rank)


class ReadKeys(EdgeReader):
    """Reads edges between keys; see ``KeyedSentences``."""

    def __call__(self, worker: Any, batches: Iterable[pa.RecordBatch]) -> KeyedSentences:
        edges = self.join(self._edges(batch) for batch in batches if batch.num_rows)
        keys, indices = np.unique(np.concatenate([edges.sources, edges.targets]), return_inverse=True)
        sources, targets = np.split(indices.astype(np.int32), 2)
        occurrences = np.bincount(targets, edges.weights, minlength=len(keys)) * (self.edges / self.weight)
        frequencies = np.maximum(np.rint(occurrences).astype(np.int64), occurrences > 0)
        sentences = self.sentences(Edges(sources, targets, edges.weights), worker.rank)
        if not len(keys):  # a vocabulary must not be empty
            keys, frequencies = np.zeros(1, np.int64), np.zeros(1, np.int64)
        return KeyedSentences(sentences, keys, frequencies)

    def _edges(self, batch: pa.RecordBatch) -> Edges:
        sources, targets = (batch.column(i).cast(pa.int64()).to_numpy() for i in (0, 1))
        return _positive(sources, targets, batch)
