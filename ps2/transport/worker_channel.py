"""The connection of a worker to its run in the driver: the framing of messages, and the worker's end."""

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

# A message's prefix: its length in bytes.
LENGTH = struct.Struct("<I")
CONNECT_TIMEOUT_S = 10.0

M = TypeVar("M", bound=Message)


def framed(encoded: bytes) -> memoryview:
    """Return an encoded message with its length as prefix."""
    return memoryview(LENGTH.pack(len(encoded)) + encoded)


class WorkerChannel(Generic[M]):
    """Sends requests to the driver and waits for answers. One thread at a time may ask; any thread may close it."""

    def __init__(self, address: str, token: str | None, name: str, reply_type: type[M], wire: WireConfig) -> None:
        """Create a channel; the first request connects. ``name``: the peer's name, which the handshake checks."""
        self._address = address
        self._token = token
        self._name = name
        self._reply = reply_type
        self._wire = wire
        self._tls = TlsValue(wire.tls, client_context) if wire.tls is not None else None
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._closed = False

    def ask(self, message: Message) -> M:
        """Send a message and return the answer, however long it takes; UnavailableError: the connection has ended."""
        try:
            connection = self._connection or self._connect()
            send_all(connection, [framed(message.SerializeToString())])
            return receive(connection, _read_reply(self._reply))
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


def _read_reply(reply_type: type[M]) -> Reading[M]:
    head = bytearray(LENGTH.size)
    yield memoryview(head)
    body = bytearray(LENGTH.unpack(head)[0])
    yield memoryview(body)
    try:
        return reply_type.FromString(bytes(body))
    except DecodeError as error:
        raise ProtocolError(f"an answer cannot be decoded: {error}") from error
