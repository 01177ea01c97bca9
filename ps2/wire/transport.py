"""What a client needs of the network: data over plain connections where a server offers them, all else over gRPC."""

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
from ps2.errors import ProtocolError, PS2Error, StoppedError, UnavailableError
from ps2.interrupts import POLL_S, SHIELD, shielded
from ps2.ops.modules import check_same
from ps2.wire import exchange
from ps2.wire.at_once import Calls, at_once
from ps2.wire.channel import Channel, Trust
from ps2.wire.codec import check_sendable, reply_of, request_parts, to_frame
from ps2.wire.exchange import Lane, Outcome
from ps2.wire.introduction import introduce
from ps2.wire.liveness import Carried, Look, carried
from ps2.wire.messages import PROTOCOL_VERSION, Request
from ps2.wire.pb import server_pb2 as pb
from ps2.wire.proof import Tokens
from ps2.wire.sockets import PlainSocket, abstract, connect, give_up_unanswered, tune, wait_at_most
from ps2.wire.tls import Renewed, client_context
from ps2.wire.tls_connection import Connection, TlsConnection

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

    def __init__(
        self, token: str | Tokens | None, wire: WireConfig | None = None, plain: bool = True, sure: bool = False
    ) -> None:
        """Nothing is connected before it is needed.

        Args:
            token: of the fleet.
            sure: it is that for certain: who does not know it is no reason to doubt it, but a stranger.
            plain: whether to use the servers' data connections; else all goes over gRPC.
        """
        self._token = Tokens.of(token)
        self._wire = wire or WireConfig()
        self._plain = plain
        self._trust = Trust(sure)
        tls = self._wire.tls
        self._tls = Renewed(tls, client_context) if tls is not None else None
        self._lock = threading.Lock()
        self._channels: dict[str, Channel] = {}
        self._peers: dict[str, _Peer] = {}
        self._busy: set[Connection] = set()
        self._closed = False

    @shielded
    def exchange(self, requests: Mapping[str, Sequence[Request]]) -> dict[str, list[Outcome]]:
        with self._stopped_if_closed():
            outcomes: dict[str, list[Outcome]] = {}
            lanes: list[Lane] = []
            others: list[str] = []
            try:
                for address, mine in requests.items():
                    try:
                        connection = self._connection(address)
                    except PS2Error as error:
                        outcomes[address] = [error] * len(mine)
                        continue
                    if connection is None:
                        others.append(address)
                    else:
                        lanes.append(Lane(address, connection, mine, self._wire.request_limit_bytes))
                # Not gRPC's own futures: those start a thread for each call, and lose a Ctrl-C that comes meanwhile.
                streams = Calls(others, lambda address: self._stream(address, requests[address]))
                exchange.run(lanes, self._wire, self._look)
            finally:
                for lane in lanes:
                    self._give_back(lane)
            outcomes |= {lane.address: lane.outcomes for lane in lanes}
            return outcomes | dict(zip(others, streams.results(), strict=True))

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

    # -- plain connections ---------------------------------------------------------------------------------------------

    def _connection(self, address: str) -> Connection | None:
        """Return a connection to a server for one exchange; None if it has to be gRPC."""
        if not self._plain:
            return None
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
        connection = self._reach(peer)
        if connection is None and peer.places and not met_now:
            self._forget(address)
            peer, _ = self._meet(address)
            connection = self._reach(peer)
        if connection is None:
            # A firewall, say, lets nothing but gRPC through: not to be found out at every call.
            peer.places.clear()
        return connection

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

    def _reach(self, peer: _Peer) -> Connection | None:
        for family, place in peer.places:
            try:
                return self._greet(peer, family, place)
            except OSError as error:
                log.info("no data connection to %r: %s", place, error)
        return None

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
                introduce(connection, self._token, peer.server_id, deadline_s, plain.name)
            except PS2Error as error:  # a stranger, or a proxy with nobody behind it
                raise ConnectionRefusedError(0, str(error)) from error
            plain.patience_s = min(self._wire.keepalive_s / 2, self._wire.request_timeout_s)
            wait_at_most(connection, min(plain.patience_s, POLL_S))
        except BaseException:
            self._discard(connection)
            raise
        return connection

    def _give_back(self, lane: Lane) -> None:
        """Keep a connection whose replies have all come; one that was interrupted would bring those of another call."""
        if lane.is_patient and lane.reusable:
            with suppress(OSError):  # it is closed by now
                give_up_unanswered(lane.connection, self._wire.keepalive_s)
        if not (lane.reusable and self._keep(lane.address, lane.connection)):
            self._discard(lane.connection)
        if lane.failed:
            self._forget(lane.address)

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

    # -- gRPC streams --------------------------------------------------------------------------------------------------

    def _stream(self, address: str, requests: Sequence[Request]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        refused: dict[int, PS2Error] = {}

        def frames() -> Iterator[bytes]:
            for number, request in enumerate(requests):
                try:
                    parts = request_parts(request)
                    check_sendable(parts, self._wire.request_limit_bytes)
                except PS2Error as error:
                    refused[number] = error
                else:
                    yield to_frame(parts)

        def pass_over_refused() -> None:
            while len(outcomes) in refused:
                outcomes.append(refused.pop(len(outcomes)))

        try:
            for frame in self._channel(address).stream("Server/Stream", frames, self._wire.request_timeout_s):
                pass_over_refused()
                outcomes.append(_outcome(frame, requests[len(outcomes)]))
            pass_over_refused()
            missing: PS2Error = ProtocolError(f"{address}: the server ended a stream without replying to all of it")
        except PS2Error as error:
            self._forget(address)
            missing = error
        return outcomes + [missing] * (len(requests) - len(outcomes))


def _outcome(frame: bytes, request: Request) -> Outcome:
    try:
        return reply_of(frame, request)
    except PS2Error as error:
        return error


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
