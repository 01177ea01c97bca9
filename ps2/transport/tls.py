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


class Renewed(Generic[T]):
    """Something that is made of certificates, and made anew when they have changed. Safe for threads.

    While new ones cannot be used, the last that could are: files are replaced one after the other.
    """

    def __init__(self, tls: Tls, make: Callable[[Pems], T]) -> None:
        """Raises ConfigError or AuthError if they cannot be used."""
        self._tls = tls
        self._make = make
        self._lock = threading.Lock()
        self._pems = tls.current()
        self._value = made(make, self._pems, tls)
        self._complained = ""

    @property
    def name(self) -> str:
        """What all the fleet's certificates carry; "": the host."""
        return self._tls.name

    def get(self) -> T:
        """Return it as the certificates are now."""
        with self._lock:
            try:
                pems = self._tls.current()
                if pems != self._pems:
                    self._value, self._pems = made(self._make, pems, self._tls), pems
                    self._complained = ""
                    log.info("certificates have changed, and were read again: %s", self._tls)
            except PS2Error as error:
                if str(error) != self._complained:
                    log.warning("the certificates before are still used: %s", error)
                    self._complained = str(error)
            return self._value


def made(make: Callable[[Pems], T], pems: Pems, tls: Tls) -> T:
    """Make something of certificates; raises ConfigError if they cannot be used, which names their files."""
    try:
        return make(pems)
    except ssl.SSLError as error:
        raise ConfigError(f"certificates: {reason(error)} ({tls})") from error


def reason(error: ssl.SSLError) -> str:
    """Return in plain words what OpenSSL has against a certificate or key."""
    known = {
        "KEY_VALUES_MISMATCH": "the private key is not that of the certificate",
        "EE_KEY_TOO_SMALL": "the key is too small",
        "BAD_DECRYPT": "the private key is encrypted; give one without a passphrase",
        "BAD_PASSWORD_READ": "the private key is encrypted; give one without a passphrase",
    }
    return known.get(error.reason or "", str(error))


def check_serving(tls: Tls, *hosts: str) -> None:
    """Find out before anything starts that processes which listen and connect cannot use certificates.

    Args:
        hosts: that others reach them by.

    Raises:
        ConfigError, AuthError: why.
    """
    for host in hosts:
        if (wrong := fault_of(tls, host)) is not None:
            raise ConfigError(f"certificates: nobody who believes {tls} will talk to {host}: {wrong}")


def fault_of(tls: Tls, host: str) -> str | None:
    """Return why nobody who has these certificates will talk to a process that is reached by a host; None: nothing.

    Without an authority, nobody knows.

    Raises:
        ConfigError, AuthError: they cannot be used.
    """
    pems = tls.current()
    return made(partial(fault, host=pems.name or host), pems, tls) if pems.ca else None


def fault(pems: Pems, host: str) -> str | None:
    """Return what somebody with the same certificates has against them; None: nothing.

    Args:
        host: that this side is reached by; "": anywhere.
    """
    caller, called = client_context(pems), server_context(pems)
    caller.check_hostname = bool(host)
    to_called, to_caller = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        caller.wrap_bio(to_caller, to_called, server_hostname=host or None),
        called.wrap_bio(to_called, to_caller, server_side=True),
    ]
    for side in 2 * sides:
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            return said(error)
    return None


def said(error: ssl.SSLCertVerificationError) -> str:
    """Return what OpenSSL says of a certificate that is not to be believed."""
    return error.verify_message.rstrip(".")


def client_context(pems: Pems) -> ssl.SSLContext:
    """Return what a data connection is opened with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=believed(pems))
    load_own(context, pems)
    return context


def server_context(pems: Pems) -> ssl.SSLContext:
    """Return what data connections are taken with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # a connection lasts; nobody comes back with one
    _own(pems)
    load_own(context, pems)
    if pems.ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=pems.ca)
    return context


def usable(pems: Pems) -> Pems:
    """Return certificates that a connection can be opened with."""
    client_context(pems)
    return pems


def _own(pems: Pems) -> None:
    if not pems.cert:
        raise ConfigError(
            "who listens with TLS needs a certificate and its key; give --tls-cert and --tls-key (tlsCert and tlsKey)"
        )


def believed(pems: Pems) -> str:
    if not pems.ca:
        raise ConfigError(
            "who connects with TLS needs the authority whose certificates it is to believe; give --tls-ca (tlsCa)"
        )
    return pems.ca


def load_own(context: ssl.SSLContext, pems: Pems) -> None:
    if pems.cert:
        # The module reads files alone, and a key is not to be written to any.
        with _file(pems.cert) as cert, _file(pems.key) as key:
            context.load_cert_chain(cert, key, password="")


@contextlib.contextmanager
def _file(text: str) -> Iterator[str]:
    """Yield a file that text can be read from; where the system has such, one that is on no disk."""
    in_memory = hasattr(os, "memfd_create")
    with os.fdopen(os.memfd_create("ps2"), "wb") if in_memory else tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"
