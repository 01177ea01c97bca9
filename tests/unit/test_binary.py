"""Requests and replies in the binary form carry anything; `Execute` brings the same requests to the same engine."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.errors import LimitError, OutOfRangeError, ProtocolError
from ps2.protocol import binary
from ps2.protocol.arrays import DTYPE_NUMBERS
from ps2.protocol.framing import HEAD, read_reply
from ps2.protocol.framing import read as read_parts
from ps2.protocol.messages import Keys, Operation, Reply, Request, RequestId, Result, StreamedArray, key_digest
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc import execute
from tests.messages import (
    header_bytes,
    reply_bytes,
    reply_from,
    reply_of,
    request_bytes,
    request_frame,
    request_of,
)
from tests.messages import sent as sent_bytes

LIMIT = 1 << 20
DTYPES = ("float32", "float64", "int32", "int64", "uint8")
WIRES = (None, "float16", "bfloat16")
# An operation's name and those of its scalars have no 0 in them.
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
scalars = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))
# Small whole numbers: 16 bits hold them exactly, so that what was narrowed comes back equal.
arrays = st.builds(
    lambda dtype, size, seed: np.random.default_rng(seed).integers(0, 200, size).astype(dtype),
    st.sampled_from(DTYPES),
    st.integers(0, 40),
    st.integers(0, 99),
)
columns = st.sets(st.integers(0, 2**63 - 1), min_size=1, max_size=9).map(lambda s: np.array(sorted(s), np.int64))
digests = st.binary(min_size=16, max_size=16)
keys = st.one_of(
    st.builds(lambda c, digest: Keys(c.size, c, digest), columns, st.none() | digests),
    st.builds(lambda count, digest: Keys(count, None, digest), st.integers(1, 2**64 - 1), st.none() | digests),
)
operations = st.builds(
    Operation,
    name=names,
    matrix=st.integers(0, 2**64 - 1),
    partition=st.integers(0, 2**32 - 1),
    rows=st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple),
    others=st.lists(st.integers(0, 2**64 - 1), max_size=2).map(tuple),
    params=st.dictionaries(names, scalars, max_size=3),
    arrays=st.lists(arrays, max_size=3).map(tuple),
    keys=st.none() | keys,
    wire=st.sampled_from(WIRES),
)
uint64s, uint32s = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
ids = st.none() | st.builds(RequestId, names, uint64s, uint64s, uint32s, st.integers(1, 2**32 - 1), names, uint64s)
requests = st.builds(
    Request, st.lists(operations, max_size=4).map(tuple), ids, uint64s, st.booleans(), st.integers(0, 2**32 - 1)
)
results = st.builds(Result, st.none() | st.floats(allow_nan=False), st.lists(arrays, max_size=3).map(tuple))
replies = st.builds(Reply, st.lists(results, max_size=4).map(tuple), st.booleans())


def plain(message):
    """What a request or a reply says, as something that ``==`` compares."""
    if isinstance(message, Reply):
        return [(result.scalar, numbers(result.arrays)) for result in message.results], message.replayed
    id = message.id
    return [
        (op.name, op.matrix, op.partition, op.rows, op.others, dict(op.params), op.wire, key_set(op.keys), sent(op))
        for op in message.operations
    ], (id and (id, id.settled, id.series, id.stage, id.parts), message.route_version, message.forwarded, message.begun)


def numbers(arrays):
    return [(array.dtype.str, array.tolist()) for array in arrays]


def sent(operation):
    """What it brings; floats that are made shorter for the way come as float32."""
    short = operation.wire is not None
    return numbers(a.astype("<f4") if short and a.dtype.kind == "f" else a for a in operation.arrays)


def key_set(keys):
    return keys and (keys.count, keys.digest, keys.columns if keys.columns is None else keys.columns.tolist())


def asking_for(reply):
    """A request to which the reply is one."""
    return Request(tuple(Operation("any", 1, 0) for _ in reply.results))


def written(request):
    return request_bytes(request)


def written_reply(reply, request=None):
    return reply_bytes(reply, request or asking_for(reply))


def read(data):
    return request_of(data, LIMIT)


def executed(frame):
    """The request that a message to `Execute` comes to."""
    return execute.request_from(frame, LIMIT, lambda draft: None)


def with_keys(columns, digest=None):
    columns = np.asarray(columns, np.int64)
    return Request((Operation("gather", 7, 3, (2,), keys=Keys(columns.size, columns, digest)),))


def sample_request():
    first = Operation(
        "scatter_add",
        7,
        3,
        (2,),
        {"start": 5, "alpha": 0.5},
        (np.arange(10, dtype=np.float32), np.arange(3)),
        Keys(3, np.array([4, 9, 300]), bytes(range(16))),
    )
    again = Operation("gather", 7, 3, (0,), keys=Keys(3))
    short = Operation("push", 7, 3, (0,), arrays=(np.arange(4.0),), wire="bfloat16")
    return Request((first, again, short), RequestId("session/x", 12, 7, 1, 2))


def sample_reply():
    return Reply((Result(1.5), Result(arrays=(np.arange(6, dtype=np.float64),))), replayed=True)


@given(
    st.sampled_from(["int32", "int64"]),
    st.integers(0, 63),
    st.integers(0, 99),
    st.sampled_from([None, (2000,), (40, 50)]),
)
def test_integers_when_of_any_size_then_come_back_as_they_were(dtype, bits, seed, into):
    """Narrow ones take fewer bytes; they land in the caller's array, whatever its shape."""
    end = min(2**bits, np.iinfo(dtype).max)
    array = np.random.default_rng(seed).integers(-end, end, 2000, dtype, endpoint=True)
    reply = Reply((Result(arrays=(array,)),))
    request = Request((Operation("pull", 1, 0, into=None if into is None else np.empty(into, dtype)),))
    frame = written_reply(reply, request)
    (came,) = reply_of(frame, request).results[0].arrays
    assert (came.dtype, came.tobytes()) == (dtype, array.tobytes())
    assert (came is request.operations[0].into) == (into is not None)
    asked = Request((Operation("push", 1, 0, arrays=(array,)),))
    assert plain(read(written(asked))) == plain(asked)
    assert len(frame) < 2000 * 4 or abs(array).max() >= 2**15


def frame_of(*specs, data=b"", keys=None, **fields):
    """A request of one operation that declares arrays (dtype, count)."""
    declared = [pb.ArraySpec(dtype=dtype, count=count) for dtype, count in specs]
    operation = pb.Operation(name="push", arrays=declared, keys=keys, **fields)
    return pb.RequestFrame(header=pb.RequestHeader(operations=[operation]), data=data).SerializeToString()


def in_binary(frame):
    """What a frame of the contract's says, in the binary form."""
    message = pb.RequestFrame.FromString(frame)
    header = header_bytes(message.header)
    return HEAD.pack(len(header), len(message.data)) + header + message.data


# -- what is written is read -----------------------------------------------------------------------------------------


@given(requests)
def test_request_when_written_then_it_is_read(request_):
    assert plain(read(written(request_))) == plain(request_)


@given(replies)
def test_reply_when_written_then_it_is_read(reply):
    assert plain(reply_of(written_reply(reply), asking_for(reply))) == plain(reply)


@given(requests)
def test_request_when_written_by_protobuf_then_execute_reads_it(request_):
    assert plain(executed(request_frame(request_))) == plain(request_)


@given(replies)
def test_reply_when_written_by_execute_then_protobuf_reads_same(reply):
    request_ = asking_for(reply)
    assert plain(reply_from(execute.reply_to(reply, request_), request_)) == plain(reply)


def test_reply_when_array_is_made_while_sent_then_is_read_whole():
    pieces = [np.arange(2.0), np.arange(3.0)]
    coming = StreamedArray(np.dtype("<f8"), (5,), lambda: iter(pieces))
    reply = Reply((Result(streamed=coming),))
    for came in (
        reply_of(written_reply(reply), asking_for(reply)),
        reply_from(execute.reply_to(reply, asking_for(reply)), asking_for(reply)),
    ):
        assert came.results[0].arrays[0].tolist() == [0, 1, 0, 1, 2]


def test_request_id_when_its_parts_are_not_said_then_it_is_one():
    header = pb.RequestHeader(id=pb.RequestId(scope="theirs", number=4))
    assert executed(pb.RequestFrame(header=header).SerializeToString()).id == RequestId("theirs", 4)


def test_array_when_strided_then_its_elements_travel():
    values = np.arange(12.0).reshape(3, 4)[:, 1]
    request_ = Request((Operation("push", 1, 0, arrays=(values,)),))
    assert read(written(request_)).operations[0].arrays[0].tolist() == values.tolist()


@given(requests)
def test_header_when_written_then_numbers_are_aligned(request_):
    """A compiled loop reads them in place."""
    header, _ = binary.request_parts(request_)
    names = sum(binary.OPERATION.unpack_from(header, at)[6] for at in records_of(header))
    id = request_.id
    names += 0 if id is None else len(id.scope.encode()) + len(id.series.encode())
    assert (len(header) - names) % 8 == 0


def records_of(header):
    (count,) = struct.unpack_from("<I", header, 8)
    return range(binary.REQUEST.size, binary.REQUEST.size + count * binary.OPERATION.size, binary.OPERATION.size)


def test_scalar_when_not_int64_then_out_of_range_error_names_it():
    with pytest.raises(OutOfRangeError, match=r"'fill'.*9223372036854775808"):
        written(Request((Operation("fill", 1, 0, (0,), {"value": 2**63}),)))


@pytest.mark.parametrize(("name", "params"), [("a\0db", {}), ("a", {"b\0dc": 1.0})])
def test_name_when_it_has_what_parts_names_then_protocol_error(name, params):
    with pytest.raises(ProtocolError, match="without NUL characters"):
        written(Request((Operation(name, 1, 0, (0,), params),)))


# -- shapes and handles ----------------------------------------------------------------------------------------------

PULL = Operation("pull", 7, 1, (0,), {"start": 0, "stop": 3})


def test_shape_when_only_values_differ_then_is_the_same():
    one = Request((PULL,), route_version=2)
    other = Request((replace(PULL, params={"start": 1, "stop": 2}),), route_version=3)
    assert binary.request_shape(one) == binary.request_shape(other)


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "gather"},
        {"matrix": 8},
        {"partition": 0},
        {"rows": (1,)},
        {"params": {"start": 0}},
        {"params": {"start": 0.0, "stop": 3}},
    ],
)
def test_shape_when_anything_else_differs_then_it_is_another(changed):
    assert binary.request_shape(Request((PULL,))) != binary.request_shape(Request((replace(PULL, **changed),)))


@pytest.mark.parametrize(
    "request_",
    [
        Request(()),
        Request((PULL, PULL)),
        Request((PULL,), forwarded=True),
        Request((replace(PULL, rows=(0, 1)),)),
        Request((replace(PULL, others=(3,)),)),
    ],
)
def test_request_when_about_more_than_one_row_then_has_no_shape(request_):
    assert binary.request_shape(request_) is None


def test_handle_when_server_gave_one_then_same_shape_sends_it():
    handles = {}
    reply = sent_bytes(binary.reply_parts(Reply((Result(),)), Request((PULL,)), 77))
    read_parts(read_reply(Request((PULL,)), handles), [memoryview(reply)])
    assert list(handles.values()) == [77]
    for request_, handle in ((Request((PULL,)), 77), (Request((replace(PULL, rows=(1,)),)), 0)):
        header, _ = binary.request_parts(request_, handles)
        assert struct.unpack_from("<I", header, binary.REQUEST.size) == (handle,)


# -- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "dtype"), [(255, pb.UINT8), (256, pb.UINT16), (2**16, pb.UINT32), (2**32, pb.UINT64)])
def test_keys_when_written_then_steps_use_narrowest_dtype(step, dtype):
    header, (steps,) = binary.request_parts(with_keys([5, 5 + step]))
    assert (header[binary.STEPS_OFFSET], steps.tolist()) == (dtype, [step])


def test_keys_when_there_is_one_at_the_far_end_then_it_arrives():
    assert read(written(with_keys([2**63 - 1]))).operations[0].keys.columns.tolist() == [2**63 - 1]


def test_keys_when_only_their_hash_travels_then_no_array_does():
    digest = key_digest(np.array([1, 2]))
    header, arrays = binary.request_parts(Request((Operation("gather", 7, 3, keys=Keys(2, None, digest)),)))
    assert (arrays, header[binary.DIGEST_OFFSET :][:16]) == ([], digest)


def test_keys_when_many_do_not_ascend_then_keep_their_order():
    columns = np.random.default_rng(0).integers(0, 100_000, 5000)
    operation = Operation("columns_pull", 1, 0, keys=Keys(columns.size, columns))
    came = read(written(Request((operation,))))
    assert np.array_equal(came.operations[0].keys.columns, columns)


def keys_frame(data=b"", count=1, first=0, deltas=None, hash=b""):
    spec = deltas and pb.ArraySpec(dtype=deltas[0], count=deltas[1])
    return frame_of(keys=pb.Keys(count=count, first=first, deltas=spec, hash=hash), data=data)


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (keys_frame(count=0), "an empty set of keys"),
        (keys_frame(count=0, deltas=(pb.UINT8, 2**64 - 1)), "an empty set of keys"),
        (keys_frame(b"1", 3, deltas=(pb.UINT8, 1)), "3 keys have 2 differences, got 1"),
        (keys_frame(b"111", 3, deltas=(pb.UINT8, 3)), "3 keys have 2 differences, got 3"),
        (keys_frame(b"\xff" * 8, 2, deltas=(pb.INT64, 1)), "key -1 is outside"),
        (keys_frame(bytes(4), 2, deltas=(pb.FLOAT32, 1)), "integers for the differences of keys, got float32"),
        (keys_frame(bytes(2), 2, deltas=(pb.BFLOAT16, 1)), "integers for the differences of keys"),
        (keys_frame(b"\x01\x00", 3, deltas=(pb.UINT8, 2)), "the delta at position 1 is 0"),
        (keys_frame(b"\x02", 2, 2**63 - 2, (pb.UINT8, 1)), "expected a delta from 1 to 1"),
        (keys_frame(b"\xff" * 8, 2, 1, (pb.UINT64, 1)), "the delta at position 0"),
        (keys_frame(first=-1, deltas=(pb.UINT8, 0)), "the first key is -1"),
        (keys_frame(hash=b"short"), "expected a digest of 16 bytes, got 5"),
        (keys_frame(hash=bytes(17)), "expected a digest of 16 bytes, got 17"),
    ],
)
def test_keys_when_malformed_then_protocol_error_says_how(frame, said):
    with pytest.raises(ProtocolError, match=said):
        executed(frame)
    # In the binary form a hash has 16 bytes, and there are as many differences as it takes.
    if "a digest of" not in said and "3 keys have 2" not in said:
        with pytest.raises(ProtocolError, match=said):
            read(in_binary(frame))


# -- floats of 16 bits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wire", "dtype"), [("float16", pb.FLOAT16), ("bfloat16", pb.BFLOAT16)])
def test_floats_when_narrowed_then_only_they_take_two_bytes(wire, dtype):
    push = Operation("push", 1, 0, arrays=(np.ones(5), np.arange(3)), wire=wire)
    header, arrays = binary.request_parts(Request((push,)))
    draft = binary.open_request(header, LIMIT)
    assert (draft.operations[0].operation.wire, draft.nbytes) == (wire, 5 * 2 + 3 * 8)
    assert [DTYPE_NUMBERS[array.dtype] for array in arrays] == [dtype, pb.INT64]


def test_float_when_it_exceeds_float16_then_out_of_range_error():
    with pytest.raises(OutOfRangeError, match=r"1e\+06 \(at position 1\)|1000000\.0 \(at position 1\)"):
        written(Request((Operation("push", 1, 0, arrays=(np.array([1.0, 1e6]),), wire="float16"),)))


@pytest.mark.parametrize("dtype", [pb.FLOAT32, pb.UINT8, 77])
def test_reply_dtype_when_not_16_bits_then_protocol_error(dtype):
    with pytest.raises(ProtocolError, match=f"a reply cannot have dtype {dtype}"):
        executed(frame_of(reply_dtype=dtype))
    with pytest.raises(ProtocolError, match=f"a reply cannot have dtype {dtype}"):
        read(in_binary(frame_of(reply_dtype=dtype)))


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reply_when_narrowed_then_into_gets_it_in_its_own_dtype(wire, dtype):
    out = np.full(6, -1, dtype)
    request_ = Request((Operation("pull", 1, 0, wire=wire, into=out[1:-1]),))
    reply = Reply((Result(arrays=(np.arange(4, dtype=dtype),)),))
    reply_of(written_reply(reply, request_), request_)
    assert out.tolist() == [-1, 0, 1, 2, 3, -1]


# -- into ------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 50))
def test_reply_when_into_is_given_then_it_is_filled_in_place(size):
    out = np.full(size + 2, -1.0)
    reply = Reply((Result(arrays=(np.arange(float(size)), np.arange(3))),))
    request_ = Request((Operation("pull", 1, 0, into=out[1:-1]),))
    answer = reply_of(written_reply(reply), request_)
    assert out.tolist() == [-1.0, *range(size), -1.0]
    assert np.shares_memory(answer.results[0].arrays[0], out) == (size > 0)
    assert answer.results[0].arrays[1].tolist() == [0, 1, 2]


def test_reply_when_into_is_row_window_then_only_that_is_filled():
    out = np.full((3, 4), -1.0)
    request_ = Request((Operation("rows_pull", 1, 0, into=out[1:, 1:3]),))
    reply_of(written_reply(Reply((Result(arrays=(np.arange(4.0),)),))), request_)
    assert out.tolist() == [[-1] * 4, [-1, 0, 1, -1], [-1, 2, 3, -1]]


def test_reply_when_into_is_whole_2d_then_read_without_copy():
    out = np.full((2, 3), -1.0)
    header, _ = binary.reply_parts(Reply((Result(arrays=(np.arange(6.0),)),)), Request((Operation("any", 1, 0),)))
    draft = binary.open_reply(header, Request((Operation("rows_pull", 1, 0, into=out),)), 48)
    assert draft.arrays[0] is out


@pytest.mark.parametrize(
    "arrays", [(), (np.arange(3.0),), (np.arange(4, dtype=np.float32),), (np.arange(4),), (np.arange(5.0),)]
)
def test_reply_when_array_does_not_fit_into_then_protocol_error(arrays):
    """Missing, too short, of another dtype: what the caller's array held before must never pass for an answer."""
    request_ = Request((Operation("pull", 1, 0, into=np.empty(4)),))
    with pytest.raises(ProtocolError):
        reply_of(written_reply(Reply((Result(arrays=arrays),))), request_)


# -- errors that a reply brings --------------------------------------------------------------------------------------


def test_error_when_a_reply_brings_one_then_it_is_raised():
    frame = sent_bytes(binary.error_parts(LimitError("what, expected 3, got 4")))
    with pytest.raises(LimitError, match=r"^what, expected 3, got 4$"):
        reply_of(frame, asking_for(sample_reply()))


@pytest.mark.parametrize("results", [0, 1, 3])
def test_reply_when_result_count_differs_then_protocol_error(results):
    with pytest.raises(ProtocolError, match=f"a reply with 2 results, got {results}"):
        reply_of(written_reply(Reply((Result(),) * results)), Request((Operation("zero", 1, 0),) * 2))
