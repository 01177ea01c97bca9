"""Sparse vectors: hashed int64 keys, one key index a matrix, memory for the keys that were touched."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ps2 import DCV
from ps2.errors import OutOfRangeError, UsageError

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")

LAST = 2**63 - 1
DTYPES = ("float32", "float64", "int32")
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture
def held(statuses):
    """``held(u)``: (bytes, active keys) of the vector's matrix on all servers, from their own status."""

    def of(vector):
        result = [m for status in statuses() for m in status.matrices if m.matrix == vector._matrix]
        return sum(m.bytes for m in result), sum(m.active_keys for m in result)

    return of


def some_keys(count, dim=2**63, seed=0):
    return np.unique(np.random.default_rng(seed).integers(0, dim, count, dtype=np.uint64).astype(np.int64))


@each_dtype
def test_pull_when_keys_reach_the_last_int64_then_same_values(ps, dtype):
    keys = np.array([LAST, 0, 5, 2**62, LAST - 1])
    u = DCV.sparse(2**63, dtype=dtype).push([1, 2, 3, 4, 5], keys)
    pulled = u.pull(keys[::-1])
    assert pulled.dtype == dtype
    assert np.array_equal(pulled, [5, 4, 3, 2, 1])
    assert u.dim == 2**63


@each_dtype
def test_pull_when_all_then_sorted_by_key(ps, dtype):
    keys = np.random.default_rng(0).permutation(some_keys(5000))
    values = np.arange(1, keys.size + 1)
    result, pulled = DCV.sparse(2**63, dtype=dtype).push(values, keys).pull()
    assert (result.dtype, pulled.dtype) == (np.int64, dtype)
    assert np.array_equal(result, np.sort(keys))
    assert np.array_equal(pulled, values[np.argsort(keys)])


@each_dtype
def test_pull_when_nothing_active_then_empty(ps, dtype):
    keys, values = DCV.sparse(100, dtype=dtype).pull()
    assert (keys.shape, keys.dtype, values.shape, values.dtype) == ((0,), np.int64, (0,), dtype)


def test_pull_when_keys_are_absent_then_zeros_without_allocation(ps, held):
    u = DCV.sparse(2**63).push([1, 2], [3, LAST])
    before = held(u)
    keys = some_keys(20_000)
    assert u.pull(keys).nonzero()[0].size == 0
    assert held(u) == before
    assert before[1] == 2


@pytest.mark.parametrize("verb", ["mul", "div"])
def test_multiplicative_when_keys_are_absent_then_stay_absent(ps, held, verb):
    u = DCV.sparse(100, dtype="float64").push([8], [3])
    getattr(u, verb)([2, 2], [3, 4])
    assert held(u)[1] == 1
    assert u.pull([3, 4]).tolist() == [16 if verb == "mul" else 4, 0]


@pytest.mark.parametrize("verb", ["push", "add", "sub"])
def test_write_when_keys_are_absent_then_they_become_active(ps, held, verb):
    u = DCV.sparse(2**63)
    getattr(u, verb)(np.ones(300), np.arange(300) * 7919)
    assert held(u)[1] == 300
    assert u.sum() == (-300 if verb == "sub" else 300)


def test_write_when_keys_repeat_then_added_or_last_wins(ps):
    keys = [7, LAST, 7, 7]
    assert DCV.sparse(2**63).add([1, 2, 3, 4], keys).pull([7, LAST]).tolist() == [8, 2]
    assert DCV.sparse(2**63).push([1, 2, 3, 4], keys).pull([7, LAST]).tolist() == [4, 2]


def test_rows_when_one_is_pushed_then_keys_are_active_in_all(ps, held):
    u = DCV.sparse(100)
    v = u.derive().push([1], [5])
    assert held(u)[1] == 1
    keys, values = u.pull()
    assert (keys.tolist(), values.tolist()) == ([5], [0])
    assert (u.nnz(), v.nnz()) == (0, 1)


def test_index_when_it_grows_often_then_rows_keep_their_values(ps, held):
    u = DCV.sparse(2**63, dtype="float64")
    v = u.derive()
    keys = some_keys(30_000, seed=2)
    for part in np.array_split(np.random.default_rng(3).permutation(keys), 9):
        u.add(part % 1000, part)
        v.add(part % 77, part)
    assert held(u)[1] == keys.size
    assert np.array_equal(u.pull(keys), keys % 1000)
    assert np.array_equal(v.pull(keys), keys % 77)


@each_dtype
def test_extremes_when_keys_are_absent_then_zero_counts(ps, dtype):
    negative = DCV.sparse(100, dtype=dtype).push([-3, -5], [1, 2])
    positive = DCV.sparse(100, dtype=dtype).push([3, 5], [1, 2])
    assert (negative.max(), negative.min()) == (0, -5)
    assert (positive.max(), positive.min()) == (5, 0)
    assert (DCV.sparse(100, dtype=dtype).max(), DCV.sparse(100, dtype=dtype).min()) == (0, 0)


@each_dtype
def test_extremes_when_all_keys_are_active_then_zero_is_ignored(ps, dtype):
    u = DCV.sparse(4, dtype=dtype).push([-3, -5, -1, -2], [0, 1, 2, 3])
    assert (u.max(), u.min()) == (-1, -5)
    u.mul(-1)
    assert (u.max(), u.min()) == (5, 1)


def test_extremes_when_nan_then_nan(ps):
    u = DCV.sparse(100).push([1, math.nan], [0, 1])
    assert math.isnan(u.max())
    assert math.isnan(u.min())


def test_extremes_when_in_a_batch_then_deferred(ps):
    u = DCV.sparse(100)
    with ps.batch():
        before = u.max()
        u.push([4], [9])
        after = u.max()
    assert (before.result(), after.result()) == (0, 4)


@pytest.fixture
def twins():
    """Two sparse vectors over few keys, and the same as arrays; the keys of both are active in both."""
    keys = np.array([2, 3, 5, 7, 11, 13])
    a, b = np.zeros(20), np.zeros(20)
    a[keys[:4]], b[keys[2:]] = [1, -2, 3, -4], [8, 6, 4, 2]
    u = DCV.sparse(20, dtype="float64").push(a[keys[:4]], keys[:4])
    return u, u.derive().push(b[keys[2:]], keys[2:]), a, b


@pytest.mark.parametrize(
    ("change", "oracle"),
    [
        (lambda u, v: u.add(v), lambda a, b: a + b),
        (lambda u, v: u.sub(v), lambda a, b: a - b),
        (lambda u, v: u.mul(v), lambda a, b: a * b),
        (lambda u, v: u.copy(v), lambda a, b: b),
        (lambda u, v: u.axpy(v, 0.5), lambda a, b: a + 0.5 * b),
        (lambda u, v: u + v, lambda a, b: a + b),
        (lambda u, v: u - v, lambda a, b: a - b),
        (lambda u, v: u * v, lambda a, b: a * b),
        (lambda u, v: 3 * u, lambda a, b: 3 * a),
        (lambda u, v: u / 4, lambda a, b: a / 4),
        (lambda u, v: -u, lambda a, b: -a),
        (lambda u, v: u.zero(), lambda a, b: 0 * a),
    ],
)
def test_column_access_when_colocated_then_numpy(ps, twins, change, oracle):
    u, v, a, b = twins
    assert np.array_equal(change(u, v).pull(np.arange(20)), oracle(a, b))


def test_dot_when_colocated_then_numpy(ps, twins):
    u, v, a, b = twins
    assert (u.dot(v), u.norm2(), u.sum(), u.nnz()) == (a @ b, np.linalg.norm(a), a.sum(), 4)


@pytest.mark.parametrize(
    ("change", "oracle"),
    [
        (lambda u: u.fill(9), lambda a: 9 + 0 * a),
        (lambda u: u.add(1), lambda a: a + 1),
        (lambda u: u.sub(1), lambda a: a - 1),
        (lambda u: u + 1, lambda a: a + 1),
        (lambda u: 1 - u, lambda a: 1 - a),
    ],
)
def test_number_when_given_then_only_active_keys_change(ps, twins, change, oracle):
    u, _, a, _ = twins
    keys, values = change(u).pull()
    assert keys.tolist() == [2, 3, 5, 7, 11, 13]
    assert np.array_equal(values, oracle(a)[keys])


def test_div_when_active_key_is_zero_then_ieee_result(ps, twins):
    u, v, a, b = twins
    with np.errstate(all="ignore"):
        expected = a / b
    keys = [2, 3, 5, 7, 11, 13]
    assert np.array_equal((u / v).pull(keys), expected[keys], equal_nan=True)
    assert (u / v).pull([0, 1, 19]).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("name", "rows", "params"),
    [
        ("adam", 4, {"lr": 0.1}),
        ("ftrl", 4, {"alpha": 0.1, "l1": 0.1}),
        ("momentum", 3, {"lr": 0.1}),
        ("sgd", 2, {"lr": 0.1}),
    ],
)
def test_optimizer_when_keys_come_bit_by_bit_then_as_dense(ps, name, rows, params):
    dim, rng = 400, np.random.default_rng(0)
    sparse, dense = ([make(dim, rows, "float64")] for make in (DCV.sparse, DCV.dense))
    for vectors in (sparse, dense):
        vectors += [vectors[0].derive() for _ in range(rows - 1)]
    for step in range(1, 6):
        keys = rng.permutation(dim)[:60]
        values = rng.standard_normal(60)
        for vectors in (sparse, dense):
            vectors[-1].zero().add(values, keys)
            vectors[0].zip(*vectors[1:]).apply(name, **params, **({"step": step} if name == "adam" else {}))
    for mine, reference in zip(sparse, dense, strict=True):
        np.testing.assert_allclose(mine.pull(np.arange(dim)), reference.pull(), rtol=1e-12, atol=1e-15)


def test_map_partitions_when_sparse_then_live_slots_only(ps, twins):
    u, v, a, b = twins

    def scale(x, y):
        x *= 10
        y += 1
        return x.size

    assert u.zip(v).mapPartitions(scale).sum() == 6
    assert np.array_equal(u.pull(np.arange(20)), 10 * a)
    assert v.sum() == b.sum() + 6


def test_slots_when_block_left_nan_there_then_new_keys_are_zero(ps):
    u = DCV.sparse(1000, 2, "float64").push([1.0], [0])
    m = u.matrix()
    m.axpy([1], [0], [math.inf])
    u.add([5.0] * 10, np.arange(1, 11))
    assert m.pull([1], np.arange(1, 11)).tolist() == [[0] * 10]


def test_matrix_when_sparse_then_columns_are_keys(ps, held):
    m = DCV.sparse(2**63, 3, "int64").matrix()
    keys = [LAST, 5, LAST]
    m.add([2, 0, 2], [[1, 2, 3], [4, 5, 6], [7, 8, 9]], keys)
    assert m.pull([0, 1, 2], [5, LAST, 9]).tolist() == [[5, 10, 0], [0, 0, 0], [10, 20, 0]]
    assert m.dot([0, 2], [2, 2]).tolist() == [250, 500]
    assert held(m._first)[1] == 2


def test_partitions_when_three_a_server_then_same_answers(ps):
    keys = some_keys(2000, seed=4)
    u = DCV.sparse(2**63, dtype="int64", partitionsPerServer=3).push(keys % 97, keys)
    assert np.array_equal(u.pull(keys), keys % 97)
    assert np.array_equal(u.pull()[0], keys)
    assert u.zip().mapPartitions(len).sum() == keys.size


def test_push_when_no_indices_then_usage_error(ps):
    with pytest.raises(UsageError, match="push: a sparse vector needs indices"):
        DCV.sparse(3).push([1, 2, 3])


@pytest.mark.parametrize("key", [-1, 100, LAST])
def test_access_when_key_is_outside_then_out_of_range(ps, held, key):
    u = DCV.sparse(100)
    for use in (lambda: u.pull([1, key]), lambda: u.push([1, 2], [1, key]), lambda: u.mul([1, 2], [1, key])):
        with pytest.raises(OutOfRangeError, match=rf"index {key} \(at position 1\) is outside \[0, 100\)"):
            use()
    assert held(u)[1] == 0


def test_truth_when_vector_is_as_long_as_int64_then_no_error(ps):
    assert bool(DCV.sparse(2**63))
