"""Small graphs, and what walks through them have to be."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.embeddings.settings import BiasedWalkSettings
from ps2.algorithms.embeddings.walks import LocalGraph


def walk_settings(epochs, length, **params):
    """Settings of walks: their number from each vertex, and their length."""
    return BiasedWalkSettings(numWalks=epochs, walkLength=length, **params)


class Edges:
    """The edges of a graph, one each way if it is undirected.

    Args:
        edges: pairs, or triples with a weight.
    """

    def __init__(self, edges, vertices, directed=False):
        columns = [np.array(column) for column in zip(*edges, strict=True)]
        sources, targets = columns[0], columns[1]
        weights = columns[2].astype(np.float64) if len(columns) > 2 else None
        if not directed:
            there = sources != targets
            sources, targets = np.append(sources, targets[there]), np.append(targets, sources[there])
            weights = None if weights is None else np.append(weights, weights[there])
        self.sources, self.targets, self.weights, self.vertices = sources, targets, weights, vertices

    @property
    def degrees(self):
        return np.bincount(self.sources, minlength=self.vertices)

    @property
    def local(self):
        return LocalGraph.from_edges(self.sources, self.targets, self.weights, self.vertices)

    def shuffled(self, seed):
        """The same edges in another order."""
        order = np.random.default_rng(seed).permutation(len(self.sources))
        other = Edges.__new__(Edges)
        other.sources, other.targets, other.vertices = self.sources[order], self.targets[order], self.vertices
        other.weights = None if self.weights is None else self.weights[order]
        return other

    @property
    def matrix(self):
        """Weights of edges, shape (vertices, vertices); those between the same vertices add up."""
        whole = np.zeros((self.vertices, self.vertices))
        np.add.at(whole, (self.sources, self.targets), 1.0 if self.weights is None else self.weights)
        return whole

    def chances(self, before, here, p, q):
        """node2vec's exact probabilities of the next vertex (section 3.2.2)."""
        weights = self.matrix[here].copy()
        if before is not None:
            near = self.matrix[before] > 0
            bias = np.where(near, 1.0, 1 / q)
            bias[before] = 1 / p
            weights *= bias
        return weights / weights.sum()


# Two triangles that share a vertex, a tail, a self-loop (4), edges that come twice (0-1), a pair of its own (6, 7).
PAIRS = [(0, 1), (0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 2), (4, 4), (4, 5), (0, 5), (6, 7)]
WEIGHTS = [0.5, 1.5, 1.0, 2.0, 0.25, 3.0, 1.0, 0.7, 0.1, 4.0, 1.0]
WEIGHTED = [(*pair, weight) for pair, weight in zip(PAIRS, WEIGHTS, strict=True)]
VERTICES = 9  # the last one has no edge


def random_edges(vertices, count, seed=0, weighted=False):
    """Edges between any vertices, loops and repetitions among them."""
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, vertices, (count, 2)).tolist()
    if not weighted:
        return Edges(pairs, vertices)
    return Edges([(*pair, weight) for pair, weight in zip(pairs, rng.random(count) + 0.1, strict=True)], vertices)
