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
from ps2.transport.connection import Connection, ConnectionCounts, byte_counts
from ps2.transport.direct import PreparedHeader
from ps2.transport.exchange import InFlightRequests, Outcome
from ps2.transport.pool import CLOSED, ConnectionPool, Peer, connection_name
from ps2.transport.proof import Tokens
from ps2.transport.sockets import PlainSocket, abstract_address, limit_unacknowledged

if TYPE_CHECKING:
    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")

# Requests on the fast path without a reply yet: the connection, the request, and its prepared header (None: not sent).
# By server address.
Outstanding = dict[str, tuple[PlainSocket, Request, "PreparedHeader | None"]]
Outcomes = dict[str, list[Outcome]]


class FleetNetwork:
    """A pool of data connections, and one gRPC channel per address. Thread-safe, but not fork-safe."""

    def __init__(
        self, token: str | Tokens | None, wire: WireConfig | None = None, has_addresses_of_driver: bool = False
    ) -> None:
        """Create the network; it connects on demand.

        ``has_addresses_of_driver``: the driver gave this process its addresses and token, so the token is the fleet's.
        """
        self._token = Tokens.from_text(token)
        self._wire = wire or WireConfig()
        self._trust = Trust(has_addresses_of_driver)
        self._pool = ConnectionPool(self._token, self._wire, self._identify)
        self._lock = threading.Lock()
        self._channels: dict[str, Channel] = {}

    def exchange(self, requests: Mapping[str, Sequence[Request]]) -> Outcomes:
        outcomes: Outcomes = {}
        outstanding: Outstanding = {}
        try:
            pending = [
                address
                for address, server_requests in requests.items()
                if not self._send(address, server_requests, outstanding, outcomes)
            ]
            if not pending:
                addresses = list(outstanding)
                pending = [address for address in addresses if not self._receive(address, outstanding, outcomes)]
            if pending:
                unsent = {address: requests[address] for address in pending if address not in outstanding}
                outcomes |= self._poll(unsent, outstanding)
        except Exception as error:
            if self._pool.is_closed:
                raise StoppedError(CLOSED) from error
            raise
        finally:
            for address in list(outstanding):  # an interrupt ended the call before their replies
                self._discard(address, outstanding)
        if self._pool.is_closed:
            raise StoppedError(CLOSED)
        return outcomes

    def _send(self, address: str, requests: Sequence[Request], outstanding: Outstanding, outcomes: Outcomes) -> bool:
        """Send a server's only request on an idle connection; return False if the fast path cannot be used."""
        connection = self._pool.take(address) if len(requests) == 1 and self._wire.fast_path else None
        if connection is None:
            return False
        outstanding[address] = (connection, requests[0], None)
        try:
            header, parts, size = direct.prepare(connection, requests[0], self._wire.request_limit_bytes)
        except PS2Error as error:  # nothing was sent
            outcomes[address] = [error]
            del outstanding[address]
            self._pool.release(address, connection)
            return True
        outstanding[address] = (connection, requests[0], header)
        try:
            direct.send(connection, parts, size, self._wire.keepalive_s)
        except OSError:
            self._discard(address, outstanding)
            return False
        return True

    def _receive(self, address: str, outstanding: Outstanding, outcomes: Outcomes) -> bool:
        """Receive a reply; return False if this fails or the reply is late. A late request stays in ``outstanding``."""
        connection, request, header = outstanding[address]
        try:
            outcome = direct.receive(connection, request, header)
        except OSError:
            self._discard(address, outstanding)
            return False
        except ProtocolError as error:
            self._discard(address, outstanding)
            outcomes[address] = [error]
            return True
        if outcome is None:
            return False
        outcomes[address] = [outcome]
        del outstanding[address]
        self._pool.release(address, connection)
        return True

    def _discard(self, address: str, outstanding: Outstanding) -> None:
        connection, *_ = outstanding.pop(address)
        self._pool.forget(address)
        self._pool.discard(connection)

    @shielded
    def _poll(self, requests: Mapping[str, Sequence[Request]], outstanding: Outstanding) -> Outcomes:
        """Send requests, and wait concurrently for their replies and for the replies to outstanding requests."""
        outcomes: Outcomes = {}
        in_flight: list[InFlightRequests] = []
        limit_bytes = self._wire.request_limit_bytes
        try:
            for address in list(outstanding):
                connection, request, _ = outstanding.pop(address)
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
        """Return a connection to the pool, unless a reply is outstanding: the next call would receive this reply."""
        if flight.is_patient and flight.reusable:
            with suppress(OSError):  # the connection has been closed
                limit_unacknowledged(flight.connection, self._wire.keepalive_s)
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
            # gRPC waits while it holds locks, and a KeyboardInterrupt would leave them locked. If a KeyboardInterrupt
            # is possible, another thread makes the call.
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
        """If the network was closed during a call, raise StoppedError instead of the call's result or error."""
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
            addresses.append((socket.AF_UNIX, abstract_address(reply.data_socket)))
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
        local = byte_counts(connection, is_client=True)
        if local is None:
            return None
        if remote.byte_counts is None:
            raise UnavailableError("the server has closed the connection")
        return ConnectionCounts(local, remote.byte_counts)
