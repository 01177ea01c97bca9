"""A gRPC server for one servicer: authentication, conversion of errors to statuses, health checks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from ps2.config import WireConfig, is_loopback, join_address, split_listen
from ps2.errors import AuthError, ConfigError, LaunchError, ProtocolError, PS2Error
from ps2.listening import is_free, raise_file_limit, resolve
from ps2.protocol.error_details import internal_error
from ps2.protocol.pb import auth_pb2
from ps2.rpc import channel
from ps2.rpc.channel import CALL_KEY, CHALLENGE, NONCE_KEY, PROOF_KEY
from ps2.rpc.credentials import server_credentials
from ps2.rpc.execute import MAX_HEADER_BYTES
from ps2.rpc.status import MAX_METADATA_BYTES, to_status
from ps2.transport.proof import NONCE_BYTES, Admitted, Claim, Gatekeeper, Tokens

log = logging.getLogger(__name__)

T = TypeVar("T")

HEALTH_CHECK = "/grpc.health.v1.Health/Check"
SERVING = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING).SerializeToString()

# The calls that unauthenticated peers may make never block, so few threads are enough.
UNAUTHENTICATED_THREADS = 2
HANDSHAKE_TIMEOUT_S = 10.0
# The server closes a connection after this long without calls. PS2's own clients close idle connections earlier.
IDLE_S = 1.5 * channel.IDLE_S
# Maximum number of concurrent calls on one connection; a PS2 process makes few.
MAX_STREAMS = 256
# Maximum number of connections; each client process has one. Half of the open files are reserved for other uses.
MAX_CONNECTIONS = 4096


class RpcServer:
    """A listening gRPC server; ``address`` includes the port that was chosen."""

    def __init__(
        self,
        service: ServiceDescriptor,
        servicer: object,
        listen: str,
        token: str | Tokens | None,
        threads: int,
        wire: WireConfig,
    ) -> None:
        """Bind and start. ``servicer`` has a method for each rpc, with the same name; Execute takes and returns bytes.

        ``listen`` is ``host:port``, or ``host:first-last`` for the first free port; port 0: any port. A host name means
        its first address on this host, as for data ports. (gRPC would listen on all addresses of the name, even if
        another process has the port on one of them.) Callers and the server prove to each other that they know
        ``token``; it can be None only on loopback.
        """
        host, ports = split_listen(listen)
        if token is None and not is_loopback(host):
            raise ConfigError(f"listen: {listen} is not loopback, so a token is required")
        self._threads = _Threads(threads, "ps2-rpc")
        self._unauthenticated_threads = _Threads(UNAUTHENTICATED_THREADS, "ps2-rpc-unauthenticated")
        self._server = grpc.server(self._threads, options=server_options(wire))
        tokens = Tokens.from_text(token)
        gatekeeper = Gatekeeper(tokens) if tokens is not None else None
        self._server.add_generic_rpc_handlers(
            (_Handlers(service, servicer, gatekeeper, self._unauthenticated_threads),)
        )
        try:
            bound = self._bind(host, ports, wire)
        except (OSError, RuntimeError) as error:
            subject = "the port is" if len(ports) == 1 else "all of the ports are"
            raise LaunchError(
                f"cannot listen on {listen}: {subject} in use, or the host is not this machine"
            ) from error
        self.address = join_address(host, bound)
        self._server.start()

    def _bind(self, host: str, ports: Sequence[int], wire: WireConfig) -> int:
        """Bind the first free port and return it. Raises OSError or RuntimeError if none is free."""
        for port in ports:
            family, (ip, _, *ipv6_fields) = resolve(host, port)
            # gRPC would log a failed attempt to bind.
            if port != ports[-1] and not is_free(family, (ip, port, *ipv6_fields)):
                continue
            address = join_address(ip, port)
            try:
                if wire.tls is None:
                    return self._server.add_insecure_port(address)
                return self._server.add_secure_port(address, server_credentials(wire.tls))
            except RuntimeError:
                if port == ports[-1]:
                    raise
        raise OSError("no port was given")

    def stop(self, grace_s: float) -> None:
        """Refuse new calls, wait up to ``grace_s`` for calls in flight, and close."""
        self._server.stop(grace_s).wait()
        self._threads.shutdown(wait=False)
        self._unauthenticated_threads.shutdown(wait=False)


def server_options(wire: WireConfig) -> list[tuple[str, int]]:
    return [
        # Two servers that share a port would each get half of the connections.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", wire.request_limit_bytes + MAX_HEADER_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        # Half of the clients' ping interval, in ms: gRPC disconnects clients that ping more often.
        ("grpc.http2.min_ping_interval_without_data_ms", int(wire.keepalive_s * 500)),
        ("grpc.keepalive_permit_without_calls", 1),
        # Unauthenticated peers may connect and stay silent, or make only calls that need no token.
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_TIMEOUT_S * 1000)),
        ("grpc.max_connection_idle_ms", int(IDLE_S * 1000)),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_allowed_incoming_connections", min(MAX_CONNECTIONS, raise_file_limit() // 2)),
        ("grpc.keepalive_time_ms", int(wire.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(wire.keepalive_timeout_s * 1000)),
        # Without this option gRPC waits a minute for a ping, regardless of the line above.
        ("grpc.http2.ping_timeout_ms", int(wire.keepalive_timeout_s * 1000)),
    ]


class _Threads(ThreadPoolExecutor):
    """Threads for calls, all started at once: gRPC stops serving after a call for which no thread could start.

    Calls that arrive while the interpreter shuts down are dropped, as gRPC would print a traceback for them.
    """

    def __init__(self, count: int, name: str) -> None:
        """Raises LaunchError if this process cannot start ``count`` threads."""
        super().__init__(count, thread_name_prefix=name)
        all_started = threading.Barrier(count + 1)
        try:
            for _ in range(count):
                self.submit(all_started.wait)
        except RuntimeError as error:
            all_started.abort()
            self.shutdown(wait=False)
            raise LaunchError(f"cannot start {count} threads for calls: {error}") from error
        all_started.wait()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError as error:
            if "shutdown" not in str(error):
                raise
            dropped: Future[T] = Future()
            dropped.cancel()
            return dropped


class _Handlers(grpc.GenericRpcHandler):
    """Authenticates callers and chooses the handler of each call.

    Unauthenticated peers are answered by separate threads, before any of their messages is read, so they delay nobody
    else.
    """

    def __init__(
        self,
        service: ServiceDescriptor,
        servicer: object,
        gatekeeper: Gatekeeper | None,
        unauthenticated_threads: _Threads,
    ) -> None:
        self._gatekeeper = gatekeeper
        self._methods = {
            f"/{service.full_name}/{method.name}": _handler(method, getattr(servicer, method.name))
            for method in service.methods
        }
        # A server that answers is healthy. The health of single services and the method Watch are not supported.
        self._health = _for_unauthenticated(lambda context: SERVING, unauthenticated_threads)
        self._challenge = _for_unauthenticated(self._answer_challenge, unauthenticated_threads)
        self._refusal = _for_unauthenticated(_refuse, unauthenticated_threads)

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method == HEALTH_CHECK:
            return self._health
        if details.method == CHALLENGE:
            return self._challenge
        handler = self._methods.get(details.method)
        if handler is None or self._gatekeeper is None:
            return handler and handler(None)
        claim = _claim(details.invocation_metadata)
        admitted = self._gatekeeper.admit(details.method, claim) if claim is not None else None
        return self._refusal if admitted is None else handler(admitted)

    def _answer_challenge(self, context: grpc.ServicerContext) -> bytes:
        if self._gatekeeper is None:
            return auth_pb2.ChallengeReply().SerializeToString()
        client_nonce: Any = dict(context.invocation_metadata()).get(NONCE_KEY, b"")
        if len(client_nonce) != NONCE_BYTES:
            _abort(context, ProtocolError(f"{NONCE_KEY}: expected {NONCE_BYTES} bytes, got {len(client_nonce)}"))
        nonce, (proof, *further) = self._gatekeeper.challenge(client_nonce)
        return auth_pb2.ChallengeReply(nonce=nonce, proof=proof, further_proofs=further).SerializeToString()


def _claim(metadata: Any) -> Claim | None:
    """Return the proof in a call's metadata; None if there is none."""
    proof = dict(metadata).get(CALL_KEY)
    if proof is None:
        return None
    try:
        call = auth_pb2.CallProof.FromString(proof)
    except DecodeError:
        return None
    return Claim(call.client_nonce, call.server_nonce, call.number, call.digest, call.proof)


def _refuse(context: grpc.ServicerContext) -> NoReturn:
    reason = "no token given"
    if CALL_KEY in dict(context.invocation_metadata()):
        reason = "the proof was not made with the fleet's token, or was made for another process"
    _abort(context, AuthError(f"{reason}; pass the token file that the fleet was started with"))


def _for_unauthenticated(answer: Callable[[grpc.ServicerContext], bytes], threads: _Threads) -> Any:
    """Return a handler that reads no message: a stream handler, because in HTTP/2 a unary call is a stream of one."""

    def call(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        return answer(context)

    call.experimental_thread_pool = threads  # type: ignore[attr-defined]
    return grpc.stream_unary_rpc_method_handler(call)


def _handler(method: MethodDescriptor, fn: Callable[..., Any]) -> Callable[[Admitted | None], Any]:
    """Return a function from an admitted caller (None if no token is needed) to the gRPC handler of its call."""
    # Messages named ...Frame stay bytes: rpc/execute.py decodes and encodes them.
    is_frame = method.input_type.name.endswith("Frame")
    parse = message_factory.GetMessageClass(method.input_type).FromString

    def run(request: bytes) -> bytes:
        try:
            argument: Any = request if is_frame else parse(request)
        except DecodeError as error:  # gRPC would report a malformed message as an internal error of the server
            raise ProtocolError(f"a message {method.input_type.name} cannot be decoded: {error}") from error
        reply: Any = fn(argument)
        encoded: bytes = reply if is_frame else reply.SerializeToString()
        return encoded

    return lambda admitted: grpc.unary_unary_rpc_method_handler(_guard(run, admitted))


def _guard(run: Callable[[bytes], bytes], admitted: Admitted | None) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    """Return a handler that checks the caller's proof of the message, and proves and converts the answer."""

    def call(request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            if admitted is not None and not admitted.covers(request):
                raise AuthError("the received message differs from the message that the caller's proof covers")
            reply = run(request)
        except Exception as error:
            _abort(context, error, admitted)
        if admitted is not None:
            context.set_trailing_metadata(((PROOF_KEY, admitted.proof("reply", reply)),))
        return reply

    return call


def _abort(context: grpc.ServicerContext, error: Exception, admitted: Admitted | None = None) -> NoReturn:
    """End the call with the status of the error. Log errors other than PS2Error, because they are bugs."""
    if not isinstance(error, PS2Error):
        if isinstance(error, grpc.RpcError):
            raise error
        log.exception("internal error")
        error = internal_error(error)
    code, details, trailing = to_status(error)
    if admitted is not None:
        trailing += tuple((PROOF_KEY, admitted.proof("error", detail)) for _, detail in trailing)
    context.set_trailing_metadata(trailing)
    context.abort(code, details)
    raise AssertionError("abort does not return")
