"""Settings of random walks, and walks through a graph in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings import adjacency_kernels, walk_kernels
from ps2.algorithms.embeddings.graph_partitioning import GraphPartitioning
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


@dataclass(frozen=True)
class WalkSettings:
    """Which walks to make: one from each vertex in each epoch.

    Attributes:
        epochs: walks from each vertex.
        length: vertices of a walk, the first one included.
        seed: of all draws.
        p: node2vec's return parameter: the larger, the less often a walk returns at once.
        q: node2vec's in-out parameter: the larger, the closer a walk stays to its previous vertex.
    """

    epochs: int
    length: int
    seed: int = 0
    p: float = 1.0
    q: float = 1.0

    @property
    def key(self) -> np.uint64:
        """The random key of all walks."""
        return np.random.SeedSequence([self.seed % 2**64]).generate_state(1, np.uint64)[0]

    @property
    def bias(self) -> Bias:
        back, far = 1 / self.p, 1 / self.q
        most = max(back, 1.0, far)
        return back / most, 1 / most, far / most


@dataclass(frozen=True, eq=False)
class Walks:
    """Some walks.

    Attributes:
        walkers: int64: epoch * vertices + first vertex, of each walk.
        vertices: shape (walkers, length): numbers of the visited vertices.
        lengths: int64: number of valid vertices of each walk.
    """

    walkers: Int64s
    vertices: Array
    lengths: Int64s


class Graph(Protocol):
    """A graph to walk through."""

    @property
    def vertices(self) -> int:
        """Number of vertices."""

    def walk(self, settings: WalkSettings, walkers: Int64s) -> Walks:
        """Return the walks of walkers, numbered as in ``Walks``."""


@dataclass(frozen=True, eq=False)
class LocalGraph:
    """A graph in this process.

    Attributes:
        pack: of all vertices (``adjacency_kernels``), sorted.
        weights: float64, parallel to the pack; of length 0 if unweighted.
    """

    pack: Array
    weights: Float64s

    @staticmethod
    def of(sources: Array, targets: Array, weights: Float64s | None, vertices: int) -> LocalGraph:
        """Build a graph from its edges.

        Args:
            sources, targets: integers, shape (edges,): vertices in ``[0, vertices)``; edges are directed.
            weights: positive; None: unweighted.
        """
        degrees = np.bincount(sources, minlength=vertices).astype(np.int64)
        cut = GraphPartitioning.of(degrees, 1)
        begins = cut.empty(0, degrees)
        pack = np.empty(cut.width, cut.dtype)
        pack[: len(begins)] = begins
        sums = NO_WEIGHTS if weights is None else np.zeros(cut.width)
        for begin in range(0, len(sources), MAX_EDGES):
            some = slice(begin, begin + MAX_EDGES)
            slots, neighbours = sources[some].astype(np.int64), targets[some].astype(cut.dtype)
            given = readable(NO_WEIGHTS if weights is None else weights[some])
            adjacency_kernels.append(pack, sums, readable(slots), readable(neighbours), given)
        adjacency_kernels.put_in_order(pack, sums)
        return LocalGraph(pack, sums)

    @property
    def vertices(self) -> int:
        return int(self.pack[0]) - 1

    def walk(self, settings: WalkSettings, walkers: Int64s) -> Walks:
        """Walk as ``Graph.walk`` says."""
        state = start_walkers(settings, walkers, self.vertices, walkers % self.vertices, self.pack.dtype)
        walk_kernels.walk(readable(self.pack), readable(self.weights), state, settings.bias)
        return Walks(walkers, state[3], state[2])


def start_walkers(
    settings: WalkSettings, numbers: Int64s, vertices: int, first: Int64s, dtype: np.dtype[Any]
) -> Walkers:
    """Return walkers at their first vertices.

    Args:
        numbers: of the walkers.
        vertices: number of vertices.
        first: addresses of the first vertices.
        dtype: of addresses.
    """
    count = len(numbers)
    walks = np.empty((count, settings.length), dtype)
    walks[:, 0] = first
    none = np.zeros(count, np.int64)
    walkers = np.empty(count, np.uint64), none, np.ones(count, np.int64), walks, none.copy()
    walk_kernels.begin(settings.key, readable(numbers), vertices, walkers)
    return walkers


def walks_of(graph: Graph, settings: WalkSettings, rank: int, workers: int) -> Iterator[Walks]:
    """Yield one worker's walks; those of all workers in rank order are ordered by epoch and vertex."""
    count = settings.epochs * graph.vertices
    begin, end = (count * turn // workers for turn in (rank, rank + 1))
    step = max(1, min(MAX_WALKERS, MAX_NUMBERS // settings.length))
    for start in range(begin, end, step):
        yield graph.walk(settings, np.arange(start, min(start + step, end)))
