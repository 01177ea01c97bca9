"""The binary form of requests and replies on data connections: a header of fixed-size records, then the arrays.

A request's header begins with one ``REQUEST`` and one ``OPERATION`` per operation. Then it has, for each operation, the
row ids (uint32, padded to 8 bytes), other matrices (uint64), scalars (float64 or int64), and an ``ARRAY`` per array. At
the end are the signature of each operation, the id's scope and the id's series. All numbers are little-endian and
aligned to their size, so compiled code can read them in place (``ps2.server.fast_path_loop``).

A reply's header is one ``REPLY``, a ``RESULT`` per operation and an ``ARRAY`` per array. For an error, it is one
``REPLY`` and a protobuf ``ErrorDetail``. See docs/decisions/0046.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from ps2.errors import LimitError, OutOfRangeError, ProtocolError, PS2Error
from ps2.matrix.partition import Wire
from ps2.ops.packing import pack_keys
from ps2.protocol.arrays import (
    DTYPE_NUMBERS,
    WIRE_NUMBERS,
    WIRES_BY_NUMBER,
    Spec,
    declared_spec,
    plain_spec,
    to_send,
)
from ps2.protocol.drafts import KeysDraft, OperationDraft, ReplyDraft, RequestDraft, new_draft, reply_draft
from ps2.protocol.error_details import from_detail, to_detail
from ps2.protocol.messages import Array, Keys, Operation, Reply, Request, RequestId, StreamedArray, nbytes
from ps2.protocol.pb import server_pb2 as pb

# The limit of a header. Clients send requests of at most 4 MiB, for which they count 256 header bytes per operation;
# an operation takes about 150.
MAX_HEADER_BYTES = 4 << 20

# Kind of message, flags, bytes of scope, bytes of series; number of operations, ``Request.begun``, the id's part and
# parts; route version, and the id's number, settled number and stage.
REQUEST = struct.Struct("<BBHHxxIIIIQQQQ")
# Handle, partition, matrix; number of rows, of other matrices and of arrays; bytes of the signature, number of scalars,
# wire dtype; dtype of the differences between keys, flags of keys, decoded dtype of the differences; number of keys,
# first key, digest.
OPERATION = struct.Struct("<IIQIHHHBBBBBxQq16s")
# The two halves of an OPERATION: the operation itself, and its keys.
OPERATION_HEAD, KEYS = struct.Struct("<IIQIHHHBB"), struct.Struct("<BBBxQq16s")
NO_KEYS = bytes(KEYS.size)
# Dtype in the message, decoded dtype (0: the same), number of dimensions (0: one); number of elements. With several
# dimensions, the shape follows: one uint64 per dimension.
ARRAY = struct.Struct("<BBBxxxxxQ")
# Kind of message, flags, handle, number of results.
REPLY = struct.Struct("<BBxxIIxxxx")
# Flags, number of arrays, scalar.
RESULT = struct.Struct("<BxHxxxxd")
WORD = struct.Struct("<Q")

# Kinds of messages.
REQUEST_KIND, REPLY_KIND, ERROR_KIND = 1, 2, 3
# Flags of requests, of keys, of replies and of results.
HAS_ID, FORWARDED = 1, 2
HAS_KEYS, HAS_DIGEST = 1, 2
REPLAYED = 1
HAS_SCALAR = 1

# Byte offsets of the fields that differ between requests of the same ``Shape``.
VERSION_OFFSET, NUMBER_OFFSET, SETTLED_OFFSET, STAGE_OFFSET = 24, 32, 40, 48
STEPS_OFFSET, KEY_COUNT_OFFSET, FIRST_OFFSET, DIGEST_OFFSET = (REQUEST.size + offset for offset in (28, 32, 40, 48))
TAIL_OFFSET = REQUEST.size + OPERATION.size  # the bytes before the tail of a request of one operation

# Limits of this module's cache of signatures, and of a connection's handles.
MAX_SIGNATURES = 4096
MAX_HANDLES = 1024

Parts = tuple[bytes, list[Array]]
ReplyParts = tuple[bytes, list[Array | StreamedArray]]

# The common fields of requests of one shape: the signature, matrix, partition and row (NO_ROW if none) of their only
# operation, and the id's scope ("" without an id). A server assigns a shape a handle, a number that is valid for
# the connection. In later requests the handle only speeds up the look-up of the shape.
Shape = tuple[bytes, int, int, int, str]
Handles = dict[Shape, int]
NO_ROW = -1


@dataclass(frozen=True, slots=True)
class Signature:
    """An operation's name, and the names and types of its scalars.

    Attributes:
        values: the struct that packs the values of the scalars.
        encoded: the signature in messages: the name, then, for each scalar, a 0 byte, its type ("d": float64, "q":
            int64) and its name.
    """

    name: str
    scalars: tuple[str, ...]
    values: struct.Struct
    encoded: bytes


_BY_CALL: dict[Any, Signature] = {}
_BY_BYTES: dict[bytes, Signature] = {}


def call_signature(name: str, params: Mapping[str, int | float]) -> Signature:
    """Return the signature of an operation with these scalars. ``params``: their values by name."""
    key = (name, *[(scalar, isinstance(value, float)) for scalar, value in params.items()]) if params else name
    signature = _BY_CALL.get(key)
    if signature is None:
        types = ["d" if isinstance(value, float) else "q" for value in params.values()]
        encoded = "".join([name, *(f"\0{type}{scalar}" for scalar, type in zip(params, types, strict=True))]).encode()
        signature = _signature(encoded)
        if (signature.name, signature.scalars) != (name, tuple(params)):
            raise ProtocolError(f"operation {name!r}: expected names without NUL characters")
        _remember(_BY_CALL, key, signature)
    return signature


def request_shape(request: Request) -> Shape | None:
    """Return the shape of a request; None if its server cannot assign a handle."""
    if len(request.operations) != 1 or request.forwarded:
        return None
    operation = request.operations[0]
    if len(operation.rows) > 1 or operation.others:
        return None
    scope = "" if request.id is None else request.id.scope
    signature = call_signature(operation.name, operation.params).encoded
    row = operation.rows[0] if operation.rows else NO_ROW
    return signature, operation.matrix, operation.partition, row, scope


def remember_handle(handles: Handles, shape: Shape, handle: int) -> None:
    """Store the handle of a shape."""
    if len(handles) >= MAX_HANDLES:
        handles.clear()
    handles[shape] = handle


# -- writing -----------------------------------------------------------------------------------------------------------


def request_parts(request: Request, handles: Handles | None = None) -> Parts:
    """Return a request's header and the arrays that follow it. ``handles``: the handles of this connection."""
    handle = 0
    if handles and (shape := request_shape(request)) is not None:
        handle = handles.get(shape, 0)
    arrays: list[Array] = []
    records, tails, signatures = [], [], []
    for operation in request.operations:
        signature = call_signature(operation.name, operation.params)
        encoded = [to_send(array, operation.wire) for array in operation.arrays]
        records.append(_operation_record(operation, signature, handle, arrays))
        tails.append(_operation_tail(operation, signature, [spec for _, spec in encoded]))
        signatures.append(signature.encoded)
        arrays += [array for array, _ in encoded]
    id = request.id
    scope, series = (b"", b"") if id is None else (id.scope.encode(), id.series.encode())
    part, parts, *numbers = (0, 0, 0, 0, 0) if id is None else (id.part, id.parts, id.number, id.settled, id.stage)
    flags = (0 if id is None else HAS_ID) | (FORWARDED if request.forwarded else 0)
    head = REQUEST.pack(
        *(REQUEST_KIND, flags, len(scope), len(series)),
        *(len(request.operations), request.begun, part, parts),
        *(request.route_version, *numbers),
    )
    return b"".join((head, *records, *tails, *signatures, scope, series)), arrays


def check_sendable(parts: Parts, limit_bytes: int) -> None:
    """Raise LimitError if the request is larger than a server accepts."""
    header, arrays = parts
    if nbytes(arrays) > limit_bytes:
        raise LimitError(f"request: expected arrays of at most {limit_bytes:,} bytes, got {nbytes(arrays):,}")
    if len(header) > MAX_HEADER_BYTES:
        raise LimitError(
            f"request: expected operations of at most {MAX_HEADER_BYTES:,} bytes without their arrays, got "
            f"{len(header):,}: send smaller batches"
        )


def reply_parts(reply: Reply, request: Request, handle: int = 0) -> ReplyParts:
    """Return the header of the reply to a request, and the arrays that follow it.

    ``handle``: the handle that the server assigns to requests of this shape; 0: none.
    """
    records, tails = [], []
    arrays: list[Array | StreamedArray] = []
    for result, operation in zip(reply.results, request.operations, strict=True):
        encoded = _encode_result(result.arrays, operation.wire)
        if result.streamed is not None:
            encoded.append((result.streamed, plain_spec(result.streamed)))
        scalar = result.scalar
        records.append(RESULT.pack(0 if scalar is None else HAS_SCALAR, len(encoded), scalar or 0.0))
        tails += [array_record(spec) for _, spec in encoded]
        arrays += [array for array, _ in encoded]
    head = REPLY.pack(REPLY_KIND, REPLAYED if reply.replayed else 0, handle, len(reply.results))
    return b"".join((head, *records, *tails)), arrays


def error_parts(error: PS2Error) -> ReplyParts:
    return REPLY.pack(ERROR_KIND, 0, 0, 0) + to_detail(error).SerializeToString(), []


def _operation_record(operation: Operation, signature: Signature, handle: int, arrays: list[Array]) -> bytes:
    """Return an operation's record; append the differences between its keys to ``arrays``."""
    keys, differences = keys_record(operation.keys)
    if differences is not None:
        arrays.append(differences)
    return (
        OPERATION_HEAD.pack(
            *(handle, operation.partition, operation.matrix),
            *(len(operation.rows), len(operation.others), len(operation.arrays)),
            *(len(signature.encoded), len(signature.scalars), WIRE_NUMBERS[operation.wire]),
        )
        + keys
    )


def keys_record(keys: Keys | None) -> tuple[bytes, Array | None]:
    """Return the second half of an operation's record, and the array of the differences between the keys."""
    if keys is None:
        return NO_KEYS, None
    flags, digest = (HAS_KEYS, b"") if keys.digest is None else (HAS_KEYS | HAS_DIGEST, keys.digest)
    if keys.columns is None:
        return KEYS.pack(0, flags, 0, keys.count, 0, digest), None
    first, differences = pack_keys(keys.columns)
    array, spec = to_send(differences, None)
    return KEYS.pack(DTYPE_NUMBERS[spec.dtype], flags, spec.stored_number, keys.count, first, digest), array


def _operation_tail(operation: Operation, signature: Signature, specs: list[Spec]) -> bytes:
    rows, others = operation.rows, operation.others
    try:
        scalars = signature.values.pack(*operation.params.values())
    except struct.error as error:
        raise OutOfRangeError(f"operation {operation.name!r}: {dict(operation.params)}: {error}") from error
    ids = struct.pack(f"<{len(rows)}I{len(rows) % 2 * 4}x{len(others)}Q", *rows, *others)
    return b"".join((ids, scalars, *map(array_record, specs)))


def array_record(spec: Spec) -> bytes:
    """Return an array's record in the header."""
    shape = spec.shape if len(spec.shape) > 1 else ()
    head = ARRAY.pack(DTYPE_NUMBERS[spec.dtype], spec.stored_number, len(shape), spec.size)
    return head + struct.pack(f"<{len(shape)}Q", *shape) if shape else head


def _encode_result(arrays: tuple[Array, ...], wire: Wire | None) -> list[tuple[Array | StreamedArray, Spec]]:
    try:
        return [to_send(array, wire) for array in arrays]
    except OutOfRangeError as error:
        raise OutOfRangeError(
            f"{error}, so it cannot be read with wire='float16'; use wire='bfloat16', or save() and read the files"
        ) from error


# -- reading -----------------------------------------------------------------------------------------------------------


class _Tail:
    """The part of a header after its fixed-size records. Each call reads the next bytes."""

    def __init__(self, header: bytes, offset: int) -> None:
        self._header = header
        self.offset = offset

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes; raise ProtocolError if there are not enough."""
        begin, self.offset = self.offset, self.offset + size
        if self.offset > len(self._header):
            raise ProtocolError(f"header: expected {self.offset} bytes or more, got {len(self._header)}")
        return self._header[begin : self.offset]

    def numbers(self, form: str, count: int, size: int) -> tuple[int, ...]:
        """Return ``count`` unsigned integers of ``size`` bytes each; skip the padding to 8 bytes."""
        data = self.take(count * size + -count * size % WORD.size)
        return struct.unpack_from(f"<{count}{form}", data)

    def array(self) -> Spec:
        dtype, stored, dimensions, count = ARRAY.unpack(self.take(ARRAY.size))
        return declared_spec(dtype, stored, count, self.numbers("Q", dimensions, WORD.size))

    def text(self, size: int) -> str:
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a header has a name that is not UTF-8: {error}") from error


def open_request(header: bytes, limit_bytes: int) -> RequestDraft:
    """Read a request's header; raise LimitError if its arrays exceed ``limit_bytes``."""
    if len(header) < REQUEST.size or header[0] != REQUEST_KIND:
        raise ProtocolError(f"a header of {len(header)} bytes is not a request's")
    (_, flags, scope_size, series_size, count, begun, part, parts, version, number, settled, stage) = (
        REQUEST.unpack_from(header)
    )
    end = REQUEST.size + count * OPERATION.size
    if flags & ~(HAS_ID | FORWARDED) or end > len(header):
        raise ProtocolError(f"a header of {len(header)} bytes, with flags {flags:x} and {count} operations")
    records = list(OPERATION.iter_unpack(header[REQUEST.size : end]))
    tail = _Tail(header, end)
    tails = [_read_tail(record, tail) for record in records]
    operations = [
        _operation(record, fields, _read_signature(tail.take(record[6])))  # 6: bytes of the signature
        for record, fields in zip(records, tails, strict=True)
    ]
    scope, series = tail.text(scope_size), tail.text(series_size)
    if tail.offset != len(header):
        raise ProtocolError(f"a header of {len(header)} bytes declares only {tail.offset}")
    id = RequestId(scope, number, settled, part, max(parts, 1), series, stage) if flags & HAS_ID else None
    return new_draft(operations, id, version, bool(flags & FORWARDED), begun, limit_bytes)


_TailFields = tuple[tuple[int, ...], tuple[int, ...], bytes, tuple[Spec, ...]]


def _read_tail(record: tuple[Any, ...], tail: _Tail) -> _TailFields:
    """Return an operation's rows, other matrices, packed scalars and arrays."""
    _, _, _, rows, others, arrays, _, scalars, *_ = record
    return (
        tail.numbers("I", rows, 4),
        tail.numbers("Q", others, WORD.size),
        tail.take(scalars * WORD.size),
        tuple(tail.array() for _ in range(arrays)),
    )


def _operation(record: tuple[Any, ...], fields: _TailFields, signature: Signature) -> OperationDraft:
    _, partition, matrix, _, _, _, _, scalars, wire, *key_record = record
    rows, others, packed, arrays = fields
    if scalars != len(signature.scalars):
        raise ProtocolError(f"operation {signature.name!r}: expected {len(signature.scalars)} scalars, got {scalars}")
    if wire not in WIRES_BY_NUMBER:
        raise ProtocolError(f"operation {signature.name!r}: a reply cannot have dtype {wire}")
    params = dict(zip(signature.scalars, signature.values.unpack(packed), strict=True))
    keys = _keys(signature.name, key_record)
    operation = Operation(
        signature.name, matrix, partition, rows, params, (), None, WIRES_BY_NUMBER[wire], others=others
    )
    return OperationDraft(operation, keys, arrays)


def _keys(name: str, record: Sequence[Any]) -> KeysDraft | None:
    dtype, flags, stored, count, first, digest = record
    if flags & ~(HAS_KEYS | HAS_DIGEST):
        raise ProtocolError(f"operation {name!r}: keys with flags {flags:x}")
    if not flags & HAS_KEYS:
        return None
    spec = declared_spec(dtype, stored, count - 1, ()) if dtype and count else None
    return KeysDraft(count, first, spec, digest if flags & HAS_DIGEST else None)


def _read_signature(encoded: bytes) -> Signature:
    return _BY_BYTES.get(encoded) or _signature(encoded)


def _signature(encoded: bytes) -> Signature:
    """Read a signature; raise ProtocolError if it is invalid."""
    try:
        name, *scalars = encoded.decode().split("\0")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"an operation's name is not UTF-8: {error}") from error
    types, names = [scalar[:1] for scalar in scalars], tuple(scalar[1:] for scalar in scalars)
    if not set(types) <= {"d", "q"} or len(set(names)) < len(names):
        raise ProtocolError(f"operation {name!r}: expected distinct scalars of types d and q, got {scalars}")
    signature = Signature(name, names, struct.Struct("<" + "".join(types)), encoded)
    _remember(_BY_BYTES, encoded, signature)
    return signature


def _remember(cache: dict[Any, Signature], key: Any, signature: Signature) -> None:
    if len(cache) >= MAX_SIGNATURES:
        cache.clear()
    cache[key] = signature


def open_reply(header: bytes, request: Request, size: int) -> ReplyDraft:
    """Read the header of the reply to a request. ``size``: the bytes after the header. See ``reply_draft``."""
    if len(header) < REPLY.size or header[0] not in (REPLY_KIND, ERROR_KIND):
        raise ProtocolError(f"a header of {len(header)} bytes is not a reply's")
    kind, flags, handle, count = REPLY.unpack_from(header)
    if kind == ERROR_KIND:
        if size:
            raise ProtocolError(f"an error with {size} bytes of data")
        return ReplyDraft((), (), [], error=_error(header[REPLY.size :]))
    end = REPLY.size + count * RESULT.size
    if flags & ~REPLAYED or end > len(header):
        raise ProtocolError(f"a reply's header of {len(header)} bytes, with flags {flags:x} and {count} results")
    tail = _Tail(header, end)
    results = [
        (scalar if result_flags & HAS_SCALAR else None, tuple(tail.array() for _ in range(arrays)))
        for result_flags, arrays, scalar in RESULT.iter_unpack(header[REPLY.size : end])
    ]
    if tail.offset != len(header):
        raise ProtocolError(f"a reply's header of {len(header)} bytes declares only {tail.offset}")
    return reply_draft(results, request, size, bool(flags & REPLAYED), handle)


def _error(encoded: bytes) -> PS2Error:
    try:
        return from_detail(pb.ErrorDetail.FromString(encoded))
    except DecodeError as error:
        raise ProtocolError(f"an error cannot be decoded: {error}") from error
