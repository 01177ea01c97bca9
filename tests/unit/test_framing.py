"""Messages of a data connection are read piece by piece, however the bytes are cut, and never past their end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.errors import LimitError, OpError, ProtocolError
from ps2.protocol import binary, framing
from ps2.protocol.framing import (
    GREETING,
    HEAD,
    MAGIC,
    MAX_ANSWER_BYTES,
    MAX_GREETING_BYTES,
    greeting_bytes,
    read_answer,
    read_greeting,
    read_reply,
    read_request,
)
from ps2.protocol.messages import PROTOCOL_VERSION, Keys, Operation, Reply, Request, RequestId, Result
from ps2.protocol.pb import server_pb2 as pb
from tests.messages import header_bytes

LIMIT = 1 << 20


class CutOff(Exception):
    """The bytes ended before the message did."""


def drive(reading, data, step=None):
    """Bring bytes to a reader, at most ``step`` at once; return what it read, and the bytes that it left."""
    data = memoryview(data)
    try:
        view = next(reading)
        while True:
            assert len(view)
            if not data:
                raise CutOff
            size = min(len(view), len(data), step or len(data))
            view[:size] = data[:size]
            view, data = view[size:], data[size:]
            if not len(view):
                view = next(reading)
    except StopIteration as done:
        return done.value, bytes(data)


def reading(limit=LIMIT, reserve=lambda draft: None):
    return read_request(limit, reserve)


def message(parts):
    return b"".join(framing.message_views(parts))


def sample_request():
    keys = Keys(3, np.array([4, 9, 300]))
    first = Operation("scatter_add", 7, 3, (2,), {"start": 5}, (np.arange(3.0), np.empty(0)), keys)
    return Request((first, Operation("zero", 7, 3, (0,))), RequestId("session/x", 12, 7))


def sample_reply():
    return Reply((Result(1.5), Result(arrays=(np.arange(6.0),))), replayed=True)


def asked(into=None):
    return Request((Operation("sum", 1, 0), Operation("pull", 1, 0, into=into)))


def header_of(*operations):
    return header_bytes(pb.RequestHeader(operations=operations))


def fault(text, header, size, data=b""):
    """A request that cannot be run: what is said of it, and its bytes."""
    return pytest.param(text, HEAD.pack(len(header), size) + header + (data or bytes(size)), id=text)


# -- what is written is read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2, 7, None])
def test_request_when_in_pieces_then_read_to_last_byte(step):
    request, left = drive(reading(), message(binary.request_parts(sample_request())) + b"next", step)
    (first, second), (sent, _) = request.operations, sample_request().operations
    assert (request.id, second.name, left) == (sample_request().id, "zero", b"next")
    assert [array.tolist() for array in first.arrays] == [array.tolist() for array in sent.arrays]
    assert first.keys.columns.tolist() == sent.keys.columns.tolist()


@given(st.data())
def test_requests_when_bytes_are_cut_anywhere_then_each_is_read(data):
    both = message(binary.request_parts(sample_request())) * 2
    at = data.draw(st.integers(0, len(both)))
    (_, left) = drive(reading(), both, max(1, at))
    assert left == both[len(both) // 2 :]
    assert drive(reading(), left, max(1, len(both) - at))[1] == b""


def test_request_when_bytes_end_early_then_asks_for_more():
    whole = message(binary.request_parts(sample_request()))
    for end in range(len(whole)):
        with pytest.raises(CutOff):
            drive(reading(), whole[:end])


@pytest.mark.parametrize("step", [1, 5, None])
def test_reply_when_in_pieces_then_lands_in_callers_array(step):
    out = np.zeros((2, 3))
    reply, left = drive(read_reply(asked(out)), message(binary.reply_parts(sample_reply(), asked())) + b"next", step)
    assert (reply.results[0].scalar, reply.replayed, left) == (1.5, True, b"next")
    assert out.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_reply_when_it_brings_an_error_then_that_is_what_is_read():
    error, left = drive(read_reply(asked()), message(binary.error_parts(OpError("no"))) + b"next")
    assert (type(error), str(error), left) == (OpError, "no", b"next")


def test_message_when_written_then_the_arrays_own_memory_is_sent():
    values = np.arange(3.0)
    request = Request((Operation("push", 1, 0, arrays=(values, np.empty(0))),))
    views = framing.message_views(binary.request_parts(request))
    assert len(views) == 2
    assert np.shares_memory(np.asarray(views[1]), values)


def test_request_when_without_operations_or_data_then_is_read():
    assert drive(reading(), message(binary.request_parts(Request(())))) == (Request(()), b"")


# -- requests that cannot be run, on a connection that stays usable --------------------------------------------------


PUSH = pb.Operation(name="push", arrays=[pb.ArraySpec(dtype=pb.UINT8, count=100_000)])
ZERO_STEP = pb.Operation(keys=pb.Keys(count=2, deltas=pb.ArraySpec(dtype=pb.UINT8, count=1)))


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        fault("a header of 2 bytes is not a request's", b"\x0f\xff", 100),
        fault("a header of 0 bytes is not a request's", b"", 100),
        fault("arrays of 100000 bytes, but 99999 bytes follow", header_of(PUSH), 99_999),
        fault("arrays of 100000 bytes, but 0 bytes follow", header_of(PUSH), 0),
        fault("an array of unknown dtype 0", header_of(pb.Operation(arrays=[pb.ArraySpec(count=5)])), 5),
        fault("an empty set of keys", header_of(pb.Operation(keys=pb.Keys(count=0))), 70_000),
        fault("the delta at position 0 is 0", header_of(ZERO_STEP), 1),
    ],
)
@pytest.mark.parametrize("step", [1000, None])
def test_request_when_it_cannot_run_then_next_one_is_read(said, sent, step):
    error, left = drive(reading(), sent + message(binary.request_parts(Request(()))), step)
    assert isinstance(error, ProtocolError)
    assert said in str(error)
    assert drive(reading(), left) == (Request(()), b"")


def test_request_when_count_is_impossible_then_next_is_read():
    header = header_of(pb.Operation(arrays=[pb.ArraySpec(dtype=pb.FLOAT64, count=2**63)]))
    error, left = drive(reading(), HEAD.pack(len(header), 8) + header + bytes(8) + b"next")
    assert (type(error), left) == (LimitError, b"next")


def refuse(draft):
    raise LimitError(f"{draft.memory_bytes:,} bytes do not fit")


def test_request_when_no_memory_for_it_then_data_is_skipped(monkeypatch):
    sent = message(binary.request_parts(Request((Operation("push", 1, 0, arrays=(np.zeros(50_000),)),))))
    monkeypatch.setattr(framing, "allocate", lambda *args: pytest.fail("allocated before it was counted"))
    error, left = drive(reading(reserve=refuse), sent + b"next")
    assert (type(error), str(error), left) == (LimitError, "400,000 bytes do not fit", b"next")


def test_request_when_read_then_reserves_unpacked_key_memory():
    messages = []
    columns = np.arange(1000)
    request = Request((Operation("gather", 1, 0, keys=Keys(1000, columns)),))
    drive(reading(reserve=lambda draft: messages.append(draft.memory_bytes)), message(binary.request_parts(request)))
    assert messages == [8000]


# -- heads after which the connection is of no use any more ----------------------------------------------------------


@pytest.mark.parametrize("size", [LIMIT + 1, 2**63, 2**64 - 1])
def test_request_when_data_is_over_limit_then_connection_ends(size):
    header = header_of(PUSH)
    with pytest.raises(LimitError, match=f"at most 1,048,576 bytes, got {size:,}"):
        drive(reading(), HEAD.pack(len(header), size) + header)


@pytest.mark.parametrize("length", [binary.MAX_HEADER_BYTES + 1, 2**32 - 1])
def test_header_when_too_long_then_error_before_reading(length):
    for reader in (reading(), read_reply(asked())):
        with pytest.raises(ProtocolError, match=f"got {length:,}"):
            drive(reader, HEAD.pack(length, 0))


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (b"\xff\xff", 0),
        (b"", 0),
        (binary.reply_parts(sample_reply(), asked())[0], 47),
        (binary.reply_parts(sample_reply(), asked())[0], 2**63),
        (binary.error_parts(OpError("no"))[0], 1),
    ],
    ids=["garbage", "no results", "too little data", "too many data", "an error with data"],
)
def test_reply_when_not_for_request_then_protocol_error(header, size):
    with pytest.raises(ProtocolError):
        drive(read_reply(asked()), HEAD.pack(len(header), size) + header)


# -- greetings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, None])
def test_greeting_when_written_then_it_is_read(step):
    greeting = pb.Greeting(protocol=PROTOCOL_VERSION, server_id="the-id", nonce=bytes(32))
    assert drive(read_greeting(pb.Greeting), greeting_bytes(greeting) + b"next", step) == (greeting, b"next")


@pytest.mark.parametrize("head", [HEAD.pack(MAX_ANSWER_BYTES + 1, 0), HEAD.pack(0, 1), HEAD.pack(2, 0) + b"\xff\xff"])
def test_greeting_answer_when_invalid_then_early_protocol_error(head):
    with pytest.raises(ProtocolError):
        drive(read_answer(), head)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
        GREETING.pack(b"PS2E", 0),
        GREETING.pack(MAGIC, MAX_GREETING_BYTES + 1),
        GREETING.pack(MAGIC, 2**32 - 1),
        GREETING.pack(MAGIC, 2) + b"\xff\xff",
        GREETING.pack(MAGIC, 3) + b"\x1a\x01\xff",
    ],
)
def test_greeting_when_it_is_something_else_then_protocol_error(sent):
    with pytest.raises(ProtocolError):
        drive(read_greeting(pb.Greeting), sent)
