"""Which walks there are, and those through a graph that is in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings import list_kernels, walk_kernels
from ps2.algorithms.embeddings.cut import Cut
from ps2.algorithms.embeddings.walk_kernels import Bias, Walkers
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s

Array = npt.NDArray[Any]

# Walkers that go at once, and numbers that their walks have, at most.
MOST_WALKERS = 1 << 20
MOST_NUMBERS = 1 << 26
# Edges that are put into lists at once.
MOST_EDGES = 1 << 20
NO_WEIGHTS = np.empty(0)


@dataclass(frozen=True)
class Recipe:
    """Which walks there are: as many from each vertex as there are epochs.

    Attributes:
        epochs: walks from each vertex.
        length: vertices of a walk, the first one among them.
        seed: of all draws.
        p: the larger, the less a walk goes back at once.
        q: the larger, the nearer it stays to where it comes from.
    """

    epochs: int
    length: int
    seed: int = 0
    p: float = 1.0
    q: float = 1.0

    @property
    def key(self) -> np.uint64:
        """What all draws come of."""
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
        walkers: int64: numbers of them: epoch * vertices + the vertex where it begins.
        vertices: shape (walkers, length): numbers of those that a walk comes to.
        lengths: int64: how many these are; what is behind them means nothing.
    """

    walkers: Int64s
    vertices: Array
    lengths: Int64s


class Graph(Protocol):
    """What walks go through."""

    @property
    def vertices(self) -> int:
        """How many there are."""

    def walk(self, recipe: Recipe, walkers: Int64s) -> Walks:
        """Walk; what ``walkers`` are is said at ``Walks``."""


@dataclass(frozen=True, eq=False)
class LocalGraph:
    """A graph in this process.

    Attributes:
        pack: of all vertices (``list_kernels``), in order.
        weights: float64, beside the pack; of length 0 if all edges weigh the same.
    """

    pack: Array
    weights: Float64s

    @staticmethod
    def of(sources: Array, targets: Array, weights: Float64s | None, vertices: int) -> LocalGraph:
        """Make a graph of its edges.

        Args:
            sources, targets: integers, shape (edges,): vertices in ``[0, vertices)``; each edge has one direction.
            weights: positive; None: all weigh the same.
        """
        degrees = np.bincount(sources, minlength=vertices).astype(np.int64)
        cut = Cut.of(degrees, 1)
        begins = cut.empty(0, degrees)
        pack = np.empty(cut.width, cut.dtype)
        pack[: len(begins)] = begins
        sums = NO_WEIGHTS if weights is None else np.zeros(cut.width)
        for begin in range(0, len(sources), MOST_EDGES):
            some = slice(begin, begin + MOST_EDGES)
            slots, neighbours = sources[some].astype(np.int64), targets[some].astype(cut.dtype)
            given = readable(NO_WEIGHTS if weights is None else weights[some])
            list_kernels.append(pack, sums, readable(slots), readable(neighbours), given)
        list_kernels.put_in_order(pack, sums)
        return LocalGraph(pack, sums)

    @property
    def vertices(self) -> int:
        return int(self.pack[0]) - 1

    def walk(self, recipe: Recipe, walkers: Int64s) -> Walks:
        """Do what ``Graph.walk`` says."""
        state = begun(recipe, walkers, self.vertices, walkers % self.vertices, self.pack.dtype)
        walk_kernels.walk(readable(self.pack), readable(self.weights), state, recipe.bias)
        return Walks(walkers, state[3], state[2])


def begun(recipe: Recipe, numbers: Int64s, vertices: int, first: Int64s, dtype: np.dtype[Any]) -> Walkers:
    """Return walkers who stand where their walks begin.

    Args:
        numbers: of the walkers; vertices: how many there are.
        first: where each begins: vertices as the kernel knows them, kept in ``dtype``.
    """
    count = len(numbers)
    walks = np.empty((count, recipe.length), dtype)
    walks[:, 0] = first
    none = np.zeros(count, np.int64)
    walkers = np.empty(count, np.uint64), none, np.ones(count, np.int64), walks, none.copy()
    walk_kernels.begin(recipe.key, readable(numbers), vertices, walkers)
    return walkers


def walks_of(graph: Graph, recipe: Recipe, rank: int, workers: int) -> Iterator[Walks]:
    """Yield the walks of one of some workers: those of all of them are in order of epoch and vertex."""
    count = recipe.epochs * graph.vertices
    begin, end = (count * turn // workers for turn in (rank, rank + 1))
    step = max(1, min(MOST_WALKERS, MOST_NUMBERS // recipe.length))
    for start in range(begin, end, step):
        yield graph.walk(recipe, np.arange(start, min(start + step, end)))
