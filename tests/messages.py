"""Requests and replies as bytes: of data connections, and as the generated classes write and read them."""

from __future__ import annotations

import struct

import numpy as np

from ps2.errors import PS2Error
from ps2.ops.packing import pack_keys
from ps2.protocol.arrays import WIRE_NUMBERS, declared_spec, decode_array, split_arrays, to_send
from ps2.protocol.binary import (
    ARRAY,
    ERROR_KIND,
    FORWARDED,
    HAS_DIGEST,
    HAS_ID,
    HAS_KEYS,
    OPERATION,
    REPLAYED,
    REPLY,
    REPLY_KIND,
    REQUEST,
    REQUEST_KIND,
    call_signature,
    error_parts,
    reply_parts,
    request_parts,
)
from ps2.protocol.framing import read, read_reply, read_request, reply_views
from ps2.protocol.messages import Reply, Result, byte_view
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc.convert import id_to_pb
from ps2.rpc.execute import spec_to_pb

LIMIT_BYTES = 1 << 30


def sent(parts):
    """Return the bytes of a message."""
    return b"".join(bytes(view) for views in reply_views(parts) for view in views)


def request_bytes(request):
    return sent(request_parts(request))


def reply_bytes(reply, request):
    return sent(error_parts(reply) if isinstance(reply, PS2Error) else reply_parts(reply, request))


def request_of(data, limit_bytes=LIMIT_BYTES, reserve=lambda draft: None):
    """Read a request, or raise the error that it comes to."""
    return _or_raised(read(read_request(limit_bytes, reserve), [memoryview(data)]))


def reply_of(data, request):
    """Read the reply to a request, or raise the error that it brings."""
    return _or_raised(read(read_reply(request), [memoryview(data)]))


def _or_raised(message):
    if isinstance(message, PS2Error):
        raise message
    return message


def header_of(encoded):
    """Return the header of a reply, or of what answers a greeting, as the contract has it, without results."""
    if encoded[:1] not in (bytes([REPLY_KIND]), bytes([ERROR_KIND])):
        return pb.ReplyHeader.FromString(encoded)
    kind, flags, *_ = REPLY.unpack_from(encoded)
    error = pb.ErrorDetail.FromString(encoded[REPLY.size :]) if kind == ERROR_KIND else None
    return pb.ReplyHeader(replayed=bool(flags & REPLAYED), error=error)


def header_bytes(header):
    """Return a RequestHeader of the contract in the binary form: whatever it says, be it nonsense."""
    head = REQUEST.pack(
        *(REQUEST_KIND, HAS_ID * header.HasField("id") | FORWARDED * header.forwarded),
        *(len(header.id.scope.encode()), len(header.id.series.encode()), len(header.operations), header.begun),
        *(header.id.part, header.id.parts, header.route_version),
        *(header.id.number, header.id.settled, header.id.stage),
    )
    names = [call_signature(operation.name, _params(operation)) for operation in header.operations]
    records = [_record(operation, name) for operation, name in zip(header.operations, names, strict=True)]
    tails = [_tail(operation, name) for operation, name in zip(header.operations, names, strict=True)]
    scopes = (header.id.scope.encode(), header.id.series.encode())
    return b"".join((head, *records, *tails, *(name.encoded for name in names), *scopes))


def _params(operation):
    return {param.name: param.real if param.HasField("real") else param.whole for param in operation.params}


def _record(operation, signature):
    keys = operation.keys
    flags = HAS_KEYS * operation.HasField("keys") | HAS_DIGEST * bool(keys.hash)
    return OPERATION.pack(
        *(0, operation.partition, operation.matrix, len(operation.rows), len(operation.others)),
        *(len(operation.arrays), len(signature.encoded), len(signature.scalars), operation.reply_dtype),
        *(keys.deltas.dtype, flags, keys.deltas.stored, keys.count, keys.first, keys.hash),
    )


def _tail(operation, signature):
    rows = struct.pack(f"<{len(operation.rows)}I{len(operation.rows) % 2 * 4}x", *operation.rows)
    others = struct.pack(f"<{len(operation.others)}Q", *operation.others)
    scalars = signature.values.pack(*_params(operation).values())
    specs = [ARRAY.pack(spec.dtype, spec.stored, 0, spec.count) for spec in operation.arrays]
    return b"".join((rows, others, scalars, *specs))


# -- by the generated classes ------------------------------------------------------------------------------------------


def request_frame(request):
    """Return a request as a client in another language sends it to ``Execute``."""
    header = pb.RequestHeader(
        route_version=request.route_version,
        forwarded=request.forwarded,
        begun=request.begun,
        id=None if request.id is None else id_to_pb(request.id),
    )
    arrays = [array for operation in request.operations for array in _add(header.operations.add(), operation)]
    return pb.RequestFrame(header=header, data=_data(arrays)).SerializeToString()


def reply_from(frame, request):
    """Read what ``Execute`` answers."""
    message = pb.ReplyFrame.FromString(frame)
    specs = [[_spec(spec) for spec in result.arrays] for result in message.header.results]
    left = iter(split_arrays([spec for mine in specs for spec in mine], memoryview(message.data)))
    results = []
    for result, mine, operation in zip(message.header.results, specs, request.operations, strict=True):
        arrays = [decode_array(next(left), spec) for spec in mine]
        if operation.into is not None:
            operation.into[...] = arrays[0].reshape(operation.into.shape)
            arrays[0] = operation.into
        results.append(Result(result.scalar if result.HasField("scalar") else None, tuple(arrays)))
    return Reply(tuple(results), message.header.replayed)


def _add(message, operation):
    """Fill in an operation; return its arrays as they travel."""
    message.MergeFrom(
        pb.Operation(
            name=operation.name,
            matrix=operation.matrix,
            partition=operation.partition,
            rows=operation.rows,
            others=operation.others,
            reply_dtype=WIRE_NUMBERS[operation.wire],
        )
    )
    for name, value in operation.params.items():
        is_real = isinstance(value, float)
        message.params.add(name=name, **({"real": value} if is_real else {"whole": value}))
    arrays = []
    if (keys := operation.keys) is not None:
        message.keys.count, message.keys.hash = keys.count, keys.digest or b""
        if keys.columns is not None:
            message.keys.first, steps = pack_keys(keys.columns)
            array, spec = to_send(steps, None)
            message.keys.deltas.CopyFrom(spec_to_pb(spec))
            arrays.append(array)
    for array in operation.arrays:
        array, spec = to_send(np.asarray(array), operation.wire)
        message.arrays.append(spec_to_pb(spec))
        arrays.append(array)
    return arrays


def _spec(message):
    return declared_spec(message.dtype, message.stored, message.count, tuple(message.shape))


def _data(arrays):
    return b"".join(bytes(byte_view(array)) for array in arrays)
