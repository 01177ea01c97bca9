"""A gRPC server around a servicer: token, error mapping, health checks, frames without protobuf's copies."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from ps2.config import WireConfig, is_loopback, join_address, split_address
from ps2.errors import AuthError, ConfigError, LaunchError, ProtocolError, PS2Error
from ps2.wire.codec import MAX_HEADER_BYTES
from ps2.wire.status import MAX_METADATA_BYTES, internal_error, to_status

log = logging.getLogger(__name__)

# Takes what is to be called when the caller has gone, in a thread of gRPC; False: it has already.
OnGone = Callable[[Callable[[], None]], bool]

T = TypeVar("T")

HEALTH_PREFIX = "/grpc.health.v1.Health/"


class RpcServer:
    """One listening gRPC server; ``address`` tells where, with the port that was taken."""

    def __init__(
        self,
        service: ServiceDescriptor,
        servicer: object,
        listen: str,
        token: str | None,
        threads: int,
        wire: WireConfig,
    ) -> None:
        """Bind and start.

        Args:
            service: of the contract; ``servicer`` has one method an rpc, named like it. That of a stream of messages
                takes what comes and an ``OnGone``, and yields answers.
            listen: ``host:port``; port 0 takes a free one.
            token: what every call must carry; None only on loopback.

        Raises:
            ConfigError: no token, and not on loopback.
            LaunchError: the port is taken, or the host is not this machine's.
        """
        host, port = split_address(listen)
        if token is None and not is_loopback(host):
            raise ConfigError(f"listen: {listen} is not loopback, so a token is required")
        self._threads = _Threads(threads, thread_name_prefix="ps2-rpc")
        self._server = grpc.server(
            self._threads,
            interceptors=[_TokenCheck(token)] if token is not None else [],
            options=server_options(wire),
        )
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        handlers = {method.name: _handler(method, getattr(servicer, method.name)) for method in service.methods}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        try:
            bound = self._server.add_insecure_port(listen)
        except RuntimeError as error:
            raise LaunchError(f"cannot listen on {listen}: the port is in use, or the host is not this one") from error
        self.address = join_address(host, bound or port)
        for name in ("", service.full_name):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._server.start()

    def stop(self, grace_s: float) -> None:
        """Refuse new calls, wait for those under way at most ``grace_s``, and close."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_s).wait()
        self._threads.shutdown(wait=False)


def server_options(wire: WireConfig) -> list[tuple[str, int]]:
    return [
        # Two servers on one port would each get half of the connections.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", wire.request_limit_bytes + MAX_HEADER_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.http2.min_ping_interval_without_data_ms", int(wire.keepalive_s * 500)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", int(wire.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(wire.keepalive_timeout_s * 1000)),
        # Without it gRPC gives a ping a minute, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", int(wire.keepalive_timeout_s * 1000)),
    ]


class _Threads(ThreadPoolExecutor):
    """Threads for calls. What comes while the interpreter ends is dropped: gRPC would print a traceback instead."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError as error:
            if "shutdown" not in str(error):
                raise
            dropped: Future[T] = Future()
            dropped.cancel()
            return dropped


class _TokenCheck(grpc.ServerInterceptor):
    """Refuse calls without the fleet's token; health checks, which orchestrators send bare, pass."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()
        self._refusal: Any = grpc.unary_unary_rpc_method_handler(self._refuse)

    def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if handler_call_details.method.startswith(HEALTH_PREFIX):
            return continuation(handler_call_details)
        given = dict(handler_call_details.invocation_metadata).get("authorization", "")
        if hmac.compare_digest(given if isinstance(given, bytes) else given.encode(), self._expected):
            return continuation(handler_call_details)
        return self._refusal

    @staticmethod
    def _refuse(request: object, context: grpc.ServicerContext) -> NoReturn:
        has_token = "authorization" in dict(context.invocation_metadata())
        what = "this is not the fleet's token" if has_token else "no token given"
        _abort(context, AuthError(f"{what}; pass the token file that the fleet was started with"))


def _handler(method: MethodDescriptor, fn: Callable[..., Any]) -> Any:
    # A frame stays bytes: the codec reads and writes it.
    frames = method.input_type.name.endswith("Frame")
    if method.server_streaming and frames:
        return grpc.stream_stream_rpc_method_handler(_guard_stream(lambda requests, _: fn(requests)))
    if frames:
        return grpc.unary_unary_rpc_method_handler(_guard(fn))
    encode = message_factory.GetMessageClass(method.output_type).SerializeToString
    decode = _decoder(method)
    if method.server_streaming:
        talk = _guard_stream(lambda requests, on_gone: fn(map(decode, requests), on_gone))
        return grpc.stream_stream_rpc_method_handler(talk, None, encode)
    return grpc.unary_unary_rpc_method_handler(_guard(lambda request: fn(decode(request))), None, encode)


def _decoder(method: MethodDescriptor) -> Callable[[bytes], Message]:
    # gRPC would call it an internal error of ours that a message cannot be read.
    parse = message_factory.GetMessageClass(method.input_type).FromString

    def decode(message: bytes) -> Message:
        try:
            return parse(message)
        except DecodeError as error:
            raise ProtocolError(f"a message {method.input_type.name} cannot be read: {error}") from error

    return decode


def _guard(fn: Callable[[Any], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
    def call(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return fn(request)
        except Exception as error:
            _abort(context, error)

    return call


def _guard_stream(fn: Callable[[Any, OnGone], Iterator[Any]]) -> Callable[[Any, grpc.ServicerContext], Iterator[Any]]:
    def call(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            yield from fn(requests, context.add_callback)
        except Exception as error:
            _abort(context, error)

    return call


def _abort(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    """End the call with the status that tells of the error; one that is not ours is a bug, and is logged whole."""
    if not isinstance(error, PS2Error):
        if isinstance(error, grpc.RpcError):
            raise error
        log.exception("internal error")
        error = internal_error(error)
    code, details, trailing = to_status(error)
    context.set_trailing_metadata(trailing)
    context.abort(code, details)
    raise AssertionError("abort does not return")
