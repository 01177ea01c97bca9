"""``zip``: the optimizers and users' functions on the servers, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV, Partition, PartitionResults
from ps2.errors import OpError, UsageError

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")

STEPS = 3
RTOL = {"float32": 2e-5, "float64": 1e-10}


def adam(w, v, s, g, t):
    v[:] = 0.8 * v + 0.2 * g
    s[:] = 0.99 * s + 0.01 * g * g
    w -= 0.1 / (np.sqrt(s / (1 - 0.99**t)) + 1e-6) * (v / (1 - 0.8**t))


def sgd(w, g, t):
    w -= 0.1 * g


def momentum(w, v, g, t):
    v[:] = 0.7 * v + g
    w -= 0.1 * v


def adagrad(w, s, g, t):
    s += g * g
    w -= 0.1 * g / (np.sqrt(s) + 1e-6)


def rmsprop(w, s, g, t):
    s[:] = 0.7 * s + (1 - 0.7) * g * g
    w -= 0.1 * g / (np.sqrt(s) + 1e-6)


def ftrl(w, z, n, g, t):
    sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / 0.1
    z += g - sigma * w
    n += g * g
    w[:] = np.where(np.abs(z) <= 0.3, 0, -(z - np.sign(z) * 0.3) / ((1.5 + np.sqrt(n)) / 0.1 + 0.2))


OPTIMIZERS = {
    "adam": (adam, {"lr": 0.1, "beta1": 0.8, "beta2": 0.99, "eps": 1e-6}),
    "sgd": (sgd, {"lr": 0.1}),
    "momentum": (momentum, {"lr": 0.1, "momentum": 0.7}),
    "adagrad": (adagrad, {"lr": 0.1, "eps": 1e-6}),
    "rmsprop": (rmsprop, {"lr": 0.1, "rho": 0.7, "eps": 1e-6}),
    "ftrl": (ftrl, {"alpha": 0.1, "beta": 1.5, "l1": 0.3, "l2": 0.2}),
}


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_when_some_steps_are_taken_then_numpy(ps, name, dtype):
    dim = 101
    oracle, params = OPTIMIZERS[name]
    count = oracle.__code__.co_argcount - 1
    expected = np.zeros((count, dim))
    expected[0] = 0 if name == "ftrl" else np.random.default_rng(0).standard_normal(dim)
    weight = DCV.dense(dim, dtype=dtype).push(expected[0])
    others = [weight.derive() for _ in range(count - 1)]
    for t in range(1, STEPS + 1):
        gradient = np.random.default_rng(t).standard_normal(dim).astype(dtype)
        expected[-1] = gradient
        others[-1].push(gradient)
        step = {"step": t} if name == "adam" else {}
        assert weight.zip(*others).apply(name, **params, **step) is weight
        oracle(*expected, t)
    for vector, values in zip([weight, *others], expected, strict=True):
        np.testing.assert_allclose(vector.pull(), values, RTOL[dtype], atol=RTOL[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("dim", [1, 101])
def test_map_partitions_when_it_writes_then_vectors_change(ps, dim, dtype):
    u = DCV.dense(dim, dtype=dtype).push(np.arange(dim))
    v = u.derive().fill(2)

    def swap_and_scale(a, b):
        a[:], b[:] = b * 3, a.copy()
        return a.dtype.name

    results = u.zip(v).mapPartitions(swap_and_scale)
    assert set(results.collect()) == {dtype}
    assert np.array_equal(u.pull(), np.full(dim, 6))
    assert np.array_equal(v.pull(), np.arange(dim))


def test_map_partitions_when_vector_alone_then_one_result_each(ps):
    u = DCV.dense(1009, partitionsPerServer=3).push(np.arange(1009))
    results = u.zip().mapPartitions(lambda a: (a[0], a[-1], a.size))
    assert isinstance(results, PartitionResults)
    assert len(results) == 3 * len(ps.servers)
    assert [first for first, _, _ in results] == sorted(first for first, _, _ in results)
    assert sum(size for _, _, size in results) == 1009


def test_map_partitions_with_index_then_partition_comes_first(ps):
    u = DCV.dense(100)

    def mark(partition, a):
        a[:] = np.arange(partition.begin, partition.end)
        return partition

    partitions = u.zip().mapPartitionsWithIndex(mark).collect()
    assert all(isinstance(p, Partition) for p in partitions)
    assert [p.index for p in partitions] == list(range(len(ps.servers)))
    assert [p.end for p in partitions[:-1]] == [p.begin for p in partitions[1:]]
    assert np.array_equal(u.pull(), np.arange(100))


def test_partition_results_when_reduced_then_python(ps):
    u = DCV.dense(1009).push(np.arange(1009))
    results = u.zip().mapPartitions(lambda a: float(a.sum()))
    parts = results.collect()
    assert results.sum() == np.arange(1009).sum()
    assert (results.max(), results.min()) == (max(parts), min(parts))
    assert results.max(key=lambda x: -x) == min(parts)
    assert results.min(key=lambda x: -x) == max(parts)
    assert results.reduce(lambda a, b: a - b) == parts[0] - sum(parts[1:])
    assert list(results) == parts


def test_map_partitions_when_view_is_returned_then_copy_arrives(ps):
    u = DCV.dense(10).push(np.arange(10))
    views = u.zip().mapPartitions(lambda a: a).collect()
    u.zero()
    assert np.array_equal(np.concatenate(views), np.arange(10))


@pytest.mark.parametrize("layout", ["row", "column"])
def test_map_partitions_when_read_only_then_is_no_mutation(ps, statuses, layout):
    u = DCV.dense(101, 2, layout=layout).push(np.arange(101))
    v = u.derive().fill(2)
    before = [status.mutations for status in statuses()]
    assert u.zip(v).mapPartitions(lambda a, b: float(a @ b), readOnly=True).sum() == 2 * 5050
    spans = u.zip().mapPartitionsWithIndex(lambda p, a: (p.begin, a.size), readOnly=True).collect()
    assert sum(size for _, size in spans) == 101
    assert [status.mutations for status in statuses()] == before


@pytest.mark.parametrize("layout", ["row", "column"])
def test_map_partitions_when_read_only_writes_then_op_error(ps, layout):
    u = DCV.dense(101, 2, layout=layout).push(np.arange(101))

    def write(a):
        a[:] = 7

    with pytest.raises(OpError, match=r"in write\n(.|\n)*ValueError: assignment destination is read-only"):
        u.zip().mapPartitions(write, readOnly=True)
    assert np.array_equal(u.pull(), np.arange(101))


def test_map_partitions_when_result_is_large_then_streamed(ps):
    results = DCV.dense(8).zip().mapPartitions(lambda a: np.arange(500_000.0)).collect()
    assert all(np.array_equal(result, np.arange(500_000.0)) for result in results)


def test_map_partitions_when_in_a_batch_then_usage_error(ps):
    u = DCV.dense(3)
    with pytest.raises(UsageError, match="mapPartitions cannot be part of a batch"), ps.batch():
        u.zip().mapPartitions(len)


def test_apply_when_elementwise_kernel_then_it_runs(ps):
    u = DCV.dense(5).fill(3)
    v = u.derive().fill(4)
    assert np.array_equal(u.zip(v).apply("axpy", alpha=2).pull(), np.full(5, 11))


def test_optimizer_when_in_a_batch_then_in_order(ps):
    w = DCV.dense(5).fill(1)
    g = w.derive()
    with ps.batch():
        g.fill(2)
        w.zip(g).apply("sgd", lr=0.25)
        g.zero()
    assert np.array_equal(w.pull(), np.full(5, 0.5))
    assert g.nnz() == 0
