"""Where connections come in without gRPC: each proves, in a thread of its own, that it knows the token."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ps2.config import WireConfig
from ps2.errors import LaunchError, PS2Error
from ps2.transport.connection import Connection
from ps2.transport.handshake import admit, refusal
from ps2.transport.proof import Tokens
from ps2.transport.sockets import close, hang_up, listening_socket, send_all, tune
from ps2.transport.tls import Renewed, server_context
from ps2.transport.tls_connection import TlsConnection

log = logging.getLogger(__name__)

# From the first byte to the last, for all that comes before requests.
GREETING_TIMEOUT_S = 10.0
# Connections of those who have not proven themselves yet. One more, and the oldest of them ends: who knows the token
# needs milliseconds, so however many unauthenticated peers there are, it finds a place.
MAX_UNAUTHENTICATED = 128
BACKLOG = 1024
DRAIN_TIMEOUT_S = 1.0
# After a connection that could not be taken, for want of descriptors, threads or memory.
PAUSE_S = 0.1


@dataclass(frozen=True, eq=False)
class AuthenticatedPeer:
    """Who has proven itself.

    Attributes:
        plain: the socket; to be closed.
        connection: what is to be used of it, which is TLS's if there is any. It blocks, for ever.
        token: that it has proven to know.
        name: what it calls the connection; b"": nothing.
    """

    plain: socket.socket
    connection: Connection
    token: str | None
    name: bytes


class Acceptor:
    """Takes connections at listening sockets until it is shut."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        tokens: Tokens | None,
        server_id: str,
        wire: WireConfig,
        welcome: Callable[[AuthenticatedPeer], None],
    ) -> None:
        """Begin.

        Args:
            tokens: one of which a client proves to know; None lets everybody in.
            server_id: whom clients mean to meet.
            welcome: takes who is to be let in (``accept``), in a thread of its own.

        Raises:
            ConfigError, AuthError: the certificates cannot be used; the sockets are closed.
        """
        self._listeners = listeners
        self._tokens = tokens
        self._server_id = server_id
        self._wire = wire
        self._welcome = welcome
        try:
            self._tls = Renewed(wire.tls, server_context) if wire.tls is not None else None
        except PS2Error:
            for listener in listeners:
                listener.close()
            raise
        self._shut = threading.Event()
        self._lock = threading.Lock()
        self._unauthenticated: dict[socket.socket, None] = {}  # the oldest comes first
        self._acceptors = [
            threading.Thread(target=self._accept, args=(listener,), name="ps2-accept", daemon=True)
            for listener in listeners
        ]
        for acceptor in self._acceptors:
            acceptor.start()

    def shut(self) -> None:
        """Take no new connections, and end those of unauthenticated peers."""
        with self._lock:
            self._shut.set()
            peers = list(self._unauthenticated)
        for listener in self._listeners:
            close(listener)
        for peer in peers:
            hang_up(peer)

    def join(self) -> None:
        """Wait until the listeners' names are free: the system keeps them until the last ``accept`` returns."""
        for acceptor in self._acceptors:
            acceptor.join(DRAIN_TIMEOUT_S)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if self._shut.is_set():
                    return
                # Out of descriptors, say: connections that end will give some back.
                log.warning("a connection could not be accepted: %s", error)
                self._shut.wait(PAUSE_S)
                continue
            if not self._add_unauthenticated(connection):
                close(connection)
                continue
            try:
                threading.Thread(target=self._meet, args=(connection,), name="ps2-data", daemon=True).start()
            except (RuntimeError, MemoryError) as error:  # the limit of threads: some will end
                log.warning("a connection is refused, as it gets no thread: %s", error)
                self._remove_unauthenticated(connection)
                close(connection)
                self._shut.wait(PAUSE_S)

    def _add_unauthenticated(self, connection: socket.socket) -> bool:
        """Register a connection, and drop the oldest one if there are too many; return False after ``close``."""
        with self._lock:
            if self._shut.is_set():
                return False
            if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
                oldest = next(iter(self._unauthenticated))
                del self._unauthenticated[oldest]
                hang_up(oldest)  # its thread closes it
            self._unauthenticated[connection] = None
            return True

    def _remove_unauthenticated(self, connection: socket.socket) -> bool:
        """Unregister a connection; return whether it was still registered, and may be admitted."""
        with self._lock:
            return self._unauthenticated.pop(connection, connection) is None and not self._shut.is_set()

    def _meet(self, connection: socket.socket) -> None:
        peer = None
        wrapped: Connection = connection
        try:
            tune(connection, self._wire)
            deadline_s = time.monotonic() + GREETING_TIMEOUT_S
            wrapped = self._secured(connection, deadline_s)
            token, name = admit(wrapped, self._tokens, self._server_id, deadline_s)
            connection.settimeout(None)
            peer = AuthenticatedPeer(connection, wrapped, token, name)
        except PS2Error as error:
            part(wrapped, refusal(error))
        except (EOFError, OSError) as error:  # it went away, whatever it was doing
            log.debug("a connection ended: %s", error)
        except Exception:  # a bug, or no memory: logged whole; its place is given back in any case
            log.exception("a connection ended by an internal error")
        if not self._remove_unauthenticated(connection) or peer is None:
            close(connection)
        else:
            self._welcome(peer)

    def _secured(self, connection: socket.socket, deadline_s: float) -> Connection:
        """Agree on keys with a client on another host; raises OSError."""
        if self._tls is None or connection.family == socket.AF_UNIX:
            return connection
        tls = TlsConnection(connection, self._tls.get(), None)
        try:
            tls.handshake(deadline_s)
        except ssl.SSLError as error:
            log.info("a connection is refused: %s", error)
            raise
        return tls


def part(connection: Connection, why: bytes) -> None:
    """Send a message that says why, before closing: reading on for a moment, or it is lost with what was unread."""
    with suppress(OSError):
        deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
        connection.settimeout(DRAIN_TIMEOUT_S)
        send_all(connection, [memoryview(why)])
        connection.shutdown(socket.SHUT_WR)
        while (left_s := deadline_s - time.monotonic()) > 0:
            connection.settimeout(left_s)
            if not connection.recv(1 << 16):
                break


def listen_tcp(host: str, ports: Sequence[int]) -> socket.socket:
    """Return a socket that listens on the first of the ports that is free; raises LaunchError."""
    try:
        return listening_socket(host, ports, BACKLOG)
    except OSError as error:
        which = f"port {ports[0]}" if len(ports) == 1 else f"any of the ports {ports[0]}-{ports[-1]}"
        raise LaunchError(f"cannot take data on {which} of {host}: {error}") from error
