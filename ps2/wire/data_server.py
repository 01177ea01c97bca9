"""Where a server takes data requests without gRPC: a TCP port, and a Unix socket for clients on this host.

One thread a connection reads a request, runs it and writes its reply, then reads the next: a client that reads slowly
holds back only itself, and what it has not read stays with the kernel. Connections on which nothing happens share one.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
from typing import Protocol

from ps2.config import WireConfig
from ps2.errors import PS2Error
from ps2.wire import short
from ps2.wire.codec import Draft, ReplyParts, error_parts, reply_parts
from ps2.wire.door import BACKLOG, Door, Guest, listen_tcp, part
from ps2.wire.framing import read_request, written_by_pieces
from ps2.wire.introduction import let_in
from ps2.wire.messages import Reply, Request
from ps2.wire.parking import Parking, has_come
from ps2.wire.proof import Tokens
from ps2.wire.sockets import abstract, close, hang_up, open_files, receive, send_all
from ps2.wire.status import internal_error
from ps2.wire.tls_connection import Connection

log = logging.getLogger(__name__)

# Of clients; no more than half of what the process may open, which leaves the other half for all else.
MAX_CONNECTIONS = 16_384


class Service(Protocol):
    """What runs the requests."""

    def execute(self, request: Request) -> Reply:
        """Run a request, or raise the PS2Error that it comes to."""
        ...

    def reserve(self, draft: Draft) -> int:
        """Count what a request and its reply will take, once there is room; return the bytes.

        Raises:
            LimitError: there never is.
            BusyError: others take too long.
        """
        ...

    def release(self, size: int) -> None:
        """Give counted bytes back."""
        ...


class DataServer:
    """Listens until it is stopped. ``port`` and ``unix_name`` say where ("" if there is no Unix socket)."""

    def __init__(
        self, service: Service, host: str, port: int, token: str | Tokens | None, server_id: str, wire: WireConfig
    ) -> None:
        """Bind and start.

        Raises:
            LaunchError: the port is taken.
            ConfigError, AuthError: the certificates cannot be used.
        """
        self._service = service
        self._tokens = Tokens.of(token)
        self._wire = wire
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._most = min(MAX_CONNECTIONS, open_files() // 2)
        self._idle = threading.Condition(self._lock)
        self._busy = 0
        self._stopped = False
        listeners = [listen_tcp(host, port)]
        self.port: int = listeners[0].getsockname()[1]
        self.unix_name = ""
        if wire.unix_sockets and (listener := _listen_unix(server_id)) is not None:
            listeners.append(listener)
            self.unix_name = server_id
        self._parking = Parking(self._attend)
        try:
            self._door = Door(listeners, self._tokens, server_id, wire, self._serve)
        except PS2Error:
            self._parking.stop()
            raise

    @property
    def connections(self) -> int:
        """How many clients are connected that have proven themselves."""
        return len(self._connections)

    def stop(self, grace_s: float) -> None:
        """Take no new requests, wait for those under way at most ``grace_s``, and close every connection."""
        self._door.shut()
        with self._idle:
            self._stopped = True
            self._idle.wait_for(lambda: self._busy == 0, grace_s)
            for connection in self._connections:
                hang_up(connection)
        self._parking.stop()
        with self._lock:
            self._connections.clear()
        self._door.join()

    def _serve(self, guest: Guest) -> None:
        if not self._take(guest.plain):
            close(guest.plain)
            return
        try:
            let_in(guest.connection)
        except OSError as error:
            self._end(guest, error)
        else:
            self._attend(guest)

    def _attend(self, guest: Guest) -> None:
        """Answer what comes, as long as something does."""
        poll = select.poll()
        poll.register(guest.plain, select.POLLIN)
        error: Exception | None = None
        try:
            while has_come(guest, poll):
                if not self._answer(guest):
                    break
            else:
                self._parking.park(guest)
                return
        except (EOFError, OSError) as gone:
            error = gone
        self._end(guest, error)

    def _end(self, guest: Guest, error: Exception | None) -> None:
        log.debug("a data connection has ended: %s", error)  # the client went away, whatever it was doing
        with self._lock:
            self._connections.discard(guest.plain)
        close(guest.plain)

    def _take(self, connection: socket.socket) -> bool:
        """Give a client a place; return False if there is none."""
        with self._lock:
            if self._stopped:
                return False
            if len(self._connections) >= self._most:
                log.warning("a connection is refused: there are %d", self._most)
                return False
            self._connections.add(connection)
            return True

    def _answer(self, guest: Guest) -> bool:
        """Read, run and answer one request; return False if no other can follow."""
        connection = guest.connection
        reserved = 0

        def reserve(draft: Draft) -> None:
            nonlocal reserved
            reserved = self._service.reserve(draft)

        try:
            request = receive(connection, read_request(self._wire.request_limit_bytes, reserve))
            if self._tokens is not None and guest.token not in self._tokens.all:
                return False  # it was replaced; the client begins anew, with what it knows by now
            with self._lock:
                if self._stopped:
                    return False
                self._busy += 1
            try:
                _send(connection, self._run(request))
            finally:
                del request  # gone before its memory is said to be free
                with self._idle:
                    self._busy -= 1
                    self._idle.notify_all()
            return True
        except PS2Error as error:  # what follows cannot be told from garbage
            part(connection, error)
            return False
        finally:
            self._service.release(reserved)

    def _run(self, request: Request | PS2Error) -> ReplyParts:
        if isinstance(request, PS2Error):
            return error_parts(request)
        try:
            reply = self._service.execute(request)
            return short.reply_parts(reply, request) or reply_parts(reply, request)
        except PS2Error as error:
            return error_parts(error)
        except Exception as error:  # a bug: told to the caller, logged whole, and this server goes on
            log.exception("internal error")
            return error_parts(internal_error(error))


def _listen_unix(name: str) -> socket.socket | None:
    """Return a listening Unix socket; None where the system has no abstract ones."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(abstract(name))
        listener.listen(BACKLOG)
    except OSError as error:
        log.info("no Unix socket for clients on this host: %s", error)
        listener.close()
        return None
    return listener


def _send(connection: Connection, parts: ReplyParts) -> None:
    for views in written_by_pieces(parts):
        send_all(connection, views)
