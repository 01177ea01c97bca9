"""Frames are byte-compatible with the contract, carry anything, and nothing malformed gets through."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2.errors import LimitError, ProtocolError
from ps2.wire import codec
from ps2.wire.messages import Operation, Reply, Request, RequestId, Result
from ps2.wire.pb import server_pb2 as pb

DTYPES = ("float32", "float64", "int64", "uint8")
UNKNOWN_FIELDS = (
    b"\xf8\x06\x07" + b"\xfa\x06\x03abc" + b"\xfd\x06\x01\x02\x03\x04" + b"\xf9\x06\x01\x02\x03\x04\x05\x06\x07\x08"
)

names = st.text(st.characters(codec="utf-8"), max_size=12)
scalars = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
arrays = st.builds(
    lambda dtype, size, seed: np.random.default_rng(seed).integers(0, 200, size).astype(dtype),
    st.sampled_from(DTYPES),
    st.integers(0, 40),
    st.integers(0, 99),
)
operations = st.builds(
    Operation,
    name=names,
    matrix=st.integers(0, 2**64 - 1),
    partition=st.integers(0, 2**32 - 1),
    rows=st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple),
    params=st.dictionaries(names, scalars, max_size=3),
    arrays=st.lists(arrays, max_size=3).map(tuple),
)
ids = st.none() | st.builds(RequestId, names, st.integers(0, 2**64 - 1))
requests = st.builds(Request, st.lists(operations, max_size=4).map(tuple), ids)
results = st.builds(Result, st.none() | st.floats(allow_nan=False), st.lists(arrays, max_size=3).map(tuple))
replies = st.builds(Reply, st.lists(results, max_size=4).map(tuple), st.booleans())
chunks = st.integers(1, 300)


def plain(message):
    """What a request or a reply says, as something that ``==`` compares."""
    if isinstance(message, Request):
        parts = [(op.name, op.matrix, op.partition, op.rows, dict(op.params), op.arrays) for op in message.operations]
        rest = message.id
    else:
        parts = [(result.scalar, result.arrays) for result in message.results]
        rest = message.replayed
    return [(*part[:-1], [(a.dtype.str, a.shape, a.tobytes()) for a in part[-1]]) for part in parts], rest


def asking_for(reply):
    """A request to which the reply is one."""
    return Request(tuple(Operation("any", 1, 0) for _ in reply.results))


def decode_request(frames):
    return codec.decode_request(frames, lambda size: None)


def sample_request():
    values = np.arange(10, dtype=np.float32)
    return Request(
        (
            Operation("push", 7, 3, (2,), {"start": 5, "alpha": 0.5}, (values, np.arange(3))),
            Operation("zero", 7, 3, (0,)),
        ),
        RequestId("session/x", 12, settled=7),
    )


def sample_reply():
    return Reply((Result(1.5), Result(arrays=(np.arange(6, dtype=np.float64),))), replayed=True)


def header_bytes(*specs):
    """A request of one operation that declares arrays (dtype, count)."""
    operation = pb.Operation(name="push", arrays=[pb.ArraySpec(dtype=dtype, count=count) for dtype, count in specs])
    return pb.RequestHeader(operations=[operation])


# -- byte compatibility ----------------------------------------------------------------------------------------------


@given(requests, chunks)
def test_request_when_written_by_us_then_the_generated_class_reads_header_and_data(request_, chunk):
    frames = [pb.RequestFrame.FromString(frame) for frame in codec.encode_request(request_, chunk)]
    data = b"".join(array.tobytes() for op in request_.operations for array in op.arrays)
    header = frames[0].header
    assert b"".join(frame.data for frame in frames) == data
    assert not any(frame.HasField("header") for frame in frames[1:])
    assert [(op.name, op.matrix, op.partition, tuple(op.rows)) for op in header.operations] == [
        (op.name, op.matrix, op.partition, op.rows) for op in request_.operations
    ]
    assert [spec.count for op in header.operations for spec in op.arrays] == [
        array.size for op in request_.operations for array in op.arrays
    ]
    assert header.HasField("id") == (request_.id is not None)


@given(replies, chunks)
def test_reply_when_written_by_us_then_the_generated_class_reads_header_and_data(reply, chunk):
    frames = [pb.ReplyFrame.FromString(frame) for frame in codec.encode_reply(reply, chunk)]
    assert b"".join(frame.data for frame in frames) == b"".join(a.tobytes() for r in reply.results for a in r.arrays)
    header = frames[0].header
    assert [r.scalar if r.HasField("scalar") else None for r in header.results] == [r.scalar for r in reply.results]
    assert header.replayed == reply.replayed


@given(requests, chunks)
def test_request_when_written_by_the_generated_class_then_we_read_it(request_, chunk):
    ours = [pb.RequestFrame.FromString(frame) for frame in codec.encode_request(request_, chunk)]
    theirs = [frame.SerializeToString() for frame in ours]
    assert plain(decode_request(theirs)) == plain(request_)


@given(replies, chunks)
def test_reply_when_written_by_the_generated_class_then_we_read_it(reply, chunk):
    ours = [pb.ReplyFrame.FromString(frame) for frame in codec.encode_reply(reply, chunk)]
    theirs = [frame.SerializeToString() for frame in ours]
    assert plain(codec.decode_reply(theirs, asking_for(reply))) == plain(reply)


def test_frame_when_its_data_come_before_its_header_then_it_is_read():
    """Protobuf lets a writer choose the order of the fields."""
    (frame,) = codec.encode_request(sample_request(), 1 << 20)
    message = pb.RequestFrame.FromString(frame)
    swapped = (
        pb.RequestFrame(data=message.data).SerializeToString()
        + pb.RequestFrame(header=message.header).SerializeToString()
    )
    assert plain(decode_request([swapped])) == plain(sample_request())


@pytest.mark.parametrize("front", [True, False])
def test_frame_when_it_has_unknown_fields_then_they_are_skipped(front):
    """A later version of the contract may add fields of any wire type."""
    (frame,) = codec.encode_request(sample_request(), 1 << 20)
    assert plain(decode_request([UNKNOWN_FIELDS + frame if front else frame + UNKNOWN_FIELDS])) == plain(
        sample_request()
    )


@pytest.mark.parametrize("frame", [b"", pb.RequestFrame(header=pb.RequestHeader()).SerializeToString()])
def test_request_when_its_header_is_empty_then_it_has_no_operations(frame):
    assert decode_request([frame]) == Request(())


def test_frames_when_chunked_then_none_has_more_data_than_a_chunk():
    frames = list(codec.encode_request(sample_request(), 7))
    assert max(len(codec.split_frame(frame)[1]) for frame in frames) == 7


# -- round trips -----------------------------------------------------------------------------------------------------


@given(requests, chunks)
def test_request_when_sent_then_it_comes_back_equal(request_, chunk):
    assert plain(decode_request(codec.encode_request(request_, chunk))) == plain(request_)


@given(replies, chunks)
def test_reply_when_sent_then_it_comes_back_equal(reply, chunk):
    assert plain(codec.decode_reply(codec.encode_reply(reply, chunk), asking_for(reply))) == plain(reply)


def test_array_when_strided_then_its_elements_travel():
    values = np.arange(12.0).reshape(3, 4)[:, 1]
    frames = codec.encode_request(Request((Operation("push", 1, 0, arrays=(values,)),)), 5)
    assert decode_request(frames).operations[0].arrays[0].tolist() == values.tolist()


@given(st.integers(0, 50), chunks)
def test_reply_when_into_is_given_then_it_is_filled_in_place(size, chunk):
    out = np.full(size + 2, -1.0)
    reply = Reply((Result(arrays=(np.arange(float(size)), np.arange(3))),))
    request_ = Request((Operation("pull", 1, 0, into=out[1:-1]),))
    answer = codec.decode_reply(codec.encode_reply(reply, chunk), request_)
    assert out.tolist() == [-1.0, *range(size), -1.0]
    assert np.shares_memory(answer.results[0].arrays[0], out) == (size > 0)
    assert answer.results[0].arrays[1].tolist() == [0, 1, 2]


# -- what does not follow the contract -------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [9, 1 << 20])
def test_request_when_cut_off_anywhere_then_protocol_error(chunk):
    frames = list(codec.encode_request(sample_request(), chunk))
    for at, frame in enumerate(frames):
        for end in range(len(frame)):
            with pytest.raises(ProtocolError):
                decode_request([*frames[:at], frame[:end]] if at or end else [])


@pytest.mark.parametrize("chunk", [9, 1 << 20])
def test_reply_when_cut_off_anywhere_then_protocol_error(chunk):
    request_ = asking_for(sample_reply())
    frames = list(codec.encode_reply(sample_reply(), chunk))
    for at, frame in enumerate(frames):
        for end in range(len(frame)):
            with pytest.raises(ProtocolError):
                codec.decode_reply([*frames[:at], frame[:end]], request_)


def test_request_when_a_frame_is_missing_then_protocol_error_says_how_much():
    *frames, _ = codec.encode_request(sample_request(), 32)
    with pytest.raises(ProtocolError, match="32 bytes before"):
        decode_request(frames)


def test_request_when_data_are_left_over_then_protocol_error_says_how_much():
    frames = [*codec.encode_request(sample_request(), 32), pb.RequestFrame(data=b"abc").SerializeToString()]
    with pytest.raises(ProtocolError, match="3 bytes of data after"):
        decode_request(frames)


@pytest.mark.parametrize("count", [2**63, 2**64 - 1, 2**62, 2**55])
def test_request_when_it_declares_an_impossible_count_then_protocol_error(count):
    """Even where the memory account lets it pass."""
    frame = pb.RequestFrame(header=header_bytes((pb.FLOAT64, count))).SerializeToString()
    with pytest.raises(ProtocolError):
        decode_request([frame])


@pytest.mark.parametrize("count", [2**63, 2**55])
def test_reply_when_it_declares_an_impossible_count_then_protocol_error(count):
    header = pb.ReplyHeader(results=[pb.Result(arrays=[pb.ArraySpec(dtype=pb.FLOAT64, count=count)])])
    frame = pb.ReplyFrame(header=header).SerializeToString()
    with pytest.raises(ProtocolError):
        codec.decode_reply([frame], Request((Operation("pull", 1, 0),)))


@pytest.mark.parametrize("dtype", [0, 9])
def test_request_when_a_dtype_is_unknown_then_protocol_error(dtype):
    frame = pb.RequestFrame(header=header_bytes((dtype, 1)), data=b"12345678").SerializeToString()
    with pytest.raises(ProtocolError, match=f"unknown dtype {dtype}"):
        decode_request([frame])


def test_request_when_a_parameter_has_no_value_then_protocol_error_names_it():
    header = pb.RequestHeader(operations=[pb.Operation(name="axpy", params=[pb.Param(name="alpha")])])
    with pytest.raises(ProtocolError, match="'alpha'"):
        decode_request([pb.RequestFrame(header=header).SerializeToString()])


def test_request_when_there_is_no_frame_then_protocol_error():
    with pytest.raises(ProtocolError, match="without any frame"):
        decode_request([])


def test_request_when_a_field_has_an_obsolete_wire_type_then_protocol_error():
    with pytest.raises(ProtocolError, match="wire type 3"):
        decode_request([b"\x1b\x1c"])


@pytest.mark.parametrize("results", [0, 1, 3])
def test_reply_when_it_has_another_number_of_results_then_protocol_error(results):
    frames = codec.encode_reply(Reply((Result(),) * results), 100)
    with pytest.raises(ProtocolError, match=f"2 operations has {results} results"):
        codec.decode_reply(frames, Request((Operation("zero", 1, 0),) * 2))


@pytest.mark.parametrize("arrays", [(), (np.arange(3.0),), (np.arange(4, dtype=np.float32),)])
def test_reply_when_its_array_does_not_fit_into_then_protocol_error(arrays):
    """Missing, too short, of another dtype: what the caller's array held before must never pass for an answer."""
    request_ = Request((Operation("pull", 1, 0, into=np.empty(4)),))
    with pytest.raises(ProtocolError):
        codec.decode_reply(codec.encode_reply(Reply((Result(arrays=arrays),)), 100), request_)


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=60), max_size=3))
def test_frames_when_they_are_garbage_then_only_protocol_error(frames):
    with contextlib.suppress(ProtocolError):
        decode_request(frames)
    with contextlib.suppress(ProtocolError):
        codec.decode_reply(frames, Request((Operation("pull", 1, 0, into=np.empty(4)),)))


@settings(max_examples=300)
@given(st.data())
def test_request_when_bytes_are_changed_then_only_protocol_error(data):
    """Garbage that looks almost right."""
    (frame,) = codec.encode_request(sample_request(), 1 << 20)
    changed = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        decode_request([bytes(changed)])


# -- memory is counted before it is taken ----------------------------------------------------------------------------


def test_reserve_when_a_request_comes_then_it_is_told_the_declared_bytes_once():
    told = []
    codec.decode_request(codec.encode_request(sample_request(), 16), told.append)
    assert told == [10 * 4 + 3 * 8]


def test_reserve_when_it_refuses_then_nothing_is_allocated(monkeypatch):
    def refuse(size):
        raise LimitError(f"{size} bytes do not fit")

    def no_allocation(*args):
        raise AssertionError("allocated before it was counted")

    frames = list(codec.encode_request(sample_request(), 16))
    monkeypatch.setattr(codec.np, "empty", no_allocation)
    with pytest.raises(LimitError):
        codec.decode_request(frames, refuse)


def test_reserve_when_it_refuses_then_no_further_frame_is_read():
    frames = iter(list(codec.encode_request(sample_request(), 16)))
    with pytest.raises(LimitError):
        codec.decode_request(frames, _refuse)
    assert len(list(frames)) == 3


def _refuse(size):
    raise LimitError(f"{size} bytes do not fit")


def test_request_id_when_round_tripped_then_what_is_settled_arrives():
    decoded = decode_request(codec.encode_request(sample_request(), 64))
    assert decoded.id is not None
    assert decoded.id.settled == 7
