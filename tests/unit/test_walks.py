"""Walks go where they should, as often as they should, and the same whoever walks them."""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np
import pytest
import scipy.stats
from numba import njit

from ps2.algorithms.embeddings import walk_kernels
from ps2.algorithms.embeddings.walks import GraphPartitioning, walks_of
from ps2.ops.guards import readable
from tests.graphs import PAIRS, VERTICES, WEIGHTED, Edges, random_edges, walk_settings

# Of a test that should pass: how improbable what it saw may be.
LEAST = 1e-4


def lists(graph, settings, workers=1):
    return [
        walks.vertices[i, : walks.lengths[i]].tolist()
        for rank in range(workers)
        for walks in walks_of(graph, settings, rank, workers)
        for i in range(len(walks.lengths))
    ]


def check_chances(edges, settings, with_before):
    """Compare how often walks went where with the exact probabilities, by a chi-square test over all of them."""
    seen = {}
    for walk in lists(edges.local, settings):
        for before, here, there in zip([None, *walk], walk, walk[1:], strict=False):
            if with_before == (before is not None):
                seen.setdefault((before, here), Counter())[there] += 1
    statistic, freedom = 0.0, 0
    for (before, here), counts in seen.items():
        chances = edges.chances(before, here, settings.p, settings.q)
        assert all(chances[there] > 0 for there in counts)
        total = sum(counts.values())
        some = np.flatnonzero(chances)
        statistic += sum((counts[there] - total * chances[there]) ** 2 / (total * chances[there]) for there in some)
        freedom += len(some) - 1
    assert freedom >= 4
    assert scipy.stats.chi2.sf(statistic, freedom) > LEAST


@pytest.mark.parametrize("edges", [PAIRS, WEIGHTED], ids=["pairs", "weighted"])
@pytest.mark.parametrize("directed", [False, True])
def test_first_order_when_walks_are_many_then_follow_weights(edges, directed):
    edges = Edges(edges, VERTICES, directed)
    settings = walk_settings(epochs=4000, length=2, seed=1)
    check_chances(edges, settings, with_before=False)


@pytest.mark.parametrize("edges", [PAIRS, WEIGHTED], ids=["pairs", "weighted"])
@pytest.mark.parametrize(("p", "q"), [(0.25, 4.0), (4.0, 0.25), (2.0, 1.0), (1.0, 0.5), (0.5, 0.5)])
def test_second_order_when_walks_are_many_then_steps_are_exact(edges, p, q):
    check_chances(Edges(edges, VERTICES), walk_settings(epochs=600, length=12, seed=2, p=p, q=q), with_before=True)


def test_second_order_when_directed_then_previous_edge_counts():
    check_chances(
        Edges([(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (1, 3), (3, 1), (3, 0)], 4, directed=True),
        walk_settings(epochs=1500, length=10, seed=3, p=3.0, q=0.2),
        with_before=True,
    )


@functools.cache
def walking(rejections):
    """Return the kernel for that ``MAX_REJECTIONS``; numba's cache, which does not know of it, keeps none."""
    return njit(error_model="numpy")(walk_kernels.walk.py_func)


@pytest.mark.parametrize("edges", [PAIRS, WEIGHTED], ids=["pairs", "weighted"])
@pytest.mark.parametrize("refused", [1, 2])
def test_second_order_when_proposals_are_few_then_stay_exact(edges, refused, monkeypatch):
    monkeypatch.setattr(walk_kernels, "MAX_REJECTIONS", refused)
    monkeypatch.setattr(walk_kernels, "walk", walking(refused))
    check_chances(Edges(edges, VERTICES), walk_settings(epochs=600, length=12, seed=6, p=4.0, q=0.25), with_before=True)


def test_walks_when_no_proposal_is_accepted_then_continue():
    """Round a directed ring with chords: there is no way back, and nobody's neighbours know each other."""
    edges = Edges([(i, (i + step) % 20) for i in range(20) for step in (1, 6)], 20, directed=True)
    settings = walk_settings(epochs=20, length=30, p=1e-12, seed=9)
    assert all(len(walk) == 30 for walk in lists(edges.local, settings))
    check_chances(edges, settings, with_before=True)


def test_walks_when_p_and_q_are_one_then_no_proposal_is_refused():
    graph = random_edges(50, 200).local
    assert lists(graph, walk_settings(2, 20, seed=5)) == lists(graph, walk_settings(2, 20, seed=5, p=1.0, q=1.0))


def test_walks_when_weights_are_equal_then_match_unweighted():
    edges = Edges([(*pair, 2.5) for pair in PAIRS], VERTICES)
    np.testing.assert_allclose(edges.chances(None, 2, 1, 1), Edges(PAIRS, VERTICES).chances(None, 2, 1, 1))
    check_chances(edges, walk_settings(epochs=4000, length=2, seed=4), with_before=False)


@pytest.mark.parametrize("workers", [2, 3, 4, 7])
@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.5, 2.0)])
def test_walks_when_workers_are_more_then_they_are_the_same(workers, p, q):
    graph, settings = random_edges(40, 100, weighted=True).local, walk_settings(3, 9, seed=11, p=p, q=q)
    assert lists(graph, settings, workers) == lists(graph, settings)


def test_walks_when_edge_order_differs_then_are_the_same():
    edges, settings = random_edges(30, 200, weighted=True), walk_settings(3, 9, seed=12)
    assert lists(edges.shuffled(1).local, settings) == lists(edges.local, settings)


def test_walks_when_the_seed_is_another_then_they_are_others():
    graph = random_edges(40, 100).local
    assert lists(graph, walk_settings(2, 9, seed=0)) != lists(graph, walk_settings(2, 9, seed=1))


def test_walks_when_epochs_increase_then_first_ones_are_the_same():
    graph = random_edges(40, 100).local
    few, many = lists(graph, walk_settings(2, 9)), lists(graph, walk_settings(4, 9))
    assert many[: len(few)] == few
    assert many[40:80] != many[:40]


def test_walks_when_longer_then_start_with_same_vertices():
    graph = random_edges(40, 100).local
    assert [walk[:5] for walk in lists(graph, walk_settings(2, 9, p=0.5))] == lists(graph, walk_settings(2, 5, p=0.5))


def test_a_walk_when_its_vertex_has_no_edge_then_it_is_of_one():
    walks = lists(Edges(PAIRS, VERTICES).local, walk_settings(2, 5))
    assert [walk for walk in walks if 8 in walk] == [[8], [8]]


def test_a_walk_when_it_comes_to_a_dead_end_then_it_ends():
    walks = lists(Edges([(0, 1), (1, 2)], 3, directed=True).local, walk_settings(1, 9, p=0.5))
    assert walks == [[0, 1, 2], [1, 2], [2]]


def test_a_walk_when_its_length_is_one_then_it_is_its_vertex():
    assert lists(Edges(PAIRS, VERTICES).local, walk_settings(1, 1, p=0.5)) == [[vertex] for vertex in range(VERTICES)]


def test_a_walk_when_the_only_edge_is_a_loop_then_it_stays():
    assert lists(Edges([(0, 0)], 1).local, walk_settings(1, 4, q=0.5)) == [[0, 0, 0, 0]]


def test_walk_when_only_way_is_back_then_goes_back():
    assert lists(Edges([(0, 1)], 2).local, walk_settings(1, 4, p=1e9)) == [[0, 1, 0, 1], [1, 0, 1, 0]]


def numbers(cut, addresses):
    """The vertices at some addresses, by the kernel that walks are numbered by."""
    walks = addresses[:, None].copy()
    walk_kernels.convert_addresses(walks, np.ones(len(walks), np.int64), readable(cut.first_vertices), cut.width)
    return walks[:, 0]


@pytest.mark.parametrize("packs", [1, 2, 5])
def test_cut_when_vertices_are_found_by_address_then_match(packs):
    degrees = np.random.default_rng(0).integers(0, 9, 40)
    degrees[7] = 300
    cut = GraphPartitioning.from_degrees(degrees, packs)
    addresses = cut.addresses(np.arange(40))
    assert (np.diff(addresses) > 0).all()
    assert addresses.max() < cut.dim
    np.testing.assert_array_equal(numbers(cut, addresses), np.arange(40))
    begins = [cut.empty_bounds(pack, degrees) for pack in range(packs)]
    assert sum(len(begin) - 1 for begin in begins) == 40
    assert (
        max(
            len(begin) + degrees[a:b].sum()
            for begin, a, b in zip(begins, cut.first_vertices, cut.first_vertices[1:], strict=False)
        )
        == cut.width
    )


@pytest.mark.parametrize("packs", [2, 3])
def test_cut_when_packs_exceed_vertices_then_some_are_empty(packs):
    cut = GraphPartitioning.from_degrees(np.array([4]), packs)
    assert numbers(cut, cut.addresses(np.array([0]))).tolist() == [0]
    assert cut.vertices == 1
