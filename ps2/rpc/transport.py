"""What a client needs of the network: data over connections of their own, all else over gRPC."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from ps2.config import WireConfig, split_address
from ps2.errors import PS2Error, StoppedError, UnavailableError
from ps2.interrupts import POLL_S, SHIELD, shielded
from ps2.ops.modules import check_same
from ps2.protocol.messages import PROTOCOL_VERSION, Request
from ps2.protocol.pb import server_pb2 as pb
from ps2.rpc.channel import Channel, Trust
from ps2.transport import exchange
from ps2.transport.at_once import at_once
from ps2.transport.exchange import InFlightRequests, Outcome
from ps2.transport.handshake import handshake
from ps2.transport.liveness import Carried, Look, carried
from ps2.transport.proof import Tokens
from ps2.transport.reach import unreachable
from ps2.transport.sockets import PlainSocket, abstract, connect, give_up_unanswered, tune, wait_at_most
from ps2.transport.tls import Renewed, client_context
from ps2.transport.tls_connection import Connection, TlsConnection

log = logging.getLogger(__name__)

# Connections to one server that are kept for the next call.
MAX_IDLE = 8

CLOSED = "the connection to the fleet has been closed"

M = TypeVar("M", bound=Message)


class Transport(Protocol):
    """Carries requests to servers. It does not retry, and it does not know what the requests mean."""

    def exchange(self, requests: Mapping[str, Sequence[Request]]) -> dict[str, list[Outcome]]:
        """Send requests to servers by address, and wait for what each of them comes to.

        All servers work at once; each runs its requests in order, whether or not those before succeed.
        """
        ...

    def take(self, address: str) -> PlainSocket | None:
        """Take a connection to a server that waits for requests; None if there is none, or none that is plain."""
        ...

    def give(self, address: str, connection: PlainSocket, fine: bool) -> None:
        """Give a connection back; one that is not fine is closed, as others to that server are that wait."""
        ...

    def call(self, address: str, method: str, message: Message, reply: type[M], timeout_s: float) -> M:
        """Call a control rpc (``Service/Method``) and wait for its reply."""
        ...

    def close(self) -> None:
        """Close every connection; calls in flight fail."""
        ...


@dataclass
class _Peer:
    """A server that was met.

    Attributes:
        places: where it takes data, the best first: (family, address); a name's addresses are of any family.
        idle: connections to it that nobody uses now.
    """

    server_id: str
    places: list[tuple[int, Any]]
    idle: list[Connection] = field(default_factory=list)


class GrpcTransport:
    """One gRPC channel an address, and data connections beside it; safe for threads, not for forks."""

    def __init__(self, token: str | Tokens | None, wire: WireConfig | None = None, sure: bool = False) -> None:
        """Nothing is connected before it is needed.

        Args:
            token: of the fleet.
            sure: the token is certainly right: a server that does not know it is an impostor.
        """
        self._token = Tokens.of(token)
        self._wire = wire or WireConfig()
        self._trust = Trust(sure)
        tls = self._wire.tls
        self._tls = Renewed(tls, client_context) if tls is not None else None
        self._lock = threading.Lock()
        self._channels: dict[str, Channel] = {}
        self._peers: dict[str, _Peer] = {}
        self._busy: set[Connection] = set()
        self._reached: set[str] = set()  # addresses of servers to which there has been a data connection
        self._closed = False

    @shielded
    def exchange(self, requests: Mapping[str, Sequence[Request]]) -> dict[str, list[Outcome]]:
        with self._stopped_if_closed():
            outcomes: dict[str, list[Outcome]] = {}
            in_flight: list[InFlightRequests] = []
            try:
                for address, mine in requests.items():
                    try:
                        connection = self._connection(address)
                    except PS2Error as error:
                        outcomes[address] = [error] * len(mine)
                    else:
                        in_flight.append(InFlightRequests(address, connection, mine, self._wire.request_limit_bytes))
                exchange.run(in_flight, self._wire, self._look)
            finally:
                for flight in in_flight:
                    self._give_back(flight)
            return outcomes | {flight.address: flight.outcomes for flight in in_flight}

    def take(self, address: str) -> PlainSocket | None:
        with self._lock:
            peer = self._peers.get(address)
            if peer is None or not peer.idle or self._closed:
                return None
            connection = peer.idle[-1]
            if not isinstance(connection, PlainSocket):
                return None
            self._busy.add(peer.idle.pop())
            return connection

    def give(self, address: str, connection: PlainSocket, fine: bool) -> None:
        if not fine:
            self._forget(address)
        if not fine or not self._keep(address, connection):
            self._discard(connection)

    def call(self, address: str, method: str, message: Message, reply: type[M], timeout_s: float) -> M:
        def ask(encoded: bytes) -> bytes:
            return self._channel(address).call(method, encoded, timeout_s)

        encoded = message.SerializeToString()
        with SHIELD, self._stopped_if_closed():
            # gRPC waits under locks that an exception in the middle leaves taken: where one may come, a thread waits.
            return reply.FromString(at_once([encoded], ask)[0] if SHIELD.is_up else ask(encoded))

    @shielded
    def close(self) -> None:
        with self._lock:
            self._closed = True
            channels, self._channels = self._channels, {}
            connections = [connection for peer in self._peers.values() for connection in peer.idle]
            for busy in self._busy:
                # Only woken: the thread that uses it closes it.
                with suppress(OSError):
                    busy.shutdown(socket.SHUT_RDWR)
        for connection in connections:
            connection.close()
        for channel in channels.values():
            channel.close()

    @contextmanager
    def _stopped_if_closed(self) -> Iterator[None]:
        """Whatever a call comes to when the transport has been closed under it, that is why."""
        try:
            yield
        except Exception as error:
            if self._closed:
                raise StoppedError(CLOSED) from error
            raise
        if self._closed:
            raise StoppedError(CLOSED)

    def _channel(self, address: str) -> Channel:
        with self._lock:
            if self._closed:
                raise StoppedError(CLOSED)
            if address not in self._channels:
                self._channels[address] = Channel(address, self._token, self._wire, self._trust)
            return self._channels[address]

    # -- data connections ----------------------------------------------------------------------------------------------

    def _connection(self, address: str) -> Connection:
        """Return a connection to a server for one exchange; raises UnavailableError if there is none to be had."""
        with self._lock:
            peer = self._peers.get(address)
            connection = peer.idle.pop() if peer is not None and peer.idle else None
            if connection is not None:
                self._busy.add(connection)
        if connection is not None and _is_open(connection):
            return connection
        if connection is not None:  # the server has gone, and another may have come in its place
            self._discard(connection)
            self._forget(address)
        peer, met_now = self._meet(address)
        try:
            return self._reach(address, peer)
        except UnavailableError:
            self._forget(address)
            if met_now:
                raise
        peer, _ = self._meet(address)
        return self._reach(address, peer)

    def _meet(self, address: str) -> tuple[_Peer, bool]:
        """Return a server that was met, and whether that was just now."""
        with self._lock:
            peer = self._peers.get(address)
        if peer is not None:
            return peer, False
        reply = self._hello(address)
        check_same(reply.operations, address)
        places: list[tuple[int, Any]] = []
        if reply.data_socket and self._wire.unix_sockets:
            places.append((socket.AF_UNIX, abstract(reply.data_socket)))
        if reply.data_port:
            host, _ = split_address(address)
            places.append((socket.AF_UNSPEC, (host, reply.data_port)))
        with self._lock:
            return self._peers.setdefault(address, _Peer(reply.server_id, places)), True

    def _hello(self, address: str, connection: bytes = b"") -> pb.HelloReply:
        request = pb.HelloRequest(protocol=PROTOCOL_VERSION, connection=connection)
        return self.call(address, "Server/Hello", request, pb.HelloReply, self._wire.keepalive_timeout_s)

    def _reach(self, address: str, peer: _Peer) -> Connection:
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

    def _greet(self, peer: _Peer, family: int, place: Any) -> Connection:
        """Connect and introduce ourselves; raises OSError if nobody listens there."""
        plain = connect(family, place, self._wire.connect_s)
        connection: Connection = plain
        if self._tls is not None and family != socket.AF_UNIX:
            connection = TlsConnection(plain, self._tls.get(), self._tls.name or place[0])
        with self._lock:
            self._busy.add(connection)
            closed = self._closed
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
            self._discard(connection)
            raise
        return connection

    def _give_back(self, flight: InFlightRequests) -> None:
        """Keep a connection whose replies have all come; one that was interrupted would bring those of another call."""
        if flight.is_patient and flight.reusable:
            with suppress(OSError):  # it is closed by now
                give_up_unanswered(flight.connection, self._wire.keepalive_s)
        if not (flight.reusable and self._keep(flight.address, flight.connection)):
            self._discard(flight.connection)
        if flight.failed:
            self._forget(flight.address)

    def _keep(self, address: str, connection: Connection) -> bool:
        """Keep a connection for the next call, if there are not enough of them."""
        with self._lock:
            peer = self._peers.get(address)
            if self._closed or peer is None or len(peer.idle) >= MAX_IDLE:
                return False
            peer.idle.append(connection)
            self._busy.discard(connection)
            return True

    def _discard(self, connection: Connection) -> None:
        with self._lock:
            self._busy.discard(connection)
        connection.close()

    def _forget(self, address: str) -> None:
        """Meet a server again before the next exchange: another process may listen there now."""
        with self._lock:
            peer = self._peers.pop(address, None)
        for connection in peer.idle if peer is not None else ():
            connection.close()

    def _look(self, address: str, connection: Connection) -> Look | None:
        """See what both ends of a connection have counted: ``exchange.Ask``."""
        name = _name_of(connection)
        there = self._hello(address, name)
        here = carried(connection, connected=True)
        if here is None:
            return None
        if not there.HasField("carried"):
            raise UnavailableError("it has given up the connection")
        return Look(here, Carried(there.carried.sent, there.carried.received, there.carried.unread))


def _said(family: int, place: Any) -> str:
    return "Unix socket" if family == socket.AF_UNIX else f"data port {place[1]}"


def _name_of(connection: Connection) -> bytes:
    plain = connection.plain if isinstance(connection, TlsConnection) else connection
    assert isinstance(plain, PlainSocket)
    return plain.name


def _is_open(connection: Connection) -> bool:
    """Tell whether an idle connection is: nothing may come on it, the end least of all."""
    try:
        connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
