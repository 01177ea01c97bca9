"""Sentences of vertices that each worker generates: walks and edges. They are not stored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.corpus import BATCH_TOKENS, Batch
from ps2.algorithms.embeddings.walks import Graph, WalkSettings
from ps2.array_types import Float64s, Int32s, Int64s

Array = npt.NDArray[Any]

# Vertices of walks made at once.
WALKED_AT_ONCE = 1 << 22
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, eq=False)
class WalkSentences:
    """Walks through a graph, new ones in each epoch.

    Attributes:
        graph: on this worker, or on the servers.
        settings: of the walks of one epoch.
        numbers: int32, shape (vertices,): numbers of the vertices in the training.
        visits: estimated vertices of all workers' walks in an epoch.
        rank: of this worker.
        workers: number of workers.
    """

    graph: Graph
    settings: WalkSettings
    numbers: Int32s
    visits: int
    rank: int
    workers: int

    @property
    def tokens(self) -> int:
        """Tokens of an epoch, approximately."""
        return self.visits // self.workers

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield this worker's walks of an epoch: tokens, and the bounds of the walks."""
        for walkers in self._walkers(epoch):
            walks = self.graph.walk(self.settings, walkers)
            step = max(1, BATCH_TOKENS // self.settings.length)
            for begin in range(0, len(walkers), step):
                lengths = walks.lengths[begin : begin + step]
                there = np.arange(self.settings.length) < lengths[:, None]
                tokens = self.numbers[walks.vertices[begin : begin + step][there]]
                yield tokens, np.append(0, np.cumsum(lengths))

    def _walkers(self, epoch: int) -> Iterator[Int64s]:
        """Yield numbers of walkers, as many as walk at once; a worker's vertices are scattered over the graph."""
        vertices, passes = self.graph.vertices, self.settings.epochs
        begin, end = (vertices * turn // self.workers for turn in (self.rank, self.rank + 1))
        step = max(1, WALKED_AT_ONCE // self.settings.length)
        # As many whole passes as fit at once; of a large graph, parts of one.
        together = max(1, step // max(1, end - begin))
        for first in range(epoch * passes, (epoch + 1) * passes, together):
            numbers = range(first, min(first + together, (epoch + 1) * passes))
            for at in range(begin, end, step):
                places = np.arange(at, min(at + step, end))
                yield np.concatenate([number * vertices + scattered(places, vertices, number) for number in numbers])


@dataclass(frozen=True, eq=False)
class EdgeSentences:
    """Edges as sentences of two.

    Attributes:
        sources, targets: int32: numbers of vertices in the training.
        weights: float64: draw edges in proportion to them; None: each edge once an epoch.
        count: number of edges in an epoch.
        seed: of all draws.
        rank: of this worker.
    """

    sources: Int32s
    targets: Int32s
    weights: Float64s | None
    count: int
    seed: int
    rank: int

    @property
    def tokens(self) -> int:
        """Tokens of an epoch."""
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
                drawn = self._rng(epoch, number + 1).random(size) * sums[-1]
                chosen = np.minimum(np.searchsorted(sums, drawn, side="right"), len(sums) - 1)
            tokens = np.stack([self.sources[chosen], self.targets[chosen]], axis=1).reshape(-1)
            yield tokens, np.arange(0, 2 * size + 1, 2)

    def _rng(self, epoch: int, number: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.rank, epoch, number])


def scattered(places: Int64s, count: int, turn: int) -> Int64s:
    """Apply a permutation of ``[0, count)``, another one each turn, that moves neighbours apart."""
    step = max(1, round(count * GOLDEN))
    while math.gcd(step, count) != 1:
        step += 1
    return (places * step + turn * (step // 2 + 1)) % count


def rank_by_frequency(counts: Int64s) -> tuple[Int64s, Int32s]:
    """Number vertices by frequency, the most frequent first; of equals, the first.

    Returns:
        The vertices in this order, and each vertex's number.
    """
    order = np.argsort(-counts, kind="stable")
    numbers = np.empty(len(counts), np.int32)
    numbers[order] = np.arange(len(counts), dtype=np.int32)
    return order, numbers
