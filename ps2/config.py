"""Settings as dataclasses; each field says its unit, its default and why."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from ps2.certificates import Tls, check_private
from ps2.errors import AuthError, ConfigError

LOOPBACK = "127.0.0.1"
TOKEN_FILE_VARIABLE = "PS2_TOKEN_FILE"
UNIX_SOCKETS_VARIABLE = "PS2_UNIX_SOCKETS"
FAST_PATH_VARIABLE = "PS2_FAST_PATH"
# What a server in a container is told of where it is.
CONTAINER_VARIABLE = "PS2_CONTAINER"
NODE_VARIABLE = "PS2_NODE"
DEFAULT_PORT = 7070
MAX_PORT = 65535
ANY_PORT = range(1)
MIN_TOKEN_CHARS = 16
MAX_TOKENS = 2
MAX_BYTES = 2**63 - 1  # that an int64 counts


@dataclass(frozen=True)
class WireConfig:
    """How requests and connections behave, on both sides.

    Attributes:
        block_bytes: a larger call is cut into requests of about this much, sent without waiting for replies; with
            4 MiB throughput stops growing, and both sides' buffers stay in the processor's cache.
        request_limit_bytes: most that the arrays of one request may take; a server holds them while it runs.
        keepalive_s: a plain connection that carries nothing any more is given up after that; a peer that does not
            answer a ping of gRPC, after ``keepalive_s + keepalive_timeout_s``. So a stopped process or a cut cable
            cannot hang a call; a server that takes its time is waited for.
        connect_s: longest time for one attempt to connect; a busy machine needs its time.
        request_timeout_s: longest time for one request, a user's function included.
        unix_sockets: whether processes of one host meet over Unix sockets; ``PS2_UNIX_SOCKETS=0`` turns it off.
        fast path: whether plain requests are done without what others need; ``PS2_FAST_PATH=0`` turns it off.
        tls: what connections between hosts are encrypted with; None: they are not.
    """

    block_bytes: int = 4 << 20
    request_limit_bytes: int = 64 << 20
    keepalive_s: float = 10.0
    keepalive_timeout_s: float = 5.0
    connect_s: float = 5.0
    request_timeout_s: float = 600.0
    unix_sockets: bool = field(default_factory=lambda: os.environ.get(UNIX_SOCKETS_VARIABLE, "1") != "0")
    fast_path: bool = field(default_factory=lambda: os.environ.get(FAST_PATH_VARIABLE, "1") != "0")
    tls: Tls | None = None


@dataclass(frozen=True)
class RetryConfig:
    """How long a client tries again what may pass by itself.

    Attributes:
        total_s: time from the first failure until the error is raised, while nobody knows of a reason.
        recovery_s: the same, while the coordinator brings a lost server back.
        first_contact_s: the same, where the master was never reached by this process.
        unreached_s: the same, where a server was never reached by this process, and the coordinator misses none.
        later_contact_s: that for the master, in a later attempt of a task, before which the first one has waited.
        later_connect_s: longest time for one attempt to connect in such a task.
        first_pause_s: pause after the first failure; doubles up to ``longest_pause_s``.
        longest_pause_s: longest pause between two attempts.
    """

    total_s: float = 60.0
    recovery_s: float = 600.0
    first_contact_s: float = 10.0
    unreached_s: float = 20.0
    later_contact_s: float = 2.0
    later_connect_s: float = 3.0
    first_pause_s: float = 0.02
    longest_pause_s: float = 0.5


@dataclass(frozen=True)
class ServerConfig:
    """One server process.

    Attributes:
        listen: ``host:port``, or ``host:first-last``, whose first free port is taken; port 0 is any.
        data_ports: of which the first free one takes data without gRPC; 0 is any.
        advertise: host that others reach it by, where that is not the one it listens on.
        memory_limit_bytes: most that shards and requests under way may take together.
        threads: gRPC requests served at once; further ones wait. Each data connection has a thread of its own.
        cores: that kernels on long rows may use; None for all that the process may.
        allow_udf: whether ``mapPartitions`` may run functions that clients send.
        metrics_port: where Prometheus finds this server's numbers, on the host that it listens on; 0 takes a free one,
            None is nowhere: whoever can connect there needs no token, so somebody has to want it.
        ops: modules that declare operations (docs/kernels.md), beside those of installed packages.
        announce: file descriptor that the address is written to once it listens; None: nobody waits for it.
        orphan_timeout_s: a server of a master ends after this long without an answer from it; one that was told to end
            with its parent does not: that one may only have stopped for a while.
        drain_s: told to end by SIGTERM, wait at most so long for the coordinator to bring to safety what is here.
        tls: certificates of this server, for all its ports but that of metrics; None: nothing is encrypted.
    """

    listen: str = "127.0.0.1:0"
    data_ports: range = ANY_PORT
    advertise: str | None = None
    memory_limit_bytes: int = 1 << 30
    threads: int = 16
    cores: int | None = None
    allow_udf: bool = True
    metrics_port: int | None = None
    ops: tuple[str, ...] = ()
    announce: int | None = None
    orphan_timeout_s: float = 60.0
    drain_s: float = 0.0
    tls: Tls | None = None


@dataclass(frozen=True)
class FleetConfig:
    """The coordinator's side of a fleet.

    Attributes:
        heartbeat_s: pause between two signs of life of a server.
        lost_after_s: a server is lost after this long without one.
        start_timeout_s: longest time for all servers to start.
        give_up_after_s: a lost server that could not be brought back for so long is lost for good.
    """

    heartbeat_s: float = 1.0
    lost_after_s: float = 5.0
    start_timeout_s: float = 60.0
    give_up_after_s: float = 600.0


def new_token() -> str:
    return secrets.token_urlsafe(32)


def write_token(path: Path, token: str) -> None:
    """Write a token to a new file that only its owner can read."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(token + "\n")


def replace_token(path: Path, token: str) -> None:
    """Write a token in place of a file's, at once, for the same owner and with the same rights."""
    path = path.resolve()  # a link stays one
    found = path.stat()
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_token(fresh, token)
        if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(fresh, found.st_uid, found.st_gid)
        fresh.chmod(found.st_mode & 0o777)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def read_token(path: str | os.PathLike[str]) -> str:
    """Read a fleet's token; while it is replaced the new one and the one before, on lines of their own.

    Raises:
        AuthError: there is no such file, or what it holds is no token.
        ConfigError: others than its owner can read it, or it is no text.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            check_private("token file", name, os.fstat(file.fileno()))
            token = file.read().decode("ascii").strip()
    except OSError as error:
        raise AuthError(f"token file {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"token file {name}: expected a line of ASCII text, got other bytes") from error
    lines = token.split("\n")
    if len(lines) > MAX_TOKENS:
        raise AuthError(f"token file {name}: expected a token, or two while it is replaced, got {len(lines)} lines")
    for line in lines:
        if len(line) < MIN_TOKEN_CHARS or any(c.isspace() or not c.isprintable() for c in line):
            raise AuthError(
                f"token file {name}: expected one line of at least {MIN_TOKEN_CHARS} ASCII characters, all of them "
                f"printable, got {len(line)} characters"
            )
    return token


def split_address(address: str, called: str = "address") -> tuple[str, int]:
    """Split ``host:port`` (``[v6]:port``), or raise ConfigError, which calls it as it is called."""
    host, ports = split_listen(address, called)
    if len(ports) != 1:
        raise ConfigError(f"{called}: expected HOST:PORT, got {address!r}")
    return host, ports.start


def split_listen(listen: str, called: str = "address") -> tuple[str, range]:
    """Split where to listen, ``host:port`` or ``host:first-last``, or raise ConfigError."""
    host, colon, ports = listen.rpartition(":")
    wrong = f"{called}: expected HOST:PORT, got {listen!r}"
    if not colon or not host or not set(ports) <= set("0123456789-"):
        raise ConfigError(wrong)
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        # Of "::1:7070" nobody can tell what is the port.
        raise ConfigError(f"{called}: expected HOST:PORT, an address of IPv6 in brackets ([::1]:7070), got {listen!r}")
    return host_of(host, wrong), ports_of(ports, wrong)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(text: str, called: str) -> str:
    """Return a host as it is used: a name or an address, of IPv6 without its brackets; raise ConfigError."""
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    is_plain = bool(host) and not any(letter.isspace() or letter in "[]/,@" for letter in host)
    if not is_plain or (":" in host and _address(host) is None):
        raise ConfigError(f"{called}: expected a name or an address of a host, without a port, got {text!r}")
    return host


def ports_of(text: str, called: str) -> range:
    """Read a port, 0 for any that is free, or the first and the last one of a range; raise ConfigError."""
    first, dash, last = text.partition("-")
    if not text.isascii() or not first.isdecimal() or not (last.isdecimal() or not dash):
        raise ConfigError(f"{called}: expected a port, or the first and the last of some (40000-40020), got {text!r}")
    ports = range(int(first), int(last or first) + 1)
    if not dash and int(first) > MAX_PORT:
        raise ConfigError(f"{called}: expected a port up to {MAX_PORT}, got {text!r}")
    if not ports or ports[-1] > MAX_PORT or (dash and not ports[0]):
        raise ConfigError(f"{called}: expected ports from 1 to {MAX_PORT}, in ascending order, got {text!r}")
    return ports


def said_of(ports: range) -> str:
    """Return ports as they are written."""
    return str(ports[0]) if len(ports) == 1 else f"{ports[0]}-{ports[-1]}"


def is_whole(value: object) -> bool:
    """Return whether a setting is an integer; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_loopback(host: str) -> bool:
    """Return whether a host name always means the host itself."""
    address = _address(host)
    mapped = getattr(address, "ipv4_mapped", None) or address
    return host == "localhost" if mapped is None else mapped.is_loopback


def is_wildcard(host: str) -> bool:
    """Tell whether a host stands for all addresses of the host that it is used on."""
    address = _address(host)
    return address is not None and address.is_unspecified


def _address(host: str) -> IPv4Address | IPv6Address | None:
    with suppress(ValueError):
        return ip_address(host)
    return None


@dataclass(frozen=True)
class Binding:
    """Where a process listens, and what others reach it by.

    Attributes:
        host: that it listens at.
        advertised: host that others are told; never a wildcard.
        ports: of which it takes the first that are free; 0 is any.
    """

    host: str = LOOPBACK
    advertised: str = LOOPBACK
    ports: range = ANY_PORT

    @property
    def listen(self) -> str:
        """``host:port``, or ``host:first-last``."""
        return join_address(self.host, 0).removesuffix("0") + said_of(self.ports)

    def reached(self, address: str) -> str:
        """Return what others are told of an address that was taken here."""
        return join_address(self.advertised, split_address(address)[1])

    @property
    def near(self) -> Binding:
        """The same for other processes of this host, wherever what others are told leads."""
        loopback = "::1" if ":" in self.host else LOOPBACK
        own = loopback if is_wildcard(self.host) else self.host
        return replace(self, advertised=own)


def unencrypted(tls: object | None, *addresses: str) -> str | None:
    """Return a warning if processes talk to other hosts without TLS, else None."""
    beyond = [host for host, _ in map(split_address, addresses) if not is_loopback(host)]
    if tls is not None or not beyond:
        return None
    return (
        f"{beyond[0]} is not loopback, and connections to it are not encrypted; --tls-cert, --tls-key and --tls-ca, or "
        "PS2Conf(tlsCert=..., tlsKey=..., tlsCa=...), encrypt them, see docs/security.md"
    )
