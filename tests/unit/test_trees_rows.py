"""A worker's rows as dense arrays."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.trees.rows import dense_of
from ps2.data.rows import LocalRows

X = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


def test_dense_when_nothing_is_absent_then_is_no_copy():
    x = sp.csr_array(X)
    created = dense_of(LocalRows(np.arange(3), x, None), 3, "zero")
    assert np.array_equal(created, X)
    assert np.shares_memory(created, x.data)


def test_dense_when_columns_are_in_another_order_then_sorts_them():
    x = sp.csr_array((X[:, [2, 0, 1]].ravel(), np.tile([2, 0, 1], 2), [0, 3, 6]), shape=(2, 3))
    assert np.array_equal(dense_of(LocalRows(np.arange(3), x, None), 3, "zero"), X)


def test_dense_when_values_are_absent_then_are_missing():
    rows = LocalRows(np.array([0, 2]), sp.csr_array(X[:, [0, 2]]), None)
    created = dense_of(rows, 3, "missing")
    assert np.array_equal(created[:, [0, 2]], X[:, [0, 2]])
    assert np.isnan(created[:, 1]).all()
