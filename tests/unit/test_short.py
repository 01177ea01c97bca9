"""Short headers say what protobuf's say, or are not used; nothing malformed gets through."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.errors import ProtocolError
from ps2.wire import codec, short
from ps2.wire.framing import HEAD, read_reply, read_request, written, written_by_pieces
from ps2.wire.messages import Coming, Keys, Operation, Reply, Request, RequestId, Result
from tests.unit.test_codec import columns, digests, names, uint32s, uint64s
from tests.unit.test_framing import drive

LIMIT = 1 << 20
int64s = st.integers(-(2**63), 2**63 - 1)
values = st.builds(
    lambda dtype, size, step: np.arange(size * step, dtype=dtype)[::step],
    st.sampled_from(["float32", "float64"]),
    st.integers(0, 40),
    st.integers(1, 2),
)
keys = st.one_of(
    st.builds(lambda c, digest: Keys(c.size, c, digest), columns, st.none() | digests),
    st.builds(lambda count, digest: Keys(count, None, digest), st.integers(1, 2**64 - 1), digests),
)
operations = st.builds(
    Operation,
    name=st.sampled_from(short.KINDS),
    matrix=uint64s,
    partition=uint32s,
    rows=uint32s.map(lambda row: (row,)),
    params=st.dictionaries(st.sampled_from(["start", "stop"]), int64s),
    arrays=st.lists(values, max_size=1).map(tuple),
    keys=st.none() | keys,
)
ids = st.none() | st.builds(RequestId, names, uint64s, uint64s, uint32s, st.integers(1, 2**32 - 1), names, uint64s)
requests = st.builds(lambda operation, id, version: Request((operation,), id, version), operations, ids, uint64s)
PULL = Request((Operation("pull", 7, 1, (0,), {"start": 0, "stop": 3}),), route_version=2)


def plain(request):
    """What a request says, as something that ``==`` compares."""
    (op,), id = request.operations, request.id
    sets = op.keys and (op.keys.count, op.keys.digest, None if op.keys.columns is None else op.keys.columns.tolist())
    arrays = [(array.dtype.str, array.tolist()) for array in op.arrays]
    said = (op.name, op.matrix, op.partition, op.rows, dict(op.params), op.wire, arrays, sets)
    marks = id and (id, id.settled, id.series, id.stage, id.parts)
    return said, marks, request.route_version, request.forwarded, request.begun


def came(parts):
    """What a server makes of a request that was written so."""
    data = b"".join(written(parts))
    sizes = []
    request, left = drive(read_request(LIMIT, lambda draft: sizes.append(draft.memory_bytes)), data, step=5)
    assert left == b""
    assert sizes == [sum(a.nbytes for op in request.operations for a in (*op.arrays, *_columns(op)))]
    return request


def _columns(op):
    return () if op.keys is None or op.keys.columns is None else (op.keys.columns,)


@given(requests)
def test_a_short_request_when_it_has_come_then_it_says_what_protobuf_would_have_said(request):
    parts = short.request_parts(request)
    assert parts is not None
    found = came(parts)
    assert found.short
    assert plain(found) == plain(came(codec.request_parts(request))) == plain(request)


@given(requests, st.sampled_from(short.KINDS))
def test_an_outline_when_the_header_is_short_then_it_is_that_of_protobuf(request, name):
    header, _ = short.request_parts(request)
    expected = codec.open_request(codec.request_parts(request)[0], 1 << 62)
    assert list(short.open_request(header).outlines([name])) == list(expected.outlines([name]))


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "dot"},
        {"others": (3,)},
        {"wire": "float16"},
        {"rows": (0, 1)},
        {"rows": ()},
        {"params": {"start": 0.0}},
        {"params": {"step": 1}},
        {"arrays": (np.ones((2, 2), np.float32),)},
        {"arrays": (np.ones(2, np.int64),)},
        {"arrays": (np.ones(2), np.ones(2))},
        {"keys": Keys(2, np.array([5, 3]))},
    ],
)
def test_a_request_when_it_has_what_the_form_has_no_place_for_then_it_goes_as_protobuf(changed):
    (operation,) = PULL.operations
    assert short.request_parts(replace(PULL, operations=(replace(operation, **changed),))) is None


def test_requests_of_servers_and_of_many_operations_go_as_protobuf():
    assert short.request_parts(replace(PULL, forwarded=True)) is None
    assert short.request_parts(replace(PULL, begun=1)) is None
    assert short.request_parts(replace(PULL, operations=PULL.operations * 2)) is None
    assert short.request_parts(replace(PULL, id=RequestId("x" * 256, 0))) is None


def answered(reply, request):
    """What a client makes of a reply to a request that came with a short header."""
    parts = short.reply_parts(reply, replace(request, short=True))
    data = b"".join(bytes(view) for views in written_by_pieces(parts) for view in views)
    found, left = drive(read_reply(request), data, step=3)
    assert left == b""
    return found


@given(values, st.booleans())
def test_a_short_reply_when_it_has_come_then_its_numbers_are_where_the_caller_wants_them(numbers, replayed):
    found = answered(Reply((Result(arrays=(numbers,)),), replayed), PULL)
    assert found.replayed == replayed
    (array,) = found.results[0].arrays
    assert array.dtype == numbers.dtype
    assert array.tolist() == numbers.tolist()
    into = np.zeros(numbers.size, numbers.dtype)
    wanted = replace(PULL, operations=(replace(PULL.operations[0], into=into),))
    assert answered(Reply((Result(arrays=(numbers,)),)), wanted).results[0].arrays[0] is into
    assert into.tolist() == numbers.tolist()


def test_a_short_reply_when_there_is_nothing_or_it_is_still_coming():
    assert answered(Reply((Result(),), True), PULL) == Reply((Result(),), True)
    pieces = [np.arange(2.0), np.arange(3.0)]
    coming = Coming(np.dtype("<f8"), (5,), lambda: iter(pieces))
    (array,) = answered(Reply((Result(coming=coming),)), PULL).results[0].arrays
    assert array.tolist() == [0, 1, 0, 1, 2]


@pytest.mark.parametrize(
    "reply",
    [
        Reply((Result(scalar=1.0),)),
        Reply((Result(), Result())),
        Reply((Result(arrays=(np.ones(2), np.ones(2))),)),
        Reply((Result(arrays=(np.ones((2, 2)),)),)),
        Reply((Result(arrays=(np.ones(2, np.int64),)),)),
    ],
)
def test_a_reply_when_it_has_what_the_form_has_no_place_for_then_it_goes_as_protobuf(reply):
    assert short.reply_parts(reply, replace(PULL, short=True)) is None


def test_a_reply_when_the_request_was_protobufs_then_it_is_protobufs():
    assert short.reply_parts(Reply((Result(),)), PULL) is None


@pytest.mark.parametrize(
    ("header", "size", "said"),
    [
        (short.REPLY.pack(short.MARK, 0, 9, 0, 1), 4, "dtype 9"),
        (short.REPLY.pack(short.MARK, 0, 1, 0, 1), 8, "4 bytes, and 8 come"),
        (short.REPLY.pack(short.MARK, 0, 0, 0, 0), 1, "0 bytes, and 1 come"),
        (b"\xff\0\0", 0, "3 bytes"),
    ],
)
def test_a_short_reply_that_cannot_be_one_is_a_protocol_error(header, size, said):
    with pytest.raises(ProtocolError, match=said):
        drive(read_reply(PULL), HEAD.pack(len(header), size) + header + bytes(size))


def test_a_short_reply_without_the_array_that_the_caller_waits_for_is_a_protocol_error():
    wanted = replace(PULL, operations=(replace(PULL.operations[0], into=np.zeros(3)),))
    with pytest.raises(ProtocolError, match="lacks its array"):
        short.open_reply(short.REPLY.pack(short.MARK, 0, 0, 0, 0), wanted, 0)


def test_short_headers_of_any_bytes_are_requests_or_protocol_errors():
    rng = np.random.default_rng(5)
    good = b"".join(written(short.request_parts(PULL)))[HEAD.size :]
    refused = 0
    for number in range(50_000):
        header = bytearray(good)
        for at in rng.integers(1, len(header), 1 + number % 4):
            header[at] = rng.integers(256)
        header = bytes(header[: len(header) - number % 3])
        try:
            draft = short.open_request(header)
        except ProtocolError:
            refused += 1
        else:
            assert draft.nbytes >= 0
            assert draft.memory_bytes >= 0
            assert draft.operation.name in short.KINDS
    assert 10_000 < refused < 50_000
