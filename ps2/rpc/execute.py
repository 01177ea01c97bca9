"""The rpc ``Execute``: protobuf requests of clients in any language, for the same engine."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.message import DecodeError

from ps2.errors import ProtocolError
from ps2.protocol.arrays import DTYPE_NUMBERS, WIRES_BY_NUMBER, Spec, declared_spec, split_arrays, to_send
from ps2.protocol.drafts import KeysDraft, OperationDraft, RequestDraft, check_size, new_draft
from ps2.protocol.messages import Operation, Reply, Request, byte_view
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc.convert import id_from_pb

# Limit of an encoded header. The parsed header takes up to 50 times as much memory.
MAX_HEADER_BYTES = 1 << 20


def request_from(frame: bytes, limit_bytes: int, reserve: Callable[[RequestDraft], None]) -> Request:
    """Read an encoded RequestFrame.

    ``limit_bytes``: maximum size of the request's arrays. ``reserve`` is called before their memory is allocated; its
    errors end the reading.
    """
    try:
        message = pb.UnreadFrame.FromString(frame)
        if len(message.header) > MAX_HEADER_BYTES:
            raise ProtocolError(f"a header takes at most {MAX_HEADER_BYTES:,} bytes, got {len(message.header):,}")
        header = pb.RequestHeader.FromString(message.header)
    except DecodeError as error:
        raise ProtocolError(f"a message RequestFrame cannot be decoded: {error}") from error
    draft = new_draft(
        [_operation(operation) for operation in header.operations],
        id_from_pb(header.id) if header.HasField("id") else None,
        header.route_version,
        header.forwarded,
        header.begun,
        limit_bytes,
    )
    check_size(draft.nbytes, len(message.data))
    reserve(draft)
    return draft.build(split_arrays(draft.specs, memoryview(message.data)))


def reply_to(reply: Reply, request: Request) -> bytes:
    """Return the encoded ReplyFrame of the reply to a request."""
    header = pb.ReplyHeader(replayed=reply.replayed)
    data: list[memoryview] = []
    for result, operation in zip(reply.results, request.operations, strict=True):
        message = header.results.add()
        if result.scalar is not None:
            message.scalar = result.scalar
        arrays = result.arrays if result.streamed is None else (*result.arrays, result.streamed.to_array())
        for array in arrays:
            wire_array, spec = to_send(array, operation.wire)
            message.arrays.append(spec_to_pb(spec))
            data.append(byte_view(wire_array))
    return pb.ReplyFrame(header=header, data=b"".join(data)).SerializeToString()


def spec_to_pb(spec: Spec) -> pb.ArraySpec:
    return pb.ArraySpec(
        dtype=pb.DType.Name(DTYPE_NUMBERS[spec.dtype]),
        count=spec.size,
        stored=pb.DType.Name(spec.stored_number),
        shape=spec.shape if len(spec.shape) > 1 else (),
    )


def _spec(message: pb.ArraySpec) -> Spec:
    return declared_spec(message.dtype, message.stored, message.count, tuple(message.shape))


def _operation(message: pb.Operation) -> OperationDraft:
    if message.reply_dtype not in WIRES_BY_NUMBER:
        raise ProtocolError(f"operation {message.name!r}: a reply cannot have dtype {message.reply_dtype}")
    operation = Operation(
        message.name,
        message.matrix,
        message.partition,
        tuple(message.rows),
        {param.name: _param(param) for param in message.params},
        wire=WIRES_BY_NUMBER[message.reply_dtype],
        others=tuple(message.others),
    )
    keys = None
    if message.HasField("keys"):
        steps = _spec(message.keys.deltas) if message.keys.HasField("deltas") else None
        keys = KeysDraft(message.keys.count, message.keys.first, steps, message.keys.hash or None)
    return OperationDraft(operation, keys, tuple(map(_spec, message.arrays)))


def _param(message: pb.Param) -> int | float:
    if message.WhichOneof("value") is None:
        raise ProtocolError(f"parameter {message.name!r} has no value")
    return message.real if message.HasField("real") else message.whole
