"""What a client needs of the network, and its gRPC form."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from ps2.config import WireConfig
from ps2.errors import PS2Error, StoppedError
from ps2.wire.codec import decode_reply, encode_request
from ps2.wire.messages import Reply, Request, nbytes
from ps2.wire.status import MAX_METADATA_BYTES, from_rpc

# Requests to servers that one process has in flight at once; further ones wait.
MAX_IN_FLIGHT = 32
LONGEST_ITEM_BYTES = 8

CLOSED = "the connection to the fleet has been closed"

M = TypeVar("M", bound=Message)


class PendingReply(Protocol):
    """A request in flight."""

    def result(self) -> Reply:
        """Wait for the reply, or raise the PS2Error that the request came to."""
        ...


class Transport(Protocol):
    """Carries requests to servers. It does not retry, and it does not know what the requests mean."""

    def execute(self, address: str, request: Request) -> PendingReply:
        """Send a data request and return at once."""
        ...

    def call(self, address: str, method: str, message: Message, reply: type[M], timeout_s: float) -> M:
        """Call a control rpc (``Service/Method``) and wait for its reply."""
        ...

    def close(self) -> None:
        """Close every channel; calls in flight fail."""
        ...


class GrpcTransport:
    """Transport over gRPC: one channel an address, small requests unary, large ones streamed."""

    def __init__(self, token: str | None, wire: WireConfig | None = None) -> None:
        self._wire = wire or WireConfig()
        self._metadata = (("authorization", f"Bearer {token}"),) if token is not None else ()
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(MAX_IN_FLIGHT, thread_name_prefix="ps2-request")
        self._closed = False

    def execute(self, address: str, request: Request) -> PendingReply:
        with self._stopped_if_closed():
            # Not gRPC's own futures: those start a thread for each call, and lose a Ctrl-C that comes meanwhile.
            run = self._unary if self._is_small(request) else self._stream
            return _Pending(self._threads.submit(run, self._channel(address), address, request))

    def call(self, address: str, method: str, message: Message, reply: type[M], timeout_s: float) -> M:
        with self._stopped_if_closed():
            rpc = self._channel(address).unary_unary(
                f"/ps2.v1.{method}",
                request_serializer=type(message).SerializeToString,
                response_deserializer=reply.FromString,
            )
            try:
                return rpc(message, timeout=timeout_s, metadata=self._metadata)
            except grpc.RpcError as error:
                raise from_rpc(error, address) from None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _channel(self, address: str) -> grpc.Channel:
        with self._lock:
            if self._closed:
                raise StoppedError(CLOSED)
            if address not in self._channels:
                self._channels[address] = grpc.insecure_channel(address, options=channel_options(self._wire))
            return self._channels[address]

    @contextmanager
    def _stopped_if_closed(self) -> Iterator[None]:
        """Whatever a call comes to when the transport has been closed under it, that is why."""
        try:
            yield
        except Exception as error:
            if self._closed:
                raise StoppedError(CLOSED) from error
            raise

    def _is_small(self, request: Request) -> bool:
        limit = self._wire.unary_bytes
        sent = expected = 0
        for operation in request.operations:
            if operation.reply_count is None:
                return False
            sent += nbytes(operation.arrays)
            expected += operation.reply_count * LONGEST_ITEM_BYTES
        return sent <= limit and expected <= limit

    def _unary(self, channel: grpc.Channel, address: str, request: Request) -> Reply:
        with self._stopped_if_closed():
            # The arrays are known to fit: one frame.
            (frame,) = encode_request(request, max(self._wire.unary_bytes, 1))
            rpc: Any = channel.unary_unary("/ps2.v1.Server/Execute")
            try:
                reply = rpc(frame, timeout=self._wire.request_timeout_s, metadata=self._metadata)
            except grpc.RpcError as error:
                raise from_rpc(error, address) from None
            return decode_reply([reply], request)

    def _stream(self, channel: grpc.Channel, address: str, request: Request) -> Reply:
        with self._stopped_if_closed():
            frames = encode_request(request, self._wire.chunk_bytes)
            rpc: Any = channel.stream_stream("/ps2.v1.Server/Stream")
            call = rpc(frames, timeout=self._wire.request_timeout_s, metadata=self._metadata)
            try:
                return decode_reply(_bytes_of(call), request)
            except grpc.RpcError as error:
                raise from_rpc(error, address) from None
            except PS2Error:
                call.cancel()
                raise


class _Pending:
    def __init__(self, future: Future[Reply]) -> None:
        self._future = future

    def result(self) -> Reply:
        try:
            return self._future.result()
        except CancelledError:
            raise StoppedError(CLOSED) from None


def _bytes_of(call: Any) -> Iterator[bytes]:
    yield from call


def channel_options(wire: WireConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.keepalive_time_ms", int(wire.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(wire.keepalive_timeout_s * 1000)),
        # Without it gRPC gives a ping a minute, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", int(wire.keepalive_timeout_s * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        # Retries are ours: they keep the request's id.
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Also the longest time that one attempt to connect may take: a busy machine needs its time.
        ("grpc.min_reconnect_backoff_ms", int(wire.keepalive_timeout_s * 1000)),
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]
