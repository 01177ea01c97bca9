"""HTTP servers that limit the number of connections, and the time until a request arrives. Needs uvicorn."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ps2.listening import open_files
from ps2.logs import RateLimitedWarning

log = logging.getLogger(__name__)

# Connections that wait for ``accept``.
BACKLOG = 128
# Connections that are accepted in one round of the event loop. The connections that are closed in favour of them need a
# few rounds until their descriptors are free.
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
        """``config``: not loaded yet."""
        config.ws = "none"  # another protocol would take connections away from those that are counted
        super().__init__(config)
        self._connections = _Connections(max(1, min(max_connections, open_files() // 2)))
        self._opening: set[asyncio.Task[None]] = set()
        self._too_many = RateLimitedWarning(log, "the limit of %d connections is reached: idle ones are closed")
        self._not_accepted = RateLimitedWarning(log, "a connection could not be accepted: %s")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections. uvicorn would learn of a connection only after its TLS handshake."""
        await super().startup([])
        for listener in sockets or []:
            listener.setblocking(False)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # accepted connections have it, too
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * UNANSWERED_S))
            self._listen(listener)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and end the open connections when they have been answered."""
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
                accepted, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # for example out of descriptors: connections that end will free some
                self._not_accepted.log(error)
                loop.remove_reader(listener)
                loop.call_later(PAUSE_S, self._listen, listener)
                return
            connection = _Connection(self, accepted, self._connections)
            if (ended := self._connections.add(connection)) is not None:
                self._too_many.log(self._connections.limit)
                ended.hang_up()
            task = loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: _Connection) -> None:
        """Run the TLS handshake, if there is one, and let the connection read requests."""
        tls = self.config.ssl
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, connection.accepted, ssl=tls, ssl_handshake_timeout=HEAD_S if tls else None
            )
        except OSError as error:  # the client is gone, silent, or does not speak TLS; or the connection was ended
            log.debug("a connection ended before its first request: %s", error)
            self._connections.remove(connection)


class _Connections:
    """The open connections of a server: those that wait for a request, and those whose request is being answered."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._waiting: dict[_Connection, None] = {}  # in order, the longest waiting first
        self._answering: set[_Connection] = set()

    def add(self, connection: _Connection) -> _Connection | None:
        """Add a connection that waits; return the connection that must end if there are too many, else None."""
        self.wait(connection)
        if len(self._waiting) + len(self._answering) <= self.limit:
            return None
        ended = next(iter(self._waiting))
        del self._waiting[ended]
        return ended

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
    """A connection that ends if a request's head is not complete ``HEAD_S`` after its first byte, or after the opening.

    It uses h11, which refuses heads of more than 64 KiB. httptools, which uvicorn prefers where it is installed, keeps
    heads of any length, so a client without a token could fill the memory. uvicorn limits the time between two requests
    (``timeout_keep_alive``), but only until the first byte.
    """

    def __init__(self, server: HttpServer, accepted: socket.socket, connections: _Connections) -> None:
        super().__init__(config=server.config, server_state=server.server_state, app_state=server.lifespan.state)
        self.accepted = accepted
        self._all = connections
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEAD_S, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answered():
            self._stop_timer()
            self._all.answer(self)
        elif self._timer is None:
            self._timer = self.loop.call_later(HEAD_S, self.transport.close)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_answered() and not self.transport.is_closing():  # else the next request has arrived already
            self._all.wait(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._all.remove(self)
        super().connection_lost(exc)

    def hang_up(self) -> None:
        """End the connection at once."""
        with suppress(OSError):
            self.accepted.shutdown(socket.SHUT_RDWR)

    def _is_answered(self) -> bool:
        """Return True while a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
