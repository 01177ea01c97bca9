"""A graph on real servers is walked through as one in this process is, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.algorithms.embeddings.walks import ServerGraph
from ps2.errors import InputError
from tests.graphs import PAIRS, VERTICES, Edges, random_edges, walk_settings

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")

PARTS = 3


def on_fleet(edges, servers, parts=PARTS):
    """Put a graph on the servers, its edges in any order and some at a time."""
    graph = ServerGraph.empty(edges.degrees, edges.weights is not None, servers)
    edges = edges.shuffled(3)
    for some in np.array_split(np.arange(len(edges.sources)), parts):
        weights = None if edges.weights is None else edges.weights[some]
        graph.add(edges.sources[some], edges.targets[some], weights)
    graph.finish(edges.degrees)
    return graph


def same(one, other):
    np.testing.assert_array_equal(one.lengths, other.lengths)
    there = np.arange(one.vertices.shape[1]) < one.lengths[:, None]
    np.testing.assert_array_equal(one.vertices[there], other.vertices[there])


@pytest.mark.parametrize(
    ("p", "q", "weighted"),
    [(1.0, 1.0, False), (1.0, 1.0, True), (0.25, 4.0, False), (4.0, 0.25, True)],
)
def test_walks_when_graph_is_on_servers_then_match_workers(ps, weighted, p, q):
    edges = random_edges(300, 900, weighted=weighted)
    graph = on_fleet(edges, len(ps.servers))
    settings, walkers = walk_settings(3, 15, seed=7, p=p, q=q), np.arange(900)
    same(graph.walk(settings, walkers), edges.local.walk(settings, walkers))
    graph.free()


@pytest.mark.parametrize("directed", [False, True])
def test_walks_when_vertices_have_no_way_on_then_they_end_there(ps, directed):
    edges = Edges(PAIRS, VERTICES, directed)
    graph = on_fleet(edges, len(ps.servers))
    settings, walkers = walk_settings(2, 6, p=0.5), np.arange(2 * VERTICES)
    same(graph.walk(settings, walkers), edges.local.walk(settings, walkers))
    graph.free()


@pytest.mark.parametrize("weighted", [False, True])
def test_walks_when_no_proposal_is_accepted_then_match_workers(ps, weighted):
    chords = [(i, (i + step) % 20, 0.5 + step * i) for i in range(20) for step in (1, 6)]
    edges = Edges([chord if weighted else chord[:2] for chord in chords], 20, directed=True)
    graph = on_fleet(edges, len(ps.servers))
    # Each vertex after the second takes hundreds of proposals, and each of these a request.
    settings, walkers = walk_settings(1, 4, p=1e-12), np.arange(20)
    same(graph.walk(settings, walkers), edges.local.walk(settings, walkers))
    graph.free()


@pytest.mark.parametrize("some", [slice(1, None), [0, *range(len(PAIRS))]], ids=["missing", "twice"])
def test_finish_when_edges_are_not_those_counted_then_it_is_told(ps, some):
    edges = Edges(PAIRS, VERTICES, directed=True)
    graph = ServerGraph.empty(edges.degrees, False, len(ps.servers))
    graph.add(edges.sources[some], edges.targets[some], None)
    with pytest.raises(InputError, match="persist"):
        graph.finish(edges.degrees)
    graph.free()
