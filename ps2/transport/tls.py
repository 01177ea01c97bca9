"""TLS contexts for data connections, rebuilt when the certificate files change."""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Generic, TypeVar

from ps2.certificates import Pems, Tls
from ps2.errors import ConfigError, PS2Error

log = logging.getLogger(__name__)

T = TypeVar("T")


class TlsValue(Generic[T]):
    """A value derived from certificates, rebuilt when the certificates change. Thread-safe.

    If new certificates are unusable, the previous certificates stay in use: while files are replaced one after another,
    key and certificate do not match for a moment.
    """

    def __init__(self, tls: Tls, make: Callable[[Pems], T]) -> None:
        """Raises ConfigError or AuthError if the certificates are unusable."""
        self._tls = tls
        self._make = make
        self._lock = threading.Lock()
        self._pems = tls.current()
        self._value = build(make, self._pems, tls)
        self._logged_error = ""

    @property
    def name(self) -> str:
        """The host name in all certificates of the fleet; empty if each certificate names its own host."""
        return self._tls.name

    def get(self) -> T:
        """Return the value for the current certificates."""
        with self._lock:
            try:
                pems = self._tls.current()
                if pems != self._pems:
                    self._value, self._pems = build(self._make, pems, self._tls), pems
                    self._logged_error = ""
                    log.info("certificates have changed and were reloaded: %s", self._tls)
            except PS2Error as error:
                if str(error) != self._logged_error:
                    log.warning("the previous certificates stay in use: %s", error)
                    self._logged_error = str(error)
            return self._value


def build(make: Callable[[Pems], T], pems: Pems, tls: Tls) -> T:
    """Return ``make(pems)``; raise ConfigError, which names the certificate files, if they are unusable."""
    try:
        return make(pems)
    except ssl.SSLError as error:
        raise ConfigError(f"certificates: {load_error_text(error)} ({tls})") from error


def load_error_text(error: ssl.SSLError) -> str:
    """Return why OpenSSL cannot load a certificate or key."""
    texts = {
        "KEY_VALUES_MISMATCH": "the private key does not belong to the certificate",
        "EE_KEY_TOO_SMALL": "the key is too small",
        "BAD_DECRYPT": "the private key is encrypted; give one without a passphrase",
        "BAD_PASSWORD_READ": "the private key is encrypted; give one without a passphrase",
    }
    return texts.get(error.reason or "", str(error))


def check_serving(tls: Tls, *hosts: str) -> None:
    """Raise ConfigError if peers with the same certificates would reject this process at one of these hosts."""
    for host in hosts:
        if (reason := peer_refusal(tls, host)) is not None:
            raise ConfigError(f"certificates: peers that trust {tls} would reject {host}: {reason}")


def peer_refusal(tls: Tls, host: str) -> str | None:
    """Return why peers with these certificates would reject a process on a host; None if they would accept it.

    Without a certificate authority nothing can be checked, and the result is None.
    """
    pems = tls.current()
    return build(partial(refusal, host=pems.name or host), pems, tls) if pems.ca else None


def refusal(pems: Pems, host: str) -> str | None:
    """Run a TLS handshake in memory; return why a peer would reject the certificates at ``host`` ("": any host)."""
    client, server = client_context(pems), server_context(pems)
    client.check_hostname = bool(host)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host or None),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for side in 2 * sides:  # each side has two turns, after which both certificates are checked
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            return verify_reason(error)
    return None


def verify_reason(error: ssl.SSLCertVerificationError) -> str:
    """Return OpenSSL's reason for the refusal of a certificate."""
    return error.verify_message.rstrip(".")


def client_context(pems: Pems) -> ssl.SSLContext:
    """Return the TLS context for opening data connections."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=trusted_authority(pems))
    load_own_certificate(context, pems)
    return context


def server_context(pems: Pems) -> ssl.SSLContext:
    """Return the TLS context for accepting data connections."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # connections are long-lived, so clients never resume a session
    if not pems.cert:
        raise ConfigError(
            "a process that listens with TLS needs a certificate and its key; give --tls-cert and --tls-key (tlsCert "
            "and tlsKey)"
        )
    load_own_certificate(context, pems)
    if pems.ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=pems.ca)
    return context


def usable_by_clients(pems: Pems) -> Pems:
    """Return the certificates; raise PS2Error or ssl.SSLError if a client cannot use them."""
    client_context(pems)
    return pems


def trusted_authority(pems: Pems) -> str:
    if not pems.ca:
        raise ConfigError(
            "a process that connects with TLS needs a certificate authority to trust; give --tls-ca (tlsCa)"
        )
    return pems.ca


def load_own_certificate(context: ssl.SSLContext, pems: Pems) -> None:
    if pems.cert:
        # Python's ssl module loads certificates only from files, and a key must not be written to a disk.
        with _temporary_file(pems.cert) as cert, _temporary_file(pems.key) as key:
            context.load_cert_chain(cert, key, password="")


@contextlib.contextmanager
def _temporary_file(text: str) -> Iterator[str]:
    """Yield the path of a temporary file with this text, in memory if the system supports that."""
    in_memory = hasattr(os, "memfd_create")
    with os.fdopen(os.memfd_create("ps2"), "wb") if in_memory else tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"
