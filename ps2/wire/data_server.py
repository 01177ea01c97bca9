"""Where a server takes data requests without gRPC: a TCP port, and a Unix socket for clients on this host.

One thread a connection reads a request, runs it and writes its reply, then reads the next: a client that reads slowly
holds back only itself, and what it has not read stays with the kernel.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Protocol

from ps2.config import WireConfig
from ps2.errors import LaunchError, PS2Error
from ps2.wire.codec import ReplyParts, RequestDraft, error_parts, reply_parts
from ps2.wire.framing import read_request, written_by_pieces
from ps2.wire.introduction import admit, let_in
from ps2.wire.messages import Reply, Request
from ps2.wire.proof import Tokens
from ps2.wire.sockets import abstract, close, hang_up, receive, resolve, send_all, tune
from ps2.wire.status import internal_error
from ps2.wire.tls import Renewed, server_context
from ps2.wire.tls_connection import Connection, TlsConnection

log = logging.getLogger(__name__)

# From the first byte to the last, for all that comes before requests.
GREETING_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 1024
# Connections of those who have not proven themselves yet. One more, and the oldest of them ends: who knows the token
# needs milliseconds, so however many strangers there are, it finds a place.
MAX_STRANGERS = 128
BACKLOG = 1024
DRAIN_TIMEOUT_S = 1.0


class Service(Protocol):
    """What runs the requests."""

    def execute(self, request: Request) -> Reply:
        """Run a request, or raise the PS2Error that it comes to."""
        ...

    def reserve(self, draft: RequestDraft) -> int:
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
        self._server_id = server_id
        self._wire = wire
        self._tls = Renewed(wire.tls, server_context) if wire.tls is not None else None
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._strangers: dict[socket.socket, None] = {}  # the oldest comes first
        self._idle = threading.Condition(self._lock)
        self._busy = 0
        self._stopped = False
        self._listeners = [_listen_tcp(host, port)]
        self.port: int = self._listeners[0].getsockname()[1]
        self.unix_name = ""
        if wire.unix_sockets and (listener := _listen_unix(server_id)) is not None:
            self._listeners.append(listener)
            self.unix_name = server_id
        self._acceptors = [
            threading.Thread(target=self._accept, args=(listener,), name="ps2-accept", daemon=True)
            for listener in self._listeners
        ]
        for acceptor in self._acceptors:
            acceptor.start()

    @property
    def connections(self) -> int:
        """How many clients are connected that have proven themselves."""
        return len(self._connections)

    def stop(self, grace_s: float) -> None:
        """Take no new requests, wait for those under way at most ``grace_s``, and close every connection."""
        with self._idle:
            self._stopped = True
            for listener in self._listeners:
                close(listener)
            self._idle.wait_for(lambda: self._busy == 0, grace_s)
            for connection in [*self._connections, *self._strangers]:
                hang_up(connection)
        # Until its accept returns, the system keeps a socket's name.
        for acceptor in self._acceptors:
            acceptor.join(DRAIN_TIMEOUT_S)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if self._stopped:
                    return
                # Out of descriptors, say: connections that end will give some back.
                log.warning("a connection could not be accepted: %s", error)
                with self._idle:
                    self._idle.wait_for(lambda: self._stopped, 0.1)
                continue
            if self._receive_stranger(connection):
                threading.Thread(target=self._serve, args=(connection,), name="ps2-data", daemon=True).start()
            else:
                close(connection)

    def _receive_stranger(self, connection: socket.socket) -> bool:
        """Give a connection a stranger's place, of another one if need be; return False if there is none any more."""
        with self._lock:
            if self._stopped:
                return False
            if len(self._strangers) >= MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                hang_up(oldest)  # its thread closes it
            self._strangers[connection] = None
            return True

    def _welcome(self, connection: socket.socket) -> bool:
        """Give a stranger that has proven itself a client's place; return False if there is none."""
        with self._lock:
            if connection not in self._strangers or self._stopped:
                return False
            del self._strangers[connection]
            if len(self._connections) >= MAX_CONNECTIONS:
                log.warning("a connection is refused: there are %d", MAX_CONNECTIONS)
                return False
            self._connections.add(connection)
            return True

    def _serve(self, connection: socket.socket) -> None:
        wrapped: Connection = connection
        try:
            tune(connection, self._wire)
            deadline_s = time.monotonic() + GREETING_TIMEOUT_S
            wrapped = self._secured(connection, deadline_s)
            token = admit(wrapped, self._tokens, self._server_id, deadline_s)
            if self._welcome(connection):
                let_in(wrapped)
                connection.settimeout(None)
                while self._answer(wrapped, token):
                    pass
        except PS2Error as error:
            self._part(wrapped, error)
        except (EOFError, OSError) as error:  # the client went away, whatever it was doing
            log.debug("a data connection ended: %s", error)
        finally:
            with self._lock:
                self._connections.discard(connection)
                self._strangers.pop(connection, None)
            close(connection)

    def _secured(self, connection: socket.socket, deadline_s: float) -> Connection:
        """Agree on keys with a client on another host; raises OSError."""
        if self._tls is None or connection.family == socket.AF_UNIX:
            return connection
        tls = TlsConnection(connection, self._tls.get(), None)
        try:
            tls.handshake(deadline_s)
        except ssl.SSLError as error:
            log.info("a data connection is refused: %s", error)
            raise
        return tls

    def _answer(self, connection: Connection, token: str | None) -> bool:
        """Read, run and answer one request; return False if no other can follow.

        Args:
            token: that the client has proven to know.
        """
        reserved = 0

        def reserve(draft: RequestDraft) -> None:
            nonlocal reserved
            reserved = self._service.reserve(draft)

        try:
            request = receive(connection, read_request(self._wire.request_limit_bytes, reserve))
            if self._tokens is not None and token not in self._tokens.all:
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
            self._part(connection, error)
            return False
        finally:
            self._service.release(reserved)

    def _run(self, request: Request | PS2Error) -> ReplyParts:
        if isinstance(request, PS2Error):
            return error_parts(request)
        try:
            return reply_parts(self._service.execute(request), request)
        except PS2Error as error:
            return error_parts(error)
        except Exception as error:  # a bug: told to the caller, logged whole, and this server goes on
            log.exception("internal error")
            return error_parts(internal_error(error))

    def _part(self, connection: Connection, error: PS2Error) -> None:
        """Say why, and close: reading on for a moment, or the error would be lost with what was not read."""
        with suppress(OSError):
            deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
            connection.settimeout(DRAIN_TIMEOUT_S)
            _send(connection, error_parts(error))
            connection.shutdown(socket.SHUT_WR)
            while (left_s := deadline_s - time.monotonic()) > 0:
                connection.settimeout(left_s)
                if not connection.recv(1 << 16):
                    break


def _listen_tcp(host: str, port: int) -> socket.socket:
    try:
        family, address = resolve(host, port)
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise LaunchError(f"cannot take data on port {port} of {host}: {error}") from error
    return listener


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
