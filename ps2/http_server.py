"""HTTP servers that limit the number of connections, and the time until a request arrives. Needs uvicorn."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ps2.listening import raise_file_limit
from ps2.logs import RateLimitedWarning

log = logging.getLogger(__name__)

# The maximum number of connections that the system keeps until ``accept``.
BACKLOG = 128
# The maximum number of connections accepted in one round of the event loop. A connection that is closed for a new one
# keeps its descriptor for a few rounds. The limit prevents that descriptors run out meanwhile.
ACCEPTED_AT_ONCE = 16
# Time limit for a client to send the whole head of a request. uvicorn has no such limit.
HEAD_S = 10.0
# The system ends a connection whose peer acknowledges no data for this long.
UNANSWERED_S = 60.0
# Pause after descriptors or memory have run out.
PAUSE_S = 1.0


class HttpServer(uvicorn.Server):
    """A uvicorn server with at most ``max_connections``, and at most half as many as the files that it may open.

    If one more connection arrives, the server closes the connection that has waited longest for a request, so idle
    connections block nobody. If requests of all others are being answered, it closes the new connection.
    """

    def __init__(self, config: uvicorn.Config, max_connections: int) -> None:
        """``config`` must not have been loaded."""
        config.ws = "none"  # a WebSocket's connection would not be counted
        super().__init__(config)
        self._connections = _Connections(max(1, min(max_connections, raise_file_limit() // 2)))
        self._opening: set[asyncio.Task[None]] = set()
        self._limit_warning = RateLimitedWarning(log, "the limit of %d connections is reached: idle ones are closed")
        self._accept_warning = RateLimitedWarning(log, "a connection could not be accepted: %s")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections. If uvicorn accepted them, this class could count them only after the TLS handshake."""
        await super().startup([])
        for listener in sockets or []:
            listener.setblocking(False)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # accepted connections inherit the option
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * UNANSWERED_S))
            self._listen(listener)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and end the open connections when their requests are answered."""
        for listener in sockets or []:
            asyncio.get_running_loop().remove_reader(listener)
        await super().shutdown(sockets)

    def _listen(self, listener: socket.socket) -> None:
        if not self.should_exit:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                client_socket, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # for example, no free descriptor; connections that end free some
                self._accept_warning.log(error)
                loop.remove_reader(listener)
                loop.call_later(PAUSE_S, self._listen, listener)
                return
            connection = _Connection(self, client_socket, self._connections)
            if (evicted := self._connections.add(connection)) is not None:
                self._limit_warning.log(self._connections.limit)
                evicted.hang_up()
            task = loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: _Connection) -> None:
        """Run the TLS handshake, if there is one, and let the connection read requests."""
        tls = self.config.ssl
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, connection.client_socket, ssl=tls, ssl_handshake_timeout=HEAD_S if tls else None
            )
        except OSError as error:  # the client has closed, sends nothing or sends no TLS; or ``hang_up`` was called
            log.debug("a connection ended before its first request: %s", error)
            self._connections.remove(connection)


class _Connections:
    """The open connections of a server: those that wait for a request, and those whose request is being answered."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting: dict[_Connection, None] = {}  # in order, the longest waiting first
        self._answering: set[_Connection] = set()

    def add(self, connection: _Connection) -> _Connection | None:
        """Add a connection that waits; return the connection to close if there are too many, else None."""
        self.wait(connection)
        if len(self._waiting) + len(self._answering) <= self.limit:
            return None
        evicted = next(iter(self._waiting))
        del self._waiting[evicted]
        return evicted

    def wait(self, connection: _Connection) -> None:
        """Record that a connection waits for a request."""
        self._answering.discard(connection)
        self._waiting[connection] = None

    def answer(self, connection: _Connection) -> None:
        """Record that a connection's request is being answered."""
        self._waiting.pop(connection, None)
        self._answering.add(connection)

    def remove(self, connection: _Connection) -> None:
        """Remove a connection that has ended."""
        self._waiting.pop(connection, None)
        self._answering.discard(connection)


class _Connection(H11Protocol):
    """A connection that ends if a request's head is not complete ``HEAD_S`` after its first byte, or after ``accept``.

    It uses h11, which refuses heads of more than 64 KiB. httptools, which uvicorn prefers where it is installed, keeps
    heads of any length, so a client without a token could fill the memory. uvicorn limits the time between two requests
    (``timeout_keep_alive``), but not the time from the first byte of a request to the end of its head.
    """

    def __init__(self, server: HttpServer, client_socket: socket.socket, connections: _Connections) -> None:
        super().__init__(config=server.config, server_state=server.server_state, app_state=server.lifespan.state)
        self.client_socket = client_socket
        self._connections = connections
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEAD_S, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering():
            self._stop_timer()
            self._connections.answer(self)
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD_S, self.transport.close)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_answering() and not self.transport.is_closing():  # otherwise the next request has arrived
            self._connections.wait(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._connections.remove(self)
        super().connection_lost(exc)

    def hang_up(self) -> None:
        """End the connection at once."""
        with suppress(OSError):
            self.client_socket.shutdown(socket.SHUT_RDWR)

    def _is_answering(self) -> bool:
        """Return True while the server answers a request."""
        return self.cycle is not None and not self.cycle.response_complete

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
