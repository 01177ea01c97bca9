"""Settings as dataclasses; each field says its unit, its default and why."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from ps2.errors import AuthError, ConfigError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TOKEN_FILE_VARIABLE = "PS2_TOKEN_FILE"
DEFAULT_PORT = 7070
MIN_TOKEN_CHARS = 16


@dataclass(frozen=True)
class WireConfig:
    """How frames and channels behave, on both sides.

    Attributes:
        chunk_bytes: data in one frame of a stream; 2 MiB is where throughput stops growing.
        unary_bytes: requests and replies up to this size travel as one message instead of a stream; gRPC handles one
            message faster than a stream up to about this size, and much slower far above it.
        keepalive_s: a peer that does not answer a ping is given up after ``keepalive_s + keepalive_timeout_s``, so a
            stopped process or a cut cable cannot hang a call.
        request_timeout_s: longest time for one request, a user's function included.
    """

    chunk_bytes: int = 2 << 20
    unary_bytes: int = 256 << 10
    keepalive_s: float = 10.0
    keepalive_timeout_s: float = 5.0
    request_timeout_s: float = 600.0


@dataclass(frozen=True)
class RetryConfig:
    """How long a client tries again what may pass by itself.

    Attributes:
        total_s: time from the first failure until the error is raised; covers a server's restart.
        first_pause_s: pause after the first failure; doubles up to ``longest_pause_s``.
        longest_pause_s: longest pause between two attempts.
    """

    total_s: float = 20.0
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0


@dataclass(frozen=True)
class ServerConfig:
    """One server process.

    Attributes:
        listen: ``host:port``; port 0 takes a free one.
        advertise: host that others reach it by, where that is not the one it listens on.
        memory_limit_bytes: most that shards and requests under way may take together.
        threads: requests served at once; further ones wait.
        allow_udf: whether ``mapPartitions`` may run functions that clients send.
        orphan_timeout_s: a server of a master ends after this long without an answer from it.
    """

    listen: str = "127.0.0.1:0"
    advertise: str | None = None
    memory_limit_bytes: int = 1 << 30
    threads: int = 16
    allow_udf: bool = True
    orphan_timeout_s: float = 60.0


@dataclass(frozen=True)
class FleetConfig:
    """The coordinator's side of a fleet.

    Attributes:
        heartbeat_s: pause between two signs of life of a server.
        lost_after_s: a server is lost after this long without one.
        start_timeout_s: longest time for all servers to start.
    """

    heartbeat_s: float = 1.0
    lost_after_s: float = 15.0
    start_timeout_s: float = 60.0


def new_token() -> str:
    return secrets.token_urlsafe(32)


def write_token(path: Path, token: str) -> None:
    """Write a token to a new file that only its owner can read."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(token + "\n")


def read_token(path: str | os.PathLike[str]) -> str:
    """Read a fleet's token.

    Raises:
        AuthError: there is no such file, or what it holds is no token.
    """
    try:
        token = Path(path).read_text().strip()
    except OSError as error:
        raise AuthError(f"token file {os.fspath(path)}: {error.strerror}") from error
    if len(token) < MIN_TOKEN_CHARS or not token.isascii() or any(c.isspace() for c in token):
        raise AuthError(
            f"token file {os.fspath(path)}: expected one line of at least {MIN_TOKEN_CHARS} ASCII characters"
        )
    return token


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` (``[v6]:port``), or raise ConfigError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"address: expected HOST:PORT, got {address!r}")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    return host in LOOPBACK or host.startswith("127.")
