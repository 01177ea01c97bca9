"""Damaged requests, many of them, straight into the compiled loop: it answers what Python would have answered."""

from __future__ import annotations

import os
import socket

import numpy as np

from ps2.errors import PS2Error
from ps2.protocol.binary import TAIL_OFFSET, reply_parts
from ps2.protocol.framing import HEAD, read, read_request, reply_views
from ps2.protocol.messages import Keys, Operation, Request, RequestId
from ps2.server import fast_path_loop
from ps2.server.fast_path import FIRST_BYTES, CompiledFastPath
from tests.contract.test_fast_path_answers import (
    BEGIN,
    OF_SPARSE,
    SPARSE,
    SPARSE_BLOCKS,
    WIDTH,
    K,
    an_engine,
    state,
    written,
)

# ``make test ARGS=tests/contract/test_fast_path_fuzz.py`` with PS2_FUZZ=1000000 takes some minutes.
TIMES = int(os.environ.get("PS2_FUZZ", "6000"))
EDGES = np.array([0, 1, 2, 7, 8, 255, 2**31, 2**32 - 1, 2**61 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
COLUMNS = np.arange(BEGIN, BEGIN + WIDTH, 5)


def plain_requests():
    keys, twice = Keys(COLUMNS.size, COLUMNS), Keys(2 * COLUMNS.size, COLUMNS.repeat(2))
    values = np.arange(WIDTH, dtype=np.float32)
    for number, matrix in enumerate((1, SPARSE)):
        id = RequestId("session/a", 40 * number, series="app", stage=3)
        yield Request((Operation("gather", matrix, 1, (0,), keys=keys),))
        yield Request((Operation("scatter_add", matrix, 1, (0,), {}, (values[: COLUMNS.size],), keys),), id)
    for number, matrix in enumerate((13, SPARSE_BLOCKS), 2):
        id = RequestId("session/a", 40 * number, series="app", stage=3)
        yield Request((Operation("columns_pull", matrix, 1, keys=Keys(COLUMNS.size, COLUMNS[::-1])),))
        blocks = np.arange(COLUMNS.size * K, dtype=np.int32).reshape(-1, K)
        yield Request((Operation("columns_add", matrix, 1, (), {}, (blocks,), keys),), id)
        sizes = np.full(COLUMNS.size, 3, np.uint8)
        some = sizes, np.arange(3 * sizes.size, dtype=np.uint16) % K, np.arange(3 * sizes.size, dtype=np.uint32)
        yield Request((Operation("columns_add_some", matrix, 1, (), {}, some, keys),), id)
        yield Request((Operation("columns_push", matrix, 1, (), {}, (blocks.repeat(2, 0),), twice),), id)
    yield Request((Operation("pull", 5, 1, (0,), {"start": 3, "stop": WIDTH}),))
    yield Request(
        (Operation("push_sub", 4, 1, (1,), {}, (np.arange(WIDTH, dtype=np.int32),)),), RequestId("session/a", 8)
    )
    yield Request((Operation("pull", 1, 1, (0,), {"start": 3, "stop": WIDTH}),))
    yield Request((Operation("push_add", 1, 1, (0,), {"start": 0}, (values,)),), RequestId("session/a", 7))


def damaged(frame, rng):
    """Change a few bytes, or set a number to one that might overflow."""
    frame = bytearray(frame)
    for _ in range(rng.integers(1, 4)):
        if rng.random() < 0.5:
            frame[rng.integers(len(frame))] = rng.integers(256)
        else:
            at = HEAD.size + 8 * rng.integers((TAIL_OFFSET + 48) // 8)
            frame[at : at + 8] = rng.choice(EDGES).tobytes()
        if rng.random() < 0.2:  # as many bytes as it declares, perhaps
            frame[4:12] = np.uint64(rng.integers(0, 2000)).tobytes()
    return bytes(frame)


def in_python(engine, frame):
    """What a server without fast paths replies."""
    reading = read_request(1 << 26, lambda draft: None)
    request = read(reading, [memoryview(frame)])
    assert not isinstance(request, PS2Error)
    parts = reply_parts(engine.execute(request), request)
    return b"".join(bytes(view) for views in reply_views(parts) for view in views)


def drained(end):
    end.setblocking(False)
    data = b""
    try:
        while piece := end.recv(1 << 20):
            data += piece
    except BlockingIOError:
        return data
    finally:
        end.setblocking(True)


def test_lane_when_requests_are_damaged_then_matches_python(monkeypatch):
    monkeypatch.setattr("ps2.server.fast_path.LINGER_MS", 0)
    ours, plain = an_engine(), an_engine()
    for engine in (ours, plain):
        for matrix in OF_SPARSE:
            engine.shards()[matrix, 1].slots(COLUMNS, create=True)
    fast_path = CompiledFastPath(ours.fast_paths, fast_path_loop, ours.fence, ours.shard)
    rng, answered = np.random.default_rng(7), 0
    generation = np.zeros(1, np.int64)
    frames = []
    for request in plain_requests():
        handle = fast_path.bind(request, 0)
        if request.id is not None:  # as it is when one has been done
            plain.shards()[request.operations[0].matrix, 1].applied.words(request.id)
        frames.append(written(request, handle))
    before = state(ours)
    # Whatever is declared, so much comes: nothing waits.
    padding = bytes(1 << 15)
    server, client = socket.socketpair()
    with server, client:
        for end in (server, client):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        for _ in range(TIMES):
            frame = damaged(frames[rng.integers(len(frames))], rng) + padding
            client.sendall(frame)
            ended = fast_path.serve(server.fileno(), generation, 0)
            assert ended in (fast_path_loop.OTHER, fast_path_loop.RECEIVED)
            left, reply = drained(server), drained(client)
            taken = len(frame) - len(left)
            if ended == fast_path_loop.RECEIVED:
                assert not reply
                assert b"".join(fast_path.received()) == frame[:taken]
            elif taken:
                answered += 1
                assert reply == in_python(plain, frame[:taken])
            if taken:
                now = state(ours)
                assert now == (state(plain) if reply else before)
                before = now
            else:
                assert not reply
        assert len(fast_path.buffer) == FIRST_BYTES
    assert answered > TIMES // 50
    assert state(ours) == state(plain)
