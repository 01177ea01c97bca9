"""Vertices have numbers in the order of their ids, and edges are read by them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from ps2.algorithms.embeddings.vertices import Edges, Vertices, edges_of
from ps2.errors import InputError

INTEGERS = [7, -3, 2**62, 0, -(2**62)]
CONSECUTIVE = [5, 3, 4, 7, 6]
STRINGS = ["b", "", "é", "z", "B", "10", "9", "\U0001f600", "￿"]


@pytest.mark.parametrize("ids", [INTEGERS, CONSECUTIVE, [4]], ids=["gaps", "none", "one"])
def test_integers_when_they_are_numbered_then_it_is_by_size(ids):
    vertices = Vertices.of(pa.array(ids, pa.int64()))
    np.testing.assert_array_equal(vertices.numbers(pa.array(ids)), np.argsort(np.argsort(ids)))
    assert vertices.named(np.arange(len(ids))).to_pylist() == sorted(ids)


def test_strings_when_numbered_then_are_ordered_by_bytes():
    vertices = Vertices.of(pa.array(STRINGS))
    expected = sorted(STRINGS, key=lambda text: text.encode())
    assert vertices.named(np.arange(len(STRINGS))).to_pylist() == expected
    assert vertices.numbers(pa.array(STRINGS)).tolist() == [expected.index(text) for text in STRINGS]


@pytest.mark.parametrize(
    ("ids", "other"), [(INTEGERS, 1), (INTEGERS, 2**62 + 1), (CONSECUTIVE, 2), (CONSECUTIVE, 8), (STRINGS, "a")]
)
def test_numbers_when_an_id_was_not_there_then_it_is_told(ids, other):
    with pytest.raises(InputError, match="persist"):
        Vertices.of(pa.array(ids)).numbers(pa.array([ids[0], other]))


def test_edges_when_read_then_zero_weight_ones_are_dropped():
    batch = pa.record_batch({"source": [4, 5, 6], "target": [5, 6, 4], "weight": [1.0, 0.0, 0.5]})
    (edges,) = edges_of([batch], Vertices.of(pa.array([4, 5, 6])))
    assert edges.sources.tolist() == [0, 2]
    assert edges.targets.tolist() == [1, 0]
    assert edges.weights.tolist() == [1.0, 0.5]


def test_edges_when_batches_are_many_then_they_come_together():
    batches = [pa.record_batch({"source": [i], "target": [i + 1]}) for i in range(10)]
    (edges,) = edges_of(batches, Vertices.of(pa.array(range(11))))
    assert edges.sources.tolist() == list(range(10))
    assert edges.weights is None


def test_edges_when_undirected_then_loop_is_kept_once():
    both = Edges(np.array([0, 1]), np.array([1, 1]), np.array([0.5, 2.0])).both_directions()
    assert list(zip(both.sources, both.targets, both.weights, strict=True)) == [(0, 1, 0.5), (1, 1, 2.0), (1, 0, 0.5)]
