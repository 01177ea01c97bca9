"""Edges are read by the numbers of their vertices."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ps2.algorithms.embeddings.sentences import Edges, edges_of
from ps2.data.ids import Ids


def test_edges_when_read_then_zero_weight_ones_are_dropped():
    batch = pa.record_batch({"source": [4, 5, 6], "target": [5, 6, 4], "weight": [1.0, 0.0, 0.5]})
    (edges,) = edges_of([batch], Ids.from_values(pa.array([4, 5, 6])))
    assert edges.sources.tolist() == [0, 2]
    assert edges.targets.tolist() == [1, 0]
    assert edges.weights.tolist() == [1.0, 0.5]


def test_edges_when_batches_are_many_then_they_come_together():
    batches = [pa.record_batch({"source": [i], "target": [i + 1]}) for i in range(10)]
    (edges,) = edges_of(batches, Ids.from_values(pa.array(range(11))))
    assert edges.sources.tolist() == list(range(10))
    assert edges.weights is None


def test_edges_when_undirected_then_loop_is_kept_once():
    both = Edges(np.array([0, 1]), np.array([1, 1]), np.array([0.5, 2.0])).both_directions()
    assert list(zip(both.sources, both.targets, both.weights, strict=True)) == [(0, 1, 0.5), (1, 1, 2.0), (1, 0, 0.5)]
