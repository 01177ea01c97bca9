"""Settings as dataclasses, tokens, addresses and ports."""

from __future__ import annotations

import os
import re
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
# The names of a server's container and node, for a server in a container.
CONTAINER_VARIABLE = "PS2_CONTAINER"
NODE_VARIABLE = "PS2_NODE"
DEFAULT_PORT = 7070
# The namespace of drivers and calls that name none.
DEFAULT_NAMESPACE = "default"
NAMESPACE = re.compile(r"[a-z0-9._-]{1,63}")
MAX_PORT = 65535
ANY_PORT = range(1)  # port 0: the system chooses a free port
MIN_TOKEN_CHARS = 16
MAX_TOKENS = 2  # the new and the old token, while a fleet's token is being replaced
MAX_BYTES = 2**63 - 1  # the largest int64
# Values of an environment variable that turn a feature off.
OFF = ("0", "false", "no", "off")


def _is_on(variable: str) -> bool:
    """Return False if an environment variable turns its feature off."""
    return os.environ.get(variable, "").strip().lower() not in OFF


@dataclass(frozen=True)
class WireConfig:
    """Settings of requests and connections, for clients and servers.

    Attributes:
        block_bytes: larger calls are split into requests of about this size, sent without waiting for replies. Above
            4 MiB throughput does not grow. With 4 MiB, the buffers of both sides fit into the processor's cache.
        request_limit_bytes: maximum size of the arrays of one request; a server keeps them in memory until it answers.
        keepalive_s: a data connection is closed after this time without data or a reply to a probe, a gRPC one after
            ``keepalive_s + keepalive_timeout_s``. So calls fail if a process is stopped or a cable is cut, but wait for
            a slow server.
        keepalive_timeout_s: maximum time for the answer to a ping.
        connect_s: maximum time of one attempt to connect. Connecting to a busy machine takes up to seconds.
        request_timeout_s: maximum time of one request, including a user's function.
        unix_sockets: processes of one host communicate over Unix sockets; ``PS2_UNIX_SOCKETS=0`` turns that off.
        fast_path: requests without special options run in compiled code; ``PS2_FAST_PATH=0`` turns that off.
        tls: certificates for encrypting connections between hosts; None: no encryption.
    """

    block_bytes: int = 4 << 20
    request_limit_bytes: int = 64 << 20
    keepalive_s: float = 10.0
    keepalive_timeout_s: float = 5.0
    connect_s: float = 5.0
    request_timeout_s: float = 600.0
    unix_sockets: bool = field(default_factory=lambda: _is_on(UNIX_SOCKETS_VARIABLE))
    fast_path: bool = field(default_factory=lambda: _is_on(FAST_PATH_VARIABLE))
    tls: Tls | None = None


@dataclass(frozen=True)
class RetryConfig:
    """How long a client retries transient failures.

    Attributes:
        total_s: time from the first failure until the error is raised, if none of the next four cases applies.
        recovery_s: this time while the coordinator recovers a lost server.
        first_contact_s: this time if this process has never reached the master.
        unreached_s: this time if this process has never reached a server that the coordinator considers alive.
        later_contact_s: like ``first_contact_s``, in a later attempt of a task: its first attempt has waited long.
        later_connect_s: maximum time of one attempt to connect in such a task.
        first_pause_s: pause after the first failure. Each further pause is twice as long, up to ``longest_pause_s``.
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
    """Settings of one server process.

    Attributes:
        listen: ``host:port``, or ``host:first-last`` for the first free port; port 0 means any.
        data_ports: ports for data connections, which do not use gRPC; the first free one is used; 0 means any.
        advertise: host by which others reach the server, if it differs from the host in ``listen``.
        memory_limit_bytes: maximum memory of all shards and unfinished requests together.
        threads: maximum number of concurrent gRPC requests. Each data connection has a thread of its own.
        cores: maximum number of cores that a kernel may use for a long row; None: all cores of the process.
        allow_udf: ``mapPartitions`` may run functions that clients send.
        metrics_port: port of the Prometheus metrics, on the host that the server listens on; 0: any free port; None: no
            metrics. None is the default, as metrics can be read without a token.
        ops: modules that declare operations (docs/kernels.md), in addition to those of installed packages.
        announce: file descriptor to which the server writes its address when it listens; None: it does not write it.
        orphan_timeout_s: a server with a master ends after this time without an answer from the master. A server that
            ends with its parent process ignores this setting: the parent may be paused, and then runs again.
        drain_s: after SIGTERM, maximum wait for the coordinator to move the server's data to safety.
        tls: certificates of this server, used on all its ports except ``metrics_port``; None: no encryption.
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
    """The coordinator's settings for a fleet.

    Attributes:
        heartbeat_s: interval of a server's heartbeats.
        lost_after_s: a server is lost after this time without a heartbeat.
        start_timeout_s: maximum time for all servers to start.
        give_up_after_s: a lost server that could not be recovered within this time is lost for good.
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
    """Replace the token in a file atomically, keeping the file's owner and permissions."""
    path = path.resolve()  # a symbolic link stays
    status = path.stat()
    new_file = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_token(new_file, token)
        if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(new_file, status.st_uid, status.st_gid)
        new_file.chmod(status.st_mode & 0o777)
        new_file.replace(path)
    finally:
        new_file.unlink(missing_ok=True)


def read_token(path: str | os.PathLike[str]) -> str:
    """Read a fleet's token: one line; while the token is being replaced, two lines, the new token first.

    White space at the ends of lines, such as the CR of an editor on Windows, is ignored. AuthError: there is no such
    file, or no token in it. ConfigError: other users can read the file, or it is not ASCII text.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            check_private("token file", name, os.fstat(file.fileno()))
            lines = [line.strip() for line in file.read().decode("ascii").strip().splitlines()] or [""]
    except OSError as error:
        raise AuthError(f"token file {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"token file {name}: expected a line of ASCII text, got other bytes") from error
    if len(lines) > MAX_TOKENS:
        raise AuthError(
            f"token file {name}: expected one token, or two while it is being replaced, got {len(lines)} lines"
        )
    for line in lines:
        if len(line) < MIN_TOKEN_CHARS or any(char.isspace() or not char.isprintable() for char in line):
            raise AuthError(
                f"token file {name}: expected a line of at least {MIN_TOKEN_CHARS} printable ASCII characters, "
                f"got {len(line)} characters"
            )
    return "\n".join(lines)


def read_namespace(text: str, setting: str = "namespace") -> str:
    """Return the name of a namespace; raises ConfigError if it is not one."""
    if not isinstance(text, str) or NAMESPACE.fullmatch(text) is None:
        raise ConfigError(f"{setting}: expected 1 to 63 characters out of a-z, 0-9, '.', '_' and '-', got {text!r}")
    return text


def split_address(address: str, setting: str = "address") -> tuple[str, int]:
    """Split ``host:port`` (``[v6]:port``); raise ConfigError, which names the ``setting``."""
    host, ports = split_listen(address, setting)
    if len(ports) != 1:
        raise ConfigError(f"{setting}: expected HOST:PORT, got {address!r}")
    return host, ports.start


def split_listen(listen: str, setting: str = "address") -> tuple[str, range]:
    """Split a listen address, ``host:port`` or ``host:first-last``; raise ConfigError."""
    host, colon, ports = listen.rpartition(":")
    error_text = f"{setting}: expected HOST:PORT, got {listen!r}"
    if not colon or not host or not set(ports) <= set("0123456789-"):
        raise ConfigError(error_text)
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        # In "::1:7070", the port would be ambiguous.
        raise ConfigError(
            f"{setting}: expected HOST:PORT, with IPv6 addresses in brackets ([::1]:7070), got {listen!r}"
        )
    return read_host(host, error_text), read_ports(ports, error_text)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_host(text: str, setting: str) -> str:
    """Return a host (a name or an address) without the brackets of IPv6; raise ConfigError, which names ``setting``."""
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    is_plain = bool(host) and not any(char.isspace() or char in "[]/,@" for char in host)
    if not is_plain or (":" in host and _address(host) is None):
        raise ConfigError(f"{setting}: expected a name or an address of a host, without a port, got {text!r}")
    return host


def read_ports(text: str, setting: str) -> range:
    """Read a port (0 for any free port) or a range ``first-last``; raise ConfigError."""
    first, dash, last = text.partition("-")
    if not text.isascii() or not first.isdecimal() or not (last.isdecimal() or not dash):
        raise ConfigError(f"{setting}: expected a port or a range of ports (40000-40020), got {text!r}")
    ports = range(int(first), int(last or first) + 1)
    if not dash and int(first) > MAX_PORT:
        raise ConfigError(f"{setting}: expected a port up to {MAX_PORT}, got {text!r}")
    if not ports or ports[-1] > MAX_PORT or (dash and not ports[0]):
        raise ConfigError(f"{setting}: expected ports from 1 to {MAX_PORT}, in ascending order, got {text!r}")
    return ports


def ports_text(ports: range) -> str:
    """Return ports in the form that ``read_ports`` reads."""
    return str(ports[0]) if len(ports) == 1 else f"{ports[0]}-{ports[-1]}"


def is_loopback(host: str) -> bool:
    """Return True if a host is a loopback address or "localhost"."""
    address = _address(host)
    ip = getattr(address, "ipv4_mapped", None) or address
    return host == "localhost" if ip is None else ip.is_loopback


def is_wildcard(host: str) -> bool:
    """Return True if a host stands for all addresses of its machine."""
    address = _address(host)
    return address is not None and address.is_unspecified


def _address(host: str) -> IPv4Address | IPv6Address | None:
    with suppress(ValueError):
        return ip_address(host)
    return None


@dataclass(frozen=True)
class Binding:
    """The addresses on which a process listens, and those by which other processes reach it.

    Attributes:
        host: the host that the process listens on.
        advertised: the host by which other processes reach this one; never a wildcard such as 0.0.0.0.
        ports: the allowed ports; the process listens on the first free ones; 0 means any.
    """

    host: str = LOOPBACK
    advertised: str = LOOPBACK
    ports: range = ANY_PORT

    @property
    def listen(self) -> str:
        """``host:port``, or ``host:first-last``."""
        return join_address(self.host, 0).removesuffix("0") + ports_text(self.ports)

    def advertised_address(self, address: str) -> str:
        """Return the address by which other processes reach an address on which this process listens."""
        return join_address(self.advertised, split_address(address)[1])

    @property
    def local(self) -> Binding:
        """This binding for processes of the same host, which need not use the advertised host."""
        loopback = "::1" if ":" in self.host else LOOPBACK
        return replace(self, advertised=loopback if is_wildcard(self.host) else self.host)


def tls_warning(tls: object | None, *addresses: str) -> str | None:
    """Return a warning if processes communicate with other hosts without TLS, else None."""
    remote_hosts = [host for host, _ in map(split_address, addresses) if not is_loopback(host)]
    if tls is not None or not remote_hosts:
        return None
    return (
        f"{remote_hosts[0]} is not loopback, and connections to it are not encrypted; --tls-cert, --tls-key and "
        "--tls-ca, or PS2Conf(tlsCert=..., tlsKey=..., tlsCa=...), encrypt them, see docs/security.md"
    )
