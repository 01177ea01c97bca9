"""What travels can be shorter than what is stored: hashes of known keys, 16-bit floats, one trip for two calls."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV, NotColocatedWarning
from ps2.client.sessions import session_of
from ps2.errors import ConfigError, DTypeError, OutOfRangeError, UsageError
from ps2.server.keycache import CACHE_BYTES

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")

DIM = 200_000
KEYS = np.arange(0, DIM, 3)


@pytest.fixture
def bytes_in(statuses):
    """``bytes_in(fn)``: what all servers together received in arrays while ``fn`` ran."""

    def count(fn):
        before = sum(status.bytes_in for status in statuses())
        fn()
        return sum(status.bytes_in for status in statuses()) - before

    return count


# -- keys that come again --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [DCV.dense, DCV.sparse], ids=["dense", "sparse"])
def test_keys_when_they_come_again_then_only_their_hash_travels(ps, bytes_in, make):
    u = make(DIM).push(np.ones(KEYS.size), KEYS)
    for _ in range(2):
        u.pull(KEYS)
    assert bytes_in(lambda: u.pull(KEYS)) == 0
    assert bytes_in(lambda: u.add(np.ones(KEYS.size), KEYS)) == 4 * KEYS.size
    assert u.pull(KEYS).tolist() == [2.0] * KEYS.size


def test_keys_when_unsorted_and_repeated_then_answer_keeps_order(ps):
    u = DCV.dense(DIM, dtype="float64").push(np.arange(DIM, dtype=np.float64))
    mixed = np.random.default_rng(0).integers(0, DIM, 50_000)
    for _ in range(4):
        assert np.array_equal(u.pull(mixed), mixed)


def test_keys_when_some_are_absent_then_later_push_is_seen(ps):
    u = DCV.sparse(2**60)
    for _ in range(3):
        assert u.pull(KEYS).sum() == 0
    u.push(np.ones(10), KEYS[:10])
    assert u.pull(KEYS).sum() == 10


def test_keys_when_server_forgot_them_then_are_resent(ps, statuses):
    """Sets of a million keys of one server come in turn: more than it remembers."""
    sets = CACHE_BYTES // 8_000_000 + 1
    dim = sets * 1_000_000
    u = DCV.dense(dim * len(ps.servers)).push(np.arange(dim, dtype=np.float32), np.arange(dim))
    missed = sum(status.key_cache_misses for status in statuses())
    for shift in [*range(sets)] * 3:
        keys = np.arange(shift, dim, sets)
        assert np.array_equal(u.pull(keys), keys)
    assert sum(status.key_cache_misses for status in statuses()) > missed
    held = [status.key_cache_bytes for status in statuses()]
    assert 0 < max(held) <= CACHE_BYTES


def test_add_when_server_forgot_keys_then_counts_once(ps):
    u = DCV.dense(DIM)
    for _ in range(3):
        u.add(np.ones(KEYS.size), KEYS)
    session = session_of(u._fleet)
    known = set(session.dispatch.key_sets._known)
    assert known
    other = DCV.dense(DIM)
    # The session believes that servers know these keys of the other matrix too.
    for matrix, partition, digest in known:
        if matrix == u._matrix:
            session.dispatch.key_sets._known[other._matrix, partition, digest] = None
    other.add(np.ones(KEYS.size), KEYS)
    assert other.sum() == KEYS.size


# -- 16-bit floats on the way ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wire", "error"), [("float16", 2**-11), ("bfloat16", 2**-8)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_when_narrowed_then_rounded_within_bound(ps, wire, error, dtype):
    values = np.random.default_rng(0).standard_normal(DIM).astype(dtype)
    u = DCV.dense(DIM, dtype=dtype, wire=wire).push(values)
    assert np.abs(u.pull() - values).max() <= error * np.abs(values).max()
    # Each value on its own, but for those below what float16 can resolve.
    assert np.all(np.abs(u.pull(KEYS) - values[KEYS]) <= error * np.abs(values[KEYS]) + 2**-25)
    assert u.pull().dtype == dtype


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_values_when_they_travel_shorter_then_half_the_bytes_do(ps, bytes_in, wire):
    u = DCV.dense(DIM, wire=wire)
    assert bytes_in(lambda: u.push(np.ones(DIM))) in (2 * DIM, 4 * DIM)  # as sent, or as widened on arrival
    assert u.sum() == DIM


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_values_when_narrowed_then_stored_precision_is_kept(ps, wire):
    u = DCV.dense(DIM, wire=wire).fill(1.0)
    u.axpy(u.derive().fill(1.0), 2.0**-20)
    assert u.sum() == DIM * (1 + 2.0**-20)


def test_derived_when_values_travel_shorter_then_so_do_its(ps):
    third = DCV.dense(10, wire="float16").derive().push(np.full(10, 1 / 3)).pull()
    assert third.tolist() == [float(np.float16(1 / 3))] * 10


def test_matrix_when_narrowed_then_rows_and_columns_are_too(ps):
    m = DCV.dense(100, 3, wire="bfloat16").matrix()
    m.push([0, 2], np.full((2, 100), 1 / 3))
    m.add([2], np.full((1, 2), 1.0), columns=[5, 50])
    result = m.pull([0, 2], columns=[50, 5, 6])
    assert np.allclose(result, [[1 / 3] * 3, [4 / 3, 4 / 3, 1 / 3]], rtol=2**-7)


@pytest.mark.parametrize("call", ["push", "add", "pushPull"])
def test_values_when_too_large_for_float16_then_names_first(ps, call):
    u = DCV.dense(10, wire="float16")
    with pytest.raises(OutOfRangeError, match=r"70000\.0 \(at position 1\) does not fit float16"):
        getattr(u, call)([65504.0, 70000.0, *[0.0] * 8])
    assert u.sum() == 0


def test_pull_when_sum_is_too_large_for_float16_then_says_so(ps):
    u = DCV.dense(10, wire="float16").fill(60000.0).add(60000.0)
    with pytest.raises(OutOfRangeError, match="float16"):
        u.pull()


def test_infinities_when_they_travel_as_float16_then_they_arrive(ps):
    u = DCV.dense(3, wire="float16").push([np.inf, -np.inf, 1.0])
    assert u.pull().tolist() == [np.inf, -np.inf, 1.0]


@pytest.mark.parametrize("make", [DCV.dense, DCV.sparse])
@pytest.mark.parametrize(("wire", "dtype"), [("float8", "float32"), ("float16", "int64"), (16, "float32")])
def test_vector_when_values_cannot_be_narrowed_then_config_error(ps, make, wire, dtype):
    with pytest.raises(ConfigError, match="wire: expected float16 or bfloat16"):
        make(10, dtype=dtype, wire=wire)


@pytest.mark.parametrize("make", [DCV.dense, DCV.sparse], ids=["dense", "sparse"])
def test_save_when_values_are_narrowed_then_written_as_stored(ps, make, tmp_path):
    u = make(3, wire="float16").push([1.0, 1.0, 1.0], [0, 1, 2])
    u.mul(1 / 3)
    u.save(str(tmp_path))
    assert DCV.load(str(tmp_path)).sum() == u.sum() == pytest.approx(1, abs=1e-6)


def test_save_when_value_is_too_large_to_pull_then_is_written(ps, tmp_path):
    u = DCV.dense(3, wire="float16").fill(60000.0).add(60000.0)
    u.save(str(tmp_path))
    assert DCV.load(str(tmp_path)).pull().tolist() == [120000.0] * 3


def test_copy_to_other_matrix_when_narrowed_then_exact(ps):
    u = DCV.dense(8, wire="float16").fill(1.0).mul(1 / 3)
    with pytest.warns(NotColocatedWarning):
        other = DCV.dense(8, partitionsPerServer=2).copy(u)
    assert other.sum() == u.sum()


# -- push and pull at once -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_push_pull_when_dense_then_the_sums_come_back(ps, dtype):
    values = np.arange(DIM).astype(dtype)
    u = DCV.dense(DIM, dtype=dtype).push(values)
    assert np.array_equal(u.pushPull(values), 2 * values)
    assert np.array_equal(u.pull(), 2 * values)


@pytest.mark.parametrize("make", [DCV.dense, DCV.sparse], ids=["dense", "sparse"])
def test_push_pull_when_indices_repeat_then_sum_in_one_request(ps, make, requests_by):
    u = make(100, dtype="float64")
    answers = []
    assert max(requests_by(lambda: answers.append(u.pushPull([1.0, 2.0, 3.0], [7, 90, 7])))) == 1
    assert answers[0].tolist() == [4.0, 2.0, 4.0]


def test_push_pull_when_keys_come_again_then_sums_are_right(ps):
    u = DCV.sparse(2**50)
    for step in range(1, 6):
        assert u.pushPull(np.ones(KEYS.size), KEYS).tolist() == [step] * KEYS.size


def test_push_pull_when_sparse_without_indices_then_usage_error(ps):
    with pytest.raises(UsageError, match="needs indices"):
        DCV.sparse(10).pushPull([1.0])


# -- into the caller's array -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", [None, "bfloat16"])
def test_pull_when_given_an_array_then_it_is_filled_and_returned(ps, wire):
    u = DCV.dense(DIM, wire=wire).push(np.ones(DIM))
    whole, some = np.zeros(DIM, np.float32), np.zeros(2 * KEYS.size, np.float32)[::2]
    assert u.pull(out=whole) is whole
    assert u.pull(KEYS, out=some) is some
    assert (whole.sum(), some.sum()) == (DIM, KEYS.size)


def test_pull_when_sparse_and_whole_then_an_array_is_refused(ps):
    with pytest.raises(UsageError, match="out needs indices"):
        DCV.sparse(10).pull(out=np.zeros(10, np.float32))


def test_pull_when_array_dtype_differs_then_refused(ps):
    with pytest.raises(DTypeError, match="out: expected an array of float32, got float64"):
        DCV.dense(10).pull(out=np.zeros(10))
