"""Data connections to servers: made when they are needed, kept for the next call."""

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
from ps2.transport.connection import Connection
from ps2.transport.handshake import handshake
from ps2.transport.proof import Tokens
from ps2.transport.reach import unreachable
from ps2.transport.sockets import PlainSocket, connect, tune, wait_at_most
from ps2.transport.tls import Renewed, client_context
from ps2.transport.tls_connection import TlsConnection

log = logging.getLogger(__name__)

# Connections to one server that are kept for the next call.
MAX_IDLE = 8

CLOSED = "the connection to the fleet has been closed"


@dataclass
class Peer:
    """A server that was met.

    Attributes:
        places: where it takes data, the best first: (family, address); a name's addresses are of any family.
        idle: connections to it that nobody uses now.
    """

    server_id: str
    places: list[tuple[int, Any]]
    idle: list[Connection] = field(default_factory=list)


class ConnectionPool:
    """Safe for threads, not for forks. Who takes a connection gives it back by ``keep`` or by ``discard``."""

    def __init__(self, token: Tokens | None, wire: WireConfig, meet: Callable[[str], Peer]) -> None:
        """``meet`` asks a server who it is and where it takes data; it raises a PS2Error."""
        self._token = token
        self._wire = wire
        self._meet = meet
        self._tls = Renewed(wire.tls, client_context) if wire.tls is not None else None
        self._lock = threading.Lock()
        self._peers: dict[str, Peer] = {}
        self._busy: set[Connection] = set()
        self._reached: set[str] = set()  # addresses of servers to which there has been a data connection
        self.is_closed = False

    def take(self, address: str) -> PlainSocket | None:
        """Take a connection that waits for requests; None if there is none, or none that is plain."""
        with self._lock:
            peer = self._peers.get(address)
            if peer is None or not peer.idle or self.is_closed:
                return None
            connection = peer.idle[-1]
            if not isinstance(connection, PlainSocket):
                return None
            self._busy.add(peer.idle.pop())
            return connection

    def open(self, address: str) -> Connection:
        """Return a connection that is there, or a new one; raises UnavailableError if there is none to be had."""
        with self._lock:
            peer = self._peers.get(address)
            connection = peer.idle.pop() if peer is not None and peer.idle else None
            if connection is not None:
                self._busy.add(connection)
        if connection is not None and _is_open(connection):
            return connection
        if connection is not None:  # the server has gone, and another may have come in its place
            self.discard(connection)
            self.forget(address)
        peer, met_now = self._peer(address)
        try:
            return self._reach(address, peer)
        except UnavailableError:
            self.forget(address)
            if met_now:
                raise
        peer, _ = self._peer(address)
        return self._reach(address, peer)

    def keep(self, address: str, connection: Connection) -> None:
        """Keep a connection on which nothing is under way for the next call, if there are not enough of them."""
        with self._lock:
            self._busy.discard(connection)
            peer = self._peers.get(address)
            if not self.is_closed and peer is not None and len(peer.idle) < MAX_IDLE:
                peer.idle.append(connection)
                return
        connection.close()

    def discard(self, connection: Connection) -> None:
        """Close a connection that was taken."""
        with self._lock:
            self._busy.discard(connection)
        connection.close()

    def forget(self, address: str) -> None:
        """Meet a server again before the next exchange: another process may listen there now."""
        with self._lock:
            peer = self._peers.pop(address, None)
        for connection in peer.idle if peer is not None else ():
            connection.close()

    def close(self) -> None:
        """Close all connections; calls in flight fail."""
        with self._lock:
            self.is_closed = True
            connections = [connection for peer in self._peers.values() for connection in peer.idle]
            for busy in self._busy:
                # Only woken: the thread that uses it closes it.
                with suppress(OSError):
                    busy.shutdown(socket.SHUT_RDWR)
        for connection in connections:
            connection.close()

    def _peer(self, address: str) -> tuple[Peer, bool]:
        """Return a server that was met, and whether that was just now."""
        with self._lock:
            peer = self._peers.get(address)
        if peer is not None:
            return peer, False
        met = self._meet(address)
        with self._lock:
            return self._peers.setdefault(address, met), True

    def _reach(self, address: str, peer: Peer) -> Connection:
        """Connect to a server where it takes data.

        Raises:
            UnreachableError: it cannot be connected to, and never was.
            UnavailableError: it cannot be connected to any more.
        """
        reasons = []
        for family, place in peer.places:
            try:
                connection = self._greet(peer, family, place)
            except OSError as error:
                log.info("no data connection to %r: %s", place, error)
                reasons.append(f"{_said(family, place)}: {error.strerror or error}")
            else:
                self._reached.add(address)
                return connection
        why = "; ".join(reasons) or "it takes none"
        if address in self._reached:
            raise UnavailableError(f"{address}: no data connection any more: {why}")
        raise unreachable("data of the server that answers", address, why)

    def _greet(self, peer: Peer, family: int, place: Any) -> Connection:
        """Connect, and prove both ends to each other; raises OSError if nobody listens there."""
        plain = connect(family, place, self._wire.connect_s)
        connection: Connection = plain
        if self._tls is not None and family != socket.AF_UNIX:
            connection = TlsConnection(plain, self._tls.get(), self._tls.name or place[0])
        with self._lock:
            self._busy.add(connection)
            closed = self.is_closed
        try:
            if closed:  # close() did not see this one
                raise StoppedError(CLOSED)
            tune(plain, self._wire)
            deadline_s = time.monotonic() + min(self._wire.keepalive_s, self._wire.request_timeout_s)
            if isinstance(connection, TlsConnection):
                connection.handshake(deadline_s)
            try:
                handshake(connection, self._token, peer.server_id, deadline_s, plain.name)
            except PS2Error as error:  # an unauthenticated peer, or a proxy with nobody behind it
                raise ConnectionRefusedError(0, str(error)) from error
            plain.patience_s = min(self._wire.keepalive_s / 2, self._wire.request_timeout_s)
            wait_at_most(connection, min(plain.patience_s, POLL_S))
        except BaseException:
            self.discard(connection)
            raise
        return connection


def name_of(connection: Connection) -> bytes:
    """Return what the server knows a connection of the pool by."""
    plain = connection.plain if isinstance(connection, TlsConnection) else connection
    assert isinstance(plain, PlainSocket)
    return plain.name


def _said(family: int, place: Any) -> str:
    return "Unix socket" if family == socket.AF_UNIX else f"data port {place[1]}"


def _is_open(connection: Connection) -> bool:
    """Tell whether an idle connection is: nothing may come on it, the end least of all."""
    try:
        connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
