"""Graphs in packs (see ``walk_kernels``), in this process or on servers, and random walks through them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings import walk_kernels as kernels
from ps2.algorithms.embeddings.settings import BiasedWalkSettings
from ps2.algorithms.embeddings.walk_kernels import Bias, Walkers
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.errors import InputError, LimitError
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s

Array = npt.NDArray[Any]

# The maximum number of walkers that are computed together, and the maximum number of vertices of their walks.
MAX_WALKERS = 1 << 20
MAX_VERTICES = 1 << 26
# The maximum number of edges that are added to lists at once.
MAX_EDGES = 1 << 20
NO_WEIGHTS = np.empty(0)


@dataclass(frozen=True, eq=False)
class GraphPartitioning:
    """The vertices of each pack, which are consecutive.

    Attributes:
        first_vertices: the first vertex of each pack, and then the number of vertices.
        width: the length to which all packs are padded, so that all servers have the same number of columns.
    """

    first_vertices: Int64s
    width: int

    @staticmethod
    def from_degrees(degrees: Int64s, packs: int) -> GraphPartitioning:
        """Partition a graph into packs of about equal length; ``degrees`` has the number of edges of each vertex."""
        ends = np.append(0, np.cumsum(degrees + 1))
        targets = ends[-1] * np.arange(1, packs) / packs
        first_vertices = np.concatenate(([0], np.searchsorted(ends, targets), [len(degrees)]))
        return GraphPartitioning(first_vertices, int(np.diff(ends[first_vertices]).max()) + 1)

    @property
    def vertices(self) -> int:
        return int(self.first_vertices[-1])

    @property
    def packs(self) -> int:
        return len(self.first_vertices) - 1

    @property
    def dim(self) -> int:
        """The number of columns of all packs."""
        return self.packs * self.width

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of addresses."""
        return np.dtype(np.int32 if self.dim <= np.iinfo(np.int32).max else np.int64)

    def addresses(self, vertices: Array) -> Int64s:
        """Return the addresses of vertices: their columns."""
        if self.packs == 1:
            return vertices.astype(np.int64)
        pack = np.searchsorted(self.first_vertices[1:-1], vertices, side="right")
        return vertices - self.first_vertices[pack] + pack * self.width

    def empty_bounds(self, pack: int, degrees: Int64s) -> Array:
        """Return the bounds of a pack whose lists are allocated and empty, shape (vertices of the pack + 1,)."""
        pack_degrees = degrees[self.first_vertices[pack] : self.first_vertices[pack + 1]]
        begins = len(pack_degrees) + 1 + np.append(0, np.cumsum(pack_degrees))
        # While a pack is filled, element v + 1 is the current end of list v.
        return np.append(begins[0], begins[:-1]).astype(self.dtype)


def bias_of(settings: BiasedWalkSettings) -> Bias:
    """Return the probabilities to accept the previous vertex, its neighbours and other vertices; the largest is 1."""
    back, far = 1 / settings.p, 1 / settings.q
    largest = max(back, 1.0, far)
    return back / largest, 1 / largest, far / largest


@dataclass(frozen=True, eq=False)
class Walks:
    """Computed walks: ``vertices``, shape (walkers, maximum length), of which the first ``lengths`` are valid.

    ``walkers``: (index among the walks from the same first vertex) * (the graph's vertices) + (first vertex).
    """

    walkers: Int64s
    vertices: Array
    lengths: Int64s

    def block(self, begin: int, end: int) -> tuple[Array, Int64s]:
        """Return the vertices of the walks from ``begin`` to ``end``, concatenated, and the lengths of these walks."""
        lengths = self.lengths[begin:end]
        is_visited = np.arange(self.vertices.shape[1]) < lengths[:, None]
        return self.vertices[begin:end][is_visited], lengths


@dataclass(frozen=True, eq=False)
class LocalGraph:
    """A graph in this process: a pack with sorted lists, and cumulative ``weights``; empty: edges have no weights."""

    pack: Array
    weights: Float64s

    @staticmethod
    def from_edges(sources: Array, targets: Array, weights: Float64s | None, vertices: int) -> LocalGraph:
        """Build a graph of vertices in [0, ``vertices``) from directed edges with positive weights, or None."""
        degrees = np.bincount(sources, minlength=vertices).astype(np.int64)
        partitioning = GraphPartitioning.from_degrees(degrees, 1)
        begins = partitioning.empty_bounds(0, degrees)
        pack = np.empty(partitioning.width, partitioning.dtype)
        pack[: len(begins)] = begins
        sums = NO_WEIGHTS if weights is None else np.zeros(partitioning.width)
        for begin in range(0, len(sources), MAX_EDGES):
            block = slice(begin, begin + MAX_EDGES)
            slots, neighbours = sources[block].astype(np.int64), targets[block].astype(partitioning.dtype)
            block_weights = readable(NO_WEIGHTS if weights is None else weights[block])
            kernels.append(pack, sums, readable(slots), readable(neighbours), block_weights)
        kernels.sort_lists(pack, sums)
        return LocalGraph(pack, sums)

    @property
    def vertices(self) -> int:
        return int(self.pack[0]) - 1

    def walk(self, settings: BiasedWalkSettings, walkers: Int64s) -> Walks:
        """Compute walks; ``walkers`` are their numbers (see ``Walks``)."""
        state = start_walkers(settings, walkers, self.vertices, walkers % self.vertices, self.pack.dtype)
        kernels.walk(readable(self.pack), readable(self.weights), state, bias_of(settings))
        return Walks(walkers, state.walks, state.lengths)


@dataclass(frozen=True, eq=False)
class ServerGraph:
    """A graph on the servers; picklable. ``weights`` are co-located with ``packs``; None: edges have no weights."""

    partitioning: GraphPartitioning
    packs: DCVMatrix
    weights: DCVMatrix | None

    @staticmethod
    def empty(degrees: Int64s, weighted: bool, servers: int) -> ServerGraph:
        """Allocate a graph on the servers; ``degrees`` has the final number of edges of each vertex."""
        partitioning = GraphPartitioning.from_degrees(degrees, servers)
        row = DCV.dense(partitioning.dim, 1, partitioning.dtype.name)
        try:
            weights = DCV.dense(partitioning.dim, 1, "float64").matrix() if weighted else None
        except LimitError:
            row.free()
            raise
        for pack in range(servers):
            begins = partitioning.empty_bounds(pack, degrees)
            row.push(begins, pack * partitioning.width + np.arange(len(begins)))
        return ServerGraph(partitioning, row.matrix(), weights)

    @property
    def vertices(self) -> int:
        return self.partitioning.vertices

    def add(self, sources: Array, targets: Array, weights: Float64s | None) -> None:
        """Add directed edges; see ``LocalGraph.from_edges``."""
        slots, neighbours = self.partitioning.addresses(sources), self.partitioning.addresses(targets)
        arrays = {} if self.weights is None else {"edge_weights": weights}
        self._apply("add", slots=slots, neighbours=neighbours.astype(self.partitioning.dtype), **arrays)

    def finish(self, degrees: Int64s) -> None:
        """Sort the lists after all edges were added; raise InputError if a list is not full."""
        for pack in range(self.partitioning.packs):
            expected = self.partitioning.empty_bounds(pack, degrees)
            ends = pack * self.partitioning.width + np.arange(1, len(expected))
            pack_degrees = degrees[self.partitioning.first_vertices[pack] : self.partitioning.first_vertices[pack + 1]]
            if not np.array_equal(self.packs.pull([0], ends)[0], expected[1:] + pack_degrees):
                raise InputError("the number of edges changed when they were read again: persist the DataFrame")
        self._apply("order")

    def walk(self, settings: BiasedWalkSettings, walkers: Int64s) -> Walks:
        """Like ``LocalGraph.walk``; all walkers take a step at once, with one request to each server."""
        first = self.partitioning.addresses(walkers % self.vertices)
        state = start_walkers(settings, walkers, self.vertices, first, self.partitioning.dtype)
        active, bias = np.arange(len(walkers) if settings.walkLength > 1 else 0), bias_of(settings)
        while len(active):
            active = self._step(active, state, bias)
        first_vertices = readable(self.partitioning.first_vertices)
        kernels.convert_addresses(state.walks, state.lengths, first_vertices, self.partitioning.width)
        return Walks(walkers, state.walks, state.lengths)

    def _step(self, active: Int64s, state: Walkers, bias: Bias) -> Int64s:
        """Propose a neighbour to each active walker; return the walkers whose walks are unfinished.

        Pending proposals are decided after a look-up of edges. Stuck walkers, often rejected, choose exactly.
        """
        current, draws = np.empty(len(active), np.int64), np.empty(len(active))
        kernels.propose(active, state, current, draws)
        neighbours = readable(self._apply("draw", slots=current, numbers=draws))
        pending, previous, proposed = (np.empty(len(active), np.int64) for _ in range(3))
        num_active, num_pending = kernels.settle(active, neighbours, state, bias, pending, previous, proposed)
        active = active[:num_active]
        if bias[0] == bias[1] == bias[2]:
            return active
        if num_pending:
            edges = self._are_neighbours(previous[:num_pending], proposed[:num_pending])
            kernels.settle_undecided(pending[:num_pending], readable(edges), proposed[:num_pending], state, bias)
        # ``pending`` is free now: it becomes the list of stuck walkers.
        num_active, num_stuck = kernels.list_unfinished(active, state, pending)
        active, stuck = active[:num_active], pending[:num_stuck]
        for walker in stuck:
            self._choose(walker, state, bias)
        return np.append(active, stuck[state.lengths[stuck] < state.walks.shape[1]]) if num_stuck else active

    def _choose(self, walker: Any, state: Walkers, bias: Bias) -> None:
        """Choose the next vertex of a walker among all neighbours by their exact probabilities."""
        keys, proposals, lengths, walks, settled_at = state
        previous, current = walks[walker, lengths[walker] - 2 : lengths[walker]].astype(np.int64)
        begin, end = self.packs.pull([0], [current, current + 1])[0]
        columns = current // self.partitioning.width * self.partitioning.width + np.arange(begin, end)
        neighbours = self.packs.pull([0], columns)[0]
        sums = np.empty(0) if self.weights is None else self.weights.pull([0], columns)[0]
        is_near = self._are_neighbours(np.full(len(columns), previous), neighbours.astype(np.int64)).astype(np.int64)
        random = kernels.uniform(keys[walker], proposals[walker], 0)
        index = kernels.choose(readable(neighbours), readable(sums), readable(is_near), previous, random, bias)
        walks[walker, lengths[walker]] = neighbours[index]
        lengths[walker] += 1
        proposals[walker] += 1
        settled_at[walker] = proposals[walker]

    def free(self) -> None:
        """Free the graph on the servers."""
        self.packs.free()
        if self.weights is not None:
            self.weights.free()

    def _apply(self, action: str, **arrays: Any) -> Any:
        """Apply an operation for weighted or unweighted edges; ``action`` is "add", "order" or "draw"."""
        if self.weights is None:
            return self.packs.apply(f"embeddings.{action}_neighbours", **arrays)
        return self.packs.apply(f"embeddings.{action}_weighted_neighbours", pack_weights=self.weights, **arrays)

    def _are_neighbours(self, slots: Int64s, others: Int64s) -> Array:
        return self.packs.apply("embeddings.are_neighbours", slots=slots, others=others.astype(self.partitioning.dtype))


Graph = LocalGraph | ServerGraph


def start_walkers(
    settings: BiasedWalkSettings, numbers: Int64s, vertices: int, first: Int64s, dtype: np.dtype[Any]
) -> Walkers:
    """Return the state of walkers (see ``Walks.walkers``) at the addresses ``first`` of their first vertices."""
    count = len(numbers)
    walks = np.empty((count, settings.walkLength), dtype)
    walks[:, 0] = first
    zeros = np.zeros(count, np.int64)
    walkers = Walkers(np.empty(count, np.uint64), zeros, np.ones(count, np.int64), walks, zeros.copy())
    key = np.random.SeedSequence([settings.seed % 2**64]).generate_state(1, np.uint64)[0]
    kernels.set_keys(key, readable(numbers), vertices, walkers)
    return walkers


def walks_of(graph: Graph, settings: BiasedWalkSettings, rank: int, workers: int) -> Iterator[Walks]:
    """Yield the walks of a worker. In the order of ranks, the workers' walks are ordered by epoch and first vertex."""
    count = settings.numWalks * graph.vertices
    begin, end = (count * end // workers for end in (rank, rank + 1))
    step = max(1, min(MAX_WALKERS, MAX_VERTICES // settings.walkLength))
    for start in range(begin, end, step):
        yield graph.walk(settings, np.arange(start, min(start + step, end)))
