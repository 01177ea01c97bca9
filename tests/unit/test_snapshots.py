"""A checkpoint of a server is one moment of it; whatever goes wrong, requests go on and nothing is left."""

from __future__ import annotations

import json
import logging
import threading
import time

import numpy as np
import pytest

from ps2.errors import DeadlineError, RecoveryError, UsageError
from ps2.matrix.partition import HASH_SPACE, MatrixSpec, Partition
from ps2.protocol.messages import Request, RequestId
from ps2.server.engine import Engine
from ps2.server.snapshots import Snapshots
from tests.checkpoints import LIMIT_BYTES, Writers, ids, op
from tests.conftest import wait_until

DENSE, SPARSE, OTHERS = 1, 2, 3
WIDTH = 1000
LONG_S = 60.0
PART = Partition(0, 0, WIDTH)
# Rows in use: all of each matrix.
ROWS = {DENSE: range(3), SPARSE: range(2)}


def make(limit_bytes=LIMIT_BYTES):
    engine = Engine(limit_bytes, allow_udf=True)
    engine.create_matrix(DENSE, MatrixSpec(2 * WIDTH, 3, dtype="float64"), [PART, Partition(1, WIDTH, 2 * WIDTH)])
    engine.create_matrix(SPARSE, MatrixSpec(2**40, 2, dtype="int64", kind="sparse"), [Partition(0, 0, HASH_SPACE)])
    return engine


@pytest.fixture
def engine():
    return make()


@pytest.fixture
def snapshots(engine):
    created = Snapshots(engine)
    yield created
    created.close()


def fill(engine, value, id=None, partitions=(0,)):
    operations = tuple(op("fill", DENSE, partition, 0, value=float(value)) for partition in partitions)
    return engine.execute(Request(operations, id or RequestId(f"fill {value}", 0)))


def first(engine):
    pull = op("pull", DENSE, 0, 0, start=0, stop=1)
    return float(engine.execute(Request((pull,))).results[0].arrays[0][0])


def frozen(engine):
    """Tell whether somebody else holds the locks of all shards."""
    locks = [shard.lock for shard in engine.shards().values() if not shard.copy]
    free = [lock for lock in locks if lock.acquire(blocking=False)]
    for lock in free:
        lock.release()
    return not free


def checkpoint(snapshots, folder, name="a", rows=ROWS):
    snapshots.freeze(name, LONG_S)
    snapshots.copy(name, rows)
    return snapshots.write(name, str(folder))


def array(folder, shard, kind="values"):
    return np.load(folder / shard.files[kind].name)


def of(saved, matrix, partition=0):
    return next(shard for shard in saved if (shard.matrix, shard.partition.index) == (matrix, partition))


# -- one moment ------------------------------------------------------------------------------------------------------


def test_write_when_dense_then_file_holds_rows_of_the_cut(engine, snapshots, tmp_path):
    fill(engine, 7)
    snapshots.freeze("a", LONG_S)
    snapshots.copy("a", ROWS)
    fill(engine, 8)
    values = array(tmp_path, of(snapshots.write("a", str(tmp_path)), DENSE))
    assert (values.shape, values.dtype.name, set(values[0]), set(values[1])) == ((3, WIDTH), "float64", {7.0}, {0.0})
    assert first(engine) == 8


def test_write_when_sparse_then_keys_and_values_are_those_in_use(engine, snapshots, tmp_path):
    keys = np.arange(5, 500, 3)
    engine.execute(Request((op("scatter", SPARSE, 0, 1, arrays=[keys, keys * 2]),), RequestId("s", 0)))
    shard = of(checkpoint(snapshots, tmp_path), SPARSE)
    assert np.array_equal(array(tmp_path, shard, "keys"), keys)
    assert np.array_equal(array(tmp_path, shard), [np.zeros_like(keys), keys * 2])


def test_write_when_rows_exceed_block_then_writes_all_of_them(snapshots, engine, tmp_path):
    width = 700_000
    engine.create_matrix(9, MatrixSpec(width, 3, dtype="float64"), [Partition(0, 0, width)])
    values = np.arange(width) * 1.5
    engine.execute(Request((op("push", 9, 0, 2, arrays=[values], start=0),), RequestId("s", 0)))
    saved = checkpoint(snapshots, tmp_path, rows={9: range(3)})
    assert np.array_equal(array(tmp_path, of(saved, 9))[2], values)


def test_write_when_layout_is_column_then_file_holds_blocks(engine, snapshots, tmp_path):
    engine.create_matrix(9, MatrixSpec(WIDTH, 3, layout="column"), [PART])
    values = np.arange(WIDTH * 3, dtype=np.float32).reshape(WIDTH, 3)
    engine.execute(Request((op("columns_push", 9, 0, arrays=[np.arange(WIDTH), values]),), RequestId("s", 0)))
    saved = checkpoint(snapshots, tmp_path, rows={9: [0, 2]})
    assert np.array_equal(array(tmp_path, of(saved, 9)), values)


@pytest.mark.parametrize("held", [False, True])
def test_write_when_some_rows_are_in_use_then_writes_only_those(tmp_path, held):
    engine = make()
    snapshots = Snapshots(engine)
    fill(engine, 7)
    engine.execute(Request((op("fill", DENSE, 0, 2, value=9.0),), RequestId("last", 0)))
    engine.memory.limit_bytes = engine.memory.used_bytes if held else LIMIT_BYTES
    saved = checkpoint(snapshots, tmp_path, rows={DENSE: [0, 2]})
    assert [(shard.matrix, shard.partition.index) for shard in saved] == [(DENSE, 0), (DENSE, 1)]
    assert np.array_equal(array(tmp_path, saved[0]), np.repeat([[7.0], [9.0]], WIDTH, axis=1))


def test_copy_when_one_row_is_in_use_then_takes_memory_of_one(snapshots, engine):
    engine.create_matrix(9, MatrixSpec(WIDTH, 31), [PART])
    snapshots.freeze("a", LONG_S)
    assert snapshots.copy("a", {9: [4]}).nbytes == 4 * WIDTH


def test_copy_when_a_row_in_use_is_not_there_then_error_says_so(snapshots, engine):
    snapshots.freeze("a", LONG_S)
    with pytest.raises(RecoveryError, match="matrix 1: expected row 3, but this server has only 3 rows"):
        snapshots.copy("a", {DENSE: [0, 3]})
    assert not frozen(engine)


def test_write_when_done_then_sizes_are_those_of_the_files(snapshots, tmp_path):
    files = [file for shard in checkpoint(snapshots, tmp_path) for file in shard.files.values()]
    assert {file.name: file.nbytes for file in files} == {p.name: p.stat().st_size for p in tmp_path.iterdir()}


def test_write_when_ids_were_applied_then_file_has_them(engine, snapshots, tmp_path):
    fill(engine, 1, RequestId("task", 0))
    engine.update_rows(DENSE, 0, freed=[2], reused=[])
    shard = of(checkpoint(snapshots, tmp_path), DENSE)
    content = json.loads((tmp_path / shard.files["ids"].name).read_text())
    assert (list(content["applied"]), content["unused"]) == (["task"], [2])


def test_freeze_when_shards_are_copies_then_does_not_lock_them(engine, snapshots, tmp_path):
    engine.create_matrix(OTHERS, MatrixSpec(4, 1), [Partition(0, 0, 4)], copies=True)
    snapshots.freeze("a", LONG_S)
    assert frozen(engine)
    lock = engine.shards()[OTHERS, 0].lock
    assert lock.acquire(blocking=False)
    lock.release()


def test_copy_when_requests_span_two_shards_then_cut_is_atomic(engine, snapshots, tmp_path):
    def writer(scope):
        numbers = ids(scope)
        return lambda: fill_both(next(numbers))

    def fill_both(id):
        add = [op("push_add", DENSE, p, 0, arrays=[np.ones(WIDTH)], start=0) for p in (0, 1)]
        engine.execute(Request(tuple(add), id))

    with Writers(writer("a"), writer("b"), writer("c")):
        for turn in range(8):
            saved = checkpoint(snapshots, tmp_path, f"c{turn}")
            left, right = (array(tmp_path, of(saved, DENSE, partition))[0] for partition in (0, 1))
            content = json.loads((tmp_path / of(saved, DENSE).files["ids"].name).read_text())
            applied = sum(scope["below"] + len(scope["above"]) for scope in content["applied"].values())
            assert set(left) == set(right) == {float(applied)}


def test_copy_when_done_then_tells_mutations_and_bytes(engine, snapshots, tmp_path):
    fill(engine, 1)
    snapshots.freeze("a", LONG_S)
    copied = snapshots.copy("a", ROWS)
    assert (copied.mutations, copied.nbytes) == (1, 2 * 3 * WIDTH * 8)
    assert 0 < copied.pause_s < LONG_S


def test_copy_when_a_matrix_is_being_freed_then_it_is_left_out(engine, snapshots, tmp_path):
    snapshots.freeze("a", LONG_S)
    freeing = threading.Thread(target=engine.free_matrix, args=(SPARSE,))
    freeing.start()
    wait_until(lambda: (SPARSE, 0) not in engine.shards(), "the matrix is out of the engine")
    snapshots.copy("a", ROWS)
    freeing.join()
    assert {shard.matrix for shard in snapshots.write("a", str(tmp_path))} == {DENSE}


def test_freeze_when_matrix_is_made_meanwhile_then_cut_omits_it(engine, snapshots, tmp_path):
    snapshots.freeze("a", LONG_S)
    engine.create_matrix(9, MatrixSpec(4, 1), [Partition(0, 0, 4)])
    snapshots.copy("a", ROWS)
    assert {shard.matrix for shard in snapshots.write("a", str(tmp_path))} == {DENSE, SPARSE}


# -- memory ----------------------------------------------------------------------------------------------------------


def test_write_when_done_then_memory_is_as_before(engine, snapshots, tmp_path):
    before = engine.memory.used_bytes
    snapshots.freeze("a", LONG_S)
    snapshots.copy("a", ROWS)
    assert engine.memory.used_bytes > before
    snapshots.write("a", str(tmp_path))
    assert engine.memory.used_bytes == before


def test_copy_when_memory_is_short_then_locks_until_written(tmp_path, caplog):
    engine = make(2 * 3 * WIDTH * 8 + 20_000)
    snapshots = Snapshots(engine)
    fill(engine, 7)
    snapshots.freeze("a", LONG_S)
    assert snapshots.copy("a", ROWS).nbytes == 0
    assert frozen(engine)
    with caplog.at_level(logging.WARNING):
        saved = snapshots.write("a", str(tmp_path))
    assert set(array(tmp_path, of(saved, DENSE))[0]) == {7.0}
    assert "checkpoint a: requests waited for" in caplog.text
    assert not frozen(engine)


# -- what goes wrong -------------------------------------------------------------------------------------------------


def test_freeze_when_not_copied_in_time_then_copy_fails(engine, snapshots):
    snapshots.freeze("a", 0.05)
    fill(engine, 1)
    with pytest.raises(RecoveryError, match="'a': its timeout has passed, and its shards were resumed"):
        snapshots.copy("a", ROWS)
    snapshots.freeze("b", LONG_S)


def test_freeze_when_previous_one_expired_then_replaces_it(engine, snapshots):
    snapshots.freeze("a", 0.01)
    wait_until(lambda: not frozen(engine), "the locks are free again")
    snapshots.freeze("b", LONG_S)
    assert frozen(engine)


def test_freeze_when_shard_is_busy_too_long_then_locks_nothing(engine, snapshots):
    lock = engine.shards()[SPARSE, 0].lock
    with lock, pytest.raises(DeadlineError, match=r"not all of 3 shards could be paused within 0\.1 s"):
        snapshots.freeze("a", 0.1)
    assert not frozen(engine)
    snapshots.freeze("b", LONG_S)


@pytest.mark.parametrize("state", ["frozen", "copied"])
def test_freeze_when_another_is_under_way_then_is_refused(snapshots, state):
    snapshots.freeze("a", LONG_S)
    if state == "copied":
        snapshots.copy("a", ROWS)
    with pytest.raises(UsageError, match=rf"'b': 'a' is {state} on this server; one at a time"):
        snapshots.freeze("b", LONG_S)


@pytest.mark.parametrize("call", ["copy", "write"])
def test_calls_when_there_is_no_checkpoint_then_error_says_so(snapshots, tmp_path, call):
    with pytest.raises(RecoveryError, match=r"'a': expected it to be .* here, and no checkpoint is"):
        snapshots.copy("a", ROWS) if call == "copy" else snapshots.write("a", str(tmp_path))


def test_write_when_not_copied_yet_then_error_says_so(snapshots, tmp_path):
    snapshots.freeze("a", LONG_S)
    with pytest.raises(RecoveryError, match="expected it to be copied here, and 'a' is frozen"):
        snapshots.write("a", str(tmp_path))


@pytest.mark.parametrize("name", ["a", ""])
@pytest.mark.parametrize("state", ["frozen", "copied", "held"])
def test_discard_when_under_way_then_locks_and_memory_are_free(tmp_path, state, name):
    engine = make(200_000 if state != "held" else 2 * 3 * WIDTH * 8 + 20_000)
    snapshots, before = Snapshots(engine), engine.memory.used_bytes
    snapshots.freeze("a", LONG_S)
    if state != "frozen":
        snapshots.copy("a", ROWS)
    snapshots.discard(name)
    assert not frozen(engine)
    assert engine.memory.used_bytes == before
    with pytest.raises(RecoveryError):
        snapshots.write("a", str(tmp_path))


def test_discard_when_another_is_under_way_then_that_goes_on(engine, snapshots):
    snapshots.freeze("a", LONG_S)
    snapshots.discard("b")
    assert frozen(engine)


def test_discard_when_freeze_waits_for_locks_then_freeze_ends(engine, snapshots):
    errors = []

    def freeze():
        try:
            snapshots.freeze("a", LONG_S)
        except DeadlineError as error:
            errors.append(error)

    freezing = threading.Thread(target=freeze)
    with engine.shards()[SPARSE, 0].lock:
        freezing.start()
        wait_until(lambda: not free(engine.shards()[DENSE, 0].lock), "the first lock is taken")
        snapshots.discard("a")
        freezing.join(timeout=30)
    assert len(errors) == 1
    assert not frozen(engine)


def free(lock):
    if taken := lock.acquire(blocking=False):
        lock.release()
    return taken


def test_discard_when_writing_then_write_fails_without_files(engine, snapshots, tmp_path, monkeypatch):
    reached, go_on = threading.Event(), threading.Event()

    def slow_header(dtype, shape):
        reached.set()
        assert go_on.wait(30)
        return b"header"

    monkeypatch.setattr("ps2.storage.arrays.npy_header", slow_header)
    snapshots.freeze("a", LONG_S)
    snapshots.copy("a", ROWS)
    errors = []

    def write():
        try:
            snapshots.write("a", str(tmp_path))
        except RecoveryError as error:
            errors.append(str(error))

    writing = threading.Thread(target=write)
    writing.start()
    assert reached.wait(30)
    snapshots.discard("a")
    go_on.set()
    writing.join(timeout=30)
    assert errors == ["checkpoint 'a' was discarded"]
    assert list(tmp_path.iterdir()) == []
    snapshots.freeze("b", LONG_S)


def test_write_when_disk_is_full_then_error_names_it(engine, snapshots, small_disk):
    before = engine.memory.used_bytes
    with pytest.raises(RecoveryError, match=rf"{small_disk}/1-0-.*: writing failed: No space left on device"):
        checkpoint(snapshots, small_disk)
    assert [path.name for path in small_disk.iterdir()] == ["filler"]
    assert engine.memory.used_bytes == before
    assert not frozen(engine)


def test_write_when_disk_fills_midway_then_leaves_nothing(engine, snapshots, small_disk):
    (small_disk / "filler").write_bytes(bytes(900_000))
    engine.create_matrix(9, MatrixSpec(100_000, 1, dtype="float64"), [Partition(0, 0, 100_000)])
    with pytest.raises(RecoveryError, match=r"-\d-\w+\.(npy|json): writing failed: No space left on device"):
        checkpoint(snapshots, small_disk, rows={**ROWS, 9: range(1)})
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_write_when_folder_is_a_file_then_error_names_it(snapshots, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RecoveryError, match="file: making the folder failed: File exists"):
        checkpoint(snapshots, tmp_path / "file")


def test_write_when_folder_cannot_be_made_then_error_names_it(snapshots):
    with pytest.raises(RecoveryError, match="/proc/ps2: making the folder failed"):
        checkpoint(snapshots, "/proc/ps2")


def test_requests_when_shard_is_copied_then_wait_only_for_copy(engine, snapshots):
    snapshots.freeze("a", LONG_S)
    waiting = threading.Thread(target=fill, args=(engine, 5))
    began_s = time.monotonic()
    waiting.start()
    wait_until(lambda: engine.meter.read().waiting == 1, "the request waits")
    snapshots.copy("a", ROWS)
    waiting.join(timeout=30)
    assert time.monotonic() - began_s < LONG_S / 2
    assert first(engine) == 5
