"""TLS credentials of gRPC channels and servers."""

from __future__ import annotations

from typing import Any

import grpc

from ps2.certificates import Pems, Tls
from ps2.transport.tls import Renewed, believed, client_context, server_context


def channel_credentials(pems: Pems) -> grpc.ChannelCredentials:
    """Return the credentials of a gRPC channel."""
    client_context(pems)  # gRPC would not say what is wrong with them
    key, cert = (pems.key.encode(), pems.cert.encode()) if pems.cert else (None, None)
    return grpc.ssl_channel_credentials(believed(pems).encode(), key, cert)


def server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Return the credentials of a gRPC server; each new connection uses the newest certificates.

    Raises:
        ConfigError, AuthError: they cannot be used.
    """
    configuration = Renewed(tls, _server_configuration)
    told = configuration.get()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal told
        before, told = told, configuration.get()
        return None if told is before else told

    # Whether callers must have a certificate cannot change any more.
    fetch: Any = changed  # None is not in the types
    return grpc.dynamic_ssl_server_credentials(told, fetch, bool(tls.current().ca))


def _server_configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    server_context(pems)  # gRPC would not say what is wrong with them
    own = [(pems.key.encode(), pems.cert.encode())]
    return grpc.ssl_server_certificate_configuration(own, pems.ca.encode() or None)
