"""The sums of ``Meter`` are exact under concurrency, and clients cannot make it grow."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ps2 import errors
from ps2.errors import KeyMissError, LimitError, OpError, OutOfRangeError
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.ops.all import TABLE
from ps2.protocol import binary
from ps2.protocol.messages import Keys, Operation, Request, RequestId, key_digest
from ps2.server.engine import Engine
from ps2.server.metrics import BUCKETS_S, Meter

THREADS = 8
TIMES = 2000
M = 1  # a dense matrix of 3 rows and 8 columns, float64, in one partition


class OutOfDiskError(OpError):
    """A class that no client knows."""


@pytest.fixture
def engine():
    engine = Engine(1 << 20, allow_udf=True)
    engine.create_matrix(M, MatrixSpec(8, 3, dtype="float64"), [Partition(0, 0, 8)])
    return engine


def gather(columns=3):
    return Operation("gather", M, 0, (0,), arrays=(np.arange(columns),))


def new_draft(operation):
    header, _ = binary.request_parts(Request((operation,)))
    return binary.open_request(header, 1 << 30)


def counts_of(meter, name):
    (result,) = [operation for operation in meter.read().operations if operation.name == name]
    return result


def together(fn):
    """Run ``fn`` in many threads that begin at the same time."""
    barrier = threading.Barrier(THREADS)

    def run():
        barrier.wait()
        fn()

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_sums_when_eight_threads_count_at_once_then_are_exact():
    meter = Meter()

    def work():
        for number in range(TIMES):
            meter.begin(16)
            meter.count_operation(gather(3), 0.25)  # a power of two: its sums are exact, too
            meter.count_operation(Operation("dot", M, 0, (0,)), 0.5, failed=number % 4 == 0)
            meter.end(8, KeyMissError("?") if number % 2 else None)

    together(work)
    counts, total = meter.read(), THREADS * TIMES
    assert (counts.bytes_in, counts.bytes_out, counts.in_progress) == (16 * total, 8 * total, 0)
    assert counts.outcomes == {"ok": total // 2, "KeyMissError": total // 2}
    read, dot = counts_of(meter, "gather"), counts_of(meter, "dot")
    assert (read.count, read.failures, read.seconds, read.keys) == (total, 0, total / 4, 3 * total)
    assert (dot.count, dot.failures, dot.seconds, dot.keys) == (total, total // 4, total / 2, 0)
    assert sum(read.buckets) == sum(dot.buckets) == total


def test_lock_when_eight_threads_contend_then_every_wait_ends():
    meter, lock, finished = Meter(), threading.RLock(), []

    def work():
        for _ in range(TIMES):
            meter.acquire(lock)
            finished.append(len(finished))
            lock.release()

    together(work)
    assert finished == list(range(THREADS * TIMES))
    assert meter.read().waiting == 0


def test_lock_when_free_then_no_wait_is_counted():
    meter, lock = Meter(), threading.RLock()
    meter.acquire(lock)
    lock.release()
    counts = meter.read()
    assert (counts.waiting, counts.lock_waits, counts.lock_wait_s) == (0, 0, 0)


def test_lock_when_taken_then_who_waits_is_counted(engine, until):
    shard = engine._shards[M, 0]
    thread = threading.Thread(target=engine.execute, args=(Request((gather(),)),))
    with shard.lock:
        thread.start()
        until(lambda: engine.meter.read().waiting == 1, "the request waits")
        assert engine.meter.read().in_progress == 1
    thread.join()
    counts = engine.meter.read()
    assert (counts.waiting, counts.in_progress, counts.lock_waits) == (0, 0, 1)
    assert counts.lock_wait_s > 0


def test_operation_when_its_name_is_made_up_then_makes_no_series():
    meter = Meter()
    for number in range(100):
        meter.count_operation(Operation(f"drop_table_{number}", M, 0), 0.1, failed=True)
    assert meter.read().operations == ()


def test_series_when_all_operations_ran_then_table_map_and_keys():
    meter = Meter()
    for name in ("map", "keys", "mop", *TABLE):
        meter.count_operation(Operation(name, M, 0), 0.1, failed=True)
    assert {operation.name for operation in meter.read().operations} == {"map", "keys", *TABLE}


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (1e-5, 0), (1.1e-5, 1), (10.0, len(BUCKETS_S) - 1), (10.1, len(BUCKETS_S)), (1e9, len(BUCKETS_S))],
)
def test_bucket_when_chosen_then_holds_its_upper_end(seconds, bucket):
    meter = Meter()
    meter.count_operation(gather(), seconds)
    assert counts_of(meter, "gather").buckets.index(1) == bucket


def test_buckets_when_looked_at_then_ascend_from_10_us_to_10_s():
    assert list(BUCKETS_S) == sorted(set(BUCKETS_S))
    assert (BUCKETS_S[0], BUCKETS_S[-1]) == (1e-5, 10.0)


@pytest.mark.parametrize(
    ("operation", "keys"),
    [
        (gather(5), 5),
        (Operation("gather", M, 0, (0,), keys=Keys(7)), 7),
        (Operation("scatter_add", M, 0, (0,), arrays=(np.arange(4), np.ones(4))), 4),
        (Operation("push_add", M, 0, (0,), arrays=(np.ones(4),)), 0),
        (Operation("rows_pull", M, 0, arrays=(np.arange(2),)), 0),
        (Operation("scatter_add", M, 0, (0,)), 0),  # a replay is not looked at
        (Operation("map", M, 0, (0,), arrays=(np.ones(9, np.uint8),)), 0),
    ],
)
def test_keys_when_operation_ran_then_counts_columns_it_names(operation, keys):
    meter = Meter()
    meter.count_operation(operation, 0.1)
    assert counts_of(meter, operation.name).keys == keys


def test_keys_when_an_operation_failed_then_are_not_counted():
    meter = Meter()
    meter.count_operation(gather(5), 0.1, failed=True)
    assert (counts_of(meter, "gather").failures, counts_of(meter, "gather").keys) == (1, 0)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(None, "ok"), (LimitError(), "LimitError"), (OutOfDiskError(), "OpError"), (ZeroDivisionError(), "PS2Error")],
)
def test_outcome_when_request_ends_then_is_known_error_class(error, outcome):
    meter = Meter()
    meter.begin(0)
    meter.end(0, error)
    counts = meter.read()
    assert counts.outcomes[outcome] == 1
    assert (counts.requests, counts.in_progress) == (1, 0)
    assert outcome == "ok" or hasattr(errors, outcome)


def test_failed_when_key_set_is_forgotten_then_is_not_counted(engine):
    columns = np.arange(4)
    digest = key_digest(columns)
    named = Operation("gather", M, 0, (0,), keys=Keys(4, None, digest))
    messages = Operation("gather", M, 0, (0,), keys=Keys(4, columns, digest))
    with pytest.raises(KeyMissError):
        engine.execute(Request((named,)))
    engine.execute(Request((messages,)))
    engine.execute(Request((named,)))
    counts = engine.meter.read()
    assert counts.outcomes == {"ok": 2, "KeyMissError": 1}
    assert (counts.requests, counts.failed) == (3, 0)
    assert (engine.keys.hits, engine.keys.misses, engine.keys.nbytes) == (1, 1, 32)
    assert (counts_of(engine.meter, "gather").count, counts_of(engine.meter, "gather").keys) == (2, 8)


def test_request_when_operation_fails_then_counts_earlier_ones(engine):
    add = Operation("push_add", M, 0, (0,), {"start": 0}, (np.ones(8),))
    bad = Operation("push_add", M, 0, (9,), {"start": 0}, (np.ones(8),))
    with pytest.raises(OutOfRangeError):
        engine.execute(Request((add, bad, add), RequestId("scope", 0)))
    finished = counts_of(engine.meter, "push_add")
    assert (finished.count, finished.failures) == (2, 1)
    assert engine.meter.read().outcomes == {"ok": 0, "OutOfRangeError": 1}


def test_request_when_arrays_do_not_fit_then_counted_unstarted(engine):
    with pytest.raises(LimitError):
        engine.reserve(new_draft(Operation("push", M, 0, (0,), arrays=(np.zeros(1 << 18),))))
    counts = engine.meter.read()
    assert counts.outcomes == {"ok": 0, "LimitError": 1}
    assert counts.in_progress == 0
