"""Pools data connections to servers: opens them on demand, and keeps them for the next call."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ps2.config import WireConfig
from ps2.errors import PS2Error, StoppedError, UnavailableError
from ps2.interrupts import POLL_S
from ps2.transport.connection import Connection, unreachable_error
from ps2.transport.handshake import handshake
from ps2.transport.proof import Tokens
from ps2.transport.sockets import PlainSocket, connect, set_read_timeout, tune
from ps2.transport.tls import TlsValue, client_context
from ps2.transport.tls_connection import TlsConnection

log = logging.getLogger(__name__)

# The maximum number of idle connections per server.
MAX_IDLE = 8

CLOSED = "the connection to the fleet has been closed"


@dataclass
class Peer:
    """A server that the client knows.

    Attributes:
        addresses: the data addresses, best first, as (family, address). The family of a host and port is AF_UNSPEC.
        idle: open connections that are not in use.
    """

    server_id: str
    addresses: list[tuple[int, Any]]
    idle: list[Connection] = field(default_factory=list)


class ConnectionPool:
    """A connection pool. Thread-safe, but not fork-safe.

    The caller must pass each connection of ``take`` or ``open`` to ``release`` or ``discard``.
    """

    def __init__(self, token: Tokens | None, wire: WireConfig, identify: Callable[[str], Peer]) -> None:
        """Create an empty pool; ``identify`` asks a server for its identity and addresses, or raises a PS2Error."""
        self._token = token
        self._wire = wire
        self._identify = identify
        self._tls = TlsValue(wire.tls, client_context) if wire.tls is not None else None
        self._lock = threading.Lock()
        self._peers: dict[str, Peer] = {}
        self._in_use: set[Connection] = set()
        self._reached_addresses: set[str] = set()  # addresses of servers that this pool has connected to
        self.is_closed = False

    def take(self, address: str) -> PlainSocket | None:
        """Return an idle connection without TLS; None if there is none."""
        with self._lock:
            peer = self._peers.get(address)
            if peer is None or not peer.idle or self.is_closed:
                return None
            connection = peer.idle[-1]
            if not isinstance(connection, PlainSocket):
                return None
            self._in_use.add(peer.idle.pop())
            return connection

    def open(self, address: str) -> Connection:
        """Return an idle connection or a new one; raises UnavailableError if the server cannot be connected to."""
        with self._lock:
            peer = self._peers.get(address)
            connection = peer.idle.pop() if peer is not None and peer.idle else None
            if connection is not None:
                self._in_use.add(connection)
        if connection is not None and _is_open(connection):
            return connection
        if connection is not None:  # the server has ended, and another process may listen at the address now
            self.discard(connection)
            self.forget(address)
        peer, is_new = self._peer(address)
        try:
            return self._connect(address, peer)
        except UnavailableError:
            self.forget(address)
            if is_new:
                raise
        peer, _ = self._peer(address)
        return self._connect(address, peer)

    def release(self, address: str, connection: Connection) -> None:
        """Return a connection without in-flight requests to the pool; close it if the pool is full."""
        with self._lock:
            self._in_use.discard(connection)
            peer = self._peers.get(address)
            if not self.is_closed and peer is not None and len(peer.idle) < MAX_IDLE:
                peer.idle.append(connection)
                return
        connection.close()

    def discard(self, connection: Connection) -> None:
        """Close a connection instead of returning it to the pool."""
        with self._lock:
            self._in_use.discard(connection)
        connection.close()

    def forget(self, address: str) -> None:
        """Forget a server's identity and close its idle connections: another process may listen at the address now."""
        with self._lock:
            peer = self._peers.pop(address, None)
        for connection in peer.idle if peer is not None else ():
            connection.close()

    def close(self) -> None:
        """Close all connections; calls in flight fail."""
        with self._lock:
            self.is_closed = True
            connections = [connection for peer in self._peers.values() for connection in peer.idle]
            for connection in self._in_use:
                # This only wakes the thread that uses the connection; the thread closes it.
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for connection in connections:
            connection.close()

    def _peer(self, address: str) -> tuple[Peer, bool]:
        """Return the server at an address, and True if this call asked for its identity."""
        with self._lock:
            peer = self._peers.get(address)
        if peer is not None:
            return peer, False
        peer = self._identify(address)
        with self._lock:
            return self._peers.setdefault(address, peer), True

    def _connect(self, address: str, peer: Peer) -> Connection:
        """Connect to one of a server's data addresses.

        Raises UnreachableError if this pool has never reached the address, otherwise UnavailableError.
        """
        reasons = []
        for family, data_address in peer.addresses:
            try:
                connection = self._connect_to(peer, family, data_address)
            except OSError as error:
                log.info("no data connection to %r: %s", data_address, error)
                name = "Unix socket" if family == socket.AF_UNIX else f"data port {data_address[1]}"
                reasons.append(f"{name}: {error.strerror or error}")
            else:
                self._reached_addresses.add(address)
                return connection
        reason = "; ".join(reasons) or "the server has no data address"
        if address in self._reached_addresses:
            raise UnavailableError(f"{address}: cannot connect to the server's data addresses any more: {reason}")
        raise unreachable_error("the data port of the server, whose gRPC port answers,", address, reason)

    def _connect_to(self, peer: Peer, family: int, data_address: Any) -> Connection:
        """Connect to one data address and run the handshake; raises OSError if the server does not answer there."""
        plain = connect(family, data_address, self._wire.connect_s)
        connection: Connection = plain
        if self._tls is not None and family != socket.AF_UNIX:
            connection = TlsConnection(plain, self._tls.get(), self._tls.name or data_address[0])
        with self._lock:
            self._in_use.add(connection)
            is_closed = self.is_closed
        try:
            if is_closed:  # ``close`` ran before this connection was registered
                raise StoppedError(CLOSED)
            tune(plain, self._wire)
            deadline_s = time.monotonic() + min(self._wire.keepalive_s, self._wire.request_timeout_s)
            if isinstance(connection, TlsConnection):
                connection.handshake(deadline_s)
            try:
                handshake(connection, self._token, peer.server_id, deadline_s, plain.name)
            except PS2Error as error:  # an unauthenticated peer, or a proxy with nothing behind it
                raise ConnectionRefusedError(0, str(error)) from error
            plain.max_silence_s = min(self._wire.keepalive_s / 2, self._wire.request_timeout_s)
            set_read_timeout(connection, min(plain.max_silence_s, POLL_S))
        except BaseException:
            self.discard(connection)
            raise
        return connection


def connection_name(connection: Connection) -> bytes:
    """Return the name by which the server knows a connection of the pool."""
    plain = connection.plain if isinstance(connection, TlsConnection) else connection
    assert isinstance(plain, PlainSocket)
    return plain.name


def _is_open(connection: Connection) -> bool:
    """Return True if an idle connection is still open. Any input on it, end of stream included, makes it unusable."""
    try:
        connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
