"""TLS certificates: their files and their contents."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from ps2.errors import AuthError, ConfigError

CERT_VARIABLE = "PS2_TLS_CERT"
KEY_VARIABLE = "PS2_TLS_KEY"
CA_VARIABLE = "PS2_TLS_CA"
NAME_VARIABLE = "PS2_TLS_NAME"
# Only commands read these variables. A server that another process starts gets certificates explicitly.
VARIABLES = (CERT_VARIABLE, KEY_VARIABLE, CA_VARIABLE, NAME_VARIABLE)
# The maximum size of one certificate file. The text of all three is passed in one environment variable, for which Linux
# allows 128 KiB.
MAX_FILE_BYTES = 32 << 10


@dataclass(frozen=True)
class Pems:
    """The contents of certificate files, in the form that is sent to tasks and containers; "" means not given.

    Attributes:
        cert: PEM: this process's certificate and the intermediate certificates.
        key: PEM: the private key of that certificate.
        ca: PEM: the trusted certificate authorities.
        name: the host name in the certificates of all processes; "": each certificate names its process's host.
    """

    cert: str = ""
    key: str = field(default="", repr=False)
    ca: str = ""
    name: str = ""

    def current(self) -> Pems:
        return self

    def __str__(self) -> str:
        return "the certificates that came with the fleet"


class Tls(Protocol):
    """A source of certificates; ``str`` names it in errors."""

    @property
    def name(self) -> str: ...

    def current(self) -> Pems:
        """Return the current certificates. Raises ConfigError or AuthError if a file is unusable."""
        ...


@dataclass(frozen=True)
class TlsFiles:
    """Certificate files, reloaded when they change; "" means not given. See ``Pems`` for the fields."""

    cert: str = ""
    key: str = ""
    ca: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if self.cert and not self.key:
            raise ConfigError(f"the certificate {self.cert} needs its private key; give --tls-key (tlsKey)")
        if self.key and not self.cert:
            raise ConfigError(f"the private key {self.key} needs its certificate; give --tls-cert (tlsCert)")

    @property
    def are_regular(self) -> bool:
        """True if the files can be read repeatedly; a pipe cannot."""
        return all(os.path.isfile(path) for path in (self.cert, self.key, self.ca) if path)

    def absolute(self) -> TlsFiles:
        """Return the same files with absolute paths."""
        cert, key, ca = (path and os.path.abspath(path) for path in (self.cert, self.key, self.ca))
        return TlsFiles(cert, key, ca, self.name)

    def arguments(self) -> list[str]:
        """Return the files as options of ``ps2``."""
        options = {"--tls-cert": self.cert, "--tls-key": self.key, "--tls-ca": self.ca, "--tls-name": self.name}
        return [argument for option, value in options.items() if value for argument in (option, value)]

    def current(self) -> Pems:
        return _read(self, tuple(file_stamp(path) for path in (self.cert, self.key, self.ca)))

    def __str__(self) -> str:
        return ", ".join(path for path in (self.cert, self.key, self.ca) if path)


def tls_files(cert: str | None, key: str | None, ca: str | None, name: str | None) -> TlsFiles | None:
    """Return the certificate files of these options; None (TLS is off) if no option is set. Raises ConfigError."""
    files = TlsFiles(cert or "", key or "", ca or "", name or "")
    if not (files.cert or files.ca):
        if files.name:
            raise ConfigError("--tls-name (tlsName) needs certificates; give --tls-ca (tlsCa)")
        return None
    return files.absolute()


def check_private(label: str, name: str, status: os.stat_result) -> None:
    """Raise ConfigError if other users can access a secret file, as ssh does for keys; ``label`` begins the message.

    If the file belongs to another user, this process's group may read the file: mounted secrets have such permissions.
    """
    mode = stat.S_IMODE(status.st_mode)
    if mode & (0o077 if status.st_uid == os.getuid() else 0o007):
        raise ConfigError(
            f"{label} {name}: expected a file that other users cannot access, got mode {mode:04o}; chmod 600 {name}"
        )


@lru_cache(maxsize=8)
def _read(files: TlsFiles, stamps: tuple[tuple[int, ...] | None, ...]) -> Pems:
    return Pems(
        _text("certificate", files.cert),
        _text("private key", files.key),
        _text("certificate authority", files.ca),
        files.name,
    )


def file_stamp(path: str) -> tuple[int, ...] | None:
    """Return a file's modification time, inode and size, which differ after a change; None if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _text(label: str, path: str) -> str:
    if not path:
        return ""
    try:
        with open(path, "rb") as file:
            if label == "private key":
                check_private(f"{label} file", path, os.fstat(file.fileno()))
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise AuthError(f"{label} file {path}: {error.strerror}") from error
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError(
            f"{label} file {path}: expected at most {MAX_FILE_BYTES:,} bytes; give only the authority that signed the "
            "fleet's certificates, not a bundle of all"
        )
    if b"-----BEGIN " not in text:
        raise ConfigError(f"{label} file {path}: expected PEM text (-----BEGIN ...), got something else")
    return text.decode("ascii", errors="replace")
