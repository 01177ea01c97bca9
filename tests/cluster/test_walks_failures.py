"""A server that has a part of a graph dies: walks go on, and are the same."""

from __future__ import annotations

import numpy as np
from faults import processes

from ps2 import PS2Context
from ps2.algorithms.embeddings.walks import LocalGraph, ServerGraph
from tests.graphs import random_edges, walk_settings

VERTICES = 60


def test_walks_when_server_dies_with_copies_then_are_the_same():
    edges, settings = random_edges(VERTICES, 150, weighted=True), walk_settings(2, 8, seed=3, p=0.5)
    walkers = np.arange(2 * VERTICES)
    expected = LocalGraph.from_edges(edges.sources, edges.targets, edges.weights, VERTICES).walk(settings, walkers)
    degrees = np.bincount(edges.sources, minlength=VERTICES)
    with PS2Context.getOrCreate(servers=2, replicas=1) as ps:
        graph = ServerGraph.empty(degrees, True, len(ps.servers))
        graph.add(edges.sources, edges.targets, edges.weights)
        graph.finish(degrees)
        processes.kill(processes.servers_of(ps)[0])
        result = graph.walk(settings, walkers)
        assert ps.recoveries
    np.testing.assert_array_equal(result.lengths, expected.lengths)
    there = np.arange(settings.walkLength) < result.lengths[:, None]
    np.testing.assert_array_equal(result.vertices[there], expected.vertices[there])
