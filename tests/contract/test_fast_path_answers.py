"""A fast path answers what Python would have answered; what it is not for goes to Python, before any effect."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ps2.config import WireConfig
from ps2.errors import NotFoundError, PS2Error, StaleRouteError, StoppedError
from ps2.matrix.partition import HASH_SPACE, MatrixSpec, Partition
from ps2.ops.blocks import fold
from ps2.protocol import binary
from ps2.protocol.framing import HEAD, read_reply
from ps2.protocol.messages import PLAIN, Keys, Operation, Request, RequestId
from ps2.server.engine import Engine
from ps2.server.fast_path import MEMORY_DIVISOR
from ps2.server.fence import now_s
from ps2.server.metrics import MUTATIONS, REQUESTS
from ps2.transport.handshake import handshake
from ps2.transport.proof import Tokens
from ps2.transport.sockets import abstract_address, receive
from tests.contract.servers import TOKEN, connected, outcomes, send, serving

BEGIN, WIDTH = 32, 96
DTYPES = {1: "float32", 2: "float64", 3: "float32", 4: "int32", 5: "int64", 6: "int64"}
DTYPES |= {11: "float32", 12: "float64", 13: "int32", 14: "int64", 15: "int32"}
SPARSE, SPARSE_INTEGERS, SPARSE_BLOCKS = 3, 6, 15
OF_SPARSE = (SPARSE, SPARSE_INTEGERS, SPARSE_BLOCKS)
# Matrices with layout "column", and how many rows they have.
BLOCK_OPERATIONS, K = (11, 12, 13, 14, 15), 40
KEY_OPERATIONS = PLAIN[4:]
SERIES = "fleet/app"


def an_engine(memory_limit_bytes=1 << 26):
    engine = Engine(memory_limit_bytes, allow_udf=True)
    create(engine)
    return engine


def create(engine):
    for matrix, dtype in DTYPES.items():
        layout, rows = ("column", K) if matrix in BLOCK_OPERATIONS else ("row", 3)
        if matrix in OF_SPARSE:
            spec = MatrixSpec(2**63, rows, dtype=dtype, kind="sparse", layout=layout)
            engine.create_matrix(matrix, spec, [Partition(1, 0, HASH_SPACE)])
        else:
            spec = MatrixSpec(BEGIN + WIDTH, rows, dtype=dtype, layout=layout)
            engine.create_matrix(matrix, spec, [Partition(1, BEGIN, BEGIN + WIDTH)])


def pull(row=0, matrix=1, **params):
    return Operation("pull", matrix, 1, (row,), params or {"start": 0, "stop": WIDTH})


def push(verb="push_add", values=1.0, row=0, matrix=1, start=0, width=WIDTH):
    return Operation(verb, matrix, 1, (row,), {"start": start}, (np.full(width, values, DTYPES[matrix]),))


def an_id(number, **more):
    return RequestId(**{"scope": "session/a", "number": number, **more})


@contextmanager
def one(engine=None, carrier="unix", token=TOKEN):
    """A server with fast paths: its engine, and what sends it a request over one connection."""
    engine = engine or an_engine()
    with serving(engine, token=token) as server, connected(carrier, getattr(token, "all", [token])[0]) as transport:
        yield engine, lambda request: send(transport, server.address, request)


def quick(engine):
    """How many requests fast paths have answered."""
    return int(engine.meter.fast_path[REQUESTS])


# -- as Python would have done -----------------------------------------------------------------------------------------

numbers = st.integers(0, 6) | st.sampled_from([1 << 20, (1 << 20) + 1, 2**63, 2**64 - 1])
ids = st.builds(
    RequestId,
    scope=st.sampled_from(["session/a", "fleet/app/7/0/f", "ß/0"]),
    number=numbers,
    settled=st.sampled_from([0, 0, 0, 2, 5, 1 << 20]),
    part=st.sampled_from([0, 0, 0, 1]),
    parts=st.sampled_from([1, 1, 1, 2]),
    series=st.just(SERIES),
    stage=st.just(7),
)
starts = st.sampled_from([0, 0, 1, WIDTH - 1, WIDTH, WIDTH + 1, -1])
key_sets = st.lists(st.integers(BEGIN, BEGIN + WIDTH - 1), min_size=1, max_size=40, unique=True).map(sorted)
# Those of blocks come in any order, and more than once.
unordered = st.lists(st.integers(BEGIN, BEGIN + WIDTH - 1), min_size=1, max_size=60)
bad_keys = st.sampled_from([[BEGIN - 1, BEGIN], [BEGIN, BEGIN + WIDTH], [0], [2**62], [BEGIN + 5, BEGIN, BEGIN - 1]])
rows = st.sampled_from([0, 0, 1, 2, 3])
factors = st.sampled_from([-3, 0, 1, 2, 100, 1000, 1 << 20, 1 << 40])


@st.composite
def some_changes(draw, count):
    """The arrays of ``columns_add_some`` for so many columns; now and then they cannot be."""
    unsigned = st.sampled_from(["uint8", "uint16", "uint32"])
    sizes = np.array(draw(st.lists(st.integers(0, 5), min_size=count, max_size=count)), draw(unsigned))
    total = int(sizes.sum()) + draw(st.sampled_from([0] * 9 + [1]))
    most = draw(st.sampled_from([K - 1] * 9 + [K]))
    positions = np.resize(
        np.array(draw(st.lists(st.integers(0, most), min_size=1, max_size=20)), draw(unsigned)), total
    )
    return sizes, positions, fold((np.arange(total, dtype=np.int32) - 3) * draw(st.sampled_from([1, 100, 1 << 20])))


@st.composite
def requests(draw):
    """Plain ones mostly; and what fast paths leave to Python."""
    kind, known = draw(st.sampled_from(PLAIN)), st.sampled_from([*DTYPES] * 3 + [9])
    of_blocks = kind.startswith("columns")
    matrix = draw(
        known.filter(lambda matrix: (matrix in BLOCK_OPERATIONS) == of_blocks) if draw(st.booleans()) else known
    )
    params, arrays, keys, count = {}, (), None, draw(st.integers(0, WIDTH))
    if kind in KEY_OPERATIONS:
        columns = np.array(draw(key_sets | (unordered if of_blocks else key_sets) | bad_keys), np.int64)
        keys, count = Keys(columns.size, columns), columns.size
        count = draw(st.sampled_from([count] * 5 + [count + 1]))
    elif kind == "pull":
        params = draw(st.sampled_from([{}, {"start": 0, "stop": WIDTH}]))
        params = params or {"start": draw(starts), "stop": draw(starts)}
    else:
        params = {"start": draw(starts)} if draw(st.booleans()) else {}
    changes = kind not in ("pull", "gather", "columns_pull")
    if changes:
        dtype = draw(st.sampled_from([DTYPES.get(matrix, "float32")] * 5 + ["float64"]))
        shape = (count, draw(st.sampled_from([K] * 9 + [K + 1]))) if of_blocks else (count,)
        with np.errstate(all="ignore"):
            values = (np.arange(np.prod(shape)).reshape(shape) % 113 * draw(factors)).astype(dtype)
        arrays = (values,)
    if kind == "columns_add_some":
        arrays = draw(some_changes(count))
    operation = Operation(kind, matrix, 1, () if of_blocks else (draw(rows),), params, arrays, keys)
    id = draw(ids) if draw(st.sampled_from([changes] * 9 + [not changes])) else None
    return Request((operation,), id, draw(st.sampled_from([0, 0, 0, 5])))


@pytest.fixture(scope="module")
def two():
    """A server with fast paths and one without, and a connection to each; their engines are anew for each example."""
    plain = serving(an_engine(), wire=WireConfig(fast_path=False))
    with serving(an_engine()) as with_lanes, plain as without, connected("unix") as transport:
        yield with_lanes, without, transport


def reset(*servers):
    for server in servers:
        for matrix in DTYPES:
            server.engine.free_matrix(matrix)
        create(server.engine)
        server.engine._ended_stages.__init__()


def plain_outcome(outcome):
    if isinstance(outcome, PS2Error):
        return type(outcome).__name__, str(outcome)
    return outcome.replayed, [(array.dtype.str, array.tolist()) for array in outcome.results[0].arrays]


def state(engine):
    shards = [shard for _, shard in sorted(engine.shards().items())]
    keys = [shard.index.keys.tolist() for shard in shards if shard.index is not None]
    return keys, [(shard.array.tobytes(), shard.applied.to_json(), sorted(shard.unused)) for shard in shards]


def counted(engine):
    counts = engine.meter.read()
    operations = [(result.name, result.count, result.failures, result.keys) for result in counts.operations]
    buckets = [sum(result.buckets) for result in counts.operations]
    return counts.outcomes, counts.bytes_in, counts.bytes_out, counts.mutations, counts.in_progress, operations, buckets


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(sent=st.lists(requests(), min_size=5, max_size=40), freed=st.integers(0, 40))
def test_requests_when_any_then_lanes_make_no_difference(two, until, sent, freed):
    ours, plain, transport = two
    reset(ours, plain)
    for position, request in enumerate(sent):
        if position == freed:
            for server in (ours, plain):
                server.engine.update_rows(1, 0, [1], [])
        if position == freed + 5:
            for server in (ours, plain):
                server.engine.update_rows(1, 5, [], [1])
        got, expected = (outcomes(transport, server.address, request)[0] for server in (ours, plain))
        assert plain_outcome(got) == plain_outcome(expected)
    assert state(ours.engine) == state(plain.engine)
    until(lambda: counted(ours.engine) == counted(plain.engine), "a pull has been counted, too")


def plain(kind, matrix, width=3, most=1):
    """A plain request's operation on that matrix; None if there is none of that kind."""
    if (matrix in BLOCK_OPERATIONS) != kind.startswith("columns") or (
        matrix in OF_SPARSE and kind not in KEY_OPERATIONS
    ):
        return None
    keys = Keys(width, np.array([BEGIN + 31 * i % WIDTH for i in range(width)])) if kind in KEY_OPERATIONS else None
    if keys is not None and matrix not in BLOCK_OPERATIONS:
        keys.columns.sort()
    shape = (width, K) if matrix in BLOCK_OPERATIONS else (width,)
    arrays = () if "pull" in kind or kind == "gather" else (np.full(shape, most, DTYPES[matrix]),)
    params = {"start": 0, "stop": width} if kind == "pull" else {}
    if kind == "columns_add_some":
        if DTYPES[matrix] != "int32":
            return None
        arrays = (
            np.full(width, 2, np.uint8),
            np.arange(2 * width, dtype=np.uint16),
            fold(np.full(2 * width, -1000, "i4")),
        )
    return Operation(kind, matrix, 1, () if matrix in BLOCK_OPERATIONS else (2,), params, arrays, keys)


@pytest.mark.parametrize("matrix", DTYPES)
@pytest.mark.parametrize("kind", PLAIN)
def test_request_when_one_like_it_was_answered_then_it_is_fast(kind, matrix):
    operation = plain(kind, matrix)
    if operation is None:
        return
    with one() as (engine, ask):
        if matrix in OF_SPARSE:
            engine.shards()[matrix, 1].slots(operation.keys.columns, create=True)
        for number in range(5):
            ask(Request((operation,), an_id(number) if operation.arrays else None))
        assert quick(engine) == 4
        assert int(engine.meter.fast_path[MUTATIONS]) == (4 if operation.arrays else 0)


@pytest.mark.parametrize("matrix", [4, 5, 6, 13, 14, 15])
@pytest.mark.parametrize("most", [1, 1000, 1 << 20, 1 << 40])
def test_integers_when_fewer_bytes_hold_them_then_they_travel_so(matrix, most):
    """There and back, as long as they take 4 KiB; sums are those of Python."""
    verb, read, width, rows = (
        ("columns_add", "columns_pull", 60, ()) if matrix in BLOCK_OPERATIONS else ("scatter_add", "gather", 90, (2,))
    )
    most = min(most, np.iinfo(DTYPES[matrix]).max)
    engine = an_engine()
    if matrix not in BLOCK_OPERATIONS:
        width = 3000
        engine.free_matrix(matrix)
        kind, space = ("sparse", HASH_SPACE) if matrix in OF_SPARSE else ("dense", 5000)
        engine.create_matrix(matrix, MatrixSpec(5000, 3, dtype=DTYPES[matrix], kind=kind), [Partition(1, 0, space)])
    columns = np.arange(BEGIN, BEGIN + width)
    if matrix in OF_SPARSE:
        engine.shards()[matrix, 1].slots(columns, create=True)
    shape = (width, K) if matrix in BLOCK_OPERATIONS else (width,)
    values = (np.arange(np.prod(shape)) % (most + 1)).reshape(shape).astype(DTYPES[matrix])
    values.flat[-1] = -most
    add, pull = (
        Operation(name, matrix, 1, rows, {}, arrays, Keys(width, columns))
        for name, arrays in ((verb, (values,)), (read, ()))
    )
    with one(engine) as (_, ask):
        for number in range(4):
            ask(Request((add,), an_id(number)))
            result = ask(Request((pull,))).results[0].arrays[0]
            assert result.dtype == values.dtype
            assert result.tolist() == ((number + 1) * values).tolist()
        assert quick(engine) == 6


def test_request_when_repeated_then_is_not_applied_again():
    with one() as (engine, ask):
        for number in (0, 1, 1, 0, 2, 2):
            ask(Request((push(),), an_id(number)))
        assert quick(engine) == 5
        assert engine.shards()[1, 1].array[0, 0] == 3
        assert engine.meter.mutations == 3


def test_numbers_when_clocks_begin_then_all_are_quick():
    """A run numbers the changes of a clock from a place far beyond those of the one before."""
    with one() as (engine, ask):
        for clock in range(4):
            for number in range(5):
                ask(Request((push(),), an_id((clock << 21) + number, settled=clock << 21)))
        assert quick(engine) == 4 * 5 - 1
        assert engine.shards()[1, 1].applied.to_json()["session/a"]["below"] == (3 << 21) + 5


def test_keys_when_new_then_python_allocates_and_lane_continues():
    """The key index and the rows grow several times meanwhile."""
    with one() as (engine, ask):
        total = 0
        for number in range(300):
            columns = np.array([number, 10_000 + number])
            for _ in range(3):
                scatter = Operation("scatter_add", SPARSE, 1, (0,), {}, (np.ones(2, np.float32),), Keys(2, columns))
                ask(Request((scatter,), an_id(total)))
                total += 1
        gather = Operation("gather", SPARSE, 1, (0,), keys=Keys(301, np.arange(301)))
        for _ in range(2):
            assert ask(Request((gather,))).results[0].arrays[0].tolist() == [3] * 300 + [0]
        assert quick(engine) > 500


# -- what speaks against it --------------------------------------------------------------------------------------------


def bound(ask):
    """Make the fast path answer pulls and additions."""
    for number in range(2):
        ask(Request((pull(),)))
        ask(Request((push(),), an_id(number)))


def test_row_when_freed_then_not_found_and_reused_as_zeros():
    with one() as (engine, ask):
        bound(ask)
        engine.update_rows(1, 0, [0], [])
        for request in (Request((pull(),)), Request((push(),), an_id(9))):
            with pytest.raises(NotFoundError):
                ask(request)
        engine.update_rows(1, 0, [], [0])
        assert ask(Request((pull(),))).results[0].arrays[0].tolist() == [0] * WIDTH


def test_matrix_when_it_grows_then_the_lane_finds_its_rows_again():
    with one() as (engine, ask):
        bound(ask)
        engine.update_rows(1, 300, [], [])
        before = quick(engine)
        for _ in range(2):
            assert ask(Request((pull(),))).results[0].arrays[0][0] == 2
        ask(Request((push(),), an_id(2)))
        assert engine.shards()[1, 1].array[0, 0] == 3
        assert quick(engine) == before + 1


def test_matrix_when_it_is_gone_then_stale_route():
    with one() as (engine, ask):
        bound(ask)
        engine.free_matrix(1)
        with pytest.raises(StaleRouteError):
            ask(Request((pull(),)))


def test_fence_when_it_is_shut_then_the_lane_does_nothing():
    with one() as (engine, ask):
        bound(ask)
        engine.fence.activate(4, "one", 60.0)
        for version in (0, 3, 5):
            with pytest.raises(StaleRouteError, match="route version 4"):
                ask(Request((push(),), an_id(7), version))
        ask(Request((push(),), an_id(7), 4))
        engine.fence.handed_over = True
        with pytest.raises(StaleRouteError, match="handed over"):
            ask(Request((push(),), an_id(8), 4))
        engine.fence.handed_over, engine.fence.waits = False, True
        with pytest.raises(StaleRouteError, match="waits"):
            ask(Request((pull(),), None, 4))
        engine.fence.waits = False
        before = quick(engine)
        ask(Request((pull(),), None, 4))
        assert quick(engine) == before + 1
        assert engine.shards()[1, 1].array[0, 0] == 3


def test_lease_when_expired_then_nothing_is_done_until_renewed():
    with one() as (engine, ask):
        bound(ask)
        engine.fence.activate(4, "one", 0.05)
        time.sleep(0.1)
        for request in (Request((pull(),), None, 4), Request((push(),), an_id(7), 4)):
            with pytest.raises(StaleRouteError, match="may have been replaced"):
                ask(request)
        assert engine.shards()[1, 1].array[0, 0] == 2
        engine.fence._lease_s = 60.0
        engine.fence.renew_lease(now_s())
        before = quick(engine)
        ask(Request((push(),), an_id(7), 4))
        assert quick(engine) == before + 1


def test_copies_when_present_then_python_writes_and_lanes_read():
    with one() as (engine, ask):
        bound(ask)
        engine.fence.set_copied(True)
        before = quick(engine)
        ask(Request((push(),), an_id(7)))
        assert quick(engine) == before
        ask(Request((pull(),)))
        assert quick(engine) == before + 1


def test_stage_when_it_is_over_then_nothing_of_it_is_applied():
    of_stage = {"scope": f"{SERIES}/7/0/f", "series": SERIES, "stage": 7}
    with one() as (engine, ask):
        for number in range(3):
            ask(Request((push(),), an_id(number, **of_stage)))
        assert quick(engine) == 2
        engine.end_stages(SERIES, 8, [])
        with pytest.raises(StoppedError):
            ask(Request((push(),), an_id(3, **of_stage)))
        assert engine.shards()[1, 1].array[0, 0] == 3
        assert len(engine.shards()[1, 1].applied) == 0


def test_touched_columns_when_row_has_them_then_python_updates():
    with one() as (engine, ask):
        bound(ask)
        shard = engine.shards()[1, 1]
        with shard.lock:
            shard.touched._width = 1 << 16
            shard.touched._gradients.add(0)
            shard.touched._start_set(0)
        assert 0 in shard.touched
        before = quick(engine)
        ask(Request((push(),), an_id(7)))
        assert 0 not in shard.touched
        assert quick(engine) == before


def test_lock_when_held_then_lane_waits_and_wait_is_counted(until):
    with one() as (engine, ask):
        bound(ask)
        waits = engine.meter.read().lock_waits
        with engine.shards()[1, 1].lock:
            thread = threading.Thread(target=ask, args=[Request((push(),), an_id(7))])
            thread.start()
            until(lambda: engine.meter.read().waiting == 1, "it waits")
            time.sleep(0.2)
            assert engine.meter.read().in_progress == 1
            assert engine.shards()[1, 1].array[0, 0] == 2
        thread.join()
        counts = engine.meter.read()
        assert engine.shards()[1, 1].array[0, 0] == 3
        assert counts.lock_waits == waits + 1
        assert counts.lock_wait_s > 0.1


def test_lock_when_held_then_reply_does_not_wait_for_handle():
    """A checkpoint may hold a shard for long; what was applied before is told."""
    with one() as (engine, ask):
        shard, held, go_on = engine.shards()[1, 1], threading.Event(), threading.Event()
        execute = engine.execute

        def hold():
            with shard.lock:
                held.set()
                assert go_on.wait(10)

        def executed(request):
            reply = execute(request)
            thread.start()
            assert held.wait(10)
            return reply

        thread = threading.Thread(target=hold)
        engine.execute = executed
        ask(Request((push(),), an_id(0)))
        assert shard.array[0, 0] == 1
        go_on.set()
        thread.join()
        engine.execute = execute
        for number in (1, 2):
            ask(Request((push(),), an_id(number)))
        assert quick(engine) == 1


def test_token_when_replaced_then_old_holders_are_rejected():
    tokens = Tokens(TOKEN)
    with one(token=tokens) as (engine, ask):
        bound(ask)
        tokens.renew("another-token-of-it")
        before = quick(engine)
        with pytest.raises(PS2Error):
            ask(Request((pull(),)))
        assert quick(engine) == before


def test_memory_when_there_is_none_for_lanes_then_python_answers():
    with one(an_engine(MEMORY_DIVISOR * 10_000)) as (engine, ask):
        bound(ask)
        assert (quick(engine), engine.fast_paths.nbytes) == (0, 0)


def test_memory_when_connections_end_then_lanes_return_theirs(until):
    engine = an_engine()
    with serving(engine) as server:
        for _ in range(3):
            with connected("unix") as transport:
                for _ in range(2):
                    send(transport, server.address, Request((pull(),)))
                assert engine.fast_paths.nbytes > 0
        until(lambda: engine.fast_paths.nbytes == 0, "given back")


def test_memory_when_request_needs_lane_share_then_gets_it():
    with one() as (engine, ask):
        bound(ask)
        assert engine.fast_paths.nbytes > 0
        memory = engine.memory
        most = memory.limit_bytes - memory.used_bytes + engine.fast_paths.nbytes - 4096
        memory.admit(most, "a request")
        assert engine.fast_paths.nbytes == 0
        before = quick(engine)
        ask(Request((push(values=2),), an_id(50)))
        assert quick(engine) == before
        memory.release(most)
        bound(ask)
        before = quick(engine)
        assert ask(Request((pull(),))).results[0].arrays[0][0] >= 2
        assert quick(engine) == before + 1


def test_lane_when_many_rows_are_in_use_then_lines_are_reused():
    engine = Engine(1 << 26, allow_udf=True)
    engine.create_matrix(1, MatrixSpec(BEGIN + WIDTH, 200), [Partition(1, BEGIN, BEGIN + WIDTH)])
    with one(engine) as (_, ask):
        for turn in range(3):
            for row in range(200):
                ask(Request((push(values=row, row=row),), an_id(200 * turn + row)))
        assert engine.shards()[1, 1].array[:, 5].tolist() == [3 * row for row in range(200)]


# -- connections -------------------------------------------------------------------------------------------------------

LARGE = 1 << 18
HANDLE_OFFSET = HEAD.size + 4  # in a reply


@contextmanager
def a_connection(server):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(abstract_address(server.data.unix_name))
        handshake(connection, Tokens(TOKEN), server.id, time.monotonic() + 10)
        connection.settimeout(20)
        yield connection


def written(request, handle=0):
    header, arrays = binary.request_parts(request, {binary.request_shape(request): handle})
    data = b"".join(array.tobytes() for array in arrays)
    return HEAD.pack(len(header), len(data)) + header + data


def exchange(connection, request, handle=0):
    """Return the reply, and the handle that it brings or else the one that there was."""
    handles = {}
    connection.sendall(written(request, handle))
    reply = receive(connection, read_reply(request, handles))
    if isinstance(reply, PS2Error):
        raise reply
    return reply, handles.get(binary.request_shape(request), handle)


def a_large_engine():
    engine = Engine(1 << 28, allow_udf=True)
    engine.create_matrix(1, MatrixSpec(LARGE, 1, dtype="float64"), [Partition(1, 0, LARGE)])
    return engine


def test_reader_when_it_is_slow_then_others_are_not_held_up(until):
    """It asks for 2 MiB and reads nothing; then it gets what the row was when it asked."""
    whole = Request((Operation("pull", 1, 1, (0,), {"start": 0, "stop": LARGE}),))
    engine = a_large_engine()
    with serving(engine) as server, a_connection(server) as slow, connected("unix") as transport:
        _, handle = exchange(slow, whole)
        exchange(slow, whole, handle)
        before = quick(engine)
        slow.sendall(written(whole, handle))
        until(lambda: quick(engine) == before + 1, "it has been read")
        add = Operation("push_add", 1, 1, (0,), {"start": 0}, (np.ones(LARGE),))
        for number in range(3):
            send(transport, server.address, Request((add,), an_id(number)))
        reply = receive(slow, read_reply(whole))
        assert set(reply.results[0].arrays[0].tolist()) == {0.0}
        assert set(exchange(slow, whole, handle)[0].results[0].arrays[0].tolist()) == {3.0}
        assert quick(engine) >= before + 2


def test_request_when_it_comes_byte_by_byte_then_it_is_answered():
    engine = an_engine()
    with serving(engine) as server, a_connection(server) as connection:
        _, handle = exchange(connection, Request((push(),), an_id(0)))
        request = Request((push(),), an_id(1))
        for byte in written(request, handle):
            connection.sendall(bytes([byte]))
        assert not isinstance(receive(connection, read_reply(request)), PS2Error)
        assert engine.shards()[1, 1].array[0, 0] == 2


def test_request_when_only_header_has_arrived_then_lane_waits():
    engine = an_engine()
    with serving(engine) as server, a_connection(server) as connection:
        _, handle = exchange(connection, Request((push(),), an_id(0)))
        request = Request((push(),), an_id(1))
        data = written(request, handle)
        connection.sendall(data[:-100])
        time.sleep(0.1)
        assert engine.shards()[1, 1].array[0, 0] == 1
        connection.sendall(data[-100:])
        assert not isinstance(receive(connection, read_reply(request)), PS2Error)
        assert (engine.shards()[1, 1].array[0, 0], quick(engine)) == (2, 1)


def test_request_when_client_leaves_midway_then_nothing_is_done(until):
    engine = an_engine()
    with serving(engine) as server:
        with a_connection(server) as connection:
            _, handle = exchange(connection, Request((push(),), an_id(0)))
            connection.sendall(written(Request((push(),), an_id(1)), handle)[:-1])
        until(lambda: server.data.connections == 0, "the connection has ended")
        assert engine.shards()[1, 1].array[0, 0] == 1


def test_handle_when_of_another_shape_then_header_decides():
    engine = an_engine()
    with serving(engine) as server, a_connection(server) as connection:
        _, handle = exchange(connection, Request((push(),), an_id(0)))
        exchange(connection, Request((push(row=1),), an_id(1)), handle)
        exchange(connection, Request((push(),), an_id(0, scope="session/b")), handle)
        exchange(connection, Request((pull(row=2),)), handle)
        exchange(connection, Request((push(),), an_id(2)), 12345)
        assert quick(engine) == 0
        assert engine.shards()[1, 1].array[:, 0].tolist() == [3, 1, 0]


def test_server_when_it_stops_then_lanes_end(until):
    engine = an_engine()
    with serving(engine) as server, a_connection(server) as connection:
        for _ in range(3):
            exchange(connection, Request((pull(),)), 0)
        began_s = time.monotonic()
        server.data.stop(5)
        assert time.monotonic() - began_s < 4
        assert connection.recv(1) == b""
        until(lambda: engine.fast_paths.nbytes == 0, "memory given back")


# -- garbage -----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    request=requests(),
    position=st.integers(12, 12 + binary.TAIL_OFFSET - 1),
    byte=st.integers(0, 255),
)
def test_header_when_one_byte_changes_then_both_servers_agree(two, request, position, byte):
    ours, plain, _ = two
    reset(ours, plain)
    operation = replace(request.operations[0], matrix=1, rows=(0,))
    request = replace(request, operations=(operation,), route_version=0)
    messages = []
    for server in (ours, plain):
        with a_connection(server) as connection:
            handle = 0
            try:
                for _ in range(2):
                    _, handle = exchange(connection, request, handle)
            except PS2Error:
                pass
            data = bytearray(written(request, handle))
            data[position] = byte
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            came = b""
            while piece := connection.recv(1 << 16):
                came += piece
            messages.append(came[:HANDLE_OFFSET] + came[HANDLE_OFFSET + 4 :])
    assert messages[0] == messages[1]
    assert state(ours.engine) == state(plain.engine)
