"""Requests and replies before their arrays arrive. Drafts are checked before memory is allocated for the arrays."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace

from ps2.errors import LimitError, ProtocolError, PS2Error
from ps2.ops.packing import unpack_keys
from ps2.protocol.arrays import Spec, decode_array, deliver, receive_array, total_bytes
from ps2.protocol.messages import Array, Keys, Operation, Outline, Reply, Request, RequestId, Result

# The limit of the operations of a request, and of its arrays.
MAX_OPERATIONS = 1 << 20
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class KeysDraft:
    """Keys that have not arrived yet. They are sent as the first key and the differences between neighbours.

    Attributes:
        steps: the description of the differences; None if the server has cached the keys, or received them with the
            previous operation.
    """

    count: int
    first: int = 0
    steps: Spec | None = None
    digest: bytes | None = None

    def check(self, operation: str) -> None:
        """Raise ProtocolError if the declared keys are invalid."""
        if self.count == 0:
            raise ProtocolError(f"operation {operation!r}: an empty set of keys")
        if self.digest is not None and len(self.digest) != DIGEST_BYTES:
            raise ProtocolError(
                f"operation {operation!r}: expected a digest of {DIGEST_BYTES} bytes, got {len(self.digest)}"
            )
        if self.steps is None:
            return
        if self.steps.dtype.kind not in "ui":
            raise ProtocolError(
                f"operation {operation!r}: expected integers for the differences of keys, got {self.steps.dtype}"
            )
        if self.steps.size != self.count - 1:
            raise ProtocolError(
                f"operation {operation!r}: {self.count} keys have {self.count - 1} differences, got {self.steps.size}"
            )

    def build(self, arrays: Iterator[Array]) -> Keys:
        columns = None if self.steps is None else unpack_keys(self.first, next(arrays))
        return Keys(self.count, columns, self.digest)


@dataclass(frozen=True, slots=True)
class OperationDraft:
    """An operation without keys and arrays, which have not arrived yet, and the descriptions of the keys and arrays."""

    operation: Operation
    keys: KeysDraft | None
    arrays: tuple[Spec, ...]

    def build(self, arrays: Iterator[Array]) -> Operation:
        if self.keys is None and not self.arrays:
            return self.operation
        keys = None if self.keys is None else self.keys.build(arrays)
        decoded = tuple(decode_array(next(arrays), spec) for spec in self.arrays)
        return replace(self.operation, keys=keys, arrays=decoded)


@dataclass(frozen=True)
class RequestDraft:
    """A request whose arrays have not arrived yet.

    Attributes:
        id, route_version, forwarded, begun: see ``Request``.
        specs: descriptions of all arrays in the order of arrival; the key differences of an operation precede its
            arrays.
    """

    operations: tuple[OperationDraft, ...]
    id: RequestId | None
    route_version: int
    forwarded: bool
    begun: int
    specs: tuple[Spec, ...]

    @property
    def nbytes(self) -> int:
        """The size of the arrays in the message, in bytes."""
        return total_bytes(self.specs)

    @property
    def memory_bytes(self) -> int:
        """The size of the decoded arrays in bytes: keys as int64, values in their stored dtype."""
        size = 0
        for draft in self.operations:
            if draft.keys is not None and draft.keys.steps is not None:
                size += 8 * draft.keys.count
            size += sum(spec.stored.itemsize * spec.size for spec in draft.arrays)
        return size

    def outlines(self, names: Container[str]) -> Iterator[Outline]:
        """Yield the outlines of the operations with one of these names."""
        for draft in self.operations:
            operation = draft.operation
            if operation.name in names:
                yield Outline(
                    operation.name,
                    operation.matrix,
                    operation.partition,
                    operation.params,
                    tuple(spec.shape for spec in draft.arrays),
                    None if draft.keys is None else draft.keys.count,
                    operation.wire,
                )

    def build(self, arrays: Sequence[Array]) -> Request:
        """Return the request with these arrays, one for each of ``specs``."""
        remaining = iter(arrays)
        operations = tuple(draft.build(remaining) for draft in self.operations)
        return Request(operations, self.id, self.route_version, self.forwarded, self.begun)


def new_draft(
    operations: Sequence[OperationDraft],
    id: RequestId | None,
    route_version: int,
    forwarded: bool,
    begun: int,
    limit_bytes: int,
) -> RequestDraft:
    """Return the draft of a request; raise an error if its keys are invalid, or it has too many or too large arrays."""
    specs: list[Spec] = []
    for operation in operations:
        if operation.keys is not None:
            operation.keys.check(operation.operation.name)
            if operation.keys.steps is not None:
                specs.append(operation.keys.steps)
        specs += operation.arrays
        if len(specs) > MAX_OPERATIONS:
            raise ProtocolError(f"request: expected at most {MAX_OPERATIONS} arrays, got more")
    draft = RequestDraft(tuple(operations), id, route_version, forwarded, begun, tuple(specs))
    if draft.nbytes > limit_bytes:
        raise LimitError(
            f"request: expected arrays of at most {limit_bytes:,} bytes, got {draft.nbytes:,}: send several requests"
        )
    return draft


@dataclass(frozen=True, slots=True)
class ReplyDraft:
    """A reply whose arrays have not arrived yet.

    Attributes:
        results: for each operation, its scalar (None if there is none) and the descriptions of its arrays.
        operations: the request's operations.
        arrays: the arrays to receive into.
        handle: the handle that the server assigned to requests of this shape; 0: none.
        error: the error that the server returned instead of results; None: no error.
    """

    results: tuple[tuple[float | None, tuple[Spec, ...]], ...]
    operations: tuple[Operation, ...]
    arrays: list[Array]
    replayed: bool = False
    handle: int = 0
    error: PS2Error | None = None

    def build(self) -> Reply | PS2Error:
        """Return the reply or the error. The arrays must be filled before this call."""
        if self.error is not None:
            return self.error
        remaining = iter(self.arrays)
        results = tuple(
            Result(
                scalar,
                tuple(
                    deliver(next(remaining), spec, operation.into if position == 0 else None)
                    for position, spec in enumerate(specs)
                ),
            )
            for (scalar, specs), operation in zip(self.results, self.operations, strict=True)
        )
        return Reply(results, self.replayed)


def reply_draft(
    results: Sequence[tuple[float | None, tuple[Spec, ...]]], request: Request, size: int, replayed: bool, handle: int
) -> ReplyDraft:
    """Return the draft of a reply, which is received into ``Operation.into`` of the request if possible.

    Raise ProtocolError if the reply does not match the request, or ``size``, the number of bytes after the header.
    """
    if len(results) != len(request.operations):
        raise ProtocolError(f"expected a reply with {len(request.operations)} results, got {len(results)}")
    targets: list[tuple[Spec, Array | None]] = []
    for (_, specs), operation in zip(results, request.operations, strict=True):
        if operation.into is not None and not specs:
            raise ProtocolError(f"operation {operation.name!r}: expected a reply with an array, got none")
        targets += [(spec, operation.into if position == 0 else None) for position, spec in enumerate(specs)]
    check_size(total_bytes([spec for spec, _ in targets]), size)
    arrays = [receive_array(spec, into) for spec, into in targets]
    return ReplyDraft(tuple(results), request.operations, arrays, replayed, handle)


def check_size(declared: int, received: int) -> None:
    if declared != received:
        raise ProtocolError(f"the header declares arrays of {declared} bytes, but {received} bytes follow")
