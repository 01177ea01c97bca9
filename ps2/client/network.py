"""The network of a process: data requests over pooled connections, control calls over gRPC."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ps2.config import WireConfig, split_address
from ps2.errors import ProtocolError, PS2Error, StoppedError, UnavailableError
from ps2.interrupts import SHIELD, shielded
from ps2.ops.modules import check_same
from ps2.protocol.messages import Request
from ps2.rpc.channel import Channel, Trust
from ps2.rpc.control import ServerControl, ServerInfo
from ps2.transport import direct, exchange
from ps2.transport.concurrent_calls import call_concurrently
from ps2.transport.connection import Connection, ConnectionCounts, carried
from ps2.transport.direct import PreparedHeader
from ps2.transport.exchange import InFlightRequests, Outcome
from ps2.transport.pool import CLOSED, ConnectionPool, Peer, connection_name
from ps2.transport.proof import Tokens
from ps2.transport.sockets import PlainSocket, abstract, give_up_unanswered

if TYPE_CHECKING:
    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")

# A request that was sent directly and whose reply is outstanding: connection, request, and prepared header if any.
Sent = tuple[PlainSocket, Request, "PreparedHeader | None"]


class FleetNetwork:
    """A pool of data connections, and one gRPC channel per address. Thread-safe, but not fork-safe."""

    def __init__(self, token: str | Tokens | None, wire: WireConfig | None = None, sure: bool = False) -> None:
        """Create the network; it connects on demand.

        ``sure``: the token is certainly the fleet's, so a server that does not know it is not of the fleet.
        """
        self._token = Tokens.from_text(token)
        self._wire = wire or WireConfig()
        self._trust = Trust(sure)
        self._pool = ConnectionPool(self._token, self._wire, self._identify)
        self._lock = threading.Lock()
        self._channels: dict[str, Channel] = {}

    def exchange(self, requests: Mapping[str, Sequence[Request]]) -> dict[str, list[Outcome]]:
        outcomes: dict[str, list[Outcome]] = {}
        sent: dict[str, Sent] = {}
        try:
            pending = [
                name for name, own_requests in requests.items() if not self._send(name, own_requests, sent, outcomes)
            ]
            if not pending:
                pending = [address for address in list(sent) if not self._receive(address, sent, outcomes)]
            if pending:
                unsent = {address: requests[address] for address in pending if address not in sent}
                outcomes |= self._poll(unsent, sent)
        except Exception as error:
            if self._pool.is_closed:
                raise StoppedError(CLOSED) from error
            raise
        finally:
            for address in list(sent):  # after an interrupt, replies are still outstanding
                self._discard(address, sent)
        if self._pool.is_closed:
            raise StoppedError(CLOSED)
        return outcomes

    def _send(
        self, address: str, requests: Sequence[Request], sent: dict[str, Sent], outcomes: dict[str, list[Outcome]]
    ) -> bool:
        """Send a server's only request on an idle connection; return False if that is not possible."""
        connection = self._pool.take(address) if len(requests) == 1 and self._wire.fast_path else None
        if connection is None:
            return False
        sent[address] = (connection, requests[0], None)
        try:
            header, parts, size = direct.prepare(connection, requests[0], self._wire.request_limit_bytes)
        except PS2Error as error:  # nothing was sent
            outcomes[address] = [error]
            del sent[address]
            self._pool.release(address, connection)
            return True
        sent[address] = (connection, requests[0], header)
        try:
            direct.send(connection, parts, size, self._wire.keepalive_s)
        except OSError:
            self._discard(address, sent)
            return False
        return True

    def _receive(self, address: str, sent: dict[str, Sent], outcomes: dict[str, list[Outcome]]) -> bool:
        """Receive the reply to a request; return False if it fails or is late. A late one stays in ``sent``."""
        connection, request, header = sent[address]
        try:
            outcome = direct.receive(connection, request, header)
        except OSError:
            self._discard(address, sent)
            return False
        except ProtocolError as error:
            self._discard(address, sent)
            outcomes[address] = [error]
            return True
        if outcome is None:
            return False
        outcomes[address] = [outcome]
        del sent[address]
        self._pool.release(address, connection)
        return True

    def _discard(self, address: str, sent: dict[str, Sent]) -> None:
        connection, *_ = sent.pop(address)
        self._pool.forget(address)
        self._pool.discard(connection)

    @shielded
    def _poll(self, requests: Mapping[str, Sequence[Request]], sent: dict[str, Sent]) -> dict[str, list[Outcome]]:
        """Send the requests, and wait for their replies and for those outstanding in ``sent``, all concurrently."""
        outcomes: dict[str, list[Outcome]] = {}
        in_flight: list[InFlightRequests] = []
        limit_bytes = self._wire.request_limit_bytes
        try:
            for address in list(sent):
                connection, request, _ = sent.pop(address)
                in_flight.append(InFlightRequests(address, connection, [request], limit_bytes, unsent=[]))
            for address, server_requests in requests.items():
                try:
                    opened = self._pool.open(address)
                except PS2Error as error:
                    outcomes[address] = [error] * len(server_requests)
                else:
                    in_flight.append(InFlightRequests(address, opened, server_requests, limit_bytes))
            exchange.run(in_flight, self._wire, self._byte_counts)
        finally:
            for flight in in_flight:
                self._give_back(flight)
        return outcomes | {flight.address: flight.outcomes for flight in in_flight}

    def _give_back(self, flight: InFlightRequests) -> None:
        """Return a connection to the pool if it has no outstanding replies, which the next call would receive."""
        if flight.is_patient and flight.reusable:
            with suppress(OSError):  # the connection has been closed
                give_up_unanswered(flight.connection, self._wire.keepalive_s)
        if flight.reusable:
            self._pool.release(flight.address, flight.connection)
        else:
            self._pool.discard(flight.connection)
        if flight.failed:
            self._pool.forget(flight.address)

    def call(self, address: str, method: str, message: Message, reply: type[M], timeout_s: float) -> M:
        def ask(encoded: bytes) -> bytes:
            return self._channel(address).call(method, encoded, timeout_s)

        encoded = message.SerializeToString()
        with SHIELD, self._stopped_if_closed():
            # gRPC waits while it holds locks, which a KeyboardInterrupt would leave locked. So where one is possible,
            # another thread makes the call.
            return reply.FromString(call_concurrently([encoded], ask)[0] if SHIELD.is_active else ask(encoded))

    @shielded
    def close(self) -> None:
        self._pool.close()
        with self._lock:
            channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()

    @contextmanager
    def _stopped_if_closed(self) -> Iterator[None]:
        """If the network was closed during a call, raise StoppedError in place of the call's result or error."""
        try:
            yield
        except Exception as error:
            if self._pool.is_closed:
                raise StoppedError(CLOSED) from error
            raise
        if self._pool.is_closed:
            raise StoppedError(CLOSED)

    def _channel(self, address: str) -> Channel:
        with self._lock:
            if self._pool.is_closed:
                raise StoppedError(CLOSED)
            if address not in self._channels:
                self._channels[address] = Channel(address, self._token, self._wire, self._trust)
            return self._channels[address]

    def _identify(self, address: str) -> Peer:
        reply = self._hello(address)
        check_same(reply.operations, address)
        addresses: list[tuple[int, Any]] = []
        if reply.data_socket and self._wire.unix_sockets:
            addresses.append((socket.AF_UNIX, abstract(reply.data_socket)))
        if reply.data_port:
            host, _ = split_address(address)
            addresses.append((socket.AF_UNSPEC, (host, reply.data_port)))
        return Peer(reply.server_id, addresses)

    def _hello(self, address: str, connection: bytes = b"") -> ServerInfo:
        control = ServerControl(self)
        return control.hello(address, timeout_s=self._wire.keepalive_timeout_s, connection=connection)

    def _byte_counts(self, address: str, connection: Connection) -> ConnectionCounts | None:
        """Return the byte counts of both ends of a connection; implements ``exchange.Ask``."""
        remote = self._hello(address, connection_name(connection))
        local = carried(connection, connected=True)
        if local is None:
            return None
        if remote.carried is None:
            raise UnavailableError("the server has closed the connection")
        return ConnectionCounts(local, remote.carried)
