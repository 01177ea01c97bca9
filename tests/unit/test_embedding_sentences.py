"""Walks and edges as sentences: each worker's own, together those of an epoch, and other ones in the next."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from ps2.algorithms.embeddings import sentences
from ps2.algorithms.embeddings.sentence_frame import survey
from ps2.algorithms.embeddings.sentences import (
    EdgeSentences,
    WalkSentences,
    encode_words,
    rank_by_frequency,
    scatter,
    split_long,
)
from ps2.data.ids import Names
from tests.graphs import random_edges, walk_settings

WALKS = walk_settings(3, 8, seed=5)
VISITS = 3 * 8 * 40


@pytest.fixture(scope="module")
def graph():
    return random_edges(40, 120).local


def lists(batches):
    return [tuple(tokens[a:b]) for tokens, ends in batches for a, b in pairwise(ends)]


def walks_by(graph, epoch, workers=2, numbers=None):
    numbers = np.arange(graph.vertices, dtype=np.int32) if numbers is None else numbers
    return [WalkSentences(graph, WALKS, numbers, VISITS, rank, workers).batches(epoch) for rank in range(workers)]


def test_walks_when_more_workers_then_union_is_the_same(graph):
    alone = sorted(lists(walks_by(graph, 0, 1)[0]))
    assert sorted(walk for part in walks_by(graph, 0, 3) for walk in lists(part)) == alone
    assert sorted(walk[0] for walk in alone) == sorted(list(range(40)) * 3)


def test_walks_when_epoch_differs_then_are_new_and_reproducible(graph):
    first, second = (sorted(lists(walks_by(graph, epoch, 1)[0])) for epoch in (0, 1))
    assert first != second
    assert sorted(lists(walks_by(graph, 1, 1)[0])) == second
    expected = graph.walk(walk_settings(6, 8, seed=5), np.arange(3 * 40, 6 * 40))
    assert second == sorted(
        tuple(row[:length]) for row, length in zip(expected.vertices, expected.lengths, strict=True)
    )


def test_walks_when_cut_into_parts_then_are_the_same(graph, monkeypatch):
    whole = lists(walks_by(graph, 2)[1])
    monkeypatch.setattr(sentences, "WALKED_AT_ONCE", 11 * WALKS.walkLength)
    monkeypatch.setattr(sentences, "BATCH_TOKENS", 3 * WALKS.walkLength)
    parts = list(walks_by(graph, 2)[1])
    assert len(parts) > 10
    assert sorted(lists(parts)) == sorted(whole)


def test_walks_when_vertices_are_renumbered_then_tokens_follow(graph):
    numbers = np.arange(graph.vertices, dtype=np.int32)[::-1].copy()
    result = lists(walks_by(graph, 0, 1, numbers)[0])
    assert [tuple(39 - np.array(walk)) for walk in result] == lists(walks_by(graph, 0, 1)[0])
    tokens, _ = next(walks_by(graph, 0, 1, numbers)[0])
    assert tokens.dtype == np.int32


@pytest.mark.parametrize("count", [1, 2, 3, 10, 97, 1000])
def test_scattered_when_all_places_then_permutes_anew_each_turn(count):
    turns = [scatter(np.arange(count), count, turn) for turn in range(3)]
    assert all(sorted(turn) == list(range(count)) for turn in turns)
    if count > 3:
        assert not np.array_equal(turns[0], turns[1])


def test_edges_when_weights_are_equal_then_once_per_epoch():
    sources, targets = np.arange(25_000, dtype=np.int32), np.arange(25_000, dtype=np.int32)[::-1]
    edges = EdgeSentences(sources, targets, None, 25_000, seed=1, rank=0)
    batches = list(edges.batches(0))
    assert [len(ends) - 1 for _, ends in batches] == [10_000, 10_000, 5_000]
    pairs = np.concatenate([tokens for tokens, _ in batches]).reshape(-1, 2)
    np.testing.assert_array_equal(pairs.sum(axis=1), 24_999)
    np.testing.assert_array_equal(np.sort(pairs[:, 0]), sources)
    assert not np.array_equal(next(edges.batches(1))[0], batches[0][0])
    np.testing.assert_array_equal(next(edges.batches(0))[0], batches[0][0])


def test_edges_when_weighted_then_come_in_proportion():
    weights = np.array([1.0, 0.0, 4.0, 5.0])
    edges = EdgeSentences(np.arange(4, dtype=np.int32), np.arange(4, dtype=np.int32), weights, 40_000, seed=1, rank=1)
    tokens = np.concatenate([tokens for tokens, _ in edges.batches(3)])
    np.testing.assert_allclose(np.bincount(tokens, minlength=4) / len(tokens), weights / 10, atol=0.01)


def test_edges_when_there_are_none_then_there_is_no_batch():
    none = np.empty(0, np.int32)
    for weights in (None, np.empty(0)):
        assert list(EdgeSentences(none, none, weights, 0, seed=1, rank=0).batches(0)) == []


def test_numbers_when_by_frequency_then_most_frequent_is_0():
    order, numbers = rank_by_frequency(np.array([3, 9, 3, 0]))
    assert (order.tolist(), numbers.tolist()) == ([1, 0, 2, 3], [1, 0, 2, 3])


def test_words_when_numbered_then_unknown_ones_are_left_out():
    words = Names.from_values(["b", "a"])
    inputs = pa.array([["x"], ["a", "c", "b"], [], ["b", "b"], ["c"]])[1:]
    tokens, lengths = encode_words(inputs, words)
    assert (tokens.tolist(), lengths.tolist(), tokens.dtype) == ([1, 0, 0, 0], [2, 0, 2, 0], np.int32)


def test_sentences_when_too_long_then_they_are_cut():
    assert split_long(np.array([2, 7, 0, 3]), 3).tolist() == [0, 2, 5, 8, 9, 12]
    assert split_long(np.array([], np.int64), 3).tolist() == [0]


def test_survey_when_batches_differ_then_counts_words_and_faults():
    kind = pa.list_(pa.string())
    rows = [pa.array([["a", "b", "a"], None, ["c", None, None], []], kind), pa.array([["x"], ["é", "a"]], kind)[1:]]
    (result,) = survey(pa.RecordBatch.from_arrays([row], ["sentence"]) for row in rows)
    words = pa.ipc.open_stream(result.column("words")[0].as_py()).read_all().to_pydict()
    assert dict(zip(words["word"], words["count"], strict=True)) == {"a": 3, "b": 1, "c": 1, "é": 1}
    assert result.drop_columns(["words"]).to_pylist() == [
        {"part": 0, "rows": 5, "cost": 4 + 1 + 4 + 1 + 3, "cost_squared": 16 + 1 + 16 + 1 + 9, "faulty": 2}
    ]


def test_survey_when_partition_is_empty_then_has_no_row():
    assert list(survey(iter(()))) == []
