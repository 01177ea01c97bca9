"""Splits forwarded requests that are too large for one message into pieces, and reassembles them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np

from ps2.errors import ProtocolError, PS2Error, StaleRouteError
from ps2.protocol.binary import request_parts
from ps2.protocol.drafts import RequestDraft
from ps2.protocol.framing import Reading, message_views, read_request
from ps2.protocol.messages import Operation, Request, byte_view
from ps2.server.memory import MemoryAccount

# The name of the operation that sends a piece.
PIECE = "piece"
PIECE_BYTES = 16 << 20
# Size limit of a reassembled request; it is large because a row that a user's function wrote is sent in one request.
MAX_REQUEST_BYTES = 1 << 40

Name = tuple[object, int, int]  # request id, matrix and partition of its first operation


def cut(request: Request) -> list[Request]:
    """Return requests that together contain the bytes of a request; raises ProtocolError if it has no id."""
    if request.id is None:
        raise ProtocolError("a request without an id cannot be cut into pieces")
    first = request.operations[0]
    pieces: list[Request] = []
    offset = 0
    for block in _blocks(message_views(request_parts(request))):
        piece = Operation(PIECE, first.matrix, first.partition, params={"at": offset}, arrays=(np.asarray(block),))
        pieces.append(Request((piece,), request.id, request.route_version, request.forwarded))
        offset += len(block)
    return pieces


def is_piece(request: Request) -> bool:
    return request.forwarded and bool(request.operations) and request.operations[0].name == PIECE


class PieceAssembler:
    """Partly received requests; their memory is counted. Thread-safe."""

    def __init__(self, memory: MemoryAccount) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._partial: dict[Name, _PartialRequest] = {}

    def put(self, piece: Request) -> tuple[Request, int] | None:
        """Add a piece. After the last piece, return the request and its counted bytes, to release after it has run."""
        operation = piece.operations[0]
        name = (piece.id, operation.matrix, operation.partition)
        offset = int(operation.params.get("at", -1))
        with self._lock:
            # A primary with another route version was replaced, and never completes its requests.
            for stale_name in [
                other_name for other_name, other in self._partial.items() if other.route_version != piece.route_version
            ]:
                self._drop(stale_name)
            if offset == 0:
                self._drop(name)
                self._partial[name] = _PartialRequest(piece.route_version, self._memory)
            partial = self._partial.get(name)
            if partial is None or partial.received_bytes != offset:
                raise StaleRouteError("a piece of a forwarded request does not follow the piece before it")
            try:
                request = partial.add(byte_view(operation.arrays[0]))
            except PS2Error:
                self._drop(name)
                raise
            if request is None:
                return None
            del self._partial[name]
            return request, partial.counted_bytes

    def run(self, piece: Request, run: Callable[[Request], object]) -> None:
        """Add a piece; after the last piece, run the request."""
        complete = self.put(piece)
        if complete is None:
            return
        request, counted_bytes = complete
        try:
            run(request)
        finally:
            self._memory.give_transient(counted_bytes)

    def close(self) -> None:
        """Drop all pieces."""
        with self._lock:
            for name in list(self._partial):
                self._drop(name)

    def _drop(self, name: Name) -> None:
        partial = self._partial.pop(name, None)
        if partial is not None:
            self._memory.give_transient(partial.counted_bytes)


class _PartialRequest:
    """A partly received request; ``received_bytes``: the number of bytes received so far."""

    def __init__(self, route_version: int, memory: MemoryAccount) -> None:
        self.route_version = route_version
        self.received_bytes = 0
        self.counted_bytes = 0
        self._memory = memory
        self._parser: Reading[Request | PS2Error] = read_request(MAX_REQUEST_BYTES, self._reserve)
        self._view = next(self._parser)

    def add(self, data: memoryview) -> Request | None:
        self.received_bytes += len(data)
        while len(data):
            size = min(len(data), len(self._view))
            self._view[:size] = data[:size]
            self._view, data = self._view[size:], data[size:]
            if len(self._view):
                continue
            try:
                self._view = next(self._parser)
            except StopIteration as stop:
                request: Request | PS2Error = stop.value
                if isinstance(request, PS2Error):
                    raise request from None
                return request
        return None

    def _reserve(self, draft: RequestDraft) -> None:
        self._memory.take_transient(draft.memory_bytes, "a forwarded request")
        self.counted_bytes = draft.memory_bytes


def _blocks(views: list[memoryview]) -> Iterator[memoryview]:
    for view in views:
        for begin in range(0, len(view), PIECE_BYTES):
            yield view[begin : begin + PIECE_BYTES]
