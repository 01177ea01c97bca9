"""A graph partitioned among the servers, and walks through it, one request to each server a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings import walk_kernels as kernels
from ps2.algorithms.embeddings.settings import BiasedWalkSettings
from ps2.algorithms.embeddings.walk_kernels import Bias, Walkers
from ps2.algorithms.embeddings.walks import GraphPartitioning, Walks, bias_of, start_walkers
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.errors import InputError, LimitError
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class ServerGraph:
    """A graph on the servers; picklable.

    Attributes:
        partitioning: the partitioning of the vertices.
        packs: the packs, one row.
        weights: float64, co-located with ``packs``; None: edges have no weights.
    """

    partitioning: GraphPartitioning
    packs: DCVMatrix
    weights: DCVMatrix | None

    @staticmethod
    def empty(degrees: Int64s, weighted: bool, servers: int) -> ServerGraph:
        """Allocate a graph on the servers; ``degrees``: int64, shape (vertices,), the number of edges that each vertex
        will have."""
        partitioning = GraphPartitioning.from_degrees(degrees, servers)
        row = DCV.dense(partitioning.dim, 1, partitioning.dtype.name)
        try:
            weights = DCV.dense(partitioning.dim, 1, "float64").matrix() if weighted else None
        except LimitError:
            row.free()
            raise
        for pack in range(servers):
            begins = partitioning.empty(pack, degrees)
            row.push(begins, pack * partitioning.width + np.arange(len(begins)))
        return ServerGraph(partitioning, row.matrix(), weights)

    @property
    def vertices(self) -> int:
        return self.partitioning.vertices

    def add(self, sources: Array, targets: Array, weights: Float64s | None) -> None:
        """Add directed edges; arguments as in ``LocalGraph.from_edges``."""
        slots, neighbours = (
            self.partitioning.addresses(sources),
            self.partitioning.addresses(targets).astype(self.partitioning.dtype),
        )
        if self.weights is None:
            self.packs.apply("embeddings.add_neighbours", slots=slots, neighbours=neighbours)
        else:
            self.packs.apply(
                "embeddings.add_weighted_neighbours",
                pack_weights=self.weights,
                slots=slots,
                neighbours=neighbours,
                edge_weights=weights,
            )

    def finish(self, degrees: Int64s) -> None:
        """Sort the lists when all edges have been added; raise InputError if the edges do not match the allocated
        lists."""
        for pack in range(self.partitioning.packs):
            expected = self.partitioning.empty(pack, degrees)
            ends = pack * self.partitioning.width + np.arange(1, len(expected))
            own = degrees[self.partitioning.first[pack] : self.partitioning.first[pack + 1]]
            if not np.array_equal(self.packs.pull([0], ends)[0], expected[1:] + own):
                raise InputError("the number of edges changed when they were read again: persist the DataFrame")
        if self.weights is None:
            self.packs.apply("embeddings.order_neighbours")
        else:
            self.packs.apply("embeddings.order_weighted_neighbours", pack_weights=self.weights)

    def walk(self, settings: BiasedWalkSettings, walkers: Int64s) -> Walks:
        """See ``Graph.walk``: all walkers advance together, one request to each server a step."""
        first = self.partitioning.addresses(walkers % self.vertices)
        state = start_walkers(settings, walkers, self.vertices, first, self.partitioning.dtype)
        active, bias = np.arange(len(walkers) if settings.walkLength > 1 else 0), bias_of(settings)
        while len(active):
            active = self._step(active, state, bias)
        kernels.number(state[3], state[2], readable(self.partitioning.first), self.partitioning.width)
        return Walks(walkers, state[3], state[2])

    def _step(self, active: Int64s, state: Walkers, bias: Bias) -> Int64s:
        """Propose a neighbour to each walker; return the active walkers."""
        current, draws = np.empty(len(active), np.int64), np.empty(len(active))
        kernels.propose(active, state, current, draws)
        neighbours = readable(self._draw(current, draws))
        asking, previous, proposed = (np.empty(len(active), np.int64) for _ in range(3))
        num_active, num_asking = kernels.settle(active, neighbours, state, bias, asking, previous, proposed)
        active = active[:num_active]
        if bias[0] == bias[1] == bias[2]:
            return active
        if num_asking:
            edges = self._are_neighbours(previous[:num_asking], proposed[:num_asking])
            kernels.settle_asked(asking[:num_asking], readable(edges), proposed[:num_asking], state, bias)
        num_active, num_stuck = kernels.still_walking(active, state, asking)
        active, stuck = active[:num_active], asking[:num_stuck]
        for walker in stuck:
            self._choose(walker, state, bias)
        return np.append(active, stuck[state[2][stuck] < state[3].shape[1]]) if num_stuck else active

    def _choose(self, walker: Any, state: Walkers, bias: Bias) -> None:
        """Choose a walker's next vertex by exact probabilities of all neighbours."""
        keys, proposals, lengths, walks, settled = state
        previous, current = walks[walker, lengths[walker] - 2 : lengths[walker]].astype(np.int64)
        begin, end = self.packs.pull([0], [current, current + 1])[0]
        columns = current // self.partitioning.width * self.partitioning.width + np.arange(begin, end)
        neighbours = self.packs.pull([0], columns)[0]
        sums = np.empty(0) if self.weights is None else self.weights.pull([0], columns)[0]
        near = self._are_neighbours(np.full(len(columns), previous), neighbours.astype(np.int64))
        draw = kernels.uniform(keys[walker], proposals[walker], 0)
        chosen = kernels.choose(
            readable(neighbours), readable(sums), readable(near.astype(np.int64)), previous, draw, bias
        )
        walks[walker, lengths[walker]] = neighbours[chosen]
        lengths[walker] += 1
        proposals[walker] += 1
        settled[walker] = proposals[walker]

    def free(self) -> None:
        """Free the graph on the servers."""
        self.packs.free()
        if self.weights is not None:
            self.weights.free()

    def _draw(self, slots: Int64s, numbers: Float64s) -> Array:
        if self.weights is None:
            return self.packs.apply("embeddings.draw_neighbours", slots=slots, numbers=numbers)
        return self.packs.apply(
            "embeddings.draw_weighted_neighbours", pack_weights=self.weights, slots=slots, numbers=numbers
        )

    def _are_neighbours(self, slots: Int64s, others: Int64s) -> Array:
        return self.packs.apply("embeddings.are_neighbours", slots=slots, others=others.astype(self.partitioning.dtype))
