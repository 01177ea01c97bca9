"""What does not follow the contract is refused as that, and nothing is allocated for it."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2.errors import LimitError, ProtocolError, PS2Error
from ps2.wire import codec
from ps2.wire.messages import Keys, Operation, Reply, Request, RequestId, Result
from ps2.wire.pb import server_pb2 as pb

LIMIT = 1 << 20
ANY = Request((Operation("any", 1, 0),))
REFUSED = (ProtocolError, LimitError)


def read(frame):
    return codec.request_of(frame, LIMIT)


def request_frame():
    keys = Keys(3, np.array([4, 9, 300]), bytes(range(16)))
    first = Operation("scatter_add", 7, 3, (2,), {"start": 5, "alpha": 0.5}, (np.arange(3, dtype=np.float32),), keys)
    second = Operation("push", 7, 3, (0,), arrays=(np.arange(4.0),), wire="bfloat16")
    return codec.to_frame(codec.request_parts(Request((first, second), RequestId("session/x", 12, 7))))


def reply_frame():
    reply = Reply((Result(1.5, (np.arange(6, dtype=np.float64),)),), replayed=True)
    return codec.to_frame(codec.reply_parts(reply, ANY))


def declaring(*specs, data=b""):
    """A request of one operation that declares arrays (dtype, count)."""
    declared = [pb.ArraySpec(dtype=dtype, count=count) for dtype, count in specs]
    header = pb.RequestHeader(operations=[pb.Operation(name="push", arrays=declared)])
    return pb.RequestFrame(header=header, data=data).SerializeToString()


def bringing(dtype, count, data=b""):
    """A reply with one array."""
    header = pb.ReplyHeader(results=[pb.Result(arrays=[pb.ArraySpec(dtype=dtype, count=count)])])
    return pb.ReplyFrame(header=header, data=data).SerializeToString()


@pytest.mark.parametrize(
    ("dtype", "stored", "size"),
    [
        (pb.INT8, pb.FLOAT32, 1),
        (pb.INT8, pb.INT8, 1),
        (pb.INT32, pb.INT16, 4),
        (pb.UINT8, pb.INT64, 1),
        (pb.INT8, 99, 1),
    ],
)
def test_array_when_it_cannot_become_what_is_said_then_protocol_error(dtype, stored, size):
    spec = pb.ArraySpec(dtype=dtype, count=1, stored=stored)
    request = pb.RequestHeader(operations=[pb.Operation(name="push", arrays=[spec])])
    with pytest.raises(ProtocolError, match="cannot become one of dtype"):
        read(pb.RequestFrame(header=request, data=bytes(size)).SerializeToString())
    reply = pb.ReplyHeader(results=[pb.Result(arrays=[spec])])
    with pytest.raises(ProtocolError, match="cannot become one of dtype"):
        codec.reply_of(pb.ReplyFrame(header=reply, data=bytes(size)).SerializeToString(), ANY)


# -- messages that are too short, too long or about too much ---------------------------------------------------------


def test_request_when_cut_off_anywhere_then_protocol_error():
    frame = request_frame()
    for end in range(1, len(frame)):
        with pytest.raises(ProtocolError):
            read(frame[:end])


def test_reply_when_cut_off_anywhere_then_protocol_error():
    frame = reply_frame()
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            codec.reply_of(frame[:end], ANY)


@pytest.mark.parametrize("came", [0, 79, 81])
def test_data_when_more_or_less_than_declared_then_protocol_error_says_how_much(came):
    with pytest.raises(ProtocolError, match=f"arrays of 80 bytes, and {came} come"):
        read(declaring((pb.FLOAT64, 10), data=bytes(came)))
    with pytest.raises(ProtocolError, match=f"arrays of 80 bytes, and {came} come"):
        codec.reply_of(bringing(pb.FLOAT64, 10, bytes(came)), ANY)


def test_reply_when_an_error_comes_with_data_then_protocol_error():
    header = pb.ReplyHeader(error=pb.ErrorDetail(type="OpError", message="no"))
    with pytest.raises(ProtocolError, match="arrays of 0 bytes, and 3 come"):
        codec.reply_of(pb.ReplyFrame(header=header, data=b"abc").SerializeToString(), ANY)


@pytest.mark.parametrize("count", [2**63, 2**64 - 1, 2**62, 2**55, LIMIT // 8 + 1])
def test_request_when_it_declares_more_than_the_limit_then_limit_error_says_how_much(count):
    with pytest.raises(LimitError, match=f"at most 1,048,576 bytes, got {8 * count:,}"):
        read(declaring((pb.FLOAT64, count)))


def test_request_when_its_arrays_together_are_over_the_limit_then_limit_error():
    """Sums are not cut off at 64 bits."""
    with pytest.raises(LimitError):
        read(declaring((pb.UINT8, 2**63), (pb.UINT8, 2**63)))


@pytest.mark.parametrize("count", [2**63, 2**64 - 1, 2**55])
def test_reply_when_it_declares_an_impossible_count_then_protocol_error(count):
    with pytest.raises(ProtocolError):
        codec.reply_of(bringing(pb.FLOAT64, count), ANY)


def test_request_when_it_has_too_many_operations_then_protocol_error(monkeypatch):
    monkeypatch.setattr(codec, "MAX_OPERATIONS", 3)
    frame = pb.RequestFrame(header=pb.RequestHeader(operations=[pb.Operation()] * 4)).SerializeToString()
    with pytest.raises(ProtocolError, match="at most 3 operations, got 4"):
        read(frame)


def test_request_when_it_has_too_many_arrays_then_protocol_error(monkeypatch):
    """An array costs two bytes on the way, and a hundred as an object."""
    monkeypatch.setattr(codec, "MAX_OPERATIONS", 3)
    with pytest.raises(ProtocolError, match="at most 3 arrays"):
        read(declaring(*[(pb.UINT8, 0)] * 4))


def test_request_when_its_header_is_too_long_then_protocol_error_before_it_is_parsed(monkeypatch):
    monkeypatch.setattr(codec, "MAX_HEADER_BYTES", 100)
    with pytest.raises(ProtocolError, match="at most 100 bytes, got 101"):
        codec.open_request(b"\xff" * 101, LIMIT)


# -- fields that say nothing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [0, 13, -1])
def test_array_when_its_dtype_is_unknown_then_protocol_error_names_it(dtype):
    with pytest.raises(ProtocolError, match=f"unknown dtype {dtype}"):
        read(declaring((dtype, 1), data=b"12345678"))
    with pytest.raises(ProtocolError, match=f"unknown dtype {dtype}"):
        codec.reply_of(bringing(dtype, 1, b"12345678"), ANY)


def test_parameter_when_it_has_no_value_then_protocol_error_names_it():
    header = pb.RequestHeader(operations=[pb.Operation(name="axpy", params=[pb.Param(name="alpha")])])
    with pytest.raises(ProtocolError, match="'alpha'"):
        read(pb.RequestFrame(header=header).SerializeToString())


@pytest.mark.parametrize("frame", [b"\x1b\x1c", b"\x0e", b"\x0f"])
def test_field_when_its_wire_type_is_obsolete_or_unknown_then_protocol_error(frame):
    with pytest.raises(ProtocolError, match="wire type"):
        read(frame)


@pytest.mark.parametrize("frame", [b"\x80", b"\x80" * 11, b"\x0a" + b"\xff" * 9 + b"\x7f"])
def test_varint_when_endless_or_larger_than_the_frame_then_protocol_error(frame):
    with pytest.raises(ProtocolError):
        read(frame)


def test_text_when_it_is_not_utf8_then_protocol_error():
    operation = b"\x0a\x01\xff"
    header = b"\x12" + bytes([len(operation)]) + operation
    with pytest.raises(ProtocolError, match="cannot be read"):
        read(b"\x0a" + bytes([len(header)]) + header)


# -- garbage ---------------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_frame_when_it_is_garbage_then_only_protocol_or_limit_error(frame):
    with contextlib.suppress(*REFUSED):
        read(frame)
    with contextlib.suppress(ProtocolError):
        codec.reply_of(frame, Request((Operation("pull", 1, 0, into=np.empty(4)),)))


@settings(max_examples=500)
@given(st.data())
def test_request_when_bytes_are_changed_then_only_protocol_or_limit_error(data):
    """Garbage that looks almost right."""
    with contextlib.suppress(*REFUSED):
        read(changed(data, request_frame()))


@settings(max_examples=300)
@given(st.data())
def test_reply_when_bytes_are_changed_then_only_an_error_of_ours(data):
    """A reply may come to bring an error: then that is what it says."""
    with contextlib.suppress(PS2Error):
        codec.reply_of(changed(data, reply_frame()), ANY)


def changed(data, frame):
    """The frame with up to three bytes changed, and perhaps its end cut off."""
    frame = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    return bytes(frame[: data.draw(st.integers(1, len(frame)))])


# -- nothing is allocated before it is checked -----------------------------------------------------------------------


@pytest.fixture
def no_allocation(monkeypatch):
    def allocated(*args):
        raise AssertionError("allocated before it was checked")

    monkeypatch.setattr(codec.np, "empty", allocated)


def packed_keys(count):
    keys = pb.Keys(count=count, deltas=pb.ArraySpec(dtype=pb.UINT8, count=count - 1), hash=bytes(16))
    header = pb.RequestHeader(operations=[pb.Operation(name="gather", keys=keys)])
    return pb.RequestFrame(header=header, data=b"\x01" * (count - 1)).SerializeToString()


@pytest.mark.parametrize(
    ("frame", "memory_bytes"),
    [
        (declaring((pb.FLOAT64, 3), (pb.UINT8, 5), data=bytes(29)), 29),
        (declaring((pb.BFLOAT16, 3), (pb.FLOAT16, 1), data=bytes(8)), 16),
        (packed_keys(1001), 8008),
    ],
    ids=["as they are", "floats of 16 bits", "keys"],
)
def test_reserve_when_a_request_comes_then_it_is_told_once_what_that_takes_when_read(frame, memory_bytes):
    told = []
    request = codec.request_of(frame, LIMIT, lambda draft: told.append(draft.memory_bytes))
    assert told == [memory_bytes] == [sum(operation.nbytes for operation in request.operations)]


@pytest.mark.parametrize("frame", [declaring((pb.FLOAT64, 3), data=bytes(24)), packed_keys(1001)])
def test_reserve_when_it_refuses_then_nothing_is_allocated(no_allocation, frame):
    def refuse(draft):
        raise LimitError(f"{draft.memory_bytes} bytes do not fit")

    with pytest.raises(LimitError, match="do not fit"):
        codec.request_of(frame, LIMIT, refuse)


@pytest.mark.parametrize("frame", [declaring((pb.FLOAT64, 2**40)), declaring((pb.FLOAT64, 100)), packed_keys(9)[:-1]])
def test_request_when_it_lies_about_sizes_then_nothing_is_allocated(no_allocation, frame):
    with pytest.raises(REFUSED):
        read(frame)


@pytest.mark.parametrize("count", [2**63, 2**40, 100])
def test_reply_when_it_lies_about_sizes_then_nothing_is_allocated(no_allocation, count):
    with pytest.raises(ProtocolError, match="and 0 come"):
        codec.reply_of(bringing(pb.FLOAT64, count), ANY)
