"""Matrices that are cut alike meet in one operation, which counts once in all of them; others are refused."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import pytest

from ps2 import DCV, NotColocatedWarning, batch
from ps2.client import plans
from ps2.client.async_writer import QueuedUpdate, sendable
from ps2.client.fleet import FleetRef
from ps2.client.plans import Plan
from ps2.client.read_your_writes import ReadYourWrites
from ps2.client.requests import cut, group
from ps2.client.session import Session
from ps2.config import WireConfig
from ps2.errors import (
    ConfigError,
    DTypeError,
    NotColocatedError,
    OutOfRangeError,
    PS2Error,
    ShapeError,
    StaleRouteError,
    UsageError,
)
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.matrix.route import Route
from ps2.ops import table
from ps2.ops.all import TABLE
from ps2.ops.operands import along
from ps2.ops.table import Of, op
from ps2.protocol.messages import Operation, Request, RequestId
from ps2.server.engine import Engine
from tests.fakes import MASTER, QUICK, DropsTheAck, FleetInProcess, installed, session_over
from tests.messages import request_bytes, request_of

DIM, K = 23, 8
Counts = Annotated[table.Row, Of("int32")]
SlotValues = Annotated[table.Values, along("slots", "k")]


@pytest.fixture(scope="module", autouse=True)
def operations():
    """Operations of these tests alone."""
    before = dict(TABLE)

    @op(writes=("m", "counts"))
    def gather_blocks(m: table.Blocks, counts: Counts, slots: table.Slots, values: SlotValues) -> None:
        """Add values to blocks, and count them."""
        np.add.at(m, slots, values)
        np.add.at(counts, slots, 1)

    @op(writes=("counts",))
    def count_positive(u: table.Row, counts: Counts) -> Annotated[table.Array, along("columns")]:
        """Count where u is above 0; return u."""
        counts += u > 0
        return u

    @op(writes=("counts",))
    def note_positive(u: table.Row, counts: Counts) -> None:
        """Count where u is above 0."""
        counts += u > 0

    @op(reduce="sum")
    def inner(m: table.Blocks, n: table.Blocks) -> float:
        """Return the sum of all products of the first's numbers and the other's first one."""
        return float((m * n[:, :1]).sum())

    yield
    TABLE.clear()
    TABLE.update(before)


@pytest.fixture(params=[1, 3])
def fleet(request):
    fleet = FleetInProcess(servers=request.param)
    with installed(session_over(fleet)):
        yield fleet


@pytest.fixture
def model(fleet):
    """A matrix of blocks of floats, a vector of counts beside it, and NumPy's idea of both."""
    m = DCV.dense(DIM, K, layout="column").matrix()
    values = np.random.default_rng(0).standard_normal((DIM, K)).astype(np.float32)
    m.push(columns=np.arange(DIM), values=values)
    return m, DCV.dense(DIM, 1, dtype="int32"), values


# -- who is co-located -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (lambda: DCV.dense(DIM, 9, "int64", layout="column"), ""),
        (lambda: DCV.dense(DIM, wire="float16"), ""),
        (lambda: DCV.dense(DIM + 1), "23 and 24 columns"),
        (lambda: DCV.dense(DIM, align=5), "partitioned differently, align=1, partitionsPerServer=1 and align=5, "),
        (lambda: DCV.dense(DIM, partitionsPerServer=2), "partitionsPerServer=1 and align=1, partitionsPerServer=2"),
        (lambda: DCV.sparse(DIM), "the first is dense, the second sparse"),
    ],
)
def test_vectors_when_matrices_are_cut_alike_then_colocated(other, why):
    with installed(session_over(FleetInProcess(servers=3))):
        u, v = DCV.dense(DIM), other()
        assert u.isColocated(v) == v.isColocated(u) == (not why)
        assert why in u._colocation_fault(v)


def test_sparse_vectors_when_of_two_matrices_then_not_co_located(fleet):
    u = DCV.sparse(DIM)
    assert not u.isColocated(DCV.sparse(DIM))
    assert u.isColocated(u.derive())


def test_vectors_when_servers_differ_then_not_colocated(fleet):
    u, v = DCV.dense(DIM), DCV.dense(DIM)
    v._route = Route(v._route.version, v._route.bounds, tuple(f"other-{at}" for at in v._route.addresses))
    assert u._colocation_fault(v) == "their partitions are on different servers"


# -- calls -----------------------------------------------------------------------------------------------------------


def test_arithmetic_when_two_matrices_then_nothing_moves(fleet):
    u, v = DCV.dense(DIM).push(np.arange(DIM)), DCV.dense(DIM, 2).fill(2)
    fleet.sent.clear()
    assert u.dot(v) == 2 * np.arange(DIM).sum()
    assert len(fleet.sent) == len(fleet.engines)
    assert np.array_equal(u.axpy(v, 0.5).pull(), np.arange(DIM) + 1)
    assert np.array_equal((v * u).pull(), 2 * (np.arange(DIM) + 1))
    assert np.array_equal(u.zip(v).apply("sgd", lr=1).pull(), np.arange(DIM) - 1)


def test_apply_when_matrix_and_counts_meet_then_both_are_written(model):
    m, counts, expected = model
    columns = np.array([3, 22, 0, 3])
    values = np.ones((4, K), np.float32)
    assert m.apply("gather_blocks", counts=counts, slots=columns, values=values) is None
    np.add.at(expected, columns, values)
    assert np.array_equal(m.pull(columns=np.arange(DIM)), expected)
    assert np.array_equal(counts.pull(), np.bincount(columns, minlength=DIM))


def test_zip_when_an_operand_says_its_dtype_then_it_has_that(fleet):
    values = np.arange(DIM) - 10.0
    u, counts = DCV.dense(DIM).push(values), DCV.dense(DIM, dtype="int32").fill(5)
    assert np.array_equal(u.zip(counts).apply("count_positive"), values)
    assert np.array_equal(counts.pull(), 5 + (values > 0))


def test_apply_when_two_matrices_meet_then_both_are_read(model):
    m, _, values = model
    for k in (1, K):
        other = DCV.dense(DIM, k, layout="column").matrix()
        other.push(columns=np.arange(DIM), values=np.full((DIM, k), 3))
        assert m.apply("inner", n=other) == pytest.approx(3 * values.sum(), rel=1e-5)
    assert m.apply("inner", n=m) == pytest.approx((values * values[:, :1]).sum(), rel=1e-5)


def test_map_partitions_when_two_dtypes_then_gets_both(fleet):
    u, v = DCV.dense(DIM, 3, layout="column").fill(2), DCV.dense(DIM, dtype="int64").push(np.arange(DIM))

    def swap(a, b):
        a[:], b[:] = b, a.copy()
        return a.dtype.name, b.dtype.name

    assert set(u.zip(v).mapPartitions(swap).collect()) == {("float32", "int64")}
    assert (u.pull().tolist(), v.pull().tolist()) == (list(range(DIM)), [2] * DIM)
    assert u.zip(v).mapPartitions(lambda a, b: (a - b).sum(), readOnly=True).sum() == np.arange(DIM).sum() - 2 * DIM


def test_batch_when_matrices_meet_in_it_then_in_order(model, fleet):
    m, counts, _ = model
    fleet.sent.clear()
    with batch():
        counts.fill(7)
        m.apply("gather_blocks", counts=counts, slots=[1], values=np.zeros((1, K)))
        twice = counts.pull([1])
    assert twice.result().tolist() == [8]
    assert len(fleet.sent) == len(fleet.engines)


# -- calls that are refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, ConfigError, "operation 'gather_blocks': counts: this argument is required"),
        ({"counts": np.zeros(DIM)}, DTypeError, "counts: expected a DCV, got ndarray"),
        ({"counts": lambda: DCV.dense(DIM)}, DTypeError, "counts: expected int32, got float32"),
        (
            {"counts": lambda: DCV.dense(DIM, dtype="int32", align=5)},
            NotColocatedError,
            r"counts: DCV\(dense, dim=23, int32, .* and DCVMatrix\(.* are not co-located: their columns are part",
        ),
        ({"counts": lambda: DCV.sparse(DIM, dtype="int32")}, NotColocatedError, "is dense, the second sparse"),
    ],
)
def test_apply_when_operands_do_not_fit_then_error_says_why(given, error, message):
    with installed(session_over(FleetInProcess(servers=3))):
        m = DCV.dense(DIM, K, layout="column").matrix()
        created = {name: value() if callable(value) else value for name, value in given.items()}
        with pytest.raises(error, match=message):
            m.apply("gather_blocks", slots=[1], values=np.zeros((1, K)), **created)


def test_apply_when_a_block_is_wanted_then_a_vector_is_refused(model):
    m, counts, _ = model
    with pytest.raises(DTypeError, match="n: expected a DCVMatrix, got DCV"):
        m.apply("inner", n=counts)
    with pytest.raises(DTypeError, match="operation 'inner': n: expected float32, as m is, got int32"):
        m.apply("inner", n=DCV.dense(DIM, 1, dtype="int32", layout="column").matrix())


def test_apply_when_vector_is_of_other_context_then_usage_error(model):
    m, _, _ = model
    with installed(Session(FleetRef("other", MASTER), FleetInProcess(servers=1))):
        foreign = DCV.dense(DIM, dtype="int32")
    with pytest.raises(UsageError, match="belongs to another PS2Context"):
        m.apply("gather_blocks", counts=foreign, slots=[1], values=np.zeros((1, K)))


def test_zip_when_operation_takes_one_dtype_then_other_is_moved(fleet):
    u, v = DCV.dense(DIM).fill(1), DCV.dense(DIM, dtype="int32").fill(2)
    with pytest.warns(NotColocatedWarning, match=r"are not co-located \(this operation takes float32\)"):
        assert u.zip(v).apply("axpy", alpha=3).pull().tolist() == [7] * DIM
    with pytest.raises(DTypeError, match=r"does not fit int32"):
        v.add(u)


def test_zip_when_own_dtype_is_cut_otherwise_then_moved_and_back(fleet):
    u, counts = DCV.dense(DIM).fill(1), DCV.dense(DIM, dtype="int32", partitionsPerServer=2)
    with pytest.warns(NotColocatedWarning, match="their columns are partitioned differently"):
        u.zip(counts).apply("count_positive")
    assert counts.pull().tolist() == [1] * DIM


def test_zip_when_first_is_sparse_then_other_dtype_is_refused(fleet):
    with pytest.raises(NotColocatedError, match="each assigns its own slots to keys"):
        DCV.sparse(DIM).zip(DCV.sparse(DIM, dtype="int32")).apply("note_positive")


def test_of_when_it_is_no_dtype_of_a_matrix_then_dtype_error():
    with pytest.raises(DTypeError, match="Of: expected one of float32, float64, int32, int64, got 'int8'"):
        Of("int8")


def test_of_when_it_is_said_of_what_travels_then_config_error():
    with pytest.raises(ConfigError, match="'wrong': values: Of is for vectors and matrices of the shard only"):

        @op()
        def wrong(u: table.Row, values: Annotated[table.Values, Of("int32")]) -> None: ...


# -- on a server -----------------------------------------------------------------------------------------------------

A, B, SPARSE, OTHERWISE = 1, 2, 3, 4
PARTITIONS = [Partition(0, 0, 4), Partition(1, 4, 8)]


@pytest.fixture
def engine():
    engine = Engine(1 << 30, allow_udf=True)
    engine.create_matrix(A, MatrixSpec(8, 3), PARTITIONS)
    engine.create_matrix(B, MatrixSpec(8, 2, dtype="int32"), PARTITIONS)
    engine.create_matrix(SPARSE, MatrixSpec(8, 2, kind="sparse"), PARTITIONS)
    engine.create_matrix(OTHERWISE, MatrixSpec(9, 2), [Partition(0, 0, 4), Partition(1, 4, 9)])
    return engine


def counted(partition=0, **fields):
    """Count in row 1 of B where row 2 of A is above 0."""
    return Operation("count_positive", A, partition, (2, 1), others=(B,), **fields)


def fill(matrix, row, value, partition=0):
    return Operation("fill", matrix, partition, (row,), {"value": value})


def row(engine, matrix, number, partition=0):
    return engine.shards()[matrix, partition].row(number).tolist()


def test_operation_when_repeated_then_counts_once_same_answer(engine):
    engine.execute(Request((fill(A, 2, 1.0),), RequestId("me", 0)))
    first = engine.execute(Request((counted(),), RequestId("me", 1)))
    engine.execute(Request((fill(A, 2, 5.0),), RequestId("me", 2)))
    again = engine.execute(Request((counted(),), RequestId("me", 1)))
    assert (first.replayed, again.replayed) == (False, True)
    assert first.results[0].arrays[0].tolist() == again.results[0].arrays[0].tolist() == [1] * 4
    assert row(engine, B, 1) == [1] * 4


def test_request_when_failed_midway_then_resumes_in_all_matrices(engine):
    engine.execute(Request((fill(A, 2, 1.0),), RequestId("me", 0)))
    add = Operation("add_scalar", B, 0, (1,), {"value": 10})
    broken = Operation("fill", B, 0, (9,), {"value": 1})
    for _ in range(2):
        with pytest.raises(OutOfRangeError, match="the 2 operations before it in the batch are applied"):
            engine.execute(Request((add, counted(), broken), RequestId("me", 1)))
    engine.execute(Request((add, counted(), fill(B, 0, 3)), RequestId("me", 1)))
    assert row(engine, B, 1) == [11] * 4
    assert row(engine, B, 0) == [3] * 4


@pytest.mark.parametrize(
    ("operation", "error", "message"),
    [
        (counted(), None, None),
        (Operation("axpy", A, 0, (0, 1), {"alpha": 1.0}, others=(B,)), DTypeError, "v: expected float32, as u is"),
        (Operation("count_positive", A, 0, (0, 1)), DTypeError, "counts: expected int32, got float32"),
        (Operation("fill", A, 0, (0,), {"value": 1.0}, others=(A,)), ShapeError, "takes u, got 2 vectors or matrices"),
        (Operation("axpy", A, 0, (0, 1), {"alpha": 1.0}, others=(A, A)), ShapeError, "takes u, v, got 3 vectors"),
        (Operation("axpy", A, 0, (0, 9), {"alpha": 1.0}, others=(A,)), PS2Error, r"outside \[0, 3\)"),
        (Operation("axpy", A, 0, (0, 0), {"alpha": 1.0}, others=(SPARSE,)), NotColocatedError, "of a sparse matrix"),
        (Operation("axpy", A, 1, (0, 0), {"alpha": 1.0}, others=(OTHERWISE,)), NotColocatedError, "equal partitions"),
        (Operation("axpy", A, 0, (0, 0), {"alpha": 1.0}, others=(77,)), StaleRouteError, "partition 0 of matrix 4d"),
        (Operation("map", A, 0, (0, 0), {}, (np.zeros(1, np.uint8),), others=(A, B)), PS2Error, "got 3 matrices for 2"),
        (Operation("momentum", A, 0, (0, 1, 1), {"lr": 1.0}, others=(A, A)), ConfigError, "expected distinct vectors"),
    ],
)
def test_operation_when_operands_do_not_fit_then_server_refuses(engine, operation, error, message):
    request = Request((operation,), RequestId("me", 0))
    if error is None:
        engine.execute(request)
        return
    with pytest.raises(error, match=message):
        engine.execute(request)


def test_rows_when_matrices_differ_then_same_number_is_distinct(engine):
    engine.create_matrix(9, MatrixSpec(8, 3), PARTITIONS)
    step = Operation("momentum", A, 0, (0, 0, 1), {"lr": 1.0, "momentum": 0.5}, others=(9, 9))
    engine.execute(Request((fill(9, 1, 2.0), step), RequestId("me", 0)))
    assert (row(engine, A, 0), row(engine, 9, 0)) == ([-2] * 4, [2] * 4)


def test_touched_columns_when_other_matrix_writes_then_forgotten():
    """A lazy step looks at the columns alone that it knows of: writing from another matrix must make it forget them."""
    wide, lazy = 1 << 16, {"lr": 0.5, "lazy": 1}
    engine = Engine(1 << 30, allow_udf=True)
    for matrix in (A, B):
        engine.create_matrix(matrix, MatrixSpec(wide, 3), [Partition(0, 0, wide)])
    step = Operation("adagrad", A, 0, (0, 1, 2), lazy)
    zero = fill(A, 2, 0.0)
    add = Operation("scatter_add", A, 0, (2,), arrays=(np.array([5]), np.ones(1, np.float32)))
    engine.execute(Request((step, zero, add, step, zero, add), RequestId("me", 0)))
    shard = engine.shards()[A, 0]
    assert list(shard.touched._sets) == [2]
    # The gradient is written from another matrix, the weights by a step whose gradient is there.
    engine.execute(Request((fill(B, 0, 1.0), Operation("copy", A, 0, (2, 0), others=(B,))), RequestId("me", 1)))
    engine.execute(Request((step, Operation("adagrad", A, 0, (0, 1, 0), lazy, others=(A, B))), RequestId("me", 2)))
    assert np.count_nonzero(shard.row(0)) == wide
    assert shard.row(1)[7] == 2


def test_operation_when_it_travels_then_its_matrices_do():
    request = request_of(request_bytes(Request((counted(),), RequestId("me", 0))))
    assert request.operations[0].shard_ids == ((A, 0), (B, 0))


# -- what travels together -------------------------------------------------------------------------------------------

ROUTE, ID = Route(1, (0, 4, 8), ("a", "b")), RequestId("me", 7)


def a_plan(matrix, *operations):
    return Plan(matrix, ROUTE, operations, lambda results: results, mutates=True)


def a_push(matrix, partition, size):
    return Operation("push", matrix, partition, (0,), {"start": 0}, (np.zeros(size, np.uint8),))


def joined(first, other, partition):
    return Operation("axpy", first, partition, (0, 0), {"alpha": 1.0}, others=(other,))


def test_requests_when_matrices_join_then_parts_are_distinct():
    """Each shard notes the parts that it has applied: two of one number would count as one."""
    calls = [a_plan(m, *(a_push(m, p, 600) for p in (0, 1) for _ in range(2))) for m in (1, 2, 3)]
    calls.append(a_plan(2, *(joined(2, 1, p) for p in (0, 1))))
    routes = dict.fromkeys((1, 2, 3), ROUTE)
    parts: dict[object, list[object]] = {}
    for mine in group(cut(calls, routes, 1000, ID), routes).values():
        for pieces, request in mine:
            for position in {position for piece in pieces for position in piece.operation.shard_ids}:
                parts.setdefault(position, []).append(request.id)
    assert len(parts) == 6
    assert all(len(set(ids)) == len(ids) for ids in parts.values())


def test_requests_when_route_is_unknown_then_joined_are_unsplit():
    calls = [a_plan(1, a_push(1, 0, 5)), a_plan(2, a_push(2, 0, 5)), a_plan(2, joined(2, 1, 0))]
    old, new = Route(1, (0, 4), ("gone",)), Route(2, (0, 4), ("here",))
    for routes in ({1: old, 2: new}, {1: new, 2: old}):
        requests = group(cut(calls, routes, 1000, ID), routes)
        assert [[len(pieces) for pieces, _ in mine] for mine in requests.values()] == [[3]]


@pytest.mark.parametrize("times", [1, 3])
def test_call_when_acks_are_lost_then_counts_once_in_both(times, monkeypatch):
    monkeypatch.setattr(plans, "BLOCK_BYTES", 512)
    transport = DropsTheAck(FleetInProcess(servers=2), 0)
    session = Session(FleetRef("fleet", MASTER), transport, QUICK, WireConfig(block_bytes=512))
    with installed(session):
        m, counts = DCV.dense(DIM, K, layout="column").matrix(), DCV.dense(DIM, dtype="int32")
        columns = np.tile(np.arange(DIM), 4)
        transport.left = times
        m.apply("gather_blocks", counts=counts, slots=columns, values=np.ones((columns.size, K)))
        assert counts.pull().tolist() == [4] * DIM
        assert m.pull(columns=[0, 22]).tolist() == [[4] * K] * 2


def test_queued_adds_when_they_read_overwritten_then_take_turns():
    pushed, added = a_plan(2, Operation("rows_push", 2, 0)), a_plan(1, joined(1, 2, 0))
    first, second, third = (QueuedUpdate(plan, ID) for plan in (pushed, added, pushed))
    assert sendable([first, second, third]) == [first]
    assert sendable([second, third]) == [second]


def test_reads_when_queued_changes_affect_them_then_are_redone():
    for matrix, is_invalid in ((1, True), (2, True), (3, False)):
        overlay = ReadYourWrites([plans.pull(plans.Target(matrix, MatrixSpec(8, 1), ROUTE, (0,)), 0, 8)])
        overlay.add_missing_write(a_plan(1, joined(1, 2, 0)))
        assert overlay.is_invalid == is_invalid
