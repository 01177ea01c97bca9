"""Pipelines many requests to many servers over data connections, in one thread that polls all connections."""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from ps2.config import WireConfig
from ps2.errors import DeadlineError, ProtocolError, PS2Error, UnavailableError
from ps2.interrupts import POLL_S, SHIELD, check
from ps2.protocol.binary import Handles, check_sendable, request_parts
from ps2.protocol.framing import message_views, read_reply
from ps2.protocol.messages import Reply, Request
from ps2.transport.concurrent_calls import call_concurrently
from ps2.transport.connection import Connection, ConnectionCounts, is_peer_buffer_full, is_stalled
from ps2.transport.sockets import PlainSocket, limit_unacknowledged, send_some

Outcome = Reply | PS2Error
# Returns the byte counts of both ends of a connection to an address; None if the system does not count. Raises PS2Error
# if the server does not answer, or does not know the connection.
Ask = Callable[[str, Connection], ConnectionCounts | None]

# The system may wake a waiting thread up to this long too early.
TICK_S = 0.02


class InFlightRequests:
    """The in-flight requests of one connection, and their outcomes.

    Requests are pipelined, and replies come in the same order.

    Attributes:
        outcomes: the replies received so far, and an error for each request that could not be sent.
        failed: True if the connection is unusable; all remaining requests have the same error.
        last_byte_s: the time of the last byte sent or received.
        checked_s: the time of the last ``check_liveness``.
        is_patient: True if the operating system's timeout is off, because the server only leaves its input unread.
    """

    def __init__(
        self,
        address: str,
        connection: Connection,
        requests: Sequence[Request],
        limit_bytes: int,
        unsent: Sequence[Request] | None = None,
    ) -> None:
        """Prepare the exchange; send nothing yet. ``unsent``: requests that must still be sent; None: all of them."""
        self.address = address
        self.connection = connection
        self.requests = requests
        self.outcomes: list[Outcome] = []
        self.failed = False
        self.last_byte_s = self.checked_s = time.monotonic()
        self.is_patient = False
        self._last_counts: ConnectionCounts | None = None  # at the last check
        self._limit_bytes = limit_bytes
        self._unsent = deque(enumerate(requests if unsent is None else unsent))
        self._unsendable: dict[int, PS2Error] = {}
        # Handles exist only if the server has a fast path for the connection.
        self._handles: Handles = connection.handles if isinstance(connection, PlainSocket) else {}
        self._sending: list[memoryview] = []  # what remains of the request that is being sent
        self._reader = read_reply(requests[0], self._handles)
        self._view = next(self._reader)  # the memory for the next bytes of the reply

    @property
    def finished(self) -> bool:
        return len(self.outcomes) == len(self.requests)

    @property
    def reusable(self) -> bool:
        """True if all requests are sent and all replies received, so that the connection can be used again."""
        return self.finished and not self.failed and not self._sending

    @property
    def events(self) -> int:
        """The poll events to wait for."""
        return select.POLLIN | (select.POLLOUT if self._sending or self._unsent else 0)

    def advance(self, ready: int, wait: bool = False) -> None:
        """Write and read without blocking. With ``wait``, wait for input up to the socket's timeout."""
        try:
            with suppress(BlockingIOError):
                if ready & select.POLLOUT:
                    self._write()
            with suppress(BlockingIOError):
                if ready & ~select.POLLOUT:
                    self._read(socket.MSG_WAITALL if wait else socket.MSG_DONTWAIT)
        except OSError as error:
            self.fail(UnavailableError(f"{self.address}: {error.strerror or error}"))
        except ProtocolError as error:
            self.fail(error)

    def fail(self, error: PS2Error) -> None:
        self.failed = True
        self.outcomes += [error] * (len(self.requests) - len(self.outcomes))

    def check_liveness(self, ask: Ask) -> None:
        """Fail if the server does not answer, or if the connection delivers nothing any more.

        A server that passes the check is only slow, and can leave its input unread until the exchange's deadline.
        """
        try:
            counts = ask(self.address, self.connection)
            if counts is not None and is_peer_buffer_full(self.connection):
                limit_unacknowledged(self.connection, 0)
                self.is_patient = True
        except OSError as error:
            self.fail(UnavailableError(f"{self.address}: {error.strerror or error}"))
        except PS2Error as error:
            self.fail(UnavailableError(f"{self.address}: the server does not answer: {error}"))
        else:
            if counts is not None and self._last_counts is not None and is_stalled(self._last_counts, counts):
                self.fail(UnavailableError(f"{self.address}: the connection delivers nothing any more"))
            self._last_counts, self.checked_s = counts, time.monotonic()

    def _write(self) -> None:
        while self._sending or self._unsent:
            if not self._sending:
                index, request = self._unsent.popleft()
                try:
                    parts = request_parts(request, self._handles)
                    check_sendable(parts, self._limit_bytes)
                except PS2Error as error:
                    self._unsendable[index] = error
                    if index == len(self.outcomes):
                        self._begin_next_reply()
                    continue
                self._sending = message_views(parts)
            send_some(self.connection, self._sending, socket.MSG_DONTWAIT)
            self.last_byte_s = time.monotonic()

    def _read(self, flags: int) -> None:
        while True:
            received_bytes = self.connection.recv_into(self._view, 0, flags)
            if not received_bytes:
                raise ConnectionResetError(0, "the server closed the connection")
            self.last_byte_s = time.monotonic()
            self._view = self._view[received_bytes:]
            if len(self._view):
                continue
            try:
                self._view = next(self._reader)
            except StopIteration as stop:
                self.outcomes.append(stop.value)
                self._begin_next_reply()
                if self.finished:
                    return

    def _begin_next_reply(self) -> None:
        """Prepare to read the next reply; skip requests that could not be sent."""
        while len(self.outcomes) in self._unsendable:
            self.outcomes.append(self._unsendable.pop(len(self.outcomes)))
        if not self.finished:
            self._reader = read_reply(self.requests[len(self.outcomes)], self._handles)
            self._view = next(self._reader)


def run(in_flight: Sequence[InFlightRequests], wire: WireConfig, ask: Ask) -> None:
    """Send the requests and receive the replies of all connections, until each connection is done or has failed.

    ``ask`` is called for each server that has been silent for half of ``wire.keepalive_s``. A request may take long
    while the server computes; it fails if the server's process is stopped or the connection delivers nothing.
    """
    deadline_s = time.monotonic() + wire.request_timeout_s
    for flight in in_flight:
        # Usually all requests fit into the socket's buffer, so the first wait is for a reply.
        flight.advance(select.POLLOUT)
    while waiting := [flight for flight in in_flight if not flight.finished]:
        if len(waiting) == 1 and waiting[0].events == select.POLLIN:
            # With only one reply to wait for, blocking in the kernel for a whole array costs less than polling.
            waiting[0].advance(select.POLLIN, wait=True)
        else:
            _poll(waiting, min(wire.keepalive_s / 2, max(0.0, deadline_s - time.monotonic())))
        _check_silent(waiting, deadline_s, wire, ask)
        check()


def _poll(in_flight: Sequence[InFlightRequests], wait_s: float) -> None:
    """Wait until a connection is ready, then write and read."""
    poll = select.poll()
    by_descriptor = {flight.connection.fileno(): flight for flight in in_flight}
    for descriptor, flight in by_descriptor.items():
        poll.register(descriptor, flight.events)
    if SHIELD.is_active:
        wait_s = min(wait_s, POLL_S)
    for descriptor, ready in poll.poll(1000 * wait_s + 1):
        by_descriptor[descriptor].advance(ready)


def _check_silent(in_flight: Sequence[InFlightRequests], deadline_s: float, wire: WireConfig, ask: Ask) -> None:
    now_s = time.monotonic()
    silent = []
    for flight in in_flight:
        if flight.finished:
            continue
        if now_s > deadline_s:
            flight.fail(DeadlineError(f"{flight.address}: no reply within {wire.request_timeout_s:.0f} s"))
        elif now_s - max(flight.last_byte_s, flight.checked_s) >= wire.keepalive_s / 2 - TICK_S:
            silent.append(flight)
    if silent:
        call_concurrently(silent, lambda flight: flight.check_liveness(ask))
