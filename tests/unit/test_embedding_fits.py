"""Vectors learned by workers and servers, wherever they are computed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from embedding_training import RECIPE, WORDS, fitted, make_plan, margin, read_pairs

from ps2.algorithms import Embedding
from ps2.algorithms.embeddings.program import Corpus, OnlyWorker, train
from ps2.algorithms.embeddings.sentences import ReadEdges, ReadKeys, rank_by_frequency
from ps2.data.ids import Ids
from ps2.errors import LimitError, PS2Error
from tests.in_process import training_context


@pytest.mark.parametrize("via", ["local", "rows", "servers"])
def test_training_when_done_then_community_words_are_near(via):
    steps = []
    result = fitted(make_plan(**RECIPE | {"via": via}), on_step=steps.append)
    assert result.vectors.shape == result.contexts.shape == (WORDS, RECIPE["vectorSize"])
    assert margin(result) > 0.5
    losses = result.history.objective
    assert losses[-1] < losses[0]
    # Of 4.2 to begin with; on servers a little more, as several batches are on their way there.
    assert losses[-1] == pytest.approx(2.35, abs=0.3)
    assert [step.number for step in steps] == [1, 2, 3]
    assert steps[-1].metrics["step_size"] == pytest.approx(1e-4 * RECIPE["stepSize"])
    assert via in result.history.reason


@pytest.mark.parametrize("via", ["local", "rows", "servers"])
def test_training_when_the_step_size_is_absurd_then_it_says_so(via):
    with pytest.raises(PS2Error, match="the training has diverged; a smaller stepSize than 1e\\+38 may help"):
        fitted(make_plan(**RECIPE | {"via": via, "stepSize": 1e38}))


def test_training_when_tables_do_not_fit_then_names_needed_size():
    with pytest.raises(
        LimitError,
        match=r"vectorSize=10,000: vectors of 2,000,000,000 words in 2 tables take 160,000,000,000,000 bytes",
    ):
        fitted(make_plan(**RECIPE | {"vocabulary": 2 * 10**9, "vectorSize": 10_000}))


def test_training_when_first_order_then_contexts_are_vectors():
    changes = {"architecture": "edges", "order": 1, "total": RECIPE["total"] // 2}
    result = fitted(make_plan(**RECIPE | changes), read=read_pairs)
    assert result.contexts is None
    assert np.isfinite(result.vectors).all()
    assert margin(result) > 0.5


GROUP, FAR = 8, 1 << 46
# Two groups of vertices with an edge between any two of one, and one edge between them.
EDGES = np.array([(a, b) for a in range(16) for b in range(a + 1, 16) if a // GROUP == b // GROUP] + [(0, GROUP)])


def fitted_to_edges(size, order, keyed, workers=1, epochs=3):
    """Train on the edges as LINE does; the ids of ``keyed`` vertices are far apart."""
    counts = np.bincount(EDGES.reshape(-1))
    ranked, numbers = rank_by_frequency(counts)
    edges = 2 * len(EDGES)
    params = {"vectorSize": size, "stepSize": 0.2, "maxIter": epochs, "seed": 1}
    params |= {"hashed": keyed, "via": "rows" if keyed else "servers"}
    plan = make_plan(1 if keyed else 16, edges, architecture="edges", order=order, **params)
    vertices = Ids.from_values(pa.array(np.arange(16)))
    if keyed:
        read, counts = ReadKeys(False, edges, float(edges), 1), np.ones(1, np.int64)
    else:
        read, counts = ReadEdges(False, edges, float(edges), 1, lambda: vertices, lambda: numbers), counts[ranked]
    ids = EDGES * FAR if keyed else EDGES
    shards = [[pa.RecordBatch.from_arrays(list(map(pa.array, ids[w::workers].T)), ["a", "b"])] for w in range(workers)]
    with training_context() as ps:
        corpus = Corpus(shards, workers, read, frequencies=counts)
        return train(ps, corpus, plan, only_worker=OnlyWorker(1, "no Spark"))


def test_edges_when_ids_are_keys_then_group_vertices_are_near():
    first, second = (fitted_to_edges(4, order, keyed=True, workers=2, epochs=40) for order in (1, 2))
    assert sorted(first.keys) == [FAR * vertex for vertex in range(2 * GROUP)]
    np.testing.assert_array_equal(first.keys, second.keys)
    assert first.counts.sum() == 2 * len(EDGES)
    model = Embedding(first.keys // FAR, np.hstack([first.vectors, second.vectors]))
    near = [id // GROUP == other // GROUP for id in range(2 * GROUP) for other, _ in model.similar(id, 3)]
    assert np.mean(near) > 0.9


@pytest.mark.parametrize(
    ("size", "order", "keyed"), [(1, 2, False), (1, 1, True), (10_000, 1, False), (10_000, 2, True)]
)
def test_edges_when_vectors_are_very_short_or_long_then_finite(size, order, keyed):
    result = fitted_to_edges(size, order, keyed)
    assert result.vectors.shape == (2 * GROUP, size)
    assert np.isfinite(result.vectors).all()
    assert np.isfinite(result.history.objective).all()
