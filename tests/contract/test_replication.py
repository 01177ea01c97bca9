"""With a backup, what is acknowledged is on two servers; the copy is the shard to the bit, ids and results included."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import cloudpickle
import numpy as np
import pytest

from ps2.errors import (
    LimitError,
    OpError,
    OutOfRangeError,
    ProtocolError,
    PS2Error,
    RecoveryError,
    StaleRouteError,
    UnavailableError,
)
from ps2.matrix.partition import HASH_SPACE, MatrixSpec, Partition
from ps2.protocol.messages import Operation, Request, RequestId
from ps2.rpc.control import Activation, ServerControl
from ps2.server.engine import Engine
from ps2.storage.manifest import LoadMatrix, SaveMatrix
from tests.contract.histories import FUNCTIONS, MATRICES, History, held, remembered
from tests.contract.servers import Proxy, Served, connected, op, reading
from tests.contract.servers import send as send_as_it_is

COORDINATOR = "the coordinator"
LEASE_S = 60.0
LIMIT_BYTES = 1 << 28
SPARSE = {2: (MatrixSpec(2**40, 2, dtype="float64", kind="sparse"), [Partition(0, 0, HASH_SPACE)])}


class Fleet:
    """Servers in this process, and calls to them at the route version that is ``control.route_version``."""

    def __init__(self, transport):
        self.transport = transport
        self.control = ServerControl(transport)
        self.control.route_version = 1
        self.servers = []
        self._number = 0

    def start(self, limit_bytes=LIMIT_BYTES, places=None):
        self.servers.append(Served(Engine(limit_bytes, allow_udf=True), places=places))
        return self.servers[-1]

    def create(self, server, matrices=MATRICES, copies=False):
        for matrix, (spec, partitions) in matrices.items():
            self.control.create_matrix(server.address, matrix, spec, partitions, copies)

    def activate(self, server, backup=None, seed=False):
        address = backup.address if backup is not None else ""
        self.control.activate(server.address, Activation(COORDINATOR, LEASE_S, backup=address, seed=seed))

    def send(self, server, request):
        return send_as_it_is(self.transport, server.address, replace(request, route_version=self.control.route_version))

    def try_to_send(self, server, request):
        try:
            return self.send(server, request)
        except PS2Error as error:
            return error

    def change(self, server, *operations):
        self._number += 1
        return self.send(server, Request(operations, RequestId("driver", self._number)))

    def stop(self, server):
        self.servers.remove(server)
        server.stop()


@pytest.fixture
def fleet():
    with connected("unix") as transport:
        created = Fleet(transport)
        yield created
        for server in list(created.servers):
            created.stop(server)


@pytest.fixture
def pair(fleet):
    """A server and its backup, with empty matrices that are in step."""
    return in_step(fleet)


def in_step(fleet, matrices=MATRICES, limits_bytes=(LIMIT_BYTES, LIMIT_BYTES)):
    primary, backup = map(fleet.start, limits_bytes)
    fleet.activate(backup, primary)
    fleet.activate(primary, backup)
    fleet.create(backup, matrices, copies=True)
    fleet.create(primary, matrices)
    return primary, backup


def behind(server):
    return server.namespaces.default.replication.out_of_sync


@contextmanager
def background(fn):
    """Run ``fn`` in a thread until the block ends; its result is in the list that this yields."""
    result = []
    thread = threading.Thread(target=lambda: result.append(fn()), daemon=True)
    thread.start()
    yield result
    thread.join(30)
    assert not thread.is_alive()


def push(value, row=0, matrix=3, start=0):
    return op("push", row, matrix=matrix, arrays=(np.full(10, value),), start=start)


def sleep_and_write(row):
    time.sleep(1)
    row += 5


def row_of(engine, matrix=3, number=0, partition=0):
    return engine.shards()[matrix, partition].row(number)


# -- the copy is the shard -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_copies_when_any_requests_ran_then_equal_shards_bitwise(fleet, pair, until, seed):
    primary, backup = pair
    finished = failed = 0
    for request in History(seed).requests(150):
        outcome = fleet.try_to_send(primary, request)
        finished, failed = finished + (not isinstance(outcome, PS2Error)), failed + isinstance(outcome, PS2Error)
        if again := remembered(request):
            fleet.try_to_send(primary, again)
    assert finished > 50
    assert failed > 10
    until(lambda: behind(primary) == 0, "the copies are in step")
    assert held(backup.engine, copies=True) == held(primary.engine, copies=False)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("keys_advance", {"now_s": float("nan"), "tick": 0, "touched": 0}),
        ("keys_advance", {"now_s": 1.0}),
        ("keys_mark", {"tick": 2**40}),
        ("keys_expire", {"older_s": -1.0, "begin": -1}),
        ("keys_evict", {"keep": 1, "more": 2}),
        ("keys_remove", {}),
    ],
)
def test_operation_on_keys_when_malformed_then_refused(fleet, pair, name, params):
    primary, backup = pair
    request = Request((Operation(name, 11, 0, params=params),), RequestId("driver", 1))
    assert isinstance(fleet.try_to_send(primary, request), (OutOfRangeError, ProtocolError))
    assert behind(primary) == 0
    assert held(backup.engine, copies=True) == held(primary.engine, copies=False)


def test_copies_when_failed_requests_touch_keys_then_in_step(fleet, pair):
    primary, backup = pair
    keys = np.arange(40)
    for name, number in (("scatter_add", 1), ("columns_add", 2), ("scatter_add", 3)):
        rows = (0,) if name == "scatter_add" else ()
        values = np.ones((40, 5) if name == "columns_add" else 40, np.float32)
        operation = Operation(name, 11, 0, rows, arrays=(keys, values))
        outcome = fleet.try_to_send(primary, Request((operation,), RequestId("driver", number)))
        assert isinstance(outcome, PS2Error) is (name == "columns_add")
        assert behind(primary) == 0
    assert primary.engine.shards()[11, 0].managed.counts.admitted == 40
    assert held(backup.engine, copies=True) == held(primary.engine, copies=False)


def test_copies_when_sent_in_many_blocks_then_time_is_the_shards(fleet, monkeypatch):
    """To write the values of keys on a copy is no touch."""
    monkeypatch.setattr("ps2.server.copies.BLOCK_BYTES", 80)
    primary, backup = fleet.start(), fleet.start()
    fleet.activate(primary)
    fleet.create(primary, {12: MATRICES[12]})
    add = Operation("columns_add", 12, 0, arrays=(np.arange(40), np.ones((40, 5), np.float32)))
    for _ in range(2):
        fleet.change(primary, add)
    fleet.change(primary, Operation("keys_advance", 12, 0, params={"now_s": 5.0, "tick": 0, "touched": 1}))
    fleet.create(backup, {12: MATRICES[12]}, copies=True)
    fleet.activate(backup)
    fleet.control.send(primary.address, backup.address, [(12, 0)], copies=True)
    assert backup.engine.shards()[12, 0].managed.time.now_s == 5.0
    assert held(backup.engine, copies=True) == held(primary.engine, copies=False)


def test_copies_when_some_requests_lack_memory_then_equal_shards(fleet):
    primary, backup = in_step(fleet, SPARSE, (1 << 20, LIMIT_BYTES))
    rng, failed = np.random.default_rng(0), 0
    for number in range(60):
        keys = rng.integers(0, 1 << 40, int(rng.integers(1, 6000)))
        few, many = (op("scatter_add", 0, matrix=2, arrays=(some, np.ones(some.size))) for some in (keys[:3], keys))
        request = Request((few, many), RequestId("driver", number))
        failed += isinstance(fleet.try_to_send(primary, request), LimitError)
    assert 5 < failed < 55
    assert behind(primary) == 0
    assert held(backup.engine, copies=True) == held(primary.engine, copies=False)


def test_copies_when_two_full_servers_await_each_other_then_made(fleet):
    """Each is the other's backup; clients ask for four times the room that there is."""
    columns = 1 << 16
    whole = [Partition(0, 0, columns)]
    matrices = [{matrix: (MatrixSpec(columns, 1, dtype="float64"), whole)} for matrix in (1, 2)]
    one, two = in_step(fleet, matrices[0], (2 * 8 * columns + (4 << 20),) * 2)
    fleet.activate(two, one)
    fleet.create(one, matrices[1], copies=True)
    fleet.create(two, matrices[1])
    outcomes = []

    def change(number):
        for turn in range(4):
            for server, matrix in ((one, 1), (two, 2))[:: 1 - 2 * (number % 2)]:
                add = op("push_add", 0, matrix=matrix, arrays=(np.ones(columns),), start=0)
                outcomes.append(fleet.try_to_send(server, Request((add,), RequestId(f"client {number}", turn))))

    threads = [threading.Thread(target=change, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [outcome for outcome in outcomes if isinstance(outcome, PS2Error)] == []
    assert [behind(one), behind(two)] == [0, 0]
    for server in (one, two):
        assert [set(row_of(server.engine, matrix)) for matrix in (1, 2)] == [{128.0}, {128.0}]


def test_copies_when_failed_function_is_not_undone_then_remade(fleet, until):
    wide = {1: (MatrixSpec(1 << 18, 1, dtype="float64"), [Partition(0, 0, 1 << 18)])}
    primary, backup = in_step(fleet, wide, (3 << 20, LIMIT_BYTES))
    with pytest.raises(OpError, match="were NOT undone"):
        fleet.change(primary, op("map", 0, arrays=(FUNCTIONS[1],)))
    until(lambda: behind(primary) == 0, "the copy is made anew")
    assert row_of(backup.engine, matrix=1)[0] == 1
    assert held(backup.engine, copies=True) == held(primary.engine, copies=False)


def test_copies_when_function_only_reads_then_nothing_forwarded(fleet):
    wide = {1: (MatrixSpec(1 << 18, 1, dtype="float64"), [Partition(0, 0, 1 << 18)])}
    primary, backup = in_step(fleet, wide, (3 << 20, LIMIT_BYTES))
    before = fleet.control.status(backup.address).requests
    looked = fleet.send(primary, reading(op("look", 0, arrays=(np.frombuffer(cloudpickle.dumps(np.sum), np.uint8),))))
    assert pickle.loads(looked.results[0].arrays[0].tobytes()) == 0.0
    with pytest.raises(OpError, match="output array is read-only") as caught:
        fleet.send(primary, reading(op("look", 0, arrays=(FUNCTIONS[1],))))
    assert "undone" not in str(caught.value)
    assert fleet.control.status(backup.address).requests == before
    assert held(backup.engine, copies=True) == held(primary.engine, copies=False)


def test_copies_when_rows_come_and_go_then_they_are_the_shards(fleet, pair):
    primary, backup = pair
    for server in (backup, primary):
        fleet.control.update_rows(server.address, 3, rows=9, freed=[2])
    fleet.change(primary, push(5, row=8))
    assert held(backup.engine, copies=True) == held(primary.engine, copies=False)


def fill_all(fleet, primary, folder):
    """Save every matrix, and read it into one that has been made for that."""
    for matrix, (spec, partitions) in MATRICES.items():
        rows = tuple(range(spec.rows))
        order = SaveMatrix(matrix, rows, tuple(range(len(partitions))), str(folder), "saved-")
        saved = tuple(fleet.control.save(primary.address, order))
        load = LoadMatrix(matrix + 100, spec, tuple(partitions), spec, saved, rows)
        fleet.control.fill(primary.address, str(folder), load, RequestId("driver", 1000 + matrix))


def test_copies_when_matrices_come_from_files_then_equal_shards(fleet, pair, tmp_path):
    primary, backup = pair
    for request in History(0).requests(60):
        fleet.try_to_send(primary, request)
    read = {matrix + 100: created for matrix, created in MATRICES.items()}
    fleet.create(backup, read, copies=True)
    fleet.create(primary, read)
    fill_all(fleet, primary, tmp_path)
    for matrix in MATRICES:
        values = [np.sort(row_of(primary.engine, number)) for number in (matrix, matrix + 100)]
        assert np.array_equal(*values, equal_nan=True)
    assert behind(primary) == 0
    assert held(backup.engine, copies=True) == held(primary.engine, copies=False)


def test_fill_when_backup_is_gone_then_fails_and_copies_later(fleet, pair, tmp_path, until):
    primary, backup = pair
    read = {matrix + 100: created for matrix, created in MATRICES.items()}
    fleet.create(backup, read, copies=True)
    fleet.create(primary, read)
    fleet.stop(backup)
    with pytest.raises(UnavailableError):
        fill_all(fleet, primary, tmp_path)
    other = fleet.start()
    fleet.activate(other, primary)
    fleet.create(other, {**MATRICES, **read}, copies=True)
    fleet.control.route_version = 2
    fleet.activate(other, primary)
    fleet.activate(primary, other, seed=True)
    fill_all(fleet, primary, tmp_path)
    until(lambda: behind(primary) == 0, "the copies are in step")
    assert held(other.engine, copies=True) == held(primary.engine, copies=False)


def test_request_when_over_size_limit_then_forwarded_in_pieces(fleet, until):
    dim = (64 << 20) // 8 + 1000
    large = {1: (MatrixSpec(dim, 2, dtype="float64"), [Partition(0, 0, dim)])}
    primary, backup = in_step(fleet, large)
    fleet.change(primary, op("map", 0, arrays=(np.frombuffer(pickle.dumps(np.ndarray.sort), np.uint8),)))
    fleet.change(primary, op("fill", 1, value=2.5), op("map", 0, arrays=(FUNCTIONS[0],)))
    assert held(backup.engine, copies=True) == held(primary.engine, copies=False)
    shard = backup.engine.shards()[1, 0]
    until(lambda: backup.engine.memory.used_bytes == shard.nbytes, "the memory of the pieces is given back")


def test_client_request_when_it_names_copy_then_is_refused(fleet, pair):
    _, backup = pair
    with pytest.raises(StaleRouteError, match="does not hold"):
        fleet.change(backup, push(1))


def test_forwarded_request_when_shard_is_no_copy_then_is_refused(fleet, pair):
    primary, _ = pair
    with pytest.raises(StaleRouteError, match="does not hold"):
        fleet.send(primary, Request((push(1),), RequestId("old", 0), forwarded=True))
    with pytest.raises(StaleRouteError, match="does not hold"):
        fleet.send(
            primary, Request((op("clear", matrix=3, rows=4),), RequestId("ps2 filling", 1 << 40), forwarded=True)
        )


def test_servers_when_mutual_backups_then_both_accept_writes(fleet):
    first, second = fleet.start(), fleet.start()
    fleet.activate(first, second)
    fleet.activate(second, first)
    spec = MATRICES[3][0]
    for holder, other, partition in ((first, second, Partition(0, 0, 100)), (second, first, Partition(1, 100, 200))):
        fleet.control.create_matrix(other.address, 3, spec, [partition], copies=True)
        fleet.control.create_matrix(holder.address, 3, spec, [partition])

    def write(server, partition, scope):
        for number in range(200):
            add = op("add_scalar", 0, matrix=3, partition=partition, value=1)
            fleet.send(server, Request((add,), RequestId(scope, number)))
        return "done"

    with (
        background(lambda: write(first, 0, "a")) as a,
        background(lambda: write(second, 1, "b")) as b,
        background(lambda: write(first, 0, "c")) as c,
    ):
        pass
    assert a == b == c == ["done"]
    assert held(second.engine, copies=True) == held(first.engine, copies=False)
    assert held(first.engine, copies=True) == held(second.engine, copies=False)
    assert row_of(first.engine).tolist() == [400] * 100


def test_copies_when_connection_keeps_breaking_then_equal_shards(fleet, until):
    """What was applied there but not acknowledged is sent again, and applied once."""
    proxies = []

    def places(data):
        proxies.append(Proxy(socket.AF_INET, ("127.0.0.1", data.port)))
        return proxies[0].place[1], ""

    primary, backup = fleet.start(), fleet.start(places=places)
    fleet.activate(backup)
    fleet.activate(primary, backup)
    fleet.create(backup, copies=True)
    fleet.create(primary)
    (proxy,) = proxies
    rng, cuts = np.random.default_rng(0), 0
    try:
        for request in History(70).requests(60):
            up, down = (rng.integers(1500), 1 << 60) if rng.random() < 0.5 else (1 << 60, rng.integers(30))
            proxy.arm(int(up), int(down))
            with background(lambda request=request: fleet.try_to_send(primary, request)) as reply:
                until(lambda reply=reply: reply or min(proxy._left) < 0, "the reply, or the cut")
                cuts += min(proxy._left) < 0
                proxy.arm()
    finally:
        proxy.close()
    assert cuts > 5
    assert behind(primary) == 0
    assert held(backup.engine, copies=True) == held(primary.engine, copies=False)


# -- a backup that cannot follow -------------------------------------------------------------------------------------


def test_write_when_backup_is_gone_then_waits_until_unassigned(fleet, pair, until):
    primary, backup = pair
    fleet.stop(backup)
    with background(lambda: fleet.change(primary, push(7))) as reply:
        until(lambda: row_of(primary.engine)[0] == 7, "the change is made here")
        time.sleep(0.3)
        assert not reply
        fleet.activate(primary)
        until(lambda: reply, "the write is answered")
    assert not isinstance(reply[0], PS2Error)


def test_write_when_another_backup_comes_then_copy_has_it(fleet, pair, until):
    primary, backup = pair
    fleet.change(primary, push(1, row=1))
    fleet.stop(backup)
    with background(lambda: fleet.change(primary, push(7))) as reply:
        until(lambda: row_of(primary.engine)[0] == 7, "the change is made here")
        other = fleet.start()
        fleet.create(other, copies=True)
        fleet.activate(other)
        fleet.activate(primary, other, seed=True)
        until(lambda: reply, "the write is answered")
    until(lambda: behind(primary) == 0, "the copies are made")
    assert held(other.engine, copies=True) == held(primary.engine, copies=False)


def test_write_when_backup_version_differs_then_waits_for_it(fleet, pair, until):
    primary, backup = pair
    fleet.control.route_version = 2
    fleet.activate(backup, primary)
    request = Request((push(7),), RequestId("client", 0), route_version=1)
    with background(lambda: send_as_it_is(fleet.transport, primary.address, request)) as reply:
        until(lambda: row_of(primary.engine)[0] == 7, "the change is made here")
        fleet.activate(primary, backup)
        until(lambda: reply, "the write is answered")
    assert row_of(backup.engine)[0] == 7
    assert behind(primary) == 0


def test_write_when_backup_version_never_matches_then_stale(fleet, pair, until):
    primary, backup = pair
    fleet.control.route_version = 2
    fleet.activate(backup, primary)
    with pytest.raises(StaleRouteError, match="refuses the forwarded change"):
        send_as_it_is(fleet.transport, primary.address, Request((push(7),), RequestId("client", 0), route_version=1))
    assert behind(primary) == 1
    assert row_of(backup.engine)[0] == 0
    fleet.activate(primary, backup)
    until(lambda: behind(primary) == 0, "the copy is made anew")
    assert held(backup.engine, copies=True) == held(primary.engine, copies=False)


def test_write_when_backup_is_out_of_memory_then_limit_error(fleet):
    primary, backup = in_step(fleet, SPARSE, (LIMIT_BYTES, 2 << 20))
    keys = np.arange(100_000)
    with pytest.raises(LimitError, match=f"backup at {backup.address} has no memory left"):
        fleet.change(primary, op("scatter_add", 0, matrix=2, arrays=(keys, np.ones(keys.size))))
    assert behind(primary) == 1


def test_copy_when_forwarded_request_fails_midway_then_unusable(fleet, pair):
    _, backup = pair
    broken = Request((push(1), op("nothing", 0, matrix=3)), RequestId("p", 0), forwarded=True)
    for _ in range(2):
        with pytest.raises(PS2Error):
            fleet.send(backup, broken)
    with pytest.raises(StaleRouteError, match="before its transfer is complete"):
        fleet.send(backup, Request((push(1),), RequestId("p", 1), forwarded=True))
    other = fleet.start()
    fleet.create(other, {3: MATRICES[3]})
    with pytest.raises(RecoveryError, match="is incomplete"):
        fleet.control.send(backup.address, other.address, [(3, 0)], copies=False)


def test_write_when_lease_expires_in_it_then_not_acknowledged(fleet, pair):
    """The server may have been replaced meanwhile, by one that was made of the copy."""
    primary, backup = pair
    was = held(backup.engine, copies=True)
    fleet.control.activate(primary.address, Activation(COORDINATOR, 0.5, backup=backup.address))
    slow = np.frombuffer(cloudpickle.dumps(sleep_and_write), np.uint8)
    with pytest.raises(StaleRouteError, match="no answer from its coordinator"):
        fleet.change(primary, op("map", 0, matrix=3, arrays=(slow,)))
    assert row_of(primary.engine)[0] == 5
    assert held(backup.engine, copies=True) == was


# -- shards are sent whole -------------------------------------------------------------------------------------------


def test_seed_when_writers_go_on_then_the_copies_come_into_step(fleet, until):
    primary, backup = fleet.start(), fleet.start()
    fleet.activate(primary)
    fleet.create(primary)
    for request in History(100).requests(100):
        fleet.try_to_send(primary, request)
    fleet.create(backup, copies=True)
    fleet.activate(backup)

    def write():
        return sum(not isinstance(fleet.try_to_send(primary, r), PS2Error) for r in History(101).requests(150))

    with background(write) as written:
        fleet.activate(primary, backup, seed=True)
        until(lambda: behind(primary) == 0, "the copies are made")
    assert written[0] > 50
    assert (primary.namespaces.default.replication.backup, behind(primary)) == (backup.address, 0)
    assert held(backup.engine, copies=True) == held(primary.engine, copies=False)


@pytest.fixture
def joined(fleet, pair):
    """A server and its backup, and a change of two matrices on it that comes with a change of one of them."""
    primary, backup = pair

    def change(value):
        add = op("add_scalar", 0, matrix=9, value=value)
        return fleet.change(primary, add, replace(op("momentum", 0, 1, 2, lr=0.5), others=(9, 1)))

    for matrix in (1, 9):
        fleet.change(primary, op("fill", 1, matrix=matrix, value=2), op("fill", 2, matrix=matrix, value=3))
    return primary, backup, change


@pytest.mark.parametrize("lost", [1, 9])
def test_matrices_when_changed_with_one_copy_behind_then_sync(joined, until, lost):
    primary, backup, change = joined
    shards = primary.engine.shards()
    for value in range(30):
        primary.namespaces.default.replication.mark_out_of_sync([shards[lost, 0]])
        change(value)
    until(lambda: behind(primary) == 0, "the copies are made")
    assert held(backup.engine, copies=True) == held(primary.engine, copies=False)


def test_matrices_when_lagging_copy_is_unsent_then_none_syncs(fleet, joined, until):
    """A copy of one alone would be of another moment than the other's."""
    primary, backup, change = joined
    fleet.stop(backup)
    primary.namespaces.default.replication.mark_out_of_sync([primary.engine.shards()[9, 0]])
    change(1)
    assert behind(primary) == 2
    other = fleet.start()
    fleet.create(other, copies=True)
    fleet.activate(other)
    fleet.activate(primary, other, seed=True)
    until(lambda: behind(primary) == 0, "the copies are made")
    assert held(other.engine, copies=True) == held(primary.engine, copies=False)


def test_matrices_when_server_is_lost_then_resend_counts_once(fleet, joined):
    primary, backup, change = joined
    requests = []
    for value in range(5):
        change(value)
        requests.append(RequestId("driver", fleet._number))
    was = held(primary.engine, copies=False)
    fleet.stop(primary)
    new = fleet.start()
    fleet.create(new)
    fleet.control.send(backup.address, new.address, sorted(was), copies=False)
    fleet.control.route_version = 2
    fleet.activate(backup, new)
    fleet.activate(new, backup)
    for id in requests:
        again = replace(op("momentum", 0, 1, 2, lr=0.5), others=(9, 1))
        assert fleet.send(new, Request((op("add_scalar", 0, matrix=9, value=9), again), id)).replayed
    assert held(new.engine, copies=False) == was


@pytest.mark.parametrize("sent_on", [1, 9])
def test_forwarded_request_when_a_copy_was_sent_on_then_refused(fleet, joined, sent_on):
    _, backup, _ = joined
    was = held(backup.engine, copies=True)
    new = fleet.start()
    fleet.create(new)
    fleet.control.send(backup.address, new.address, [(sent_on, 0)], copies=False)
    step = replace(op("momentum", 0, 1, 2, lr=0.5), others=(9, 1))
    with pytest.raises(StaleRouteError, match=f"partition 0 of matrix {sent_on} has been sent to a server"):
        fleet.send(backup, Request((step,), RequestId("p", 0), forwarded=True))
    assert held(backup.engine, copies=True) == was


def test_seed_when_copies_hold_other_data_then_it_is_replaced(fleet, pair, until):
    primary, backup = pair
    for request in History(7).requests(50):
        fleet.try_to_send(primary, request)
    fleet.activate(primary)
    for request in History(8).requests(50):
        fleet.try_to_send(primary, request)
    assert held(backup.engine, copies=True) != held(primary.engine, copies=False)
    fleet.activate(primary, backup, seed=True)
    until(lambda: behind(primary) == 0, "the copies are made")
    assert held(backup.engine, copies=True) == held(primary.engine, copies=False)


def test_copy_when_made_for_used_shard_then_waits_until_sent(fleet):
    backup = fleet.start()
    fleet.create(backup, copies=True)
    fleet.activate(backup)
    with pytest.raises(StaleRouteError, match="before its transfer is complete"):
        fleet.send(backup, Request((push(1),), RequestId("p", 1), forwarded=True))


def test_fill_when_older_one_arrives_late_then_changes_nothing(fleet, pair, until):
    primary, backup = pair
    fleet.change(primary, push(7))
    fleet.activate(primary, backup, seed=True)
    until(lambda: behind(primary) == 0, "the copies are made")
    late = op("clear", matrix=3, rows=4), op("push", 0, matrix=3, arrays=(np.full(10, 1),), start=0)
    for operation in late:
        with pytest.raises(StaleRouteError, match="is no longer current"):
            fleet.send(backup, Request((operation,), RequestId("ps2 filling", 0), forwarded=True))
    assert row_of(backup.engine)[0] == 7


@pytest.fixture
def successor(fleet, pair):
    """A server that takes the primary's place after it was lost, and the requests that it had acknowledged."""
    primary, backup = pair
    fleet.control.update_rows(backup.address, 1, rows=6, freed=[5])
    fleet.control.update_rows(primary.address, 1, rows=6, freed=[5])
    sent, settled = [], {}
    for request in History(55).requests(150):
        outcome = fleet.try_to_send(primary, request)
        if not isinstance(outcome, PS2Error):
            sent.append((request, outcome))
        # One that came twice says again what was settled then; one that failed says it, too.
        settled[request.id.scope] = max(request.id.settled, settled.get(request.id.scope, 0))
    # Nobody sends the others again.
    sent = [(request, outcome) for request, outcome in sent if request.id.number >= settled[request.id.scope]]
    was = held(primary.engine, copies=False)
    fleet.stop(primary)
    new = fleet.start()
    fleet.create(new)
    places = sorted(was)
    assert fleet.control.send(backup.address, new.address, places, copies=False) > 0
    fleet.control.route_version = 2
    fleet.activate(backup, new)
    fleet.activate(new, backup)
    return new, backup, was, sent


def test_send_when_server_was_lost_then_successor_equals_it(successor):
    new, backup, was, _ = successor
    assert held(new.engine, copies=False) == was
    assert held(backup.engine, copies=True) == was


def test_successor_when_acked_requests_repeat_then_same_results(fleet, successor):
    new, _, was, sent = successor
    maps = 0
    for request, reply in sent:
        again = fleet.send(new, request)
        for before, now, operation in zip(reply.results, again.results, request.operations, strict=True):
            if operation.name == "map":
                maps += 1
                assert before.arrays[0].tobytes() == now.arrays[0].tobytes()
    assert maps
    assert held(new.engine, copies=False) == was


def test_successor_when_requests_go_on_then_the_copies_follow(fleet, successor):
    new, backup, _, _ = successor
    for request in History(56).requests(50):
        fleet.try_to_send(new, request)
    assert behind(new) == 0
    assert held(backup.engine, copies=True) == held(new.engine, copies=False)


def test_copy_when_sent_on_then_lost_server_cannot_change_it(fleet, pair):
    primary, backup = pair
    new = fleet.start()
    fleet.create(new)
    fleet.control.send(backup.address, new.address, [(3, 0)], copies=False)
    with pytest.raises(StaleRouteError):
        fleet.change(primary, push(9))
    assert row_of(backup.engine)[0] == 0


def test_memory_when_copies_are_freed_then_it_is_given_back(fleet, pair, until):
    primary, backup = pair
    for request in History(3).requests(50):
        fleet.try_to_send(primary, request)
    fleet.activate(primary, backup, seed=True)
    until(lambda: behind(primary) == 0, "the copies are made")
    assert backup.engine.matrices() == []
    for matrix in MATRICES:
        fleet.control.free_matrix(backup.address, matrix)
    until(lambda: backup.engine.memory.used_bytes == backup.engine.keys.nbytes, "all memory is given back")
