"""Rows that servers write and read: on fleets of other sizes, once however often, and while others work."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ps2 import DCV, saved_vectors
from ps2.client import storage
from ps2.errors import (
    LimitError,
    LostError,
    NotFoundError,
    ProtocolError,
    RecoveryError,
    StaleRouteError,
    UnavailableError,
)
from ps2.saved_vectors import SavedPart
from ps2.server import vector_files
from ps2.server.vector_files import RowPlace, VectorFiles
from ps2.wire.messages import Operation, Request, RequestId
from tests.fakes import FleetInProcess, installed, session_over

DIM = 1000
VALUES = np.arange(1.0, DIM + 1)
KEYS = np.arange(DIM) * 2**40 + 3
ID = RequestId("test", 0)


def over(fleet):
    return installed(session_over(fleet))


def make(kind, **options):
    if kind == "dense":
        return DCV.dense(DIM, dtype="float64", **options).push(VALUES)
    return DCV.sparse(2**60, dtype="float64", **options).push(VALUES, KEYS)


def pull(vector):
    return vector.pull(KEYS if vector.isSparse else None)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "weight"


@pytest.fixture(params=["dense", "sparse"])
def kind(request):
    return request.param


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(saved_vectors, "BLOCK_VALUES", 64)


# -- any fleet ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("saving", "loading"), [(1, 1), (1, 4), (4, 1), (3, 5), (5, 3)])
@pytest.mark.parametrize("per_server", [1, 3])
def test_load_when_the_fleet_is_of_another_size_then_same_vector(
    folder, kind, small_windows, saving, loading, per_server
):
    with over(FleetInProcess(saving)):
        make(kind, partitionsPerServer=per_server).save(str(folder))
    with over(FleetInProcess(loading)):
        loaded = DCV.load(str(folder))
        assert np.array_equal(pull(loaded), VALUES)
        assert loaded.nnz() == DIM


def test_read_when_files_are_many_windows_then_whole(folder, kind, small_windows):
    with over(FleetInProcess(3)):
        make(kind).save(str(folder))
    if kind == "dense":
        assert np.array_equal(storage.read_values(str(folder)), VALUES)
    else:
        keys, values = storage.read_sparse(str(folder))
        assert np.array_equal(keys, KEYS)
        assert np.array_equal(values, VALUES)


# -- calls that fail ---------------------------------------------------------------------------------------------------


class Disturbed:
    """A fleet on which something happens right after the first call of a method has been answered."""

    def __init__(self, fleet, method, happens):
        self.fleet = fleet
        self.method = f"Server/{method}"
        self.happens = [happens]

    def call(self, address, method, message, reply, timeout_s):
        answer = self.fleet.call(address, method, message, reply, timeout_s)
        if method == self.method and self.happens:
            self.happens.pop()(address, message.matrix)
        return answer

    def __getattr__(self, name):
        return getattr(self.fleet, name)


def loses_the_reply(address, matrix):
    raise UnavailableError(f"{address}: connection reset")


def test_load_when_a_reply_is_lost_then_whole_and_each_window_counts_once(folder, kind, small_windows):
    fleet = FleetInProcess(2)
    with over(fleet):
        make(kind).save(str(folder))
    with over(Disturbed(fleet, "LoadRow", loses_the_reply)):
        before = [engine.meter.mutations for engine in fleet.engines.values()]
        loaded = DCV.load(str(folder))
        assert np.array_equal(pull(loaded), VALUES)
        once = [engine.meter.mutations - old for engine, old in zip(fleet.engines.values(), before, strict=True)]
        DCV.load(str(folder))
        assert [engine.meter.mutations for engine in fleet.engines.values()] == [
            old + 2 * new for old, new in zip(before, once, strict=True)
        ]


def test_load_when_the_same_mutation_comes_again_then_what_was_changed_since_stays(folder, kind):
    """As from a task that is tried again."""
    fleet = FleetInProcess(1)
    (engine,) = fleet.engines.values()
    with over(fleet):
        make(kind).save(str(folder))
        saved = storage.describe(str(folder))
        vector = make(kind)
        of = RowPlace(vector._matrix, 0, (0,), str(folder), vector._route.version)
        for _ in range(2):
            VectorFiles(engine).load(of, saved.parts, ID)
            vector.add(1)
        assert np.array_equal(pull(vector), VALUES + 2)


def test_save_when_a_reply_is_lost_then_only_files_of_the_manifest_are_left(folder, kind):
    with over(Disturbed(FleetInProcess(2), "SaveRow", loses_the_reply)):
        make(kind).save(str(folder))
        assert np.array_equal(pull(DCV.load(str(folder))), VALUES)
    names = storage.describe(str(folder)).names
    assert sorted(path.name for path in folder.iterdir()) == sorted(["manifest.json", *names])


def test_load_when_a_server_was_replaced_meanwhile_then_it_reads_again(folder, kind):
    """It has its shards back as they were at some checkpoint, without what was loaded."""
    fleet = FleetInProcess(2)
    with over(fleet):
        make(kind).save(str(folder))

    def replaced(address, matrix):
        entry = fleet.master.matrix(matrix).entry
        mine = [p for p, owner in zip(entry.route.partitions, entry.route.addresses, strict=True) if owner == address]
        fleet.engines[address].free_matrix(matrix)
        fleet.engines[address].create_matrix(matrix, entry.spec, mine)
        entry.route = replace(entry.route, version=entry.route.version + 1)

    with over(Disturbed(fleet, "LoadRow", replaced)):
        assert np.array_equal(pull(DCV.load(str(folder))), VALUES)


def test_load_when_a_server_is_lost_for_good_then_lost_error(folder, kind):
    fleet = FleetInProcess(2)
    with over(fleet):
        make(kind).save(str(folder))

    def lost(address, matrix):
        fleet.master.ended(fleet.addresses.index(address), "ended by SIGKILL")
        raise UnavailableError(f"{address}: connection reset")

    with over(Disturbed(fleet, "LoadRow", lost)), pytest.raises(LostError, match="ended by SIGKILL"):
        DCV.load(str(folder))


def test_load_when_memory_ends_among_the_keys_then_limit_error_and_all_is_given_back(folder):
    with over(FleetInProcess(2)):
        make("sparse").save(str(folder))
    fleet = FleetInProcess(2, memory_limit_bytes=16_000)
    with over(fleet), pytest.raises(LimitError, match="left of the server's limit of 16,000"):
        DCV.load(str(folder))
    assert [engine.memory.taken_bytes for engine in fleet.engines.values()] == [0, 0]


# -- on the server -----------------------------------------------------------------------------------------------------


def on_one_server(kind, folder, limit_bytes=1 << 30):
    """Return a server's engine, a vector on it, and where its row goes."""
    fleet = FleetInProcess(1, limit_bytes)
    (engine,) = fleet.engines.values()
    with over(fleet):
        vector = make(kind, rows=1, name="kept")
    folder.mkdir()
    return SimpleNamespace(
        engine=engine,
        matrix=vector._matrix,
        place=RowPlace(vector._matrix, 0, (0,), str(folder), vector._route.version),
    )


def fill_while_writing(monkeypatch, server, wait_s):
    """Let another request overwrite the row while a file of it is written; return the threads that it runs in."""
    threads = []

    def write(fs, path, parts):
        operation = Operation("fill", server.matrix, 0, (0,), {"value": 7.0})
        request = Request((operation,), RequestId("other", len(threads)), server.place.route_version)
        threads.append(threading.Thread(target=server.engine.execute, args=(request,)))
        threads[-1].start()
        threads[-1].join(wait_s)
        return really_write(fs, path, parts)

    really_write = vector_files.write
    monkeypatch.setattr(vector_files, "write", write)
    return threads


def values_of(server, part):
    return np.sort(np.load(f"{server.place.url}/{part.files['values'].name}"))


def test_save_when_it_writes_then_requests_go_on_and_the_file_has_one_moment(folder, kind, monkeypatch):
    server = on_one_server(kind, folder)
    before = server.engine.memory.taken_bytes
    threads = fill_while_writing(monkeypatch, server, 10)
    (part,) = VectorFiles(server.engine).save(server.place, "x")
    assert [thread.is_alive() for thread in threads] == [False] * len(part.files)
    assert np.array_equal(values_of(server, part), VALUES)
    assert server.engine.memory.taken_bytes == before


def test_save_when_there_is_no_room_for_a_copy_then_requests_wait_and_the_file_has_one_moment(
    folder, kind, monkeypatch
):
    server = on_one_server(kind, folder)
    memory = server.engine.memory
    memory.limit_bytes = memory.taken_bytes
    threads = fill_while_writing(monkeypatch, server, 0.1)
    (part,) = VectorFiles(server.engine).save(server.place, "x")
    for thread in threads:
        thread.join(10)
    assert np.array_equal(values_of(server, part), VALUES)
    assert memory.taken_bytes == memory.limit_bytes


def test_save_when_the_folder_is_not_there_then_recovery_error_names_the_file(folder, kind):
    server = on_one_server(kind, folder)
    place = replace(server.place, url=f"{folder}/deeper")
    with pytest.raises(RecoveryError, match=rf"{folder}/deeper/\w+-x-0.npy: writing failed: No such file or directory"):
        VectorFiles(server.engine).save(place, "x")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"partitions": (1,)}, StaleRouteError),
        ({"matrix": 99}, StaleRouteError),
        ({"row": 5}, IndexError),
        ({"partitions": ()}, ProtocolError),
    ],
    ids=repr,
)
def test_calls_when_the_row_is_not_here_then_error(folder, change, error):
    server = on_one_server("dense", folder)
    (part,) = VectorFiles(server.engine).save(server.place, "x")
    place = replace(server.place, **change)
    for use in (lambda files: files.save(place, "y"), lambda files: files.load(place, [part], ID)):
        with pytest.raises(error):
            use(VectorFiles(server.engine))


def test_save_when_the_matrix_was_freed_then_not_found(folder):
    server = on_one_server("dense", folder)
    shard = server.engine.shards()[server.matrix, 0]
    shard.free()
    with pytest.raises(NotFoundError, match="was freed"):
        VectorFiles(server.engine).save(server.place, "x")


def test_save_when_the_stem_is_a_path_then_protocol_error(folder):
    server = on_one_server("dense", folder)
    with pytest.raises(ProtocolError, match=r"stem: expected a part of the name of a file, got '../x'"):
        VectorFiles(server.engine).save(server.place, "../x")


def test_load_when_no_part_is_for_a_shard_then_nothing_is_changed(folder, kind):
    server = on_one_server(kind, folder)
    VectorFiles(server.engine).load(server.place, [], ID)
    (part,) = VectorFiles(server.engine).save(server.place, "x")
    assert isinstance(part, SavedPart)
    assert np.array_equal(values_of(server, part), VALUES)
