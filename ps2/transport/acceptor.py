"""Accepts data connections, which do not use gRPC. Each client proves in its own thread that it knows the token."""

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
from ps2.listening import listening_socket, raise_file_limit
from ps2.logs import RateLimitedWarning
from ps2.transport.connection import Connection
from ps2.transport.handshake import admit, refusal
from ps2.transport.proof import Tokens
from ps2.transport.sockets import close, hang_up, send_all, tune
from ps2.transport.tls import TlsValue, server_context
from ps2.transport.tls_connection import TlsConnection

log = logging.getLogger(__name__)

# Time limit of the TLS handshake and the exchange of proofs together.
GREETING_TIMEOUT_S = 10.0
# Maximum number of unauthenticated connections; a further connection evicts the oldest. A peer that knows the token
# authenticates within milliseconds, so it is admitted despite any number of unauthenticated peers.
MAX_UNAUTHENTICATED = 128
# Connections that the kernel queues for ``accept``.
BACKLOG = 1024
# Time limit for the client to take the last message, and for the ``accept`` calls to return.
DRAIN_TIMEOUT_S = 1.0
# Pause if no file descriptor, thread or memory is available.
PAUSE_S = 0.1


@dataclass(frozen=True, eq=False)
class AuthenticatedPeer:
    """A connection whose client has passed the handshake.

    Attributes:
        plain: the TCP or Unix socket; the owner of this object must close it.
        connection: the connection to use: TLS over ``plain`` if the server has TLS. It blocks without a timeout.
        token: the token that the client knows; None if the server has none.
        name: the client's name for the connection; empty if it gave none.
    """

    plain: socket.socket
    connection: Connection
    token: str | None
    name: bytes


class Acceptor:
    """Accepts connections on listening sockets until ``shut`` is called."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        tokens: Tokens | None,
        server_id: str,
        wire: WireConfig,
        welcome: Callable[[AuthenticatedPeer], None],
    ) -> None:
        """Start accepting clients that ask for ``server_id`` and know one of the tokens; None admits every client.

        ``welcome`` is called with each admitted peer, in the peer's own thread, and must either call
        ``handshake.accept`` or close the peer's socket. If certificates are unusable, the listeners are closed.
        """
        self._listeners = listeners
        self._tokens = tokens
        self._server_id = server_id
        self._wire = wire
        self._welcome = welcome
        try:
            self._tls = TlsValue(wire.tls, server_context) if wire.tls is not None else None
        except PS2Error:
            for listener in listeners:
                listener.close()
            raise
        self._shut = threading.Event()
        self._lock = threading.Lock()
        self._unauthenticated: dict[socket.socket, None] = {}  # oldest first
        self._max_unauthenticated = min(MAX_UNAUTHENTICATED, raise_file_limit() // 8)
        self._not_accepted = RateLimitedWarning(log, "a connection could not be accepted: %s")
        self._no_thread = RateLimitedWarning(log, "a connection is refused, because no thread can be started: %s")
        self._acceptors = [
            threading.Thread(target=self._accept, args=(listener,), name="ps2-accept", daemon=True)
            for listener in listeners
        ]
        for acceptor in self._acceptors:
            acceptor.start()

    def shut(self) -> None:
        """Stop accepting, and disconnect unauthenticated peers."""
        with self._lock:
            self._shut.set()
            peers = list(self._unauthenticated)
        for listener in self._listeners:
            close(listener)
        for peer in peers:
            hang_up(peer)

    def join(self) -> None:
        """Wait until the listeners' addresses are free: the system frees them when the last ``accept`` returns."""
        for acceptor in self._acceptors:
            acceptor.join(DRAIN_TIMEOUT_S)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if self._shut.is_set():
                    return
                # For example, no file descriptor is free until another connection ends.
                self._not_accepted.log(error)
                self._shut.wait(PAUSE_S)
                continue
            if not self._add_unauthenticated(connection):
                close(connection)
                continue
            try:
                threading.Thread(target=self._authenticate, args=(connection,), name="ps2-data", daemon=True).start()
            except (RuntimeError, MemoryError) as error:  # no thread can be started until another one ends
                self._no_thread.log(error)
                self._remove_unauthenticated(connection)
                close(connection)
                self._shut.wait(PAUSE_S)

    def _add_unauthenticated(self, connection: socket.socket) -> bool:
        """Register a connection, and evict the oldest if there are too many; return False after ``shut``."""
        with self._lock:
            if self._shut.is_set():
                return False
            if len(self._unauthenticated) >= self._max_unauthenticated:
                oldest = next(iter(self._unauthenticated))
                del self._unauthenticated[oldest]
                hang_up(oldest)  # its thread closes it
            self._unauthenticated[connection] = None
            return True

    def _remove_unauthenticated(self, connection: socket.socket) -> bool:
        """Unregister a connection; return True if it was still registered and may be admitted."""
        with self._lock:
            return self._unauthenticated.pop(connection, connection) is None and not self._shut.is_set()

    def _authenticate(self, connection: socket.socket) -> None:
        peer = None
        wrapped: Connection = connection
        try:
            tune(connection, self._wire)
            deadline_s = time.monotonic() + GREETING_TIMEOUT_S
            wrapped = self._with_tls(connection, deadline_s)
            token, name = admit(wrapped, self._tokens, self._server_id, deadline_s)
            connection.settimeout(None)
            peer = AuthenticatedPeer(connection, wrapped, token, name)
        except PS2Error as error:
            send_final(wrapped, refusal(error))
        except (EOFError, OSError) as error:  # the client disconnected, or took too long
            log.debug("a connection ended: %s", error)
        except Exception:  # a bug, or out of memory: log the traceback, and free the slot below
            log.exception("a connection ended with an internal error")
        if not self._remove_unauthenticated(connection) or peer is None:
            close(connection)
        else:
            self._welcome(peer)

    def _with_tls(self, connection: socket.socket, deadline_s: float) -> Connection:
        """Return a TLS connection after its handshake, or a Unix socket unchanged; raises OSError."""
        if self._tls is None or connection.family == socket.AF_UNIX:
            return connection
        tls = TlsConnection(connection, self._tls.get(), None)
        try:
            tls.handshake(deadline_s)
        except ssl.SSLError as error:
            log.info("a connection is refused: %s", error)
            raise
        return tls


def send_final(connection: Connection, message: bytes) -> None:
    """Send a last message, then discard input for a moment: closing with unread input would discard the message."""
    with suppress(OSError):
        deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
        connection.settimeout(DRAIN_TIMEOUT_S)
        send_all(connection, [memoryview(message)])
        connection.shutdown(socket.SHUT_WR)
        while (remaining_s := deadline_s - time.monotonic()) > 0:
            connection.settimeout(remaining_s)
            if not connection.recv(1 << 16):
                break


def listen_tcp(host: str, ports: Sequence[int]) -> socket.socket:
    """Return a socket that listens on the first free port of ``ports``; raises LaunchError."""
    try:
        return listening_socket(host, ports, BACKLOG)
    except OSError as error:
        name = f"port {ports[0]}" if len(ports) == 1 else f"any of the ports {ports[0]}-{ports[-1]}"
        raise LaunchError(f"cannot listen for data on {name} of {host}: {error}") from error
