"""The client's end of gRPC to one address. With a token, it trusts only answers that prove knowledge of the token."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ps2.config import WireConfig
from ps2.errors import AuthError, ProtocolError, PS2Error, UnavailableError
from ps2.protocol.pb import auth_pb2 as pb
from ps2.rpc.credentials import channel_credentials, explain
from ps2.rpc.status import MAX_METADATA_BYTES, error_detail, from_bare, from_rpc
from ps2.transport import proof
from ps2.transport.connection import unreachable
from ps2.transport.proof import ClientSession, Tokens
from ps2.transport.tls import TlsValue

NONCE_KEY = "ps2-nonce-bin"
CALL_KEY = "ps2-call-bin"
PROOF_KEY = "ps2-proof-bin"
CHALLENGE = "/ps2.v1.Auth/Challenge"

# A channel closes after this long without calls, and the next call reopens it. The server's limit is longer (serving).
IDLE_S = 60.0

# gRPC option that makes this process's channels to one address differ.
NUMBER_OPTION = "ps2.number"
NUMBERS = itertools.count()

NOT_PROVEN = "the answer has no proof that it comes from a server of the fleet"

# The process that listens at an address, by service of the contract; for error messages.
LISTENING = {"Master": "the driver's master", "Launcher": "the fleet's launcher"}

# A part of gRPC's message after an attempt to connect has timed out.
TOO_LONG = "handshaker shutdown"
# Statuses of a broken connection. The caller may retry after them.
BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


class Trust:
    """The servers that have proven their identity to one client, by address; thread-safe."""

    def __init__(self, sure: bool = False) -> None:
        """``sure``: the client's token is certainly the fleet's, even before a server has proven its identity."""
        self.has_addresses_of_driver = sure  # the client uses addresses that the driver gave it, as tasks do
        self._lock = threading.Lock()
        self._proven: dict[str, bytes] = {}

    @property
    def sure(self) -> bool:
        """True if the client's token is known to be the fleet's."""
        return self.has_addresses_of_driver or bool(self._proven)

    def record(self, address: str, nonce: bytes) -> str | None:
        """Record the server at an address; return another address where this server proved itself, if there is one."""
        with self._lock:
            for other, known in self._proven.items():
                if known == nonce and other != address:
                    return other
            self._proven[address] = nonce
            return None


class Channel:
    """Calls to one address, with messages as bytes; thread-safe."""

    def __init__(self, address: str, token: str | Tokens | None, wire: WireConfig, trust: Trust) -> None:
        """Create the channel; it connects on the first call."""
        self._address = address
        self._tokens = Tokens.from_text(token)
        self._trust = trust
        self._timeout_s = wire.keepalive_timeout_s
        self._session: ClientSession | None = None
        self._reached = False
        self._peer_name = "a server"
        self._wire = wire
        self._credentials = TlsValue(wire.tls, channel_credentials) if wire.tls is not None else None
        self._opened_with: grpc.ChannelCredentials | None = None
        self._lock = threading.Lock()
        self._answered = False
        self._replaced: list[grpc.Channel] = []
        if self._credentials is None:
            self._channel = self._new()
        else:
            self._open()

    def call(self, method: str, message: bytes, timeout_s: float) -> bytes:
        """Call a method (``Service/Method``) and wait for its reply, or the error that the other side returned.

        UnavailableError: nothing answers at the address, or a process that does not know the token.
        """
        path = f"/ps2.v1.{method}"
        self._peer_name = LISTENING.get(method.partition("/")[0], "a server")
        channel = self._open()
        rpc: Any = channel.unary_unary(path)
        deadline_s = time.monotonic() + timeout_s
        session = self._session or self._authenticate(timeout_s)
        for attempt in range(2):
            left_s = max(0.0, deadline_s - time.monotonic())
            number = next(session.numbers) if session else 0
            try:
                reply, call = rpc.with_call(message, left_s, self._metadata(session, path, number, message))
            except grpc.RpcError as error:
                self._replace_if_dead(channel, error.code())
                if session is not None and self._is_proven(error, session, number):
                    raise from_rpc(error, self._address) from None
                if error.code() in BROKEN and (session is not None or error_detail(error) is None):
                    raise self._broken(error) from None
                if session is None:
                    raise from_rpc(error, self._address) from None
                # The error has no proof: another process may listen there now, so authenticate again.
                session = self._authenticate(left_s)
                if error.code() != grpc.StatusCode.UNAUTHENTICATED or attempt:
                    raise from_bare(error, self._address) from None
                continue
            self._answered = True
            if session is None or _has_proof(call.trailing_metadata(), session, "reply", number, reply):
                self._reached = True
                return reply
            self._authenticate(left_s)
            break
        raise UnavailableError(f"{self._address}: {NOT_PROVEN}")

    def close(self) -> None:
        for channel in (*self._replaced, self._channel):
            channel.close()

    def _replace_if_dead(self, channel: grpc.Channel, code: grpc.StatusCode) -> None:
        """Replace a channel on which a call timed out after an earlier call was answered.

        A firewall may have dropped the connection silently, so the next call gets a new one. Calls in flight continue.
        """
        with self._lock:
            if code is grpc.StatusCode.DEADLINE_EXCEEDED and self._answered and channel is self._channel:
                self._replaced.append(channel)
                self._channel, self._answered = self._new(), False

    def _new(self) -> grpc.Channel:
        options = channel_options(self._wire)
        if self._replaced:
            # Channels to one address share a connection unless their options differ.
            options.append((NUMBER_OPTION, next(NUMBERS)))
        if self._opened_with is None:
            return grpc.insecure_channel(self._address, options)
        if self._credentials is not None and self._credentials.name:
            options.append(("grpc.ssl_target_name_override", self._credentials.name))
        return grpc.secure_channel(self._address, self._opened_with, options)

    def _open(self) -> grpc.Channel:
        """Return the channel, or a new one if certificates have changed; calls on the old channel continue."""
        if self._credentials is not None and (credentials := self._credentials.get()) is not self._opened_with:
            with self._lock:
                self._opened_with = credentials
                self._channel = self._new()
        return self._channel

    def _broken(self, error: Any) -> PS2Error:
        """Return the error of a call that got no answer. If TLS is the reason, the error says so."""
        is_first = self._session is None and not self._trust.sure
        is_handshake = self._wire.tls is not None and "handshake" in (error.details() or "")
        if error.code() == grpc.StatusCode.UNAVAILABLE and (is_first or is_handshake):
            tls_error = explain(self._address, self._wire.tls)
            if tls_error is not None:
                return UnavailableError(str(tls_error)) if self._trust.sure else tls_error
        if error.code() == grpc.StatusCode.UNAVAILABLE and self._trust.has_addresses_of_driver and not self._reached:
            reason = (
                f"no answer within {self._wire.connect_s:.0f} s" if TOO_LONG in error.details() else error.details()
            )
            return unreachable(self._peer_name, self._address, reason)
        return from_bare(error, self._address)

    def _authenticate(self, timeout_s: float) -> ClientSession | None:
        """Let the server prove its identity; return the new session, or None without a token."""
        tokens = self._tokens
        if tokens is None:
            return None
        client_nonce = proof.new_nonce()
        channel = self._open()
        challenge: Any = channel.unary_unary(CHALLENGE)
        try:
            reply = pb.ChallengeReply.FromString(challenge(b"", timeout_s, ((NONCE_KEY, client_nonce),)))
        except grpc.RpcError as error:
            self._replace_if_dead(channel, error.code())
            if error.code() in BROKEN:
                raise self._broken(error) from None
            raise self._unauthenticated_peer(
                ProtocolError, f"no PS2 server of this version ({error.code().name})"
            ) from None
        except DecodeError:
            raise self._unauthenticated_peer(ProtocolError, "no PS2 server") from None
        if not reply.proof:
            raise self._unauthenticated_peer(AuthError, "a server without a token, but this side has one")
        token = tokens.shared(
            (reply.proof, *reply.further_proofs), lambda token: proof.server_proof(token, client_nonce, reply.nonce)
        )
        if token is None:
            if not self._trust.sure:
                raise AuthError(
                    f"{self._address}: this is not the fleet's token; pass the token file that the fleet was started "
                    "with (tokenFile, --token-file)"
                )
            raise self._unauthenticated_peer(AuthError, "a process that does not know the fleet's token")
        if (other := self._trust.record(self._address, reply.nonce)) is not None:
            raise self._unauthenticated_peer(
                AuthError, f"the server of {other}: the address forwards to it, or it has two names"
            )
        key = proof.session_key(token, client_nonce, reply.nonce)
        self._session = ClientSession(client_nonce, reply.nonce, key)
        self._reached = True
        return self._session

    def _unauthenticated_peer(self, cls: type[PS2Error], description: str) -> PS2Error:
        """Return the error for an unauthenticated peer. It is transient if the token is certainly the fleet's."""
        return (UnavailableError if self._trust.sure else cls)(
            f"{self._address}: expected a server of the fleet, got {description}"
        )

    @staticmethod
    def _metadata(session: ClientSession | None, path: str, number: int, message: bytes) -> Any:
        if session is None:
            return ()
        digest = proof.digest(message)
        claim = pb.CallProof(
            client_nonce=session.client_nonce,
            server_nonce=session.server_nonce,
            number=number,
            digest=digest,
            proof=proof.call_proof(session.key, number, digest, path),
        )
        return ((CALL_KEY, claim.SerializeToString()),)

    @staticmethod
    def _is_proven(error: Any, session: ClientSession, number: int) -> bool:
        detail = error_detail(error)
        return detail is not None and _has_proof(error.trailing_metadata(), session, "error", number, detail)


def _has_proof(metadata: Any, session: ClientSession, kind: str, number: int, message: bytes) -> bool:
    sent_proof = dict(metadata or ()).get(PROOF_KEY, b"")
    return proof.equal(sent_proof, proof.answer_proof(session.key, kind, number, proof.digest(message)))


def channel_options(wire: WireConfig) -> list[tuple[str, int | str]]:
    return [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        # Otherwise gRPC would ask a proxy from the environment for servers of this network.
        ("grpc.enable_http_proxy", 0),
        ("grpc.client_idle_timeout_ms", int(IDLE_S * 1000)),
        ("grpc.keepalive_time_ms", int(wire.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(wire.keepalive_timeout_s * 1000)),
        # Without this option gRPC waits a minute for a ping, regardless of the line above.
        ("grpc.http2.ping_timeout_ms", int(wire.keepalive_timeout_s * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        # PS2 retries itself, with the same request id.
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Also the maximum time of one attempt to connect.
        ("grpc.min_reconnect_backoff_ms", int(wire.connect_s * 1000)),
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]
