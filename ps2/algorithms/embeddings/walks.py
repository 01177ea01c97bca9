"""The partitioning of a graph into packs (``adjacency_kernels``), and random walks through one in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings import adjacency_kernels, walk_kernels
from ps2.algorithms.embeddings.settings import BiasedWalkSettings
from ps2.algorithms.embeddings.walk_kernels import Bias, Walkers
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s

Array = npt.NDArray[Any]

# Limits of walkers at once, and of the vertices of their walks.
MAX_WALKERS = 1 << 20
MAX_NUMBERS = 1 << 26
# Edges added to lists at once.
MAX_EDGES = 1 << 20
NO_WEIGHTS = np.empty(0)


@dataclass(frozen=True, eq=False)
class GraphPartitioning:
    """The vertices of each pack, which are consecutive.

    All packs are padded to the longest one, so that equal column intervals cut them.

    Attributes:
        first: int64, shape (packs + 1,): the number of each pack's first vertex, and the number of vertices.
        width: the length of a pack.
    """

    first: Int64s
    width: int

    @staticmethod
    def from_degrees(degrees: Int64s, packs: int) -> GraphPartitioning:
        """Partition a graph into packs of about equal length, by the length of each vertex's list."""
        ends = np.append(0, np.cumsum(degrees + 1))
        shares = ends[-1] * np.arange(1, packs) / packs
        first = np.concatenate(([0], np.searchsorted(ends, shares), [len(degrees)]))
        return GraphPartitioning(first, int(np.diff(ends[first]).max()) + 1)

    @property
    def vertices(self) -> int:
        return int(self.first[-1])

    @property
    def packs(self) -> int:
        return len(self.first) - 1

    @property
    def dim(self) -> int:
        """The columns of all packs."""
        return self.packs * self.width

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of addresses."""
        return np.dtype(np.int32 if self.dim <= np.iinfo(np.int32).max else np.int64)

    def addresses(self, numbers: Array) -> Int64s:
        """Return the columns of vertices."""
        if self.packs == 1:
            return numbers.astype(np.int64)
        pack = np.searchsorted(self.first[1:-1], numbers, side="right")
        return numbers - self.first[pack] + pack * self.width

    def empty(self, pack: int, degrees: Int64s) -> Array:
        """Return the bounds of a pack whose lists are allocated and empty, shape (its vertices + 1,)."""
        own = degrees[self.first[pack] : self.first[pack + 1]]
        begins = len(own) + 1 + np.append(0, np.cumsum(own))
        # While a pack is filled, b[v + 1] is the end of list v so far.
        return np.append(begins[0], begins[:-1]).astype(self.dtype)


def bias_of(settings: BiasedWalkSettings) -> Bias:
    """Return node2vec's weights of the previous vertex, of its neighbours and of all others, at most 1."""
    back, far = 1 / settings.p, 1 / settings.q
    largest = max(back, 1.0, far)
    return back / largest, 1 / largest, far / largest


@dataclass(frozen=True, eq=False)
class Walks:
    """Some walks.

    Attributes:
        walkers: int64: the number of each walk: number of the walk from its first vertex * vertices + first vertex.
        vertices: shape (walkers, length): the numbers of the visited vertices.
        lengths: int64: the number of valid vertices of each walk.
    """

    walkers: Int64s
    vertices: Array
    lengths: Int64s


class Graph(Protocol):
    """A graph to walk through."""

    @property
    def vertices(self) -> int:
        """The number of vertices."""

    def walk(self, settings: BiasedWalkSettings, walkers: Int64s) -> Walks:
        """Return the walks of walkers, numbered as in ``Walks``."""


@dataclass(frozen=True, eq=False)
class LocalGraph:
    """A graph in this process.

    Attributes:
        pack: the pack of all vertices (``adjacency_kernels``), sorted.
        weights: float64, parallel to the pack; empty if edges have no weights.
    """

    pack: Array
    weights: Float64s

    @staticmethod
    def from_edges(sources: Array, targets: Array, weights: Float64s | None, vertices: int) -> LocalGraph:
        """Build a graph of vertices in ``[0, vertices)`` from directed edges; weights are positive; None: edges have
        none."""
        degrees = np.bincount(sources, minlength=vertices).astype(np.int64)
        partitioning = GraphPartitioning.from_degrees(degrees, 1)
        begins = partitioning.empty(0, degrees)
        pack = np.empty(partitioning.width, partitioning.dtype)
        pack[: len(begins)] = begins
        sums = NO_WEIGHTS if weights is None else np.zeros(partitioning.width)
        for begin in range(0, len(sources), MAX_EDGES):
            block = slice(begin, begin + MAX_EDGES)
            slots, neighbours = sources[block].astype(np.int64), targets[block].astype(partitioning.dtype)
            block_weights = readable(NO_WEIGHTS if weights is None else weights[block])
            adjacency_kernels.append(pack, sums, readable(slots), readable(neighbours), block_weights)
        adjacency_kernels.put_in_order(pack, sums)
        return LocalGraph(pack, sums)

    @property
    def vertices(self) -> int:
        return int(self.pack[0]) - 1

    def walk(self, settings: BiasedWalkSettings, walkers: Int64s) -> Walks:
        """See ``Graph.walk``."""
        state = start_walkers(settings, walkers, self.vertices, walkers % self.vertices, self.pack.dtype)
        walk_kernels.walk(readable(self.pack), readable(self.weights), state, bias_of(settings))
        return Walks(walkers, state[3], state[2])


def start_walkers(
    settings: BiasedWalkSettings, numbers: Int64s, vertices: int, first: Int64s, dtype: np.dtype[Any]
) -> Walkers:
    """Return numbered walkers at the addresses of their first vertices."""
    count = len(numbers)
    walks = np.empty((count, settings.walkLength), dtype)
    walks[:, 0] = first
    zeros = np.zeros(count, np.int64)
    walkers = np.empty(count, np.uint64), zeros, np.ones(count, np.int64), walks, zeros.copy()
    key = np.random.SeedSequence([settings.seed % 2**64]).generate_state(1, np.uint64)[0]
    walk_kernels.begin(key, readable(numbers), vertices, walkers)
    return walkers


def walks_of(graph: Graph, settings: BiasedWalkSettings, rank: int, workers: int) -> Iterator[Walks]:
    """Yield one worker's walks; those of all workers in rank order are ordered by epoch and vertex."""
    count = settings.numWalks * graph.vertices
    begin, end = (count * turn // workers for turn in (rank, rank + 1))
    step = max(1, min(MAX_WALKERS, MAX_NUMBERS // settings.walkLength))
    for start in range(begin, end, step):
        yield graph.walk(settings, np.arange(start, min(start + step, end)))
