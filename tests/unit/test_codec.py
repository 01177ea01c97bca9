"""Frames are byte-compatible with the contract, carry anything, and nothing malformed gets through."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.errors import LimitError, OutOfRangeError, ProtocolError
from ps2.wire import codec
from ps2.wire.messages import Keys, Operation, Reply, Request, RequestId, Result, key_digest
from ps2.wire.pb import server_pb2 as pb

LIMIT = 1 << 20
DTYPES = ("float32", "float64", "int32", "int64", "uint8")
WIRES = (None, "float16", "bfloat16")
UNKNOWN_FIELDS = (
    b"\xf8\x06\x07" + b"\xfa\x06\x03abc" + b"\xfd\x06\x01\x02\x03\x04" + b"\xf9\x06\x01\x02\x03\x04\x05\x06\x07\x08"
)

names = st.text(st.characters(codec="utf-8"), max_size=12)
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
    params=st.dictionaries(names, scalars, max_size=3),
    arrays=st.lists(arrays, max_size=3).map(tuple),
    keys=st.none() | keys,
    wire=st.sampled_from(WIRES),
)
uint64s, uint32s = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
ids = st.none() | st.builds(RequestId, names, uint64s, uint64s, uint32s, st.integers(1, 2**32 - 1))
requests = st.builds(Request, st.lists(operations, max_size=4).map(tuple), ids)
results = st.builds(Result, st.none() | st.floats(allow_nan=False), st.lists(arrays, max_size=3).map(tuple))
replies = st.builds(Reply, st.lists(results, max_size=4).map(tuple), st.booleans())


def plain(message):
    """What a request or a reply says, as something that ``==`` compares."""
    if isinstance(message, Reply):
        return [(result.scalar, numbers(result.arrays)) for result in message.results], message.replayed
    id = message.id
    return [
        (op.name, op.matrix, op.partition, op.rows, dict(op.params), op.wire, key_set(op.keys), sent(op))
        for op in message.operations
    ], id and (id, id.settled)


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
    return codec.to_frame(codec.request_parts(request))


def written_reply(reply, request=None):
    return codec.to_frame(codec.reply_parts(reply, request or asking_for(reply)))


def read(frame):
    return codec.request_of(frame, LIMIT)


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
    (came,) = codec.reply_of(frame, request).results[0].arrays
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


# -- byte compatibility ----------------------------------------------------------------------------------------------


@given(requests)
def test_request_when_written_by_us_then_the_generated_class_reads_it(request_):
    frame = pb.RequestFrame.FromString(written(request_))
    assert [(op.name, op.matrix, op.partition, tuple(op.rows)) for op in frame.header.operations] == [
        (op.name, op.matrix, op.partition, op.rows) for op in request_.operations
    ]
    assert [op.keys.count if op.HasField("keys") else None for op in frame.header.operations] == [
        op.keys and op.keys.count for op in request_.operations
    ]
    assert frame.header.HasField("id") == (request_.id is not None)
    assert frame.data == b"".join(array.tobytes() for array in codec.request_parts(request_)[1])


@given(replies)
def test_reply_when_written_by_us_then_the_generated_class_reads_it(reply):
    frame = pb.ReplyFrame.FromString(written_reply(reply))
    results = frame.header.results
    assert frame.data == b"".join(a.tobytes() for r in reply.results for a in r.arrays)
    assert [r.scalar if r.HasField("scalar") else None for r in results] == [r.scalar for r in reply.results]
    assert [spec.count for r in results for spec in r.arrays] == [a.size for r in reply.results for a in r.arrays]
    assert frame.header.replayed == reply.replayed


@given(requests)
def test_request_when_written_by_the_generated_class_then_we_read_it(request_):
    theirs = pb.RequestFrame.FromString(written(request_)).SerializeToString()
    assert plain(read(theirs)) == plain(request_)


@given(replies)
def test_reply_when_written_by_the_generated_class_then_we_read_it(reply):
    theirs = pb.ReplyFrame.FromString(written_reply(reply)).SerializeToString()
    assert plain(codec.reply_of(theirs, asking_for(reply))) == plain(reply)


def test_frame_when_its_data_come_before_its_header_then_it_is_read():
    """Protobuf lets a writer choose the order of the fields."""
    message = pb.RequestFrame.FromString(written(sample_request()))
    data, header = pb.RequestFrame(data=message.data), pb.RequestFrame(header=message.header)
    assert plain(read(data.SerializeToString() + header.SerializeToString())) == plain(sample_request())


@pytest.mark.parametrize("front", [True, False])
def test_frame_when_it_has_unknown_fields_then_they_are_skipped(front):
    """A later version of the contract may add fields of any wire type."""
    frame = written(sample_request())
    assert plain(read(UNKNOWN_FIELDS + frame if front else frame + UNKNOWN_FIELDS)) == plain(sample_request())


@pytest.mark.parametrize("frame", [b"", pb.RequestFrame(header=pb.RequestHeader()).SerializeToString()])
def test_request_when_its_header_is_empty_then_it_has_no_operations(frame):
    assert read(frame) == Request(())


def test_request_id_when_its_parts_are_not_said_then_it_is_one():
    header = pb.RequestHeader(id=pb.RequestId(scope="theirs", number=4))
    assert read(pb.RequestFrame(header=header).SerializeToString()).id == RequestId("theirs", 4)


def test_array_when_strided_then_its_elements_travel():
    values = np.arange(12.0).reshape(3, 4)[:, 1]
    request_ = Request((Operation("push", 1, 0, arrays=(values,)),))
    assert read(written(request_)).operations[0].arrays[0].tolist() == values.tolist()


# -- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "dtype"), [(255, pb.UINT8), (256, pb.UINT16), (2**16, pb.UINT32), (2**32, pb.UINT64)])
def test_keys_when_written_then_their_steps_travel_in_the_narrowest_dtype(step, dtype):
    keys = pb.RequestFrame.FromString(written(with_keys([5, 5 + step]))).header.operations[0].keys
    assert (keys.count, keys.first, keys.deltas.dtype, keys.deltas.count) == (2, 5, dtype, 1)


def test_keys_when_there_is_one_at_the_far_end_then_it_arrives():
    assert read(written(with_keys([2**63 - 1]))).operations[0].keys.columns.tolist() == [2**63 - 1]


def test_keys_when_only_their_hash_travels_then_no_array_does():
    digest = key_digest(np.array([1, 2]))
    header, arrays = codec.request_parts(Request((Operation("gather", 7, 3, keys=Keys(2, None, digest)),)))
    assert (arrays, pb.RequestHeader.FromString(header).operations[0].keys.hash) == ([], digest)


def test_keys_when_many_do_not_ascend_then_they_arrive_in_their_order():
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
        (keys_frame(bytes(4), 2, deltas=(pb.FLOAT32, 1)), "differences of keys are integers, got float32"),
        (keys_frame(bytes(2), 2, deltas=(pb.BFLOAT16, 1)), "differences of keys are integers"),
        (keys_frame(b"\x01\x00", 3, deltas=(pb.UINT8, 2)), "the delta at position 1 is 0"),
        (keys_frame(b"\x02", 2, 2**63 - 2, (pb.UINT8, 1)), "expected a delta from 1 to 1"),
        (keys_frame(b"\xff" * 8, 2, 1, (pb.UINT64, 1)), "the delta at position 0"),
        (keys_frame(first=-1, deltas=(pb.UINT8, 0)), "the first key is -1"),
        (keys_frame(hash=b"short"), "a hash of 5 bytes, not 16"),
        (keys_frame(hash=bytes(17)), "a hash of 17 bytes, not 16"),
    ],
)
def test_keys_when_malformed_then_protocol_error_says_how(frame, said):
    with pytest.raises(ProtocolError, match=said):
        read(frame)


# -- floats of 16 bits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wire", "dtype"), [("float16", pb.FLOAT16), ("bfloat16", pb.BFLOAT16)])
def test_floats_when_narrowed_then_they_take_two_bytes_and_other_arrays_what_they_did(wire, dtype):
    push = Operation("push", 1, 0, arrays=(np.ones(5), np.arange(3)), wire=wire)
    frame = pb.RequestFrame.FromString(written(Request((push,))))
    (operation,) = frame.header.operations
    assert [spec.dtype for spec in operation.arrays] == [dtype, pb.INT64]
    assert (operation.reply_dtype, len(frame.data)) == (dtype, 5 * 2 + 3 * 8)


def test_float_when_it_does_not_fit_float16_then_out_of_range_error_names_it():
    with pytest.raises(OutOfRangeError, match=r"1e\+06 \(at position 1\)|1000000\.0 \(at position 1\)"):
        written(Request((Operation("push", 1, 0, arrays=(np.array([1.0, 1e6]),), wire="float16"),)))


@pytest.mark.parametrize("dtype", [pb.FLOAT32, pb.UINT8, 77])
def test_reply_dtype_when_not_one_of_16_bits_then_protocol_error_names_it(dtype):
    with pytest.raises(ProtocolError, match=f"a reply cannot come as dtype {dtype}"):
        read(frame_of(reply_dtype=dtype))


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reply_when_narrowed_then_into_gets_it_in_its_own_dtype(wire, dtype):
    out = np.full(6, -1, dtype)
    request_ = Request((Operation("pull", 1, 0, wire=wire, into=out[1:-1]),))
    reply = Reply((Result(arrays=(np.arange(4, dtype=dtype),)),))
    codec.reply_of(written_reply(reply, request_), request_)
    assert out.tolist() == [-1, 0, 1, 2, 3, -1]


# -- into ------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 50))
def test_reply_when_into_is_given_then_it_is_filled_in_place(size):
    out = np.full(size + 2, -1.0)
    reply = Reply((Result(arrays=(np.arange(float(size)), np.arange(3))),))
    request_ = Request((Operation("pull", 1, 0, into=out[1:-1]),))
    answer = codec.reply_of(written_reply(reply), request_)
    assert out.tolist() == [-1.0, *range(size), -1.0]
    assert np.shares_memory(answer.results[0].arrays[0], out) == (size > 0)
    assert answer.results[0].arrays[1].tolist() == [0, 1, 2]


def test_reply_when_into_is_a_window_of_rows_then_only_that_is_filled():
    out = np.full((3, 4), -1.0)
    request_ = Request((Operation("rows_pull", 1, 0, into=out[1:, 1:3]),))
    codec.reply_of(written_reply(Reply((Result(arrays=(np.arange(4.0),)),))), request_)
    assert out.tolist() == [[-1] * 4, [-1, 0, 1, -1], [-1, 2, 3, -1]]


def test_reply_when_into_is_two_dimensional_and_whole_then_it_is_read_without_a_copy():
    out = np.full((2, 3), -1.0)
    header, _ = codec.reply_parts(Reply((Result(arrays=(np.arange(6.0),)),)), Request((Operation("any", 1, 0),)))
    draft = codec.open_reply(header, Request((Operation("rows_pull", 1, 0, into=out),)), 48)
    assert draft.arrays[0] is out


@pytest.mark.parametrize(
    "arrays", [(), (np.arange(3.0),), (np.arange(4, dtype=np.float32),), (np.arange(4),), (np.arange(5.0),)]
)
def test_reply_when_its_array_does_not_fit_into_then_protocol_error(arrays):
    """Missing, too short, of another dtype: what the caller's array held before must never pass for an answer."""
    request_ = Request((Operation("pull", 1, 0, into=np.empty(4)),))
    with pytest.raises(ProtocolError):
        codec.reply_of(written_reply(Reply((Result(arrays=arrays),))), request_)


# -- errors that a reply brings --------------------------------------------------------------------------------------


def test_error_when_a_reply_brings_one_then_it_is_raised():
    frame = codec.to_frame(codec.error_parts(LimitError("what, expected 3, got 4")))
    with pytest.raises(LimitError, match=r"^what, expected 3, got 4$"):
        codec.reply_of(frame, asking_for(sample_reply()))


@pytest.mark.parametrize("results", [0, 1, 3])
def test_reply_when_it_has_another_number_of_results_then_protocol_error(results):
    with pytest.raises(ProtocolError, match=f"2 operations has {results} results"):
        codec.reply_of(written_reply(Reply((Result(),) * results)), Request((Operation("zero", 1, 0),) * 2))
