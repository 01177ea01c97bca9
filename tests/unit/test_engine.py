"""A request is applied as a whole and once, whatever else runs, fails or comes again."""

from __future__ import annotations

import pickle
import threading

import cloudpickle
import numpy as np
import pytest

from ps2.errors import (
    ConfigError,
    DTypeError,
    LimitError,
    NotFoundError,
    OpError,
    OutOfRangeError,
    ProtocolError,
    ShapeError,
    StaleRouteError,
    StoppedError,
    UsageError,
)
from ps2.matrix.partition import HASH_SPACE, MatrixSpec, Partition
from ps2.protocol.messages import Operation, Request, RequestId
from ps2.server import reply_cache
from ps2.server.engine import Engine
from ps2.server.request_runner import RequestRunner

DIM = 8
M = 1  # the dense matrix, columns [0, 8) in partitions 0 and 1
S = 2  # the sparse matrix, in partition 0


@pytest.fixture
def engine():
    engine = Engine(1 << 30, allow_udf=True)
    engine.create_matrix(M, MatrixSpec(DIM, 3, dtype="float64"), [Partition(0, 0, 4), Partition(1, 4, 8)])
    engine.create_matrix(S, MatrixSpec(2**40, 2, dtype="float64", kind="sparse"), [Partition(0, 0, HASH_SPACE)])
    return engine


def op(name, *rows, matrix=M, partition=0, arrays=(), **params):
    return Operation(name, matrix, partition, rows, params, tuple(np.asarray(array) for array in arrays))


def add(row, value=1.0, partition=0):
    return op("push_add", row, partition=partition, arrays=[np.full(4, value)], start=0)


def mapped(fn, *rows, partition=0):
    return op("map", *rows, partition=partition, arrays=[np.frombuffer(cloudpickle.dumps(fn), np.uint8)], with_index=0)


def scattered(keys, values, row=0):
    return op("scatter_add", row, matrix=S, arrays=[np.asarray(keys, np.int64), np.asarray(values, np.float64)])


def number(value):
    return RequestId("scope", value)


def run(engine, *operations, id=None):
    return engine.execute(Request(operations, id))


def row(engine, number, partition=0, matrix=M):
    pull = op("pull", number, matrix=matrix, partition=partition, start=0, stop=-1)
    return run(engine, pull).results[0].arrays[0].tolist()


def kept(reply, position=0):
    return pickle.loads(reply.results[position].arrays[0].tobytes())


# -- once ------------------------------------------------------------------------------------------------------------


def test_mutation_when_id_repeats_then_skipped_and_reply_says_so(engine):
    first = run(engine, add(0), id=number(0))
    again = run(engine, add(0), id=number(0))
    assert row(engine, 0) == [1] * 4
    assert (first.replayed, again.replayed) == (False, True)


def test_mutation_when_only_other_shard_applied_id_then_applies(engine):
    """A request can reach the server in two parts when partitions move."""
    run(engine, add(0), id=number(0))
    run(engine, add(0), add(0, partition=1), id=number(0))
    assert (row(engine, 0), row(engine, 0, partition=1)) == ([1] * 4, [1] * 4)


def test_reads_when_the_id_comes_again_then_they_run_again(engine):
    for _ in range(2):
        reply = run(engine, add(0), op("sum", 0), id=number(0))
        assert reply.results[1].scalar == 4


def test_map_when_id_repeats_then_first_result_comes_again(engine):
    def count(w):
        w += 1
        return w.sum()

    assert [kept(run(engine, mapped(count, 0), id=number(0))) for _ in range(2)] == [4, 4]
    assert row(engine, 0) == [1] * 4


def looking(fn, *rows):
    return op("look", *rows, arrays=[np.frombuffer(cloudpickle.dumps(fn), np.uint8)], with_index=1)


def test_look_when_run_then_needs_no_id(engine):
    run(engine, add(0, 3.0), id=number(0))
    assert kept(run(engine, looking(lambda p, w: (p.index, w.sum()), 0))) == (0, 12.0)


def test_look_when_function_writes_then_op_error_forbids_it(engine):
    with pytest.raises(OpError, match="assignment destination is read-only"):
        run(engine, looking(lambda p, w: w.fill(1), 0))
    assert not engine.shards()[M, 0].row(0).any()


def test_map_when_result_is_no_longer_kept_then_says_applied(engine, monkeypatch):
    monkeypatch.setattr(reply_cache, "LIMIT_BYTES", 1000)
    monkeypatch.setattr(reply_cache, "RESULT_OVERHEAD_BYTES", 100)
    run(engine, mapped(lambda w: bytes(600), 0), id=number(0))
    run(engine, mapped(lambda w: bytes(600), 0), id=number(1))
    assert kept(run(engine, mapped(lambda w: bytes(600), 0), id=number(1))) == bytes(600)
    with pytest.raises(OpError, match="was applied by an earlier attempt, and its result is no longer stored"):
        run(engine, mapped(lambda w: bytes(600), 0), id=number(0))


def test_map_when_result_exceeds_kept_size_then_comes_once(engine, monkeypatch):
    monkeypatch.setattr(reply_cache, "LIMIT_BYTES", 1000)
    assert kept(run(engine, mapped(lambda w: bytes(5000), 0), id=number(0))) == bytes(5000)


def test_map_when_results_are_empty_then_not_all_are_kept(engine, monkeypatch):
    """Many small results take memory too."""
    monkeypatch.setattr(reply_cache, "LIMIT_BYTES", 10 * reply_cache.RESULT_OVERHEAD_BYTES)
    for k in range(100):
        run(engine, mapped(lambda w: None, 0), id=number(k))
    assert len(engine.replies._results) <= 10


# -- stages that are over --------------------------------------------------------------------------------------------


def of_stage(stage, k=0, rdd_partition=0):
    return RequestId(f"app/{stage}/{rdd_partition}", k, series="app", stage=stage)


def scopes(engine):
    return sum(len(shard.applied) for shard in engine.shards().values())


def test_mutation_when_stage_is_over_then_stopped_error_names_it(engine):
    run(engine, add(0), id=of_stage(3))
    engine.end_stages("app", 4, [])
    for again in (of_stage(3), of_stage(3, k=1)):
        with pytest.raises(StoppedError, match="stage 3 of app is over"):
            run(engine, add(0), id=again)
    assert row(engine, 0) == [1] * 4


def test_mutation_when_stage_is_live_then_still_counts_once(engine):
    run(engine, add(0), id=of_stage(3))
    engine.end_stages("app", 9, [3])
    run(engine, add(0), id=of_stage(3))
    assert row(engine, 0) == [1] * 4


def test_applied_ids_when_many_stages_run_then_few_are_kept(engine):
    most = 0
    for stage in range(50):
        for rdd_partition in range(8):
            for k in range(3):
                run(engine, add(0), add(0, partition=1), id=of_stage(stage, k, rdd_partition))
        most = max(most, scopes(engine))
        engine.end_stages("app", stage, [])
    assert most <= 2 * 2 * 8
    assert row(engine, 0) == [50 * 8 * 3] * 4


@pytest.mark.parametrize("change", [add(0), mapped(len, 0)])
def test_mutation_when_without_id_then_protocol_error(engine, change):
    with pytest.raises(ProtocolError, match="needs an id"):
        run(engine, change)
    assert row(engine, 0) == [0] * 4


# -- batches that fail -----------------------------------------------------------------------------------------------


def test_batch_when_operation_fails_then_says_how_many_applied(engine):
    with pytest.raises(OutOfRangeError, match="3 operations before it in the batch are applied"):
        run(engine, add(0), op("sum", 0), add(1), add(99), add(2), id=number(0))
    assert [row(engine, r) for r in range(3)] == [[1] * 4, [1] * 4, [0] * 4]


def test_batch_when_only_reads_precede_failure_then_none_applied(engine):
    with pytest.raises(OutOfRangeError) as caught:
        run(engine, op("sum", 0), add(99), id=number(0))
    assert "applied" not in str(caught.value)


def test_batch_when_failed_and_resent_then_skips_applied_part(engine):
    """A task that failed for lack of memory is tried again by Spark, under the same ids."""
    batch = (add(0), add(1, partition=1), scattered(range(5000), [1.0] * 5000), add(0))
    engine.memory.limit_bytes = engine.memory.used_bytes
    for _ in range(2):
        with pytest.raises(LimitError, match="2 operations before it"):
            run(engine, *batch, id=number(0))
    engine.memory.limit_bytes = 1 << 30
    run(engine, *batch, id=number(0))
    assert run(engine, *batch, id=number(0)).replayed
    assert (row(engine, 0), row(engine, 1, partition=1)) == ([2] * 4, [1] * 4)
    assert row(engine, 0, matrix=S) == [1] * 5000


def test_map_when_later_operation_failed_then_retry_gets_result(engine):
    def count(w):
        w += 1
        return w.sum()

    with pytest.raises(OpError):
        run(engine, mapped(count, 0), mapped(lambda w: 1 // 0, 1), id=number(0))
    assert kept(run(engine, mapped(count, 0), mapped(len, 1), id=number(0))) == 4


def test_batch_when_server_bug_stops_it_then_resend_is_safe(engine, monkeypatch):
    """An error that is not one of ours."""
    with monkeypatch.context() as patched:
        patched.setattr(RequestRunner, "_map", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            run(engine, add(0), mapped(len, 0), id=number(0))
    run(engine, add(0), mapped(len, 0), id=number(0))
    assert row(engine, 0) == [1] * 4


# -- as a whole ------------------------------------------------------------------------------------------------------


def hammer(engine, writes, rounds=60):
    """Run the writes in threads while another reads rows 0 and 1 of both partitions in one request; return failures."""
    failures, finished = [], threading.Event()

    def read():
        while not finished.is_set():
            pulls = [op("pull", r, partition=p, start=0, stop=-1) for p in (0, 1) for r in (0, 1)]
            a, b, c, d = (result.arrays[0].tolist() for result in run(engine, *pulls).results)
            if (a, c) != (b, d) or a != c:
                failures.append((a, b, c, d))

    def write(thread):
        for k in range(rounds):
            run(engine, *writes, id=RequestId(f"thread{thread}", k))

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(t,)) for t in range(3)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    finished.set()
    reader.join()
    return failures


def test_requests_when_writes_and_reads_race_then_stay_whole(engine):
    """Both rows, on both shards, are equal before and after every request."""
    writes = [add(r, partition=p) for p in (1, 0) for r in (0, 1)]
    assert hammer(engine, writes) == []
    assert row(engine, 0) == [180] * 4


def test_maps_when_they_and_reads_race_then_none_is_seen_in_part(engine):
    def both(w, v):
        w += 1
        v[:] = w

    assert hammer(engine, [mapped(both, 0, 1, partition=p) for p in (0, 1)]) == []
    assert row(engine, 1, partition=1) == [180] * 4


def test_requests_when_shard_orders_oppose_then_no_deadlock(engine):
    def write(thread, partitions):
        for k in range(200):
            run(engine, *(add(0, partition=p) for p in partitions), id=RequestId(str(thread), k))

    threads = [threading.Thread(target=write, args=(t, (t % 2, 1 - t % 2)), daemon=True) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert row(engine, 0) == [800] * 4


# -- matrices and rows -----------------------------------------------------------------------------------------------


def test_matrix_when_created_again_then_it_keeps_its_values(engine):
    run(engine, add(0), id=number(0))
    taken = engine.memory.used_bytes
    engine.create_matrix(M, MatrixSpec(DIM, 3, dtype="float64"), [Partition(0, 0, 4), Partition(1, 4, 8)])
    assert (row(engine, 0), engine.memory.used_bytes) == ([1] * 4, taken)


def test_matrix_when_one_shard_does_not_fit_then_limit_error(engine):
    taken = engine.memory.used_bytes
    engine.memory.limit_bytes = taken + 100
    with pytest.raises(LimitError):
        engine.create_matrix(9, MatrixSpec(20, 1, dtype="float64"), [Partition(0, 0, 10), Partition(1, 10, 20)])
    assert engine.memory.used_bytes == taken
    with pytest.raises(StaleRouteError):
        row(engine, 0, matrix=9)


def test_matrix_when_partition_exceeds_it_then_protocol_error(engine):
    taken = engine.memory.used_bytes
    with pytest.raises(ProtocolError, match=r"partition 1 of matrix 9 is \[5, 11\), but the matrix ends at 10"):
        engine.create_matrix(9, MatrixSpec(10, 1), [Partition(0, 0, 5), Partition(1, 5, 11)])
    assert engine.memory.used_bytes == taken


@pytest.mark.parametrize(
    ("partitions", "said"),
    [
        ([Partition(0, 0, 10)] * 2, "partition 0 .* ends at 10"),
        ([Partition(0, 0, 5), Partition(1, 4, 10)], r"partition 1 of matrix 9 is \[4, 10\), .* ends at 5"),
        ([Partition(1, 2, 3), Partition(0, 0, 10)], r"partition 1 of matrix 9 is \[2, 3\), .* ends at 10"),
        ([Partition(0, 0, 5), Partition(0, 5, 10)], "two partitions of matrix 9 have the same index"),
    ],
)
def test_matrix_when_partitions_overlap_then_protocol_error(engine, partitions, said):
    taken = engine.memory.used_bytes
    with pytest.raises(ProtocolError, match=said):
        engine.create_matrix(9, MatrixSpec(10, 1), partitions)
    assert (engine.memory.used_bytes, len(engine.matrices())) == (taken, 2)


@pytest.mark.parametrize("partition", [Partition(2, 3, 5), Partition(0, 0, 3), Partition(1, 8, 9)])
def test_matrix_when_partition_clashes_with_held_then_error(engine, partition):
    with pytest.raises(ProtocolError):
        engine.create_matrix(M, MatrixSpec(9, 3, dtype="float64"), [partition])


def test_rows_when_one_is_out_of_range_then_no_shard_grows(engine):
    with pytest.raises(OutOfRangeError, match=r"row 9 is outside \[0, 5\)"):
        engine.update_rows(M, 5, [9], [])
    assert row(engine, 0) == row(engine, 0, partition=1)
    with pytest.raises(OutOfRangeError):
        row(engine, 4)


def test_matrix_when_freed_then_memory_is_returned(engine):
    engine.free_matrix(M)
    engine.free_matrix(S)
    assert engine.memory.used_bytes == 0
    with pytest.raises(StaleRouteError, match="does not hold partition 1 of matrix 1"):
        row(engine, 0, partition=1)


def test_matrix_when_absent_then_freeing_changes_nothing(engine):
    engine.free_matrix(77)
    assert len(engine.matrices()) == 2


@pytest.mark.parametrize("change", [lambda: add(0), lambda: scattered([1], [1.0])])
def test_request_when_matrix_is_freed_meanwhile_then_not_found(engine, change):
    """It had found the shard, but not yet its lock."""
    with engine._locked(Request((change(),))) as shards:
        for (shard,) in shards:
            shard.free()
    taken = engine.memory.used_bytes
    with pytest.raises(NotFoundError, match="the matrix was freed"):
        run(engine, change(), id=number(0))
    assert engine.memory.used_bytes == taken


@pytest.mark.parametrize("name", ["rows_axpy", "rows_pair_update"])
def test_rows_when_infinity_is_added_then_unused_slots_stay_zero(engine, name):
    run(engine, scattered([5, 9], [1.0, 2.0]), id=number(0))
    run(engine, op(name, matrix=S, arrays=[np.array([1]), np.array([0]), np.array([np.inf])]), id=number(1))
    (dots,) = run(engine, op("rows_dot", matrix=S, arrays=[np.array([1]), np.array([1])])).results[0].arrays
    assert dots.tolist() == [np.inf]
    run(engine, scattered([7], [0.0]), id=number(2))
    assert row(engine, 1, matrix=S) == [np.inf, np.inf, 0.0]


def test_row_when_freed_then_not_found_and_when_reused_then_zero(engine):
    run(engine, add(1), add(1, partition=1), id=number(0))
    engine.update_rows(M, 0, freed=[1], reused=[])
    with pytest.raises(NotFoundError, match="row 1 was freed"):
        row(engine, 1)
    engine.update_rows(M, 0, freed=[], reused=[1])
    assert (row(engine, 1), row(engine, 1, partition=1)) == ([0] * 4, [0] * 4)


def test_row_when_its_free_is_repeated_late_then_stays_in_use(engine):
    for _ in range(2):
        engine.update_rows(M, 0, freed=[1], reused=[], order=(3, 1))
        engine.update_rows(M, 0, freed=[], reused=[1], order=(3, 2))
    assert (row(engine, 1), row(engine, 1, partition=1)) == ([0] * 4, [0] * 4)


def test_row_when_its_zeroing_is_repeated_then_values_stay(engine):
    engine.update_rows(M, 0, freed=[1], reused=[], order=(3, 1))
    for _ in range(2):
        engine.update_rows(M, 0, freed=[], reused=[1], order=(3, 2))
        run(engine, add(1), id=number(0))
    assert row(engine, 1) != [0] * 4


def test_row_when_new_coordinator_recounts_then_is_freed(engine):
    engine.update_rows(M, 5, freed=[], reused=[], order=(3, 9))
    engine.update_rows(M, 0, freed=[1], reused=[], order=(4, 1))
    with pytest.raises(NotFoundError, match="row 1 was freed"):
        row(engine, 1)


def test_row_when_freed_then_many_row_requests_cannot_reach_it(engine):
    engine.update_rows(M, 0, freed=[1], reused=[])
    with pytest.raises(NotFoundError, match="row 1 was freed"):
        run(engine, op("rows_pull", arrays=[np.array([0, 1])]))


def test_row_when_freed_then_a_scatter_to_it_adds_no_keys(engine):
    engine.update_rows(S, 0, freed=[1], reused=[])
    with pytest.raises(NotFoundError):
        run(engine, scattered([5], [1.0], row=1), id=number(0))
    assert run(engine, op("keys", matrix=S)).results[0].arrays[0].size == 0


def test_rows_when_grown_then_new_ones_are_zero_on_every_shard(engine):
    engine.update_rows(M, 5, freed=[], reused=[])
    assert (row(engine, 4), row(engine, 4, partition=1)) == ([0] * 4, [0] * 4)


def test_rows_when_of_a_matrix_that_is_not_held_then_stale_route(engine):
    with pytest.raises(StaleRouteError, match="no shard of matrix 63"):
        engine.update_rows(99, 5, freed=[], reused=[])


def test_status_when_asked_then_it_tells_what_is_held(engine):
    run(engine, scattered([1, 2, 3], [1.0] * 3), id=number(0))
    dense, sparse = engine.matrices()
    assert (dense.matrix, dense.rows, dense.bytes, dense.active_keys) == (M, 3, 3 * DIM * 8, 0)
    assert dense.partitions == (Partition(0, 0, 4), Partition(1, 4, 8))
    assert (sparse.matrix, sparse.active_keys) == (S, 3)
    assert dense.bytes + sparse.bytes == engine.memory.used_bytes


def test_counts_when_requests_run_then_include_failed_ones(engine):
    run(engine, add(0), id=number(0))
    row(engine, 0)
    with pytest.raises(OutOfRangeError):
        run(engine, add(99), id=number(1))
    counts = engine.meter.read()
    assert (counts.requests, counts.failed, counts.bytes_in, counts.bytes_out) == (3, 1, 64, 32)


# -- what cannot be run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "error", "said"),
    [
        (op("no_such", 0), NotFoundError, "no operation 'no_such'"),
        (op("sum", 0, partition=7), StaleRouteError, "partition 7 of matrix 1"),
        (op("sum", 0, 1), ShapeError, "'sum' takes 1 vectors"),
        (op("sum", 9), OutOfRangeError, r"outside \[0, 3\)"),
        (op("gather", 0), ShapeError, "'gather' takes slots, got 0 arrays"),
        (op("gather", 0, arrays=[np.array([4])]), OutOfRangeError, r"column 4 is outside .* \[0, 4\)"),
        (op("gather", 0, arrays=[np.array([1.0])]), DTypeError, "expected slots of int64, got float64"),
        (
            op("push", 0, arrays=[np.ones(4, np.float32)], start=0),
            DTypeError,
            "expected values of float64, got float32",
        ),
        (op("push", 0, arrays=[np.ones(5)], start=0), ShapeError, "at most 4 elements"),
        (op("push", 0, arrays=[np.ones(1)], start=-1), OutOfRangeError, "start: expected 0 to 4"),
        (op("pull", 0, start=2, stop=9), OutOfRangeError, "start and stop"),
        (op("rows_pull", arrays=[np.array([0, 3])]), OutOfRangeError, r"outside \[0, 3\)"),
        (op("adagrad", 0, 1, 0, lr=0.1), ConfigError, "expected distinct vectors"),
        (op("keys"), UsageError, "works on sparse vectors"),
        (op("map", 0), ProtocolError, "takes one array of bytes"),
        (op("map", 0, arrays=[np.ones(2)]), ProtocolError, "takes one array of bytes"),
        (mapped(len, 9), OutOfRangeError, r"outside \[0, 3\)"),
    ],
)
def test_operation_when_it_cannot_run_then_error_says_why(engine, operation, error, said):
    run(engine, add(0), id=number(0))
    with pytest.raises(error, match=said):
        run(engine, operation, id=number(1))
    assert row(engine, 0) == [1] * 4


def test_map_when_user_functions_are_forbidden_then_not_loaded():
    engine = Engine(1 << 20, allow_udf=False)
    engine.create_matrix(M, MatrixSpec(4, 1), [Partition(0, 0, 4)])
    operation = op("map", 0, arrays=[np.frombuffer(b"no pickle", np.uint8)])
    with pytest.raises(UsageError, match="does not run users' functions"):
        run(engine, operation, id=number(0))


def test_map_when_sparse_then_it_is_given_the_active_keys_only(engine):
    run(engine, scattered([7, 9], [1.0, 2.0]), id=number(0))
    whole = Operation("map", S, 0, (0,), {}, mapped(len, 0).arrays)
    assert kept(run(engine, whole, id=number(1))) == 2


def test_request_when_it_has_no_operations_then_so_has_its_reply(engine):
    assert run(engine).results == ()
