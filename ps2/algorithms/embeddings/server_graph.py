"""A graph partitioned among the servers, and walks through it, one request to each server a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings import walk_kernels as kernels
from ps2.algorithms.embeddings.graph_partitioning import GraphPartitioning
from ps2.algorithms.embeddings.walk_kernels import Bias, Walkers
from ps2.algorithms.embeddings.walks import Walks, WalkSettings, start_walkers
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
        cut: where vertices are.
        packs: one row.
        weights: float64, co-located with ``packs``; None: unweighted.
    """

    cut: GraphPartitioning
    packs: DCVMatrix
    weights: DCVMatrix | None

    @staticmethod
    def empty(degrees: Int64s, weighted: bool, servers: int) -> ServerGraph:
        """Allocate a graph on the servers.

        Args:
            degrees: int64, shape (vertices,): the number of edges that each vertex will have.

        Raises:
            LimitError: it does not fit.
        """
        cut = GraphPartitioning.of(degrees, servers)
        first = DCV.dense(cut.dim, 1, cut.dtype.name)
        try:
            weights = DCV.dense(cut.dim, 1, "float64").matrix() if weighted else None
        except LimitError:
            first.free()
            raise
        for pack in range(servers):
            begins = cut.empty(pack, degrees)
            first.push(begins, pack * cut.width + np.arange(len(begins)))
        return ServerGraph(cut, first.matrix(), weights)

    @property
    def vertices(self) -> int:
        return self.cut.vertices

    def add(self, sources: Array, targets: Array, weights: Float64s | None) -> None:
        """Add directed edges; arguments as in ``LocalGraph.of``."""
        slots, neighbours = self.cut.addresses(sources), self.cut.addresses(targets).astype(self.cut.dtype)
        if self.weights is None:
            self.packs.apply("embeddings.add_neighbours", slots=slots, neighbours=neighbours)
        else:
            self.packs.apply(
                "embeddings.add_weighted_neighbours",
                pack_weights=self.weights,
                slots=slots,
                neighbours=neighbours,
                their=weights,
            )

    def finish(self, degrees: Int64s) -> None:
        """Sort the lists when all edges have been added.

        Raises:
            InputError: the edges do not match the allocated lists.
        """
        for pack in range(self.cut.packs):
            expected = self.cut.empty(pack, degrees)
            ends = pack * self.cut.width + np.arange(1, len(expected))
            own = degrees[self.cut.first[pack] : self.cut.first[pack + 1]]
            if not np.array_equal(self.packs.pull([0], ends)[0], expected[1:] + own):
                raise InputError("the number of edges changed when they were read again: persist the DataFrame")
        if self.weights is None:
            self.packs.apply("embeddings.order_neighbours")
        else:
            self.packs.apply("embeddings.order_weighted_neighbours", pack_weights=self.weights)

    def walk(self, settings: WalkSettings, walkers: Int64s) -> Walks:
        """Walk as ``Graph.walk`` says: all walkers advance together, one request to each server a step."""
        first = self.cut.addresses(walkers % self.vertices)
        state = start_walkers(settings, walkers, self.vertices, first, self.cut.dtype)
        active = np.arange(len(walkers) if settings.length > 1 else 0)
        while len(active):
            active = self._step(active, state, settings.bias)
        kernels.number(state[3], state[2], readable(self.cut.first), self.cut.width)
        return Walks(walkers, state[3], state[2])

    def _step(self, active: Int64s, state: Walkers, bias: Bias) -> Int64s:
        """Propose a neighbour to each walker; return the active walkers."""
        here, drawn = np.empty(len(active), np.int64), np.empty(len(active))
        kernels.propose(active, state, here, drawn)
        found = readable(self._draw(here, drawn))
        asked, before, proposed = (np.empty(len(active), np.int64) for _ in range(3))
        going, asking = kernels.settle(active, found, state, bias, asked, before, proposed)
        active = active[:going]
        if bias[0] == bias[1] == bias[2]:
            return active
        if asking:
            edges = self._are_neighbours(before[:asking], proposed[:asking])
            kernels.settle_asked(asked[:asking], readable(edges), proposed[:asking], state, bias)
        going, sticking = kernels.still_walking(active, state, asked)
        active, stuck = active[:going], asked[:sticking]
        for walker in stuck:
            self._choose(walker, state, bias)
        return np.append(active, stuck[state[2][stuck] < state[3].shape[1]]) if sticking else active

    def _choose(self, walker: Any, state: Walkers, bias: Bias) -> None:
        """Choose a walker's next vertex by exact probabilities of all neighbours."""
        keys, proposals, lengths, walks, settled = state
        before, here = walks[walker, lengths[walker] - 2 : lengths[walker]].astype(np.int64)
        begin, end = self.packs.pull([0], [here, here + 1])[0]
        columns = here // self.cut.width * self.cut.width + np.arange(begin, end)
        neighbours = self.packs.pull([0], columns)[0]
        sums = np.empty(0) if self.weights is None else self.weights.pull([0], columns)[0]
        near = self._are_neighbours(np.full(len(columns), before), neighbours.astype(np.int64))
        drawn = kernels.uniform(keys[walker], proposals[walker], 0)
        chosen = kernels.choose(
            readable(neighbours), readable(sums), readable(near.astype(np.int64)), before, drawn, bias
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
        return self.packs.apply("embeddings.are_neighbours", slots=slots, others=others.astype(self.cut.dtype))
