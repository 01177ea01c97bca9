"""Requests and replies as a header and arrays, byte-compatible with the contract's ``RequestFrame`` and ``ReplyFrame``.

Protobuf would copy the bulk bytes on both sides. Only the small header goes through it; the arrays travel as their own
memory. Reading has two steps, so that nothing is taken before it is checked and bulk bytes land where they belong: a
header makes a draft that says which arrays follow, and the draft and these arrays make the message.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from google.protobuf.message import DecodeError, Message

from ps2.errors import LimitError, OutOfRangeError, ProtocolError, PS2Error
from ps2.matrix.partition import Wire
from ps2.ops.packing import pack_keys, unpack_keys
from ps2.wire.arrays import Spec, cut, delivered, landing, plain_spec, shape_of, spec_of, stored, to_send, total
from ps2.wire.messages import (
    Array,
    Coming,
    Keys,
    Operation,
    Outline,
    Reply,
    Request,
    RequestId,
    Result,
    byte_view,
    nbytes,
)
from ps2.wire.pb import server_pb2 as pb
from ps2.wire.status import from_detail, to_detail

HEADER_TAG = 0x0A  # field 1, length-delimited
DATA_TAG = 0x12  # field 2, length-delimited
# Operations of one request come to about 40 bytes each; parsed, a header takes up to 50 times what it took on the way.
MAX_HEADER_BYTES = 1 << 20
MAX_OPERATIONS = 1 << 20  # of one request; of its arrays, too
DIGEST_BYTES = 16

Parts = tuple[bytes, list[Array]]
ReplyParts = tuple[bytes, list[Array | Coming]]

WIRE_TO_PB: dict[Wire | None, pb.DType] = {
    None: pb.DTYPE_UNSPECIFIED,
    "float16": pb.FLOAT16,
    "bfloat16": pb.BFLOAT16,
}
PB_TO_WIRE = {number: name for name, number in WIRE_TO_PB.items()}


# -- writing -----------------------------------------------------------------------------------------------------------


def request_parts(request: Request) -> Parts:
    """Return a request's header and the arrays that follow it."""
    header = pb.RequestHeader(route_version=request.route_version, forwarded=request.forwarded, begun=request.begun)
    if request.id is not None:
        header.id.MergeFrom(id_to_pb(request.id))
    arrays: list[Array] = []
    for operation in request.operations:
        arrays += _put_operation(header.operations.add(), operation)
    return header.SerializeToString(), arrays


def id_to_pb(id: RequestId) -> pb.RequestId:
    return pb.RequestId(
        scope=id.scope,
        number=id.number,
        settled=id.settled,
        part=id.part,
        parts=id.parts,
        series=id.series,
        stage=id.stage,
    )


def id_from_pb(id: pb.RequestId) -> RequestId:
    return RequestId(id.scope, id.number, id.settled, id.part, max(id.parts, 1), id.series, id.stage)


def check_sendable(parts: Parts, limit_bytes: int) -> None:
    """Raise LimitError if a server would not take the request, whatever is in it."""
    header, arrays = parts
    if nbytes(arrays) > limit_bytes:
        raise LimitError(f"the arrays of one request take at most {limit_bytes:,} bytes, got {nbytes(arrays):,}")
    if len(header) > MAX_HEADER_BYTES:
        raise LimitError(
            f"the operations of one request take at most {MAX_HEADER_BYTES:,} bytes beside their arrays, got "
            f"{len(header):,}: make batches smaller"
        )


def reply_parts(reply: Reply, request: Request) -> ReplyParts:
    """Return the header of a reply to that request, and the arrays that follow it."""
    header = pb.ReplyHeader(replayed=reply.replayed)
    arrays: list[Array | Coming] = []
    for result, operation in zip(reply.results, request.operations, strict=True):
        message = header.results.add()
        if result.scalar is not None:
            message.scalar = result.scalar
        try:
            sent = [to_send(array, operation.wire) for array in result.arrays]
        except OutOfRangeError as error:
            raise OutOfRangeError(
                f"{error}: not to be read with wire='float16' (save() still can; 'bfloat16' has room)"
            ) from error
        message.arrays.extend(spec for _, spec in sent)
        arrays += [array for array, _ in sent]
        if result.coming is not None:
            message.arrays.append(plain_spec(result.coming))
            arrays.append(result.coming)
    return header.SerializeToString(), arrays


def error_parts(error: PS2Error) -> ReplyParts:
    return pb.ReplyHeader(error=to_detail(error)).SerializeToString(), []


def to_frame(parts: Parts | ReplyParts) -> bytes:
    """Return a message as one frame, which the generated classes read too."""
    header, arrays = parts
    head = bytes((HEADER_TAG,)) + _varint(len(header)) + header
    size = nbytes(arrays)
    if not size:
        return head
    whole = (array.whole() if isinstance(array, Coming) else array for array in arrays)
    return b"".join((head, bytes((DATA_TAG,)), _varint(size), *map(byte_view, whole)))


def _put_operation(message: pb.Operation, operation: Operation) -> list[Array]:
    message.name = operation.name
    message.matrix = operation.matrix
    message.partition = operation.partition
    message.rows.extend(operation.rows)
    if operation.others:
        message.others.extend(operation.others)
    for name, value in operation.params.items():
        if isinstance(value, float):
            message.params.add(name=name, real=value)
        else:
            message.params.add(name=name, whole=int(value))
    deltas = [] if operation.keys is None else _put_keys(message.keys, operation.keys)
    sent = [to_send(array, operation.wire) for array in operation.arrays]
    message.arrays.extend(spec for _, spec in sent)
    message.reply_dtype = WIRE_TO_PB[operation.wire]
    return deltas + [array for array, _ in sent]


def _put_keys(message: pb.Keys, keys: Keys) -> list[Array]:
    message.count = keys.count
    if keys.digest is not None:
        message.hash = keys.digest
    if keys.columns is None:
        return []
    message.first, steps = pack_keys(keys.columns)
    deltas, spec = to_send(steps, None)
    message.deltas.CopyFrom(spec)
    return [deltas]


# -- reading -----------------------------------------------------------------------------------------------------------


class Draft(Protocol):
    """A request whose arrays are still to come; ``specs`` says in which form."""

    @property
    def specs(self) -> list[Spec]: ...

    @property
    def nbytes(self) -> int:
        """Bytes that its arrays take on the way."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Bytes that its arrays take once it is built: keys as int64, and numbers as wide as they are to be."""
        ...

    @property
    def forwarded(self) -> bool:
        """Whether it comes from another server, about the copies of its shards."""
        ...

    def outlines(self, names: Container[str]) -> Iterator[Outline]:
        """Tell of the operations that have one of these names."""
        ...

    def build(self, arrays: Sequence[Array]) -> Request:
        """Return the request with these arrays, one for each of ``specs``."""
        ...


@dataclass(frozen=True)
class RequestDraft:
    """A ``Draft`` with a header of protobuf."""

    header: pb.RequestHeader
    specs: list[Spec]

    @property
    def nbytes(self) -> int:
        return total(self.specs)

    @property
    def memory_bytes(self) -> int:
        size = 0
        for operation in self.header.operations:
            if operation.keys.HasField("deltas"):
                size += 8 * operation.keys.count
            size += sum(spec.stored.itemsize * spec.size for spec in map(spec_of, operation.arrays))
        return size

    @property
    def forwarded(self) -> bool:
        return bool(self.header.forwarded)

    def outlines(self, names: Container[str]) -> Iterator[Outline]:
        for message in self.header.operations:
            if message.name in names:
                yield Outline(
                    message.name,
                    message.matrix,
                    message.partition,
                    {param.name: _param(param) for param in message.params},
                    tuple(shape_of(spec) for spec in message.arrays),
                    message.keys.count if message.HasField("keys") else None,
                    PB_TO_WIRE[message.reply_dtype],
                )

    def build(self, arrays: Sequence[Array]) -> Request:
        left = iter(arrays)
        operations = tuple(_operation(message, left) for message in self.header.operations)
        header = self.header
        id = id_from_pb(header.id) if header.HasField("id") else None
        return Request(operations, id, header.route_version, header.forwarded, header.begun)


def open_request(header: bytes, limit_bytes: int) -> RequestDraft:
    """Read a request's header.

    Raises:
        ProtocolError: it does not follow the contract.
        LimitError: its arrays would take more than ``limit_bytes``.
    """
    if len(header) > MAX_HEADER_BYTES:
        raise ProtocolError(f"a header takes at most {MAX_HEADER_BYTES:,} bytes, got {len(header):,}")
    message = pb.RequestHeader()
    _parse(message, header)
    if len(message.operations) > MAX_OPERATIONS:
        raise ProtocolError(f"a request has at most {MAX_OPERATIONS} operations, got {len(message.operations)}")
    specs: list[Spec] = []
    for operation in message.operations:
        if len(specs) + len(operation.arrays) > MAX_OPERATIONS:
            raise ProtocolError(f"a request has at most {MAX_OPERATIONS} arrays")
        if operation.HasField("keys"):
            _check_keys(operation.name, operation.keys)
            if operation.keys.HasField("deltas"):
                specs.append(spec_of(operation.keys.deltas))
        specs += map(spec_of, operation.arrays)
        if operation.reply_dtype not in PB_TO_WIRE:
            raise ProtocolError(f"operation {operation.name!r}: a reply cannot come as dtype {operation.reply_dtype}")
    draft = RequestDraft(message, specs)
    if draft.nbytes > limit_bytes:
        raise LimitError(
            f"the arrays of one request take at most {limit_bytes:,} bytes, got {draft.nbytes:,}: send several"
        )
    return draft


@dataclass(frozen=True)
class ReplyDraft:
    """A reply whose arrays are still to come: ``arrays`` are what they are to be read into."""

    header: pb.ReplyHeader
    request: Request
    arrays: list[Array]

    def build(self) -> Reply:
        """Return the reply, now that the arrays are filled; or raise the error that it brings."""
        if self.header.HasField("error"):
            raise from_detail(self.header.error)
        left = iter(self.arrays)
        results = tuple(
            Result(
                message.scalar if message.HasField("scalar") else None,
                tuple(
                    delivered(next(left), spec_of(spec), operation.into if position == 0 else None)
                    for position, spec in enumerate(message.arrays)
                ),
            )
            for message, operation in zip(self.header.results, self.request.operations, strict=True)
        )
        return Reply(results, self.header.replayed)


def open_reply(header: bytes, request: Request, size: int) -> ReplyDraft:
    """Read the header of a reply to that request, and say where its arrays go: to ``Operation.into``, if they fit.

    Args:
        size: bytes of data that come with it.

    Raises:
        ProtocolError: it is no reply to that request, or its arrays take another number of bytes.
    """
    message = pb.ReplyHeader()
    _parse(message, header)
    if message.HasField("error"):
        check_size(0, size)
        return ReplyDraft(message, request, [])
    if len(message.results) != len(request.operations):
        raise ProtocolError(f"a reply to {len(request.operations)} operations has {len(message.results)} results")
    landings: list[tuple[Spec, Array | None]] = []
    for result, operation in zip(message.results, request.operations, strict=True):
        if operation.into is not None and not result.arrays:
            raise ProtocolError(f"the reply to operation {operation.name!r} lacks its array")
        for position, spec in enumerate(result.arrays):
            landings.append((spec_of(spec), operation.into if position == 0 else None))
    check_size(total([spec for spec, _ in landings]), size)
    return ReplyDraft(message, request, [landing(spec, into) for spec, into in landings])


def split_frame(frame: bytes) -> tuple[memoryview, memoryview]:
    """Return the header and the data of one frame, without copying either."""
    view = memoryview(frame)
    # A header without any field set is zero bytes long, and writers may leave such a field out.
    header = data = view[:0]
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


def request_of(frame: bytes, limit_bytes: int, reserve: Callable[[Draft], None] = lambda draft: None) -> Request:
    """Read a request that came as one frame; its arrays are views of the frame where they need not be converted.

    Args:
        limit_bytes: most that its arrays may take on the way.
        reserve: told what is to come, before memory is taken for it; may raise.
    """
    header, data = split_frame(frame)
    draft = open_request(bytes(header), limit_bytes)
    check_size(draft.nbytes, len(data))
    reserve(draft)
    return draft.build(cut(draft.specs, data))


def reply_of(frame: bytes, request: Request) -> Reply:
    """Read a reply that came as one frame, or raise the error that it brings."""
    header, data = split_frame(frame)
    draft = open_reply(bytes(header), request, len(data))
    for array, came in zip(
        draft.arrays, cut([Spec(a.dtype, a.size, a.dtype, a.shape) for a in draft.arrays], data), strict=True
    ):
        np.copyto(array.reshape(-1), came)
    return draft.build()


def check_size(declared: int, came: int) -> None:
    if declared != came:
        raise ProtocolError(f"the header declares arrays of {declared} bytes, and {came} come")


def _operation(message: pb.Operation, left: Any) -> Operation:
    keys = _keys(message.keys, left) if message.HasField("keys") else None
    return Operation(
        name=message.name,
        matrix=message.matrix,
        partition=message.partition,
        rows=tuple(message.rows),
        params={param.name: _param(param) for param in message.params},
        arrays=tuple(stored(next(left), spec_of(spec)) for spec in message.arrays),
        keys=keys,
        wire=PB_TO_WIRE[message.reply_dtype],
        others=tuple(message.others),
    )


def _check_keys(name: str, message: pb.Keys) -> None:
    """Check what can be checked before the keys themselves come."""
    if message.count == 0:
        raise ProtocolError(f"operation {name!r}: an empty set of keys")
    if len(message.hash) not in (0, DIGEST_BYTES):
        raise ProtocolError(f"operation {name!r}: a hash of {len(message.hash)} bytes, not {DIGEST_BYTES}")
    if not message.HasField("deltas"):
        return
    dtype, count, *_ = spec_of(message.deltas)
    if dtype.kind not in "ui":
        raise ProtocolError(f"operation {name!r}: differences of keys are integers, got {dtype}")
    if count != message.count - 1:
        raise ProtocolError(
            f"operation {name!r}: {message.count} keys have {message.count - 1} differences, got {count}"
        )


def _keys(message: pb.Keys, left: Any) -> Keys:
    columns = unpack_keys(message.first, next(left)) if message.HasField("deltas") else None
    return Keys(message.count, columns, message.hash or None)


def _param(message: pb.Param) -> int | float:
    if message.WhichOneof("value") is None:
        raise ProtocolError(f"parameter {message.name!r} has no value")
    return message.real if message.HasField("real") else message.whole


def _parse(message: Message, header: bytes) -> None:
    try:
        message.ParseFromString(header)
    except DecodeError as error:
        raise ProtocolError(f"a message's header cannot be read: {error}") from error


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
