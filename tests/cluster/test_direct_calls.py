"""Calls sent directly on a waiting connection come to what the poll loop brings, whatever happens on the way."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ps2 import DCV, errors
from ps2.client.keysets import MAX_INLINE_BYTES
from ps2.client.network import FleetNetwork
from ps2.transport import direct

pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")

DIM = 1000


@pytest.fixture(params=["float32", "float64"])
def v(ps, request):
    vector = DCV.dense(DIM, dtype=request.param)
    vector.push(np.arange(DIM))
    # Connections, routes and handles are there from now on.
    warm(vector)
    yield vector
    vector.free()


def warm(vector):
    for _ in range(2):
        before = vector.pull()
        vector.add(np.zeros(DIM)).push(before).add(np.zeros(3), [0, 500, 999]).pull([0, 500, 999])


@pytest.fixture
def polled(monkeypatch):
    """The requests that went through the poll loop."""
    calls, poll = [], FleetNetwork._poll

    def noted(self, requests, sent):
        calls.append((requests, sent))
        return poll(self, requests, sent)

    monkeypatch.setattr(FleetNetwork, "_poll", noted)
    return calls


def test_calls_when_connections_wait_then_all_go_directly(v, polled):
    expected = np.arange(DIM, dtype=v.dtype)
    rng = np.random.default_rng(0)
    for _ in range(5):
        values, columns = rng.integers(-9, 9, DIM).astype(v.dtype), rng.integers(0, DIM, 40)
        v.add(values).sub(2 * values)
        expected += values - 2 * values
        v.add(np.ones(40), columns)
        np.add.at(expected, columns, 1)
        v.sub(columns.tolist(), columns)
        np.subtract.at(expected, columns, columns.astype(v.dtype))
        v.push(np.full(40, 7), columns)
        expected[columns] = 7
        out = np.empty(40, v.dtype)
        assert v.pull(columns, out=out) is out
        assert np.array_equal(out, expected[columns])
        whole = np.empty(DIM, v.dtype)
        assert v.pull(out=whole) is whole
        assert np.array_equal(whole, expected)
        assert np.array_equal(v.pull(columns), expected[columns])
    v.push(values)
    assert np.array_equal(v.pull(), values)
    assert polled == []


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda v: v.pull([DIM]), errors.OutOfRangeError),
        (lambda v: v.pull([0.5]), errors.DTypeError),
        (lambda v: v.pull(out=np.empty(3)), errors.PS2Error),
        (lambda v: v.pull(out=[1]), errors.DTypeError),
        (lambda v: v.add(np.ones(3)), errors.ShapeError),
        (lambda v: v.add(["x"] * DIM), errors.DTypeError),
        (lambda v: v.add(np.ones(2), [0, DIM]), errors.OutOfRangeError),
        (lambda v: v.push(np.ones(2), [0]), errors.ShapeError),
    ],
)
def test_call_when_invalid_then_refused_and_nothing_changes(v, call, error):
    with pytest.raises(error):
        call(v)
    assert np.array_equal(v.pull(), np.arange(DIM))
    under_way = v._session.ids._in_flight
    assert under_way == set()


def test_out_when_not_contiguous_then_is_still_filled(v):
    out = np.zeros((DIM, 2), v.dtype)[:, 0]
    assert v.pull(out=out) is out
    assert np.array_equal(out, np.arange(DIM))


def test_calls_when_no_indices_then_nothing_happens(v):
    assert v.pull([]).tolist() == []
    v.add([], []).push([], [])
    assert np.array_equal(v.pull(), np.arange(DIM))


def test_row_when_freed_by_other_handle_then_not_found(v):
    other = v.derive()
    other.add(np.ones(DIM))
    other.pull()
    connections = {id(c) for peer in v._session.network._pool._peers.values() for c in peer.idle}
    v._session.free_rows(v._matrix, [other._row])
    for call in (other.pull, lambda: other.add(np.ones(DIM))):
        with pytest.raises(errors.NotFoundError):
            call()
    other._disown()
    other._freed = True
    assert connections == {id(c) for peer in v._session.network._pool._peers.values() for c in peer.idle}
    assert np.array_equal(v.pull(), np.arange(DIM))


def test_additions_under_way_when_a_pull_comes_then_it_has_them(v):
    for _ in range(20):
        v.add(np.ones(DIM), wait=False)
    assert np.array_equal(v.pull(), np.arange(DIM) + 20)


def test_reply_when_lost_then_change_is_resent_and_counts_once(v, monkeypatch):
    receive, lost = direct.receive, []

    def loses_first(connection, request, header):
        came = receive(connection, request, header)
        if not lost:
            lost.append(request)
            raise ConnectionResetError(0, "lost")
        return came

    monkeypatch.setattr(direct, "receive", loses_first)
    v.add(np.ones(DIM))
    assert lost
    assert np.array_equal(v.pull(), np.arange(DIM) + 1)
    lost.clear()
    assert np.array_equal(v.pull(), np.arange(DIM) + 1)


def test_reply_when_slow_then_the_poll_loop_waits(v, monkeypatch, polled):
    monkeypatch.setattr(direct, "receive", lambda *_: None)
    v.add(np.ones(DIM))
    monkeypatch.undo()
    assert len(polled) == 1
    assert np.array_equal(v.pull(), np.arange(DIM) + 1)


def test_request_when_socket_is_full_then_the_poll_loop_sends(v, monkeypatch, polled):
    def broken(*_):
        raise ConnectionResetError(0, "broken")

    monkeypatch.setattr(direct, "send", broken)
    v.add(np.ones(DIM))
    assert len(polled) == 1
    monkeypatch.undo()
    assert np.array_equal(v.pull(), np.arange(DIM) + 1)


@pytest.mark.parametrize("call", [lambda v: v.pull(), lambda v: v.add(np.zeros(DIM))], ids=["pull", "add"])
def test_call_when_interrupted_then_next_gets_its_own_reply(v, monkeypatch, call):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(direct, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(v)
    monkeypatch.undo()
    assert v._session.ids._in_flight == set()
    for index in range(5):
        assert v.pull([index]).tolist() == [index]


def test_connections_when_closed_by_servers_then_calls_continue(v):
    for peer in v._session.network._pool._peers.values():
        for connection in peer.idle:
            connection.shutdown(2)
    v.add(np.ones(DIM))
    assert np.array_equal(v.pull(), np.arange(DIM) + 1)


def test_calls_when_many_threads_make_them_then_each_counts_once(v):
    def work():
        for _ in range(50):
            v.add(np.ones(DIM))
            v.add(np.ones(2), [3, 997])
            v.pull()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = np.arange(DIM) + 400
    expected[[3, 997]] += 400
    assert np.array_equal(v.pull(), expected)


def test_sparse_vector_when_keys_exist_then_calls_are_plain(ps, polled):
    vector, expected, rng = DCV.sparse(2**40), {}, np.random.default_rng(1)
    for turn in range(12):
        keys = np.unique(rng.integers(0, 60, 30)) ** 5
        if turn == 6:
            del polled[:]
            keys = np.array(sorted(expected))
        values = rng.integers(-9, 9, keys.size).astype(np.float32)
        vector.add(values, keys)
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            expected[key] = expected.get(key, 0) + value
        if turn == 6:
            vector.sub(values, keys).add(values, keys)
            assert vector.pull(keys[::-1]).tolist() == [expected[key] for key in keys.tolist()[::-1]]
            assert polled == []
        asked = np.array([*expected, 7, 2**39])
        assert vector.pull(asked).tolist() == [expected.get(key, 0) for key in asked.tolist()]
    assert len(expected) == vector.pull()[0].size
    vector.free()


def test_vectors_when_larger_than_block_then_travel_by_blocks(ps, polled):
    dim = len(ps.servers) * (1 << 20) + 4
    large = DCV.dense(dim)
    values = np.arange(dim) % 1000
    for _ in range(2):
        large.add(values)
    assert np.array_equal(large.pull(), 2 * values)
    assert len(polled) == 3
    columns = np.array([0, 1, dim // 2, dim - 1])
    del polled[:]
    large.add(np.ones(4), columns)
    assert np.array_equal(large.pull(columns), 2 * values[columns] + 1)
    assert polled == []
    large.free()


@pytest.mark.parametrize("make", [DCV.dense, DCV.sparse])
def test_keys_when_repeated_then_few_are_resent_and_many_named(ps, polled, make):
    vector, expected = make(1 << 20), np.zeros(1 << 20, np.float32)
    for count, named in ((3000, False), (len(ps.servers) * MAX_INLINE_BYTES * 5 // 4, True)):
        columns = np.random.default_rng(count).choice(1 << 20, count, replace=False)
        for turn in range(5):
            if turn == 2:  # servers have seen them twice
                del polled[:]
            vector.add(np.full(count, 1 + turn), columns)
            expected[columns] += 1 + turn
            assert np.array_equal(vector.pull(columns), expected[columns])
        remembered = {matrix for matrix, *_ in vector._session.dispatch.key_sets._known}
        assert (vector._matrix in remembered) == named
        assert polled == []
    vector.free()


def test_all_kinds_of_vectors_when_idle_then_sent_directly(ps, polled):
    for created in (
        DCV.dense(DIM, wire="float16"),
        DCV.dense(DIM, dtype="int64"),
        DCV.dense(DIM, partitionsPerServer=2),
    ):
        created.add(np.ones(DIM, np.int64)).pull()  # kernels are compiled from now on
        del polled[:]
        created.add(np.ones(DIM, np.int64))
        assert created.pull().sum() == 2 * DIM
        assert polled == []
        created.free()


def test_operations_when_connections_wait_then_they_go_directly(ps, v, polled):
    w = v.derive().fill(2)
    matrix = DCV.dense(50, 3, "int32", layout="column").matrix()
    for turn in range(3):
        assert v.dot(w) == 2 * v.sum()
        assert v.zip(w).mapPartitions(lambda a, b: float(a[0] + b[0])).collect() == [
            v.pull([p.begin])[0] + 2 for p in v._route.partitions
        ]
        v.zip(w).apply("axpy", alpha=turn / 2)
        w.fill(2.0)
        matrix.add(columns=[7, 3], values=[[1, 2, 3], [4, 5, 6]])
    assert np.array_equal(v.pull(), np.arange(DIM) + 3)
    assert matrix.pull(columns=[3, 7]).tolist() == [[12, 15, 18], [3, 6, 9]]
    with ps.batch():
        total = v.zero().add(1.0).sum()
    assert total.result() == DIM
    assert polled == []
    with pytest.raises(errors.OpError):
        v.zip(w).mapPartitions(lambda a, b: 1 / 0)
    assert polled == []
    matrix.free()
    w.free()
