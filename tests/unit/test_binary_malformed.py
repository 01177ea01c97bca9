"""What does not follow the binary form, or the contract, is refused as that, and nothing is allocated for it."""

from __future__ import annotations

import contextlib
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2.errors import LimitError, OpError, ProtocolError, PS2Error
from ps2.protocol import arrays, binary, drafts, framing
from ps2.protocol.messages import Keys, Operation, Reply, Request, RequestId, Result
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc import execute
from tests.messages import header_bytes, reply_bytes, reply_of, request_frame, request_of

LIMIT = 1 << 20
ANY = Request((Operation("any", 1, 0),))
REFUSED = (ProtocolError, LimitError)


def read(data, reserve=lambda draft: None):
    return request_of(data, LIMIT, reserve)


def executed(frame, reserve=lambda draft: None):
    """The request that a message to `Execute` comes to."""
    return execute.request_from(frame, LIMIT, reserve)


def a_request():
    keys = Keys(3, np.array([4, 9, 300]), bytes(range(16)))
    first = Operation("scatter_add", 7, 3, (2,), {"start": 5, "alpha": 0.5}, (np.arange(3, dtype=np.float32),), keys)
    second = Operation("push", 7, 3, (0,), arrays=(np.arange(4.0),), wire="bfloat16")
    return Request((first, second), RequestId("session/x", 12, 7))


def a_reply():
    return reply_bytes(Reply((Result(1.5, (np.arange(6, dtype=np.float64),)),), replayed=True), ANY)


def declaring(*specs, data=b""):
    """A request of one operation that declares arrays (dtype, count)."""
    declared = [pb.ArraySpec(dtype=dtype, count=count) for dtype, count in specs]
    return pb.RequestFrame(header=pb.RequestHeader(operations=[pb.Operation(name="push", arrays=declared)]), data=data)


def ways(frame):
    """The functions that read what a frame says: as it is, and in the binary form."""
    header = header_bytes(frame.header)
    data = framing.HEAD.pack(len(header), len(frame.data)) + header + frame.data
    return partial(executed, frame.SerializeToString()), partial(read, data)


def refused(frame, errors, said=None):
    for variant in ways(frame):
        with pytest.raises(errors, match=said):
            variant()


def bringing(dtype, count, data=b"", becomes=0):
    """A reply with one array."""
    header = binary.REPLY.pack(binary.REPLY_KIND, 0, 0, 1) + binary.RESULT.pack(0, 1, 0.0)
    header += binary.ARRAY.pack(dtype, becomes, 0, count)
    return framing.HEAD.pack(len(header), len(data)) + header + data


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
def test_array_when_declaration_is_invalid_then_protocol_error(dtype, stored, size):
    spec = pb.ArraySpec(dtype=dtype, count=1, stored=stored)
    header = pb.RequestHeader(operations=[pb.Operation(name="push", arrays=[spec])])
    refused(pb.RequestFrame(header=header, data=bytes(size)), ProtocolError, "cannot be converted to dtype")
    with pytest.raises(ProtocolError, match="cannot be converted to dtype"):
        reply_of(bringing(dtype, 1, bytes(size), stored), ANY)


# -- messages that are too short, too long or about too much ---------------------------------------------------------


def test_header_when_cut_off_anywhere_then_protocol_error():
    header, _ = binary.request_parts(a_request())
    for end in range(len(header)):
        with pytest.raises(ProtocolError):
            binary.open_request(header[:end], LIMIT)
    header, _ = binary.reply_parts(Reply((Result(1.5, (np.arange(6.0),)),)), ANY)
    for end in range(len(header)):
        with pytest.raises(ProtocolError):
            binary.open_reply(header[:end], ANY, 48)


def test_header_when_more_follows_it_then_protocol_error():
    header, _ = binary.request_parts(a_request())
    with pytest.raises(ProtocolError, match=f"bytes declares only {len(header)}"):
        binary.open_request(header + b"x", LIMIT)
    header, _ = binary.reply_parts(Reply((Result(),)), ANY)
    with pytest.raises(ProtocolError, match=f"bytes declares only {len(header)}"):
        binary.open_reply(header + b"x", ANY, 0)


def test_frame_when_cut_off_anywhere_then_protocol_error():
    frame = request_frame(a_request())
    for end in range(1, len(frame)):
        with pytest.raises(ProtocolError):
            executed(frame[:end])


@pytest.mark.parametrize("came", [0, 79, 81])
def test_data_when_size_is_not_as_declared_then_protocol_error(came):
    refused(
        declaring((pb.FLOAT64, 10), data=bytes(came)), ProtocolError, f"arrays of 80 bytes, but {came} bytes follow"
    )
    with pytest.raises(ProtocolError, match=f"arrays of 80 bytes, but {came} bytes follow"):
        reply_of(bringing(pb.FLOAT64, 10, bytes(came)), ANY)


def test_reply_when_an_error_comes_with_data_then_protocol_error():
    header, _ = binary.error_parts(OpError("no"))
    with pytest.raises(ProtocolError, match="an error with 3 bytes of data"):
        reply_of(framing.HEAD.pack(len(header), 3) + header + b"abc", ANY)


@pytest.mark.parametrize("count", [2**63, 2**64 - 1, 2**62, 2**55, LIMIT // 8 + 1])
def test_request_when_it_declares_over_limit_then_limit_error(count):
    refused(declaring((pb.FLOAT64, count)), LimitError, f"at most 1,048,576 bytes, got {8 * count:,}")


def test_request_when_arrays_sum_over_limit_then_limit_error():
    """Sums are not cut off at 64 bits."""
    refused(declaring((pb.UINT8, 2**63), (pb.UINT8, 2**63)), LimitError)


@pytest.mark.parametrize("count", [2**63, 2**64 - 1, 2**55])
def test_reply_when_declared_count_is_bad_then_protocol_error(count):
    with pytest.raises(ProtocolError):
        reply_of(bringing(pb.FLOAT64, count), ANY)


def test_request_when_it_has_too_many_arrays_then_protocol_error(monkeypatch):
    monkeypatch.setattr(drafts, "MAX_OPERATIONS", 3)
    refused(declaring(*[(pb.UINT8, 0)] * 4), ProtocolError, "at most 3 arrays")


def test_frame_when_header_is_too_long_then_refused_unparsed(monkeypatch):
    monkeypatch.setattr(execute, "MAX_HEADER_BYTES", 100)
    with pytest.raises(ProtocolError, match="at most 100 bytes, got 101"):
        executed(pb.UnreadFrame(header=b"\xff" * 101).SerializeToString())


@pytest.mark.parametrize("counts", [(2**32 - 1, 0), (0, 2**32 - 1), (1, 2**16)])
def test_header_when_it_declares_too_much_then_protocol_error(counts):
    """Nothing is made for what does not come."""
    operations, rows = counts
    head = binary.REQUEST.pack(binary.REQUEST_KIND, 0, 0, 0, operations or 1, 0, 0, 0, 0, 0, 0, 0)
    record = binary.OPERATION.pack(0, 0, 1, rows, 2**16 - 1, 2**16 - 1, 0, 0, 0, 0, 0, 0, 0, 0, b"")
    with pytest.raises(ProtocolError):
        binary.open_request(head + record, LIMIT)


# -- fields that say nothing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [0, 13, 255])
def test_array_when_dtype_is_unknown_then_protocol_error(dtype):
    refused(declaring((dtype, 1), data=b"12345678"), ProtocolError, f"unknown dtype {dtype}")
    with pytest.raises(ProtocolError, match=f"unknown dtype {dtype}"):
        reply_of(bringing(dtype, 1, b"12345678"), ANY)


def test_parameter_when_it_has_no_value_then_error_names_it():
    header = pb.RequestHeader(operations=[pb.Operation(name="axpy", params=[pb.Param(name="alpha")])])
    with pytest.raises(ProtocolError, match="'alpha'"):
        executed(pb.RequestFrame(header=header).SerializeToString())


@pytest.mark.parametrize("signature", [b"\xff", b"axpy\0xalpha", b"axpy\0", b"axpy\0da\0qa"])
def test_signature_when_it_is_none_then_protocol_error(signature):
    scalars = signature.count(b"\0")
    head = binary.REQUEST.pack(binary.REQUEST_KIND, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0)
    record = binary.OPERATION.pack(0, 0, 1, 0, 0, 0, len(signature), scalars, 0, 0, 0, 0, 0, 0, b"")
    with pytest.raises(ProtocolError):
        binary.open_request(head + record + bytes(8 * scalars) + signature, LIMIT)


@pytest.mark.parametrize("frame", [b"\x0e", b"\x0f", b"\x80", b"\x80" * 11, b"\x0a\x03\x0a\x01\xff"])
def test_frame_when_not_protobuf_then_protocol_error(frame):
    with pytest.raises(ProtocolError, match="cannot be decoded"):
        executed(frame)


# -- garbage ---------------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_header_when_garbage_then_only_protocol_or_limit_error(garbage):
    for kind in (b"", bytes([binary.REQUEST_KIND]), bytes([binary.REPLY_KIND]), bytes([binary.ERROR_KIND])):
        with contextlib.suppress(*REFUSED):
            binary.open_request(kind + garbage, LIMIT)
        with contextlib.suppress(ProtocolError):
            binary.open_reply(kind + garbage, Request((Operation("pull", 1, 0, into=np.empty(4)),)), 32)
    with contextlib.suppress(*REFUSED):
        executed(garbage)


@settings(max_examples=500)
@given(st.data())
def test_request_when_mutated_then_only_protocol_or_limit_error(data):
    """Garbage that looks almost right."""
    header, _ = binary.request_parts(a_request())
    with contextlib.suppress(*REFUSED):
        binary.open_request(changed(data, header), LIMIT)
    with contextlib.suppress(*REFUSED):
        executed(changed(data, request_frame(a_request())))


@settings(max_examples=300)
@given(st.data())
def test_reply_when_bytes_are_changed_then_only_an_error_of_ours(data):
    """A reply may come to bring an error: then that is what it says."""
    header = a_reply()[framing.HEAD.size : -48]
    with contextlib.suppress(PS2Error):
        binary.open_reply(changed(data, header), ANY, 48)


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

    monkeypatch.setattr(arrays.np, "empty", allocated)


def packed_keys(count):
    keys = pb.Keys(count=count, deltas=pb.ArraySpec(dtype=pb.UINT8, count=count - 1), hash=bytes(16))
    header = pb.RequestHeader(operations=[pb.Operation(name="gather", keys=keys)])
    return pb.RequestFrame(header=header, data=b"\x01" * (count - 1))


@pytest.mark.parametrize(
    ("frame", "memory_bytes"),
    [
        (declaring((pb.FLOAT64, 3), (pb.UINT8, 5), data=bytes(29)), 29),
        (declaring((pb.BFLOAT16, 3), (pb.FLOAT16, 1), data=bytes(8)), 16),
        (packed_keys(1001), 8008),
    ],
    ids=["as they are", "floats of 16 bits", "keys"],
)
def test_reserve_when_request_comes_then_told_unpacked_size_once(frame, memory_bytes):
    for variant in ways(frame):
        told = []
        request = variant(reserve=lambda draft, told=told: told.append(draft.memory_bytes))
        assert told == [memory_bytes] == [sum(operation.nbytes for operation in request.operations)]


@pytest.mark.parametrize("frame", [declaring((pb.FLOAT64, 3), data=bytes(24)), packed_keys(1001)])
def test_reserve_when_it_refuses_then_nothing_is_allocated(no_allocation, frame):
    def refuse(draft):
        raise LimitError(f"{draft.memory_bytes} bytes do not fit")

    for variant in ways(frame):
        with pytest.raises(LimitError, match="do not fit"):
            variant(reserve=refuse)


@pytest.mark.parametrize("frame", [declaring((pb.FLOAT64, 2**40)), declaring((pb.FLOAT64, 100)), packed_keys(9)])
def test_request_when_it_lies_about_sizes_then_allocates_nothing(no_allocation, frame):
    frame.data = frame.data[:-1]
    refused(frame, REFUSED)


@pytest.mark.parametrize("count", [2**63, 2**40, 100])
def test_reply_when_it_lies_about_sizes_then_allocates_nothing(no_allocation, count):
    with pytest.raises(ProtocolError, match="but 0 bytes follow"):
        reply_of(bringing(pb.FLOAT64, count), ANY)
