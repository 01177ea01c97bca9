"""Short headers of data connections: for one pull, push, gather or scatter of floats, the calls that come most.

They say what protobuf's say, and are written and read in a fraction of its time. No header of protobuf begins as they
do, so either kind may come; what does not fit here goes as protobuf. See docs/decisions/0026.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.errors import ProtocolError
from ps2.ops.packing import DELTA_DTYPES, pack_keys, unpack_keys
from ps2.wire.arrays import Spec, delivered, landing, total
from ps2.wire.codec import Parts, ReplyParts, check_size
from ps2.wire.messages import Array, Keys, Operation, Outline, Reply, Request, RequestId, Result

MARK = 0xFF  # as protobuf's it would be a field of wire type 7, which there is none of
KINDS = ("pull", "push", "push_add", "push_sub", "gather", "scatter", "scatter_add", "scatter_sub")
KIND_OF = {name: number for number, name in enumerate(KINDS)}
# Numbers of dtypes; 0 is no array.
VALUES = (None, np.dtype("<f4"), np.dtype("<f8"))
VALUE_OF: dict[np.dtype[Any], int] = {dtype: number for number, dtype in enumerate(VALUES) if dtype is not None}
DELTA_OF = {dtype: number for number, dtype in enumerate(DELTA_DTYPES, 1)}
# Flags.
CHANGES, START, STOP, KEYS, COLUMNS, DIGEST = (1 << bit for bit in range(6))
LONGEST = 255  # of a name

# mark, kind, flags, dtype of the values and of the differences of keys, lengths of scope and series; handle; partition,
# row; of the id: part, parts; matrix, route version; start, stop; how many values, how many keys; the first key; their
# digest; of the id: number, settled, stage. Then scope and series.
REQUEST = struct.Struct("<BBBBBBBxIIIIIxxxxQQqqQQq16sQQQ")
# Where the loop of a server (``lane_loop``) finds them, as numbers of 1, 4 and 8 bytes.
MARK_AT, KIND_AT, FLAGS_AT, DTYPE_AT, DELTA_AT, SCOPE_AT, SERIES_AT = range(7)
HANDLE_AT, PARTITION_AT, ROW_AT, PART_AT, PARTS_AT = range(2, 7)
MATRIX_AT, VERSION_AT, START_AT, STOP_AT, COUNT_AT, KEYS_AT, FIRST_AT = range(4, 11)
NUMBER_AT, SETTLED_AT, STAGE_AT = range(13, 16)
# mark, whether it was applied before, dtype of the values; handle; how many.
REPLY = struct.Struct("<BBBxIQ")

# By matrix, partition, row and scope of a request ("" for one that changes nothing): the number by which the server at
# the other end of this connection knows them again. Only a hint: a header says all that there is to say without it.
Place = tuple[int, int, int, str]
Handles = dict[Place, int]
MOST_HANDLES = 1024


# -- requests ----------------------------------------------------------------------------------------------------------


def place_of(request: Request) -> Place:
    """Return what a request's handle stands for."""
    operation = request.operations[0]
    return operation.matrix, operation.partition, operation.rows[0], "" if request.id is None else request.id.scope


def request_parts(request: Request, handles: Handles | None = None) -> Parts | None:
    """Return a request's header and the arrays that follow it; None if it does not fit this form."""
    if len(request.operations) != 1 or request.forwarded or request.begun:
        return None
    operation = request.operations[0]
    kind = KIND_OF.get(operation.name)
    if kind is None or operation.others or operation.wire is not None or len(operation.rows) != 1:
        return None
    flags = start = stop = 0
    for name, value in operation.params.items():
        if not isinstance(value, int) or name not in ("start", "stop"):
            return None
        if name == "start":
            flags, start = flags | START, value
        else:
            flags, stop = flags | STOP, value
    arrays: list[Array] = []
    keys, first, delta = operation.keys, 0, 0
    if keys is not None:
        flags |= KEYS | (DIGEST if keys.digest is not None else 0)
        if keys.columns is not None:
            first, deltas = pack_keys(keys.columns)
            if (delta := DELTA_OF.get(deltas.dtype, 0)) == 0:
                return None
            flags |= COLUMNS
            arrays.append(deltas)
    dtype = count = 0
    if operation.arrays:
        (values, *more) = operation.arrays
        dtype, count = VALUE_OF.get(values.dtype, 0), values.size
        if more or not dtype or values.ndim != 1:
            return None
        arrays.append(np.ascontiguousarray(values))
    id = request.id
    scope = series = b""
    numbers, parts = (0, 0, 0), (0, 0)
    if id is not None:
        flags |= CHANGES
        scope, series = id.scope.encode(), id.series.encode()
        if len(scope) > LONGEST or len(series) > LONGEST:
            return None
        numbers, parts = (id.number, id.settled, id.stage), (id.part, id.parts)
    handle = handles.get(place_of(request), 0) if handles else 0
    header = REQUEST.pack(
        *(MARK, kind, flags, dtype, delta, len(scope), len(series)),
        *(handle, operation.partition, operation.rows[0], *parts),
        *(operation.matrix, request.route_version, start, stop, count, 0 if keys is None else keys.count, first),
        *(b"" if keys is None else keys.digest or b"", *numbers),
    )
    return header + scope + series, arrays


@dataclass(frozen=True, slots=True)
class ShortDraft:
    """A request whose arrays are still to come, as ``codec.RequestDraft`` is one; ``operation`` has none yet."""

    operation: Operation
    keys: int | None
    first: int
    digest: bytes | None
    id: RequestId | None
    route_version: int
    specs: list[Spec]
    forwarded: bool = False

    @property
    def nbytes(self) -> int:
        return total(self.specs)

    @property
    def memory_bytes(self) -> int:
        # Keys become int64.
        values = self.specs[-1] if self.specs and self.specs[-1].dtype.kind == "f" else None
        packed = self.specs and self.specs[0].dtype.kind == "u"
        return (8 * (self.keys or 0) if packed else 0) + (total([values]) if values is not None else 0)

    def outlines(self, names: Container[str]) -> Iterator[Outline]:
        operation = self.operation
        if operation.name in names:
            shapes = tuple(spec.shape for spec in self.specs if spec.dtype.kind == "f")
            place = (operation.matrix, operation.partition)
            yield Outline(operation.name, *place, operation.params, shapes, self.keys, None)

    def build(self, arrays: Sequence[Array]) -> Request:
        left = list(arrays)
        keys = None
        if self.keys is not None:
            packed = bool(self.specs) and self.specs[0].dtype.kind == "u"
            keys = Keys(self.keys, unpack_keys(self.first, left.pop(0)) if packed else None, self.digest)
        found = self.operation
        operation = Operation(found.name, found.matrix, found.partition, found.rows, found.params, tuple(left), keys)
        return Request((operation,), self.id, self.route_version, short=True)


def open_request(header: bytes) -> ShortDraft:
    """Read a request's header.

    Raises:
        ProtocolError: it does not follow this form.
    """
    if len(header) < REQUEST.size:
        raise ProtocolError(f"a short header of {len(header)} bytes, and they have {REQUEST.size} at least")
    (_, kind, flags, dtype, delta, scope_size, series_size, _, partition, row, part, parts, matrix, version) = (
        fields := REQUEST.unpack_from(header)
    )[:14]
    start, stop, count, key_count, first, digest, number, settled, stage = fields[14:]
    if len(header) != REQUEST.size + scope_size + series_size or kind >= len(KINDS) or flags >> 6:
        raise ProtocolError(f"a short header of {len(header)} bytes, of kind {kind}, with flags {flags:x}")
    if dtype >= len(VALUES) or (count and not dtype):
        raise ProtocolError(f"a short header with {count} values of dtype {dtype}")
    specs: list[Spec] = []
    if flags & KEYS:
        if not key_count:
            raise ProtocolError(f"operation {KINDS[kind]!r}: an empty set of keys")
        if flags & COLUMNS:
            if not 0 < delta <= len(DELTA_DTYPES):
                raise ProtocolError(f"operation {KINDS[kind]!r}: differences of keys of dtype {delta}")
            specs.append(_flat(DELTA_DTYPES[delta - 1], key_count - 1))
    if (values := VALUES[dtype]) is not None:
        specs.append(_flat(values, count))
    params = {name: value for name, value, flag in (("start", start, START), ("stop", stop, STOP)) if flags & flag}
    try:
        scope = header[REQUEST.size : REQUEST.size + scope_size].decode()
        series = header[REQUEST.size + scope_size :].decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a short header whose names cannot be read: {error}") from error
    id = RequestId(scope, number, settled, part, max(parts, 1), series, stage) if flags & CHANGES else None
    return ShortDraft(
        Operation(KINDS[kind], matrix, partition, (row,), params),
        key_count if flags & KEYS else None,
        first,
        digest if flags & DIGEST else None,
        id,
        version,
        specs,
    )


def deltas_bytes(header: bytes) -> int:
    """Return what the differences of keys take that come before the values."""
    _, _, flags, _, delta, *_ = fields = REQUEST.unpack_from(header)
    return (fields[17] - 1) * DELTA_DTYPES[delta - 1].itemsize if flags & COLUMNS else 0


# -- replies -----------------------------------------------------------------------------------------------------------


def reply_parts(reply: Reply, request: Request, handle: int = 0) -> ReplyParts | None:
    """Return the header of a reply, and the array that follows it; None if it, or its request, is not of this form.

    Args:
        handle: by which the request's place is known from now on; 0 if it is not.
    """
    if not request.short or len(reply.results) != 1:
        return None
    result = reply.results[0]
    if result.scalar is not None or len(result.arrays) + (result.coming is not None) > 1:
        return None
    array = result.arrays[0] if result.arrays else result.coming
    if array is None:
        return REPLY.pack(MARK, reply.replayed, 0, handle, 0), []
    dtype = VALUE_OF.get(array.dtype)
    if dtype is None or len(array.shape) != 1:
        return None
    sent = np.ascontiguousarray(array) if isinstance(array, np.ndarray) else array
    return REPLY.pack(MARK, reply.replayed, dtype, handle, array.size), [sent]


@dataclass(frozen=True, slots=True)
class ShortReply:
    """A reply whose array is still to come, as ``codec.ReplyDraft`` is one."""

    into: Array | None
    spec: Spec | None
    replayed: bool
    handle: int
    arrays: list[Array]

    def build(self) -> Reply:
        came = () if self.spec is None else (delivered(self.arrays[0], self.spec, self.into),)
        return Reply((Result(None, came),), self.replayed)


def open_reply(header: bytes, request: Request, size: int) -> ShortReply:
    """Read the header of a reply to that request; see ``codec.open_reply``."""
    if len(header) != REPLY.size or len(request.operations) != 1:
        raise ProtocolError(f"a short reply of {len(header)} bytes to {len(request.operations)} operations")
    _, replayed, dtype, handle, count = REPLY.unpack(header)
    operation = request.operations[0]
    if dtype >= len(VALUES):
        raise ProtocolError(f"a short reply with values of dtype {dtype}")
    if (values := VALUES[dtype]) is None:
        if operation.into is not None:
            raise ProtocolError(f"the reply to operation {operation.name!r} lacks its array")
        check_size(0, size)
        return ShortReply(None, None, bool(replayed), handle, [])
    spec = _flat(values, count)
    check_size(total([spec]), size)
    return ShortReply(operation.into, spec, bool(replayed), handle, [landing(spec, operation.into)])


def note(handles: Handles, place: Place, handle: int) -> None:
    """Note the handle of what requests are about."""
    if len(handles) >= MOST_HANDLES:
        handles.clear()
    handles[place] = handle


def is_short(header: bytes) -> bool:
    return header[:1] == b"\xff"


def _flat(dtype: np.dtype[np.generic], count: int) -> Spec:
    return Spec(dtype, count, dtype, (count,))
