"""The launched fleets of this host. Each fleet has a folder with its name: ``fleet.json``, the token and logs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ps2.certificates import TlsFiles
from ps2.config import join_address, split_address
from ps2.errors import ConfigError, InputError, LaunchError, UnavailableError
from ps2.processes import ProcessId

DEFAULT_NAME = "default"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FILE = "fleet.json"
COPY_ADVICE = "Drivers on other hosts need a copy of the token file that only you can read."


@dataclass(frozen=True)
class ServerOptions:
    """The options of the servers of a fleet on this host.

    Attributes:
        listen: the ``host:port`` where each server listens, by index.
        advertise: the host by which clients reach the servers; None: the host of ``listen``.
        data_port: the data port of the first server; each further server has the next port; None: any free ports.
        metrics_port: the metrics port of the first server; each further server has the next port; None: no metrics.
        ops: modules that declare operations.
        exit_with_parent: True if servers end with the process that starts them.
        restart: True if a supervisor starts dead servers anew.
    """

    listen: tuple[str, ...]
    memory_limit_bytes: int
    advertise: str | None = None
    data_port: int | None = None
    metrics_port: int | None = None
    ops: tuple[str, ...] = ()
    exit_with_parent: bool = False
    restart: bool = False

    def address(self, index: int) -> str:
        """Return the ``host:port`` by which clients reach a server."""
        host, port = split_address(self.listen[index])
        return join_address(self.advertise or host, port)


@dataclass(frozen=True)
class LaunchedServer:
    """One server of a launched fleet.

    Attributes:
        restarts: how often the supervisor has started the server anew.
        ending: why the server's last process ended; "": none has ended.
        failed: True if the supervisor starts the server no more, because it dies again and again.
    """

    address: str
    process: ProcessId
    restarts: int = 0
    ending: str = ""
    failed: bool = False

    def alive(self) -> bool:
        return self.process.alive()


@dataclass(frozen=True)
class LaunchedFleet:
    """A fleet that ``ps2 launch`` started on this host.

    Attributes:
        name: the fleet's name, unique among the fleets of this user.
        host: the host of the fleet's processes.
        run: a random id that distinguishes this fleet from earlier and later fleets with its name.
        launcher: the ``ps2 launch`` process, with which a fleet in the foreground ends, or the supervisor of a fleet in
            the background.
        token_file: the file with the fleet's token.
        servers: the servers by index; empty while they start.
        tls: the certificates of the servers and of clients on this host; None: no TLS.
        options: the servers' options; None: the servers are in containers of a cluster.
        guard: the process that starts the supervisor of a fleet in the background anew; None: the fleet has no guard.
    """

    name: str
    launcher: ProcessId
    token_file: Path
    servers: tuple[LaunchedServer, ...] = ()
    host: str = field(default_factory=socket.gethostname)
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    tls: TlsFiles | None = None
    options: ServerOptions | None = None
    guard: ProcessId | None = None

    @property
    def folder(self) -> Path:
        return fleet_folder(self.name)

    @property
    def count_text(self) -> str:
        return f"{len(self.servers)} server{'' if len(self.servers) == 1 else 's'}"

    @property
    def supervised(self) -> bool:
        """True if a supervisor on this host starts dead servers anew."""
        return self.options is not None and self.options.restart

    @property
    def stop_file(self) -> Path:
        """The file that ``ps2 stop`` writes first: from then on, no server, supervisor or guard is started."""
        return self.folder / "stopping"

    @property
    def lock_file(self) -> Path:
        """The file that the supervisor of a fleet in the background locks, so that there is at most one."""
        return self.folder / "supervisor.lock"

    def alive(self) -> bool:
        processes = [self.launcher, *filter(None, [self.guard]), *(server.process for server in self.servers)]
        return any(process.alive() for process in processes)

    def with_servers(self, servers: tuple[LaunchedServer, ...]) -> LaunchedFleet:
        """Return the fleet with these servers, and write it to ``fleet.json``."""
        return write(replace(self, servers=servers))

    def with_server(self, index: int, server: LaunchedServer) -> LaunchedFleet:
        """Return the fleet with one other server, and write it to ``fleet.json``; the next index adds a server."""
        return self.with_servers((*self.servers[:index], server, *self.servers[index + 1 :]))


def root() -> Path:
    """Return the folder of all launched fleets."""
    home = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(home):  # the XDG specification ignores relative paths
        return Path(home) / "ps2"
    try:
        return Path.home() / ".local" / "state" / "ps2"
    except RuntimeError as error:  # the uid has no passwd entry, as in containers
        raise ConfigError(
            f"launched fleets cannot be recorded: user {os.getuid()} has neither a home directory nor "
            "HOME; set XDG_STATE_HOME to a folder of this user's"
        ) from error


def fleet_folder(name: str) -> Path:
    if not NAME.fullmatch(name):
        raise ConfigError(f"the name of a fleet: expected letters, digits, '.', '_' and '-', at most 64, got {name!r}")
    return root() / name


def names() -> list[str]:
    return sorted(file.parent.name for file in root().glob(f"*/{FILE}"))


def find(name: str) -> LaunchedFleet:
    """Return the fleet with a name; raise UnavailableError if there is none, or it is on another host."""
    fleet = read(name)
    if fleet is None:
        other_names = ", ".join(f"--name {other}" for other in names())
        hint = f"; launched here: {other_names}" if other_names else ""
        raise UnavailableError(
            f"no fleet named {name!r} was launched here{hint}; start one with 'ps2 launch', or give addresses"
        )
    if fleet.host != socket.gethostname():
        addresses = ",".join(server.address for server in fleet.servers)
        raise UnavailableError(
            f"fleet {name!r} was launched on {fleet.host}; use it there, or give the addresses {addresses} and "
            f"the token file {fleet.token_file}"
        )
    return fleet


def other_servers(name: str) -> list[LaunchedServer]:
    """Return the running servers of this host's other fleets."""
    fleets = [fleet for other in names() if other != name and (fleet := read(other)) is not None]
    return [
        server for fleet in fleets if fleet.host == socket.gethostname() for server in fleet.servers if server.alive()
    ]


def claim(
    name: str,
    launcher: ProcessId,
    token_file: Path | None,
    tls: TlsFiles | None = None,
    options: ServerOptions | None = None,
) -> LaunchedFleet:
    """Make the folder of a new fleet, and remove an ended fleet of its name; raise LaunchError if that fleet runs."""
    folder = fleet_folder(name)
    fleet = LaunchedFleet(name, launcher, token_file or folder / "token", tls=tls, options=options)
    with _locked():
        earlier = read(name)
        if earlier is not None and earlier.host != fleet.host:
            raise LaunchError(
                f"fleet {name!r} was launched on {earlier.host}: choose another --name, or remove {folder}"
            )
        if earlier is not None and earlier.alive():
            raise LaunchError(
                f"fleet {name!r} is running; end it with '{command('stop', name)}', or choose another --name"
            )
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        write(fleet)
    return fleet


def remove(fleet: LaunchedFleet) -> None:
    """Remove a fleet's folder, unless a later fleet of the same name has it now."""
    with _locked():
        current = read(fleet.name)
        if current is not None and current.run == fleet.run:
            shutil.rmtree(fleet.folder, ignore_errors=True)


def command(verb: str, name: str) -> str:
    """Return the command line of a ``ps2`` command for a fleet: ``ps2 stop --name ads``."""
    return f"ps2 {verb}" + ("" if name == DEFAULT_NAME else f" --name {name}")


def description(fleet: LaunchedFleet, state: str, server_texts: Iterable[str], detached: bool) -> list[str]:
    """Return lines that describe a running fleet and the commands for it."""
    lifetime = f"until '{command('stop', fleet.name)}'" if detached else "until Ctrl-C"
    servers = (f"  {server.address}  {text}" for server, text in zip(fleet.servers, server_texts, strict=True))
    return [
        f"fleet {fleet.name!r}: {fleet.count_text} {state}, {lifetime}",
        *servers,
        "",
        f"attach  {_attach_call(fleet)}",
        f"look    {command('status', fleet.name)}",
        f"stop    {command('stop', fleet.name)}",
    ]


def _attach_call(fleet: LaunchedFleet) -> str:
    addresses = ",".join(server.address for server in fleet.servers)
    arguments = f"fleet={json.dumps(addresses)}, tokenFile={json.dumps(str(fleet.token_file), ensure_ascii=False)}"
    files = fleet.tls or TlsFiles()
    settings = {"tlsCert": files.cert, "tlsKey": files.key, "tlsCa": files.ca, "tlsName": files.name}
    if options := [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in settings.items() if value]:
        arguments += f", conf=PS2Conf({', '.join(options)})"
    return f"PS2Context.getOrCreate(spark, {arguments})"


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Lock all fleets' folders: only one process at a time claims or removes a name."""
    root().mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(root() / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read(name: str) -> LaunchedFleet | None:
    """Return the fleet with a name; None if there is none."""
    file = fleet_folder(name) / FILE
    try:
        record = json.loads(file.read_text())
        _check_current(record, file)
        servers = tuple(LaunchedServer(**{**s, "process": ProcessId(**s["process"])}) for s in record["servers"])
        tls = TlsFiles(**record["tls"]) if record.get("tls") else None
        options = record.get("options")
        if options is not None:
            options = ServerOptions(**{**options, "listen": tuple(options["listen"]), "ops": tuple(options["ops"])})
        guard = ProcessId(**record["guard"]) if record.get("guard") else None
        launcher, token_file = ProcessId(**record["launcher"]), Path(record["token_file"])
        return LaunchedFleet(
            *(name, launcher, token_file, servers, record["host"], record["run"], tls),
            options=options,
            guard=guard,
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} cannot be read ({error}); remove {file.parent} if that fleet has ended") from error


def _check_current(record: dict[str, Any], file: Path) -> None:
    """Raise InputError if an earlier version wrote the file: it identified processes by the system's clock."""
    processes = [record["launcher"], *(server["process"] for server in record["servers"])]
    if any("created_s" in process for process in processes):
        pids = ", ".join(str(pid) for pid in dict.fromkeys(process["pid"] for process in processes))
        raise InputError(
            f"{file} was written by an earlier version of PS2, which identified processes by the clock; "
            f"make sure that its processes have ended (pids {pids}), and remove {file.parent}"
        )


def write(fleet: LaunchedFleet) -> LaunchedFleet:
    """Write a fleet to ``fleet.json``; a reader sees the earlier or the new record. Return the fleet."""
    file = fleet.folder / FILE
    new_file = file.with_suffix(".new")
    new_file.write_text(json.dumps({**asdict(fleet), "token_file": str(fleet.token_file)}, indent=2) + "\n")
    new_file.replace(file)
    return fleet
