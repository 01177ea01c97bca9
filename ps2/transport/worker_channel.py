"""A worker's connection to its run: message framing, and the worker's end."""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from ps2.config import WireConfig, split_address
from ps2.errors import ProtocolError, UnavailableError
from ps2.protocol.framing import Reading
from ps2.transport.connection import Connection
from ps2.transport.handshake import handshake
from ps2.transport.sockets import MIN_TIMEOUT_S, hang_up, receive, send_all, tune
from ps2.transport.tls import TlsValue, client_context
from ps2.transport.tls_connection import TlsConnection

LENGTH = struct.Struct("<I")
CONNECT_TIMEOUT_S = 10.0

M = TypeVar("M", bound=Message)


def framed(encoded: bytes) -> memoryview:
    """Frame a message: its length, then its bytes."""
    return memoryview(LENGTH.pack(len(encoded)) + encoded)


class WorkerChannel(Generic[M]):
    """Sends requests to the driver and waits for answers. Any thread may ``close`` it; one at a time may ``ask``."""

    def __init__(self, address: str, token: str | None, name: str, reply: type[M], wire: WireConfig) -> None:
        """Create a channel to the peer called ``name``; the first request opens the connection."""
        self._address = address
        self._token = token
        self._name = name
        self._reply = reply
        self._wire = wire
        self._tls = TlsValue(wire.tls, client_context) if wire.tls is not None else None
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._closed = False

    def ask(self, message: Message) -> M:
        """Send a message and wait for its answer, without a timeout; UnavailableError: the connection has ended."""
        try:
            connection = self._connection or self._connect()
            send_all(connection, [framed(message.SerializeToString())])
            return receive(connection, _read(self._reply))
        except (EOFError, OSError) as error:
            self.close()
            reason = "the other side closed the connection" if isinstance(error, EOFError) else str(error)
            raise UnavailableError(f"{self._address}: {reason}") from error
        except BaseException:  # a late answer must not be mistaken for the answer to the next request
            self.close()
            raise

    def close(self) -> None:
        """End the connection and any request in flight. The channel cannot be used again."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                hang_up(self._connection)
                self._connection.close()
                self._connection = None

    def _connect(self) -> Connection:
        deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
        host, port = split_address(self._address)
        plain = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
        try:
            tune(plain, self._wire)
            connection: Connection = plain
            if self._tls is not None:
                connection = TlsConnection(plain, self._tls.get(), self._tls.name or host)
                connection.handshake(deadline_s)
            connection.settimeout(max(MIN_TIMEOUT_S, deadline_s - time.monotonic()))
            handshake(connection, self._token, self._name, deadline_s)
            connection.settimeout(None)
            with self._lock:
                if self._closed:
                    raise OSError("the channel was closed")
                self._connection = connection
            return connection
        except BaseException:
            plain.close()
            raise


def _read(reply: type[M]) -> Reading[M]:
    head = bytearray(LENGTH.size)
    yield memoryview(head)
    body = bytearray(LENGTH.unpack(head)[0])
    yield memoryview(body)
    try:
        return reply.FromString(bytes(body))
    except DecodeError as error:
        raise ProtocolError(f"an answer cannot be decoded: {error}") from error
