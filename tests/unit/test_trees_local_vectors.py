"""Vectors in one process answer as a DCV does."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.trees.local_vectors import LocalDense, LocalSparse


def test_sparse_when_keys_come_in_any_order_then_sums_by_key():
    vector = LocalSparse()
    vector.add(np.array([1, 2, 3]), np.array([7, 2, 7]))
    vector.add(np.array([10, 20]), np.array([2, 9]))
    keys, values = vector.pull()
    assert (keys.tolist(), values.tolist()) == ([2, 7, 9], [12, 4, 20])
    assert vector.pull(np.array([9, 8, 2, 10])).tolist() == [20, 0, 12, 0]


def test_sparse_when_pushed_and_zeroed_then_keeps_keys():
    vector = LocalSparse()
    vector.push(np.array([5, 6]), np.array([1, 4]))
    vector.push(np.array([8]), np.array([4]))
    assert vector.pull()[1].tolist() == [5, 8]
    vector.zero()
    assert vector.pull()[0].tolist() == [1, 4]
    assert not vector.pull()[1].any()
    vector.add(np.empty(0, np.int64), np.empty(0, np.int64))
    assert vector.pull(np.empty(0, np.int64)).tolist() == []


def test_dense_when_indices_repeat_then_adds_all():
    vector = LocalDense(3, "int64")
    vector.add(np.array([1, 2, 4]), np.array([0, 0, 2]))
    vector.add(np.array([1, 1, 1]))
    vector.push(np.array([9]), np.array([1]))
    assert vector.pull().tolist() == [4, 9, 5]
    assert vector.pull(np.array([2, 0])).tolist() == [5, 4]
