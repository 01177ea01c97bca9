"""What a client does to the keys of a batch, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ps2.matrix.partition import MatrixSpec, partition_bounds, partition_of
from ps2.ops.distinct import find_distinct, group_by_partition, number_distinct, sum_rows, take_rows


@pytest.fixture
def keys():
    rng = np.random.default_rng(0)
    return rng.integers(0, 2**63 - 1, 3000)[rng.integers(0, 3000, 9000)]


def test_distinct_when_found_then_those_of_numpy(keys):
    distinct, inverse = find_distinct(keys)
    assert np.array_equal(distinct, np.unique(keys))
    assert np.array_equal(distinct[inverse], keys)


def test_distinct_when_numbered_then_by_first_appearance(keys):
    distinct, inverse = number_distinct(keys)
    _, first = np.unique(keys, return_index=True)
    assert np.array_equal(distinct, keys[np.sort(first)])
    assert np.array_equal(distinct[inverse], keys)


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
def test_keys_when_grouped_then_as_numpy_sorts_them(keys, servers):
    spec = MatrixSpec(2**63, 1, kind="sparse")
    bounds = partition_bounds(spec, servers)
    owners = partition_of(spec, bounds, keys)
    grouped, order, begins = group_by_partition(keys, np.array(bounds))
    assert np.array_equal(order, np.argsort(owners, kind="stable"))
    assert np.array_equal(grouped, keys[order])
    assert np.array_equal(begins, np.searchsorted(owners[order], np.arange(servers + 1)))


def test_keys_when_partitions_are_uneven_then_in_their_own(keys):
    spec, bounds = MatrixSpec(2**63, 1, kind="sparse"), (0, 5, 2**31, 2**31 + 2**30, 2**32 - 1, 2**32)
    begins = group_by_partition(keys, np.array(bounds))[2]
    assert np.array_equal(np.diff(begins), np.bincount(partition_of(spec, bounds, keys), minlength=5))


def test_rows_when_taken_and_summed_then_as_numpy_does():
    rng = np.random.default_rng(1)
    rows, inverse = rng.normal(size=(50, 7)).astype(np.float32), rng.integers(0, 50, 400)
    assert np.array_equal(take_rows(rows, inverse), rows[inverse])
    sums = np.zeros((50, 7), np.float32)
    np.add.at(sums, inverse, take_rows(rows, inverse))
    assert np.array_equal(sum_rows(take_rows(rows, inverse), inverse, 50), sums)
