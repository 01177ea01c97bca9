"""Frames of the data plane, byte-compatible with ``RequestFrame`` and ``ReplyFrame`` of the contract.

Protobuf would copy the bulk bytes on both sides. Only the small header message goes through it; the data field is
written as tag, length and the arrays' own memory, and read as a slice of the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ps2.errors import ProtocolError
from ps2.wire.messages import Array, Operation, Reply, Request, RequestId, Result, nbytes
from ps2.wire.pb import server_pb2 as pb

HEADER_TAG = 0x0A  # field 1, length-delimited
DATA_TAG = 0x12  # field 2, length-delimited
MAX_OPERATIONS = 1 << 20

DTYPE_TO_PB: dict[np.dtype[np.generic], pb.DType] = {
    np.dtype("<f4"): pb.FLOAT32,
    np.dtype("<f8"): pb.FLOAT64,
    np.dtype("<i8"): pb.INT64,
    np.dtype("u1"): pb.UINT8,
}
PB_TO_DTYPE = {number: dtype for dtype, number in DTYPE_TO_PB.items()}


def encode_request(request: Request, chunk_bytes: int) -> Iterator[bytes]:
    """Yield the frames of a request; the data of each is at most ``chunk_bytes`` long."""
    header = pb.RequestHeader()
    if request.id is not None:
        header.id.scope = request.id.scope
        header.id.number = request.id.number
        header.id.settled = request.id.settled
    for operation in request.operations:
        _put_operation(header.operations.add(), operation)
    arrays = [array for operation in request.operations for array in operation.arrays]
    return _frames(header.SerializeToString(), arrays, chunk_bytes)


def decode_request(frames: Iterable[bytes], reserve: Callable[[int], None]) -> Request:
    """Read a request.

    Args:
        frames: the frames in order.
        reserve: called once with the bytes that the arrays will take, before they are taken; may raise.

    Raises:
        ProtocolError: the frames do not follow the contract.
    """
    source = iter(frames)
    header_bytes, data = _first(source)
    header = pb.RequestHeader()
    _parse(header, header_bytes)
    if len(header.operations) > MAX_OPERATIONS:
        raise ProtocolError(f"a request has at most {MAX_OPERATIONS} operations, got {len(header.operations)}")
    specs = [spec for operation in header.operations for spec in operation.arrays]
    reserve(sum(_spec_bytes(spec) for spec in specs))
    arrays = iter(_gather(specs, [None] * len(specs), data, source))
    operations = tuple(
        Operation(
            name=op.name,
            matrix=op.matrix,
            partition=op.partition,
            rows=tuple(op.rows),
            params={p.name: _param(p) for p in op.params},
            arrays=tuple(next(arrays) for _ in op.arrays),
        )
        for op in header.operations
    )
    request_id = RequestId(header.id.scope, header.id.number, header.id.settled) if header.HasField("id") else None
    return Request(operations, request_id)


def encode_reply(reply: Reply, chunk_bytes: int) -> Iterator[bytes]:
    """Yield the frames of a reply."""
    header = pb.ReplyHeader(replayed=reply.replayed)
    for result in reply.results:
        message = header.results.add()
        if result.scalar is not None:
            message.scalar = result.scalar
        for array in result.arrays:
            _put_array(message.arrays.add(), array)
    arrays = [array for result in reply.results for array in result.arrays]
    return _frames(header.SerializeToString(), arrays, chunk_bytes)


def decode_reply(frames: Iterable[bytes], request: Request) -> Reply:
    """Read a reply; the first array of a result lands in its operation's ``into``, where that is given."""
    source = iter(frames)
    header_bytes, data = _first(source)
    header = pb.ReplyHeader()
    _parse(header, header_bytes)
    if len(header.results) != len(request.operations):
        raise ProtocolError(f"a reply to {len(request.operations)} operations has {len(header.results)} results")
    specs: list[pb.ArraySpec] = []
    targets: list[Array | None] = []
    for result, operation in zip(header.results, request.operations, strict=True):
        if operation.into is not None and not result.arrays:
            raise ProtocolError(f"the reply to operation {operation.name!r} lacks its array")
        for position, spec in enumerate(result.arrays):
            specs.append(spec)
            targets.append(operation.into if position == 0 else None)
    arrays = iter(_gather(specs, targets, data, source))
    return Reply(
        results=tuple(
            Result(r.scalar if r.HasField("scalar") else None, tuple(next(arrays) for _ in r.arrays))
            for r in header.results
        ),
        replayed=header.replayed,
    )


def split_frame(frame: bytes) -> tuple[memoryview | None, memoryview]:
    """Return the header (None if absent) and the data of one frame, without copying either."""
    view = memoryview(frame)
    header: memoryview | None = None
    data = view[:0]
    at = 0
    while at < len(view):
        tag, at = _read_varint(view, at)
        wire_type = tag & 7
        if wire_type == 2:
            length, at = _read_varint(view, at)
            if length > len(view) - at:
                raise ProtocolError(f"a field of {length} bytes in a frame with {len(view) - at} left")
            field, at = view[at : at + length], at + length
            if tag == HEADER_TAG:
                header = field
            elif tag == DATA_TAG:
                data = field
        elif wire_type == 0:
            _, at = _read_varint(view, at)
        elif wire_type in (1, 5):
            at += 8 if wire_type == 1 else 4
            if at > len(view):
                raise ProtocolError("a frame ends within a field")
        else:
            raise ProtocolError(f"a frame with a field of wire type {wire_type}")
    return header, data


def _put_operation(message: pb.Operation, operation: Operation) -> None:
    message.name = operation.name
    message.matrix = operation.matrix
    message.partition = operation.partition
    message.rows.extend(operation.rows)
    for name, value in operation.params.items():
        if isinstance(value, float):
            message.params.add(name=name, real=value)
        else:
            message.params.add(name=name, whole=value)
    for array in operation.arrays:
        _put_array(message.arrays.add(), array)
    message.reply_count_hint = operation.reply_count or 0


def _put_array(message: pb.ArraySpec, array: Array) -> None:
    message.dtype = DTYPE_TO_PB[array.dtype]
    message.count = array.size


def _param(message: pb.Param) -> int | float:
    if message.WhichOneof("value") is None:
        raise ProtocolError(f"parameter {message.name!r} has no value")
    return message.real if message.HasField("real") else message.whole


def _spec_bytes(spec: pb.ArraySpec) -> int:
    if spec.dtype not in PB_TO_DTYPE:
        raise ProtocolError(f"an array of unknown dtype {spec.dtype}")
    return int(spec.count) * PB_TO_DTYPE[spec.dtype].itemsize


def _parse(message: pb.RequestHeader | pb.ReplyHeader, header: memoryview) -> None:
    try:
        message.ParseFromString(bytes(header))
    except DecodeError as error:
        raise ProtocolError(f"a frame's header cannot be read: {error}") from error


def _first(source: Iterator[bytes]) -> tuple[memoryview, memoryview]:
    frame = next(source, None)
    if frame is None:
        raise ProtocolError("a stream without any frame")
    header, data = split_frame(frame)
    if header is None:
        # A header without any field set is zero bytes long, and writers may leave such a field out.
        header = memoryview(b"")
    return header, data


def _frames(header: bytes, arrays: Sequence[Array], chunk_bytes: int) -> Iterator[bytes]:
    prefix = [bytes((HEADER_TAG,)), _varint(len(header)), header]
    first = True
    for size, views in _chunks(arrays, chunk_bytes):
        yield b"".join((*(prefix if first else ()), bytes((DATA_TAG,)), _varint(size), *views))
        first = False
    if first:
        yield b"".join(prefix)


def _chunks(arrays: Sequence[Array], chunk_bytes: int) -> Iterator[tuple[int, list[memoryview]]]:
    """Cut the arrays, laid end to end, into pieces of ``chunk_bytes``."""
    size, views = 0, list[memoryview]()
    for array in arrays:
        if array.size == 0:
            continue
        flat: Any = np.ascontiguousarray(array).reshape(-1)
        rest = memoryview(flat).cast("B")
        while len(rest):
            piece = rest[: chunk_bytes - size]
            rest = rest[len(piece) :]
            views.append(piece)
            size += len(piece)
            if size == chunk_bytes:
                yield size, views
                size, views = 0, []
    if size:
        yield size, views


def _gather(
    specs: Sequence[pb.ArraySpec], targets: Sequence[Array | None], data: memoryview, source: Iterator[bytes]
) -> list[Array]:
    """Fill the declared arrays with the data of the frames."""
    arrays = [_allocate(spec, target) for spec, target in zip(specs, targets, strict=True)]
    for position, array in enumerate(arrays):
        flat: Any = array.reshape(-1).view(np.uint8)  # numpy is typed as no Buffer before Python 3.12
        rest = memoryview(flat) if array.size else memoryview(b"")
        while len(rest):
            if not len(data):
                frame = next(source, None)
                if frame is None:
                    missing = len(rest) + nbytes(arrays[position + 1 :])
                    raise ProtocolError(f"the frames end {missing} bytes before their arrays do")
                _, data = split_frame(frame)
                continue
            take = min(len(rest), len(data))
            # numpy copies without the GIL, a memoryview does not.
            np.copyto(np.frombuffer(rest[:take], np.uint8), np.frombuffer(data[:take], np.uint8))
            rest, data = rest[take:], data[take:]
    trailing = len(data) + sum(len(split_frame(frame)[1]) for frame in source)
    if trailing:
        raise ProtocolError(f"{trailing} bytes of data after the last declared array")
    return arrays


def _allocate(spec: pb.ArraySpec, target: Array | None) -> Array:
    _spec_bytes(spec)
    dtype = PB_TO_DTYPE[spec.dtype]
    if target is None:
        try:
            return np.empty(spec.count, dtype)
        except (MemoryError, OverflowError, ValueError) as error:
            raise ProtocolError(f"an array of {spec.count} {dtype} cannot be had: {error}") from error
    if target.dtype != dtype or target.size != spec.count:
        raise ProtocolError(f"expected {target.size} {target.dtype} in reply, got {spec.count} {dtype}")
    return target


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(view) and shift < 70:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ProtocolError("a frame ends within a varint, or has one that is too long")
