"""Rows that servers write and read: on fleets of other sizes, once however often, and while others work."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import ps2
from ps2 import DCV
from ps2.client import storage
from ps2.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    ConfigError,
    LimitError,
    LostError,
    NotFoundError,
    ProtocolError,
    RecoveryError,
    StaleRouteError,
    StoppedError,
    UnavailableError,
    UsageError,
)
from ps2.protocol.messages import Operation, Request, RequestId
from ps2.server import reading, shard_snapshot
from ps2.server.loading import CheckpointLoader
from ps2.server.snapshots import save
from ps2.storage import folders
from ps2.storage.manifest import LoadMatrix, SaveMatrix
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


def names(folder):
    """Return the files of the manifest, with itself."""
    return sorted(["manifest.json", *(file.name for *_, file in folders.read_manifest(folder).files())])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "weight"


@pytest.fixture(params=["dense", "sparse"])
def kind(request):
    return request.param


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr("ps2.storage.arrays.BLOCK_BYTES", 512)


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


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_load_when_saved_then_the_same_vector(folder, kind, dtype):
    with over(FleetInProcess(2)):
        vector = DCV.dense(DIM, dtype=dtype) if kind == "dense" else DCV.sparse(2**63, dtype=dtype)
        vector.push(VALUES.astype(dtype), KEYS if vector.isSparse else None).save(str(folder))
        result = DCV.load(str(folder))
        assert (result.dim, result.dtype, result.isSparse) == (vector.dim, dtype, vector.isSparse)
        assert np.array_equal(pull(result), VALUES)


@pytest.mark.parametrize("make", [lambda: DCV.dense(1), lambda: DCV.sparse(5, dtype="int64")], ids=["short", "empty"])
def test_load_when_little_was_saved_then_the_same_vector(folder, make):
    with over(FleetInProcess(3)):
        make().save(str(folder))
        assert (DCV.load(str(folder)).dim, DCV.load(str(folder)).nnz()) == (make().dim, 0)


def test_load_when_nan_and_inf_were_saved_then_are_bit_identical(folder):
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40], np.float32)
    with over(FleetInProcess(2)):
        DCV.dense(5).push(values).save(str(folder))
        assert DCV.load(str(folder)).pull().tobytes() == values.tobytes()


def test_load_when_saved_with_options_then_keeps_partitioning(folder):
    with over(FleetInProcess(2)):
        DCV.dense(DIM, align=300, partitionsPerServer=2, wire="float16").save(str(folder))
        result = DCV.load(str(folder), rows=7)
    assert (result._spec.align, result._spec.partitions_per_server, result._spec.wire) == (300, 2, None)
    assert (result._spec.rows, result._route.bounds) == (7, (0, 300, 600, 900, 1000))


def test_save_when_wire_is_narrow_then_values_are_as_stored(folder):
    value = np.float32(1) + np.float32(2**-20)
    with over(FleetInProcess(1)):
        DCV.dense(10, wire="float16").fill(float(value)).save(str(folder))
    (matrix,) = folders.read_manifest(str(folder)).matrices
    assert np.load(folder / matrix.shards[0].files["values"].name).tolist() == [[value] * 10]


def test_save_when_additions_are_under_way_then_they_are_in_it(folder):
    with over(FleetInProcess(2)):
        vector = make("dense")
        vector.add(np.ones(DIM), wait=False)
        vector.save(str(folder))
        assert np.array_equal(pull(DCV.load(str(folder))), VALUES + 1)


def test_save_when_rows_are_several_then_load_has_them_first(folder, kind, small_windows):
    with over(FleetInProcess(3)):
        first = make(kind, rows=4)
        rows = [first, *(first.derive().copy(first).mul(factor) for factor in (2, 3))]
        storage.save(first, [0, 2], str(folder))
        del rows
    with over(FleetInProcess(2)):
        result = storage.load_rows(DCV, str(folder)).matrix()
        values = result.pull([0, 1], KEYS if kind == "sparse" else None)
        assert np.array_equal(values, [VALUES, 3 * VALUES])
        with pytest.raises(UsageError, match="expected a save of one vector, but this save has 2 rows"):
            DCV.load(str(folder))


def test_save_when_layout_is_column_then_rows_or_one_load(folder, kind, small_windows):
    with over(FleetInProcess(3)):
        rows = [make(kind, layout="column", rows=3)]
        rows += [rows[0].derive().push(factor * VALUES, *([KEYS] if kind == "sparse" else [])) for factor in (2, 3)]
        storage.save(rows[0], [0, 1, 2], str(folder / "all"))
        rows[1].save(str(folder / "one"))
    with over(FleetInProcess(2)):
        result = storage.load_rows(DCV, str(folder / "all"))
        assert result._spec.layout == "column"
        values = result.matrix().pull(columns=KEYS if kind == "sparse" else np.arange(DIM))
        assert np.array_equal(values, np.outer(VALUES, [1, 2, 3]))
        assert np.array_equal(pull(DCV.load(str(folder / "one"))), 2 * VALUES)


def test_files_when_saved_then_numpy_reads_them(folder):
    with over(FleetInProcess(3)):
        make("sparse").save(str(folder))
    (matrix,) = folders.read_manifest(str(folder)).matrices
    keys, values = (
        np.concatenate([np.load(folder / shard.files[kind].name).ravel() for shard in matrix.shards])
        for kind in ("keys", "values")
    )
    assert dict(zip(keys, values, strict=True)) == dict(zip(KEYS, VALUES, strict=True))


def test_verify_when_saved_then_no_file_has_a_problem(folder, kind):
    with over(FleetInProcess(2)):
        make(kind).save(str(folder))
    assert {file.name: file.problem for file in folders.verify(str(folder))} == dict.fromkeys(names(folder)[:-1])


def test_save_and_load_when_in_a_batch_then_usage_error(folder):
    with over(FleetInProcess(1)):
        vector = make("dense")
        for use in (lambda: vector.save(str(folder)), lambda: DCV.load(str(folder))):
            with pytest.raises(UsageError, match="cannot be part of a batch"), ps2.batch():
                use()


# -- what is there -----------------------------------------------------------------------------------------------------


def test_save_when_path_holds_save_then_replaces_all_of_it(folder):
    with over(FleetInProcess(2)):
        for kind in ("dense", "sparse", "dense"):
            make(kind).save(str(folder))
        assert np.array_equal(pull(DCV.load(str(folder))), VALUES)
    assert sorted(os.listdir(folder)) == names(folder)


def test_save_when_stopped_before_manifest_then_earlier_stays(folder, monkeypatch):
    def stops(*args, **kwargs):
        raise OSError("no luck")

    with over(FleetInProcess(2)):
        make("dense").save(str(folder))
        monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.mv", stops)
        with pytest.raises(RecoveryError, match="renaming it into place failed: OSError: no luck"):
            make("sparse").save(str(folder))
        assert np.array_equal(DCV.load(str(folder)).pull(), VALUES)
    assert sorted(os.listdir(folder)) == names(folder)


@pytest.mark.parametrize(
    ("content", "error", "match"),
    [
        (b"{", CheckpointCorruptError, "not JSON"),
        (b'{"format": "ps2.vector.v2"}', CheckpointCorruptError, "expected format 'ps2.checkpoint.v1', got 'ps2.vec"),
        ({"number": 3}, UsageError, "expected a folder for saved rows, but it has checkpoint 3"),
    ],
    ids=["broken", "of another format", "of a fleet"],
)
def test_save_when_path_has_foreign_manifest_then_error_keeps_it(folder, content, error, match):
    with over(FleetInProcess(1)):
        make("dense").save(str(folder))
        path = folder / "manifest.json"
        if isinstance(content, dict):
            content = json.dumps({**json.loads(path.read_text()), **content}).encode()
        path.write_bytes(content)
        before = sorted(os.listdir(folder))
        with pytest.raises(error, match=match):
            make("dense").save(str(folder))
    assert (path.read_bytes(), sorted(os.listdir(folder))) == (content, before)


@pytest.mark.parametrize("prepare", [lambda f: None, lambda f: f.mkdir()], ids=["absent", "empty"])
def test_load_when_there_is_no_save_then_missing(folder, prepare):
    prepare(folder)
    with over(FleetInProcess(1)), pytest.raises(CheckpointMissingError, match=r"weight: .* there is no manifest.json"):
        DCV.load(str(folder))


@pytest.mark.parametrize("url", ["nosuch://x/y", "", 3, None], ids=repr)
def test_url_when_it_is_no_place_then_config_error(url):
    with over(FleetInProcess(1)):
        vector = make("dense")
        for use in (lambda: DCV.load(url), lambda: vector.save(url)):
            with pytest.raises(ConfigError, match=f"url: expected a path or a URL.*, got {url!r}"):
                use()


def test_load_when_checkpoint_has_two_matrices_then_usage_error(folder):
    with over(FleetInProcess(1)):
        make("dense").save(str(folder))
        saved = folders.read_manifest(str(folder))
        folders.write_manifest(str(folder), replace(saved, matrices=saved.matrices * 2))
        with pytest.raises(UsageError, match="expected a save of one matrix, but this is a checkpoint of 2"):
            DCV.load(str(folder))


def test_load_when_file_is_corrupt_then_names_it_and_cleans_up(folder, kind):
    fleet = FleetInProcess(3)
    with over(fleet):
        make(kind).save(str(folder))
        (matrix,) = folders.read_manifest(str(folder)).matrices
        path = folder / matrix.shards[-1].files["values"].name
        path.write_bytes(path.read_bytes()[:-1] + b"\x55")
        with pytest.raises(CheckpointCorruptError, match=path.name):
            DCV.load(str(folder))
    assert [engine.memory.used_bytes for engine in fleet.engines.values()] == [0, 0, 0]


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
            matrix = message.matrix.matrix if method == "Server/Fill" else message.matrix
            self.happens.pop()(address, matrix)
        return answer

    def __getattr__(self, name):
        return getattr(self.fleet, name)


def loses_the_reply(address, matrix):
    raise UnavailableError(f"{address}: connection reset")


def test_load_when_a_reply_is_lost_then_whole(folder, kind, small_windows):
    fleet = FleetInProcess(2)
    with over(fleet):
        make(kind).save(str(folder))
    with over(Disturbed(fleet, "Fill", loses_the_reply)):
        assert np.array_equal(pull(DCV.load(str(folder))), VALUES)


def filling(folder, vector):
    """Return the arguments that a call for it has."""
    saved = storage.saved_matrix(str(folder))
    load = LoadMatrix(vector._matrix, vector._spec, vector._route.partitions, saved.spec, saved.shards, saved.rows)
    return str(folder), load, ID, vector._route.version


def test_fill_when_mutation_repeats_then_later_changes_stay(folder, kind):
    """As from a task that is tried again."""
    fleet = FleetInProcess(1)
    (engine,) = fleet.engines.values()
    with over(fleet):
        make(kind).save(str(folder))
        vector = make(kind).add(5)
        for _ in range(2):
            CheckpointLoader(engine).fill(*filling(folder, vector))
            vector.add(1)
        assert np.array_equal(pull(vector), VALUES + 2)


def test_fill_when_another_call_began_then_only_that_goes_on(folder, kind, monkeypatch):
    """As when a server hangs in its file system, and is asked again."""
    fleet = FleetInProcess(1)
    (engine,) = fleet.engines.values()
    with over(fleet):
        make(kind).save(str(folder))
        vector = make(kind).add(5)
        loading, really_read, calls = CheckpointLoader(engine), reading.read_values, []

        def read_values(*args):
            if not calls:
                calls.append(args)
                loading.fill(*filling(folder, vector))
            return really_read(*args)

        monkeypatch.setattr(reading, "read_values", read_values)
        with pytest.raises(StaleRouteError, match="a later call loads it now"):
            loading.fill(*filling(folder, vector))
        assert np.array_equal(pull(vector), VALUES)


def test_fill_when_the_stage_is_over_then_nothing_is_changed(folder, kind):
    fleet = FleetInProcess(1)
    (engine,) = fleet.engines.values()
    with over(fleet):
        make(kind).save(str(folder))
        vector = make(kind).add(5)
        url, load, _, version = filling(folder, vector)
        engine.end_stages("app", 4, [])
        with pytest.raises(StoppedError, match="stage 3 of app is over"):
            CheckpointLoader(engine).fill(url, load, RequestId("task", 0, series="app", stage=3), version)
        assert np.array_equal(pull(vector), VALUES + 5)


def test_save_when_reply_is_lost_then_only_manifest_files_stay(folder, kind):
    with over(Disturbed(FleetInProcess(2), "Save", loses_the_reply)):
        make(kind).save(str(folder))
        assert np.array_equal(pull(DCV.load(str(folder))), VALUES)
    assert sorted(os.listdir(folder)) == names(folder)


def test_load_when_server_was_replaced_then_reads_again(folder, kind):
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

    with over(Disturbed(fleet, "Fill", replaced)):
        assert np.array_equal(pull(DCV.load(str(folder))), VALUES)


def test_load_when_a_server_is_lost_for_good_then_lost_error(folder, kind):
    fleet = FleetInProcess(2)
    with over(fleet):
        make(kind).save(str(folder))

    def lost(address, matrix):
        fleet.master.registry.mark_ended(fleet.addresses.index(address), "ended by SIGKILL")
        raise UnavailableError(f"{address}: connection reset")

    with over(Disturbed(fleet, "Fill", lost)), pytest.raises(LostError, match="ended by SIGKILL"):
        DCV.load(str(folder))


def test_load_when_keys_exceed_memory_then_limit_error_frees_all(folder):
    with over(FleetInProcess(2)):
        make("sparse").save(str(folder))
    fleet = FleetInProcess(2, memory_limit_bytes=16_000)
    with over(fleet), pytest.raises(LimitError, match="left of the server's limit of 16,000"):
        DCV.load(str(folder))
    assert [engine.memory.used_bytes for engine in fleet.engines.values()] == [0, 0]


# -- on the server -----------------------------------------------------------------------------------------------------


def on_one_server(kind, folder):
    """Return a server's engine, a vector on it, and what is asked of it."""
    fleet = FleetInProcess(1)
    (engine,) = fleet.engines.values()
    with over(fleet):
        vector = make(kind, rows=1, name="kept")
    order = SaveMatrix(vector._matrix, (0,), (0,), str(folder), "x-")
    return SimpleNamespace(engine=engine, order=order, version=vector._route.version)


def fill_while_writing(monkeypatch, server, wait_s):
    """Let another request overwrite the row while a file of it is written; return the threads that it runs in."""
    threads = []

    def write(fs, path, parts):
        operation = Operation("fill", server.order.matrix, 0, (0,), {"value": 7.0})
        request = Request((operation,), RequestId(path, 0), server.version)
        thread = threading.Thread(target=server.engine.execute, args=(request,))
        threads.append(thread)
        thread.start()
        thread.join(wait_s)
        return really_write(fs, path, parts)

    really_write = shard_snapshot.write
    monkeypatch.setattr(shard_snapshot, "write", write)
    return threads


def values_of(server, shard):
    return np.sort(np.load(f"{server.order.url}/{shard.files['values'].name}")[0])


def test_save_when_writing_then_requests_go_on_and_cut_is_one(folder, kind, monkeypatch):
    server = on_one_server(kind, folder)
    before = server.engine.memory.used_bytes
    threads = fill_while_writing(monkeypatch, server, 10)
    (shard,) = save(server.engine, server.order, server.version)
    assert [thread.is_alive() for thread in threads] == [False] * len(shard.files)
    assert np.array_equal(values_of(server, shard), VALUES)
    assert server.engine.memory.used_bytes == before


def test_save_when_no_memory_for_copy_then_requests_wait(folder, kind, monkeypatch):
    server = on_one_server(kind, folder)
    memory = server.engine.memory
    memory.limit_bytes = memory.used_bytes
    threads = fill_while_writing(monkeypatch, server, 0.1)
    (shard,) = save(server.engine, server.order, server.version)
    for thread in threads:
        thread.join(10)
    assert np.array_equal(values_of(server, shard), VALUES)
    assert memory.used_bytes == memory.limit_bytes


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"partitions": (1,)}, StaleRouteError),
        ({"matrix": 99}, StaleRouteError),
        ({"rows": (5,)}, IndexError),
        ({"stem": "../x"}, ProtocolError),
    ],
    ids=repr,
)
def test_save_when_it_fails_then_nothing_is_written(folder, change, error):
    server = on_one_server("dense", folder)
    with pytest.raises(error):
        save(server.engine, replace(server.order, **change), server.version)
    assert not folder.exists()


def test_save_when_the_matrix_was_freed_then_not_found(folder):
    server = on_one_server("dense", folder)
    server.engine.shards()[server.order.matrix, 0].free()
    with pytest.raises(NotFoundError, match="was freed"):
        save(server.engine, server.order, server.version)
