"""TLS credentials of gRPC channels and servers."""

from __future__ import annotations

from typing import Any

import grpc

from ps2.certificates import Pems, Tls
from ps2.transport.tls import Renewed, client_context, server_context, trusted_authority


def channel_credentials(pems: Pems) -> grpc.ChannelCredentials:
    """Return the credentials of a gRPC channel."""
    client_context(pems)  # raises a clear error, unlike gRPC
    key, cert = (pems.key.encode(), pems.cert.encode()) if pems.cert else (None, None)
    return grpc.ssl_channel_credentials(trusted_authority(pems).encode(), key, cert)


def server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Return the credentials of a gRPC server; each new connection uses the newest certificates.

    Raises:
        ConfigError, AuthError: the certificates are unusable.
    """
    configuration = Renewed(tls, _server_configuration)
    latest = configuration.get()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal latest
        before, latest = latest, configuration.get()
        return None if latest is before else latest

    # gRPC decides at the start whether callers must have a certificate.
    fetch: Any = changed  # gRPC's types lack None
    return grpc.dynamic_ssl_server_credentials(latest, fetch, bool(tls.current().ca))


def _server_configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    server_context(pems)  # raises a clear error, unlike gRPC
    own = [(pems.key.encode(), pems.cert.encode())]
    return grpc.ssl_server_certificate_configuration(own, pems.ca.encode() or None)
