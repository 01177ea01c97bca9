"""A gRPC client of one address. With a token, it accepts only replies that prove knowledge of the token."""

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
from ps2.rpc.credentials import channel_credentials, find_tls_error
from ps2.rpc.status import MAX_METADATA_BYTES, error_detail, from_code, from_rpc
from ps2.transport import proof
from ps2.transport.connection import unreachable_error
from ps2.transport.proof import ClientSession, Tokens
from ps2.transport.tls import TlsValue

NONCE_KEY = "ps2-nonce-bin"
CALL_KEY = "ps2-call-bin"
PROOF_KEY = "ps2-proof-bin"
CHALLENGE = "/ps2.v1.Auth/Challenge"

# A channel disconnects after this long without calls; the next call reconnects. Servers wait longer (rpc/serving.py).
IDLE_S = 60.0

# An option that gRPC ignores. Channels to one address share a connection unless their options differ, so a channel with
# a new value of this option gets a connection of its own.
NUMBER_OPTION = "ps2.number"
CHANNEL_NUMBERS = itertools.count()

NOT_PROVEN = "the answer has no proof that it comes from a server of the fleet"

# Names of the peers in error messages, by the name of the gRPC service.
PEER_NAMES = {"Master": "the driver's master", "Launcher": "the fleet's launcher"}

# A part of gRPC's error message if an attempt to connect has timed out.
CONNECT_TIMEOUT_TEXT = "handshaker shutdown"
# Status codes of calls whose connection broke. The caller may retry such calls.
BROKEN_CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


class Trust:
    """The servers that have proven their identity to one client, by address; thread-safe."""

    def __init__(self, has_addresses_of_driver: bool = False) -> None:
        """``has_addresses_of_driver``: the driver gave the client its addresses and token, as it does for tasks."""
        self.has_addresses_of_driver = has_addresses_of_driver
        self._lock = threading.Lock()
        self._nonces: dict[str, bytes] = {}  # by address: the nonce that identifies the server's process

    @property
    def has_fleet_token(self) -> bool:
        """True if the client's token is certainly the fleet's."""
        return self.has_addresses_of_driver or bool(self._nonces)

    def record(self, address: str, nonce: bytes) -> str | None:
        """Record the server at an address; return another address of the same server, if one is recorded."""
        with self._lock:
            for known_address, known_nonce in self._nonces.items():
                if known_nonce == nonce and known_address != address:
                    return known_address
            self._nonces[address] = nonce
            return None


class Channel:
    """Makes calls to one address, with encoded messages; thread-safe."""

    def __init__(self, address: str, token: str | Tokens | None, wire: WireConfig, trust: Trust) -> None:
        """Create the channel; it connects on the first call."""
        self._address = address
        self._tokens = Tokens.from_text(token)
        self._trust = trust
        self._session: ClientSession | None = None
        self._reached = False  # True after the first reply of the server
        self._peer_name = "a server"
        self._wire = wire
        self._credentials = TlsValue(wire.tls, channel_credentials) if wire.tls is not None else None
        self._channel_credentials: grpc.ChannelCredentials | None = None
        self._lock = threading.Lock()
        self._has_answered = False  # True after the first reply on the current channel
        self._replaced_channels: list[grpc.Channel] = []
        if self._credentials is None:
            self._channel = self._new_channel()
        else:
            self._current_channel()

    def call(self, method: str, message: bytes, timeout_s: float) -> bytes:
        """Call a method (``Service/Method``); return its reply, or raise the error that the server returned.

        Raises UnavailableError if no process answers at the address, or if the process does not know the token.
        """
        path = f"/ps2.v1.{method}"
        self._peer_name = PEER_NAMES.get(method.partition("/")[0], "a server")
        channel = self._current_channel()
        rpc: Any = channel.unary_unary(path)
        deadline_s = time.monotonic() + timeout_s
        session = self._session or self._authenticate(timeout_s)
        for attempt in range(2):
            remaining_s = max(0.0, deadline_s - time.monotonic())
            number = next(session.numbers) if session else 0
            try:
                reply, call = rpc.with_call(message, remaining_s, self._metadata(session, path, number, message))
            except grpc.RpcError as error:
                self._replace_if_dead(channel, error.code())
                if session is not None and self._is_error_proven(error, session, number):
                    raise from_rpc(error, self._address) from None
                if error.code() in BROKEN_CODES and (session is not None or error_detail(error) is None):
                    raise self._connection_error(error) from None
                if session is None:
                    raise from_rpc(error, self._address) from None
                # The error has no proof: another process may listen at the address now, so authenticate again.
                session = self._authenticate(remaining_s)
                if error.code() != grpc.StatusCode.UNAUTHENTICATED or attempt:
                    raise from_code(error, self._address) from None
                continue
            self._has_answered = True
            if session is None or _has_proof(call.trailing_metadata(), session, "reply", number, reply):
                self._reached = True
                return reply
            self._authenticate(remaining_s)
            break
        raise UnavailableError(f"{self._address}: {NOT_PROVEN}")

    def close(self) -> None:
        for channel in (*self._replaced_channels, self._channel):
            channel.close()

    def _replace_if_dead(self, channel: grpc.Channel, code: grpc.StatusCode) -> None:
        """Replace a channel on which a call timed out after an earlier call was answered.

        A firewall may have dropped the connection silently, so the next call gets a new one. Calls in flight continue.
        """
        with self._lock:
            if code is grpc.StatusCode.DEADLINE_EXCEEDED and self._has_answered and channel is self._channel:
                self._replaced_channels.append(channel)
                self._channel, self._has_answered = self._new_channel(), False

    def _new_channel(self) -> grpc.Channel:
        options = channel_options(self._wire)
        if self._replaced_channels:
            options.append((NUMBER_OPTION, next(CHANNEL_NUMBERS)))
        if self._channel_credentials is None:
            return grpc.insecure_channel(self._address, options)
        if self._credentials is not None and self._credentials.name:
            options.append(("grpc.ssl_target_name_override", self._credentials.name))
        return grpc.secure_channel(self._address, self._channel_credentials, options)

    def _current_channel(self) -> grpc.Channel:
        """Return the channel; create a new one if certificates have changed. Calls on the old channel continue."""
        if self._credentials is not None and (credentials := self._credentials.get()) is not self._channel_credentials:
            with self._lock:
                self._channel_credentials = credentials
                self._channel = self._new_channel()
        return self._channel

    def _connection_error(self, error: Any) -> PS2Error:
        """Return the error of a call that got no reply. The error names TLS if TLS is the reason."""
        is_first = self._session is None and not self._trust.has_fleet_token
        is_handshake = self._wire.tls is not None and "handshake" in (error.details() or "")
        if error.code() == grpc.StatusCode.UNAVAILABLE and (is_first or is_handshake):
            tls_error = find_tls_error(self._address, self._wire.tls)
            if tls_error is not None:
                return UnavailableError(str(tls_error)) if self._trust.has_fleet_token else tls_error
        if error.code() == grpc.StatusCode.UNAVAILABLE and self._trust.has_addresses_of_driver and not self._reached:
            is_timeout = CONNECT_TIMEOUT_TEXT in error.details()
            reason = f"no answer within {self._wire.connect_s:.0f} s" if is_timeout else error.details()
            return unreachable_error(self._peer_name, self._address, reason)
        return from_code(error, self._address)

    def _authenticate(self, timeout_s: float) -> ClientSession | None:
        """Let the server prove its identity; return the new session, or None without a token."""
        tokens = self._tokens
        if tokens is None:
            return None
        client_nonce = proof.new_nonce()
        channel = self._current_channel()
        challenge: Any = channel.unary_unary(CHALLENGE)
        try:
            reply = pb.ChallengeReply.FromString(challenge(b"", timeout_s, ((NONCE_KEY, client_nonce),)))
        except grpc.RpcError as error:
            self._replace_if_dead(channel, error.code())
            if error.code() in BROKEN_CODES:
                raise self._connection_error(error) from None
            raise self._unauthenticated_peer(
                ProtocolError, f"no PS2 server of this version ({error.code().name})"
            ) from None
        except DecodeError:
            raise self._unauthenticated_peer(ProtocolError, "no PS2 server") from None
        if not reply.proof:
            raise self._unauthenticated_peer(AuthError, "a server without a token, but this process has one")
        token = tokens.matching(
            (reply.proof, *reply.further_proofs), lambda token: proof.server_proof(token, client_nonce, reply.nonce)
        )
        if token is None:
            if not self._trust.has_fleet_token:
                raise AuthError(
                    f"{self._address}: this is not the fleet's token; pass the token file that the fleet was started "
                    "with (tokenFile, --token-file)"
                )
            raise self._unauthenticated_peer(AuthError, "a process that does not know the fleet's token")
        if (other_address := self._trust.record(self._address, reply.nonce)) is not None:
            raise self._unauthenticated_peer(
                AuthError, f"the server of {other_address}: this address forwards to it, or it has two names"
            )
        key = proof.session_key(token, client_nonce, reply.nonce)
        self._session = ClientSession(client_nonce, reply.nonce, key)
        self._reached = True
        return self._session

    def _unauthenticated_peer(self, cls: type[PS2Error], description: str) -> PS2Error:
        """Return the error for an unauthenticated peer; it is transient if the token is certainly the fleet's."""
        return (UnavailableError if self._trust.has_fleet_token else cls)(
            f"{self._address}: expected a server of the fleet, got {description}"
        )

    @staticmethod
    def _metadata(session: ClientSession | None, path: str, number: int, message: bytes) -> Any:
        """Return metadata that prove knowledge of the token, for the call with this number in the session."""
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
    def _is_error_proven(error: Any, session: ClientSession, number: int) -> bool:
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
        # Connect directly, even if environment variables such as http_proxy name a proxy.
        ("grpc.enable_http_proxy", 0),
        ("grpc.client_idle_timeout_ms", int(IDLE_S * 1000)),
        ("grpc.keepalive_time_ms", int(wire.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(wire.keepalive_timeout_s * 1000)),
        # Without this option gRPC waits a minute for a ping, regardless of the line above.
        ("grpc.http2.ping_timeout_ms", int(wire.keepalive_timeout_s * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        # PS2 retries failed requests with the same request id, which gRPC could not do.
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # gRPC also uses this value as the time limit of one attempt to connect.
        ("grpc.min_reconnect_backoff_ms", int(wire.connect_s * 1000)),
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]
