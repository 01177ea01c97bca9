"""TLS credentials of gRPC channels and servers, and the causes of failed handshakes, which gRPC hardly explains."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import grpc

from ps2.certificates import Pems, Tls
from ps2.config import split_address
from ps2.errors import AuthError, ConfigError, PS2Error
from ps2.transport.tls import TlsValue, build, client_context, refusal, server_context, trusted_authority, verify_reason


def channel_credentials(pems: Pems) -> grpc.ChannelCredentials:
    """Return the credentials of a gRPC channel."""
    client_context(pems)  # raises a clear error, unlike gRPC
    key, cert = (pems.key.encode(), pems.cert.encode()) if pems.cert else (None, None)
    return grpc.ssl_channel_credentials(trusted_authority(pems).encode(), key, cert)


def server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Return the credentials of a gRPC server; each new connection uses the newest certificates."""
    configuration = TlsValue(tls, _server_configuration)
    latest = configuration.get()

    def fetch_changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal latest
        previous, latest = latest, configuration.get()
        return None if latest is previous else latest

    fetch: Any = fetch_changed  # gRPC's type annotations lack None, which keeps the current certificates
    # Whether clients need a certificate is fixed here: gRPC cannot change it later.
    return grpc.dynamic_ssl_server_credentials(latest, fetch, bool(tls.current().ca))


def _server_configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    server_context(pems)  # raises a clear error, unlike gRPC
    key_pair = (pems.key.encode(), pems.cert.encode())
    return grpc.ssl_server_certificate_configuration([key_pair], pems.ca.encode() or None)


# Timeout of the connection that looks for the cause. The server has just answered or failed, so little time suffices.
TIMEOUT_S = 2.0
# The HTTP/2 client preface, and an empty SETTINGS frame.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def find_tls_error(address: str, tls: Tls | None) -> PS2Error | None:
    """Connect again and return the error if TLS is why a server does not answer; None if TLS is not the reason."""
    host, port = split_address(address)
    try:
        with socket.create_connection((host, port), TIMEOUT_S) as connection:
            return _error_without_tls(connection, address) if tls is None else _error_with_tls(connection, address, tls)
    except OSError:
        return None


def _error_without_tls(connection: socket.socket, address: str) -> PS2Error | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with context.wrap_socket(connection):
            pass
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return None
    return ConfigError(
        f"{address}: it speaks TLS, but this side has no certificates; give --tls-ca (tlsCa), and --tls-cert and "
        "--tls-key if the server requires them"
    )


def _error_with_tls(connection: socket.socket, address: str, tls: Tls) -> PS2Error | None:
    pems = tls.current()
    context = build(client_context, pems, tls)
    context.set_alpn_protocols(["h2"])
    is_handshake_done = False
    try:
        with context.wrap_socket(connection, server_hostname=tls.name or split_address(address)[0]) as secured:
            is_handshake_done = True
            # With TLS 1.3, the server checks the client's certificate only after the client's handshake is complete.
            secured.sendall(PREFACE)
            if secured.recv(1):
                return None
    except ssl.SSLCertVerificationError as error:
        return AuthError(f"{address}: its certificate is not trusted: {verify_reason(error)} (by {tls})")
    except TimeoutError:
        return None
    except (ssl.SSLError, ConnectionError):
        if not is_handshake_done:
            return ConfigError(
                f"{address}: it does not speak TLS, but this side has certificates; start it with --tls-cert and "
                "--tls-key, or leave them out here"
            )
    # gRPC servers close the connection without an alert.
    reason = "it has none; give --tls-cert and --tls-key (tlsCert, tlsKey)"
    if pems.cert:
        reason = refusal(pems, "") or "it trusts another authority"
    return AuthError(f"{address}: it rejects this side's certificate: {reason} (of {tls})")
