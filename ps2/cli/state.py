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
from ps2.errors import ConfigError, InputError, LaunchError, UnavailableError
from ps2.processes import ProcessId

DEFAULT_NAME = "default"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FILE = "fleet.json"
COPY_ADVICE = "Drivers on other hosts need a copy of the token file that only you can read."


@dataclass(frozen=True)
class LaunchedServer:
    """One server of a launched fleet."""

    address: str
    process: ProcessId

    def alive(self) -> bool:
        return self.process.alive()


@dataclass(frozen=True)
class LaunchedFleet:
    """A fleet that ``ps2 launch`` started on this host.

    Attributes:
        name: the fleet's name, unique among the fleets of this user.
        host: the host of the fleet's processes.
        run: a random id that distinguishes this fleet from earlier and later fleets with its name.
        launcher: the ``ps2 launch`` process; a fleet in the foreground ends with it.
        token_file: the file with the fleet's token.
        servers: the servers by index; empty while they start.
        tls: the certificates of the servers and of clients on this host; None: no TLS.
    """

    name: str
    launcher: ProcessId
    token_file: Path
    servers: tuple[LaunchedServer, ...] = ()
    host: str = field(default_factory=socket.gethostname)
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    tls: TlsFiles | None = None

    @property
    def folder(self) -> Path:
        return fleet_folder(self.name)

    @property
    def count_text(self) -> str:
        return f"{len(self.servers)} server{'' if len(self.servers) == 1 else 's'}"

    def alive(self) -> bool:
        return self.launcher.alive() or any(server.alive() for server in self.servers)

    def with_servers(self, servers: tuple[LaunchedServer, ...]) -> LaunchedFleet:
        """Return the fleet with these servers, and write it to ``fleet.json``."""
        fleet = replace(self, servers=servers)
        _write(fleet)
        return fleet


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
        raise ConfigError(f"--name: expected letters, digits, '.', '_' and '-', at most 64, got {name!r}")
    return root() / name


def names() -> list[str]:
    return sorted(file.parent.name for file in root().glob(f"*/{FILE}"))


def find(name: str) -> LaunchedFleet:
    """Return the fleet with a name; raise UnavailableError if there is none, or it is on another host."""
    fleet = _read(name)
    if fleet is None:
        other_names = ", ".join(f"--name {other}" for other in names())
        hint = f"; launched here: {other_names}" if other_names else ""
        raise UnavailableError(
            f"no fleet named {name!r} was launched here{hint}; start one with 'ps2 launch', or name one with --fleet"
        )
    if fleet.host != socket.gethostname():
        addresses = ",".join(server.address for server in fleet.servers)
        raise UnavailableError(
            f"fleet {name!r} was launched on {fleet.host}; run this command there, or give --fleet {addresses} "
            f"--token-file {fleet.token_file}"
        )
    return fleet


def other_servers(name: str) -> list[LaunchedServer]:
    """Return the running servers of this host's other fleets."""
    fleets = [fleet for other in names() if other != name and (fleet := _read(other)) is not None]
    return [
        server for fleet in fleets if fleet.host == socket.gethostname() for server in fleet.servers if server.alive()
    ]


def claim(name: str, launcher: ProcessId, token_file: Path | None, tls: TlsFiles | None = None) -> LaunchedFleet:
    """Make the folder of a new fleet, and remove an ended fleet of its name; raise LaunchError if that fleet runs."""
    folder = fleet_folder(name)
    fleet = LaunchedFleet(name, launcher, token_file or folder / "token", tls=tls)
    with _locked():
        earlier = _read(name)
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
        _write(fleet)
    return fleet


def remove(fleet: LaunchedFleet) -> None:
    """Remove a fleet's folder, unless a later fleet of the same name has it now."""
    with _locked():
        current = _read(fleet.name)
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


def _read(name: str) -> LaunchedFleet | None:
    file = fleet_folder(name) / FILE
    try:
        record = json.loads(file.read_text())
        _check_current(record, file)
        servers = tuple(LaunchedServer(s["address"], ProcessId(**s["process"])) for s in record["servers"])
        tls = TlsFiles(**record["tls"]) if record.get("tls") else None
        launcher, token_file = ProcessId(**record["launcher"]), Path(record["token_file"])
        return LaunchedFleet(name, launcher, token_file, servers, record["host"], record["run"], tls)
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


def _write(fleet: LaunchedFleet) -> None:
    file = fleet.folder / FILE
    new_file = file.with_suffix(".new")
    new_file.write_text(json.dumps({**asdict(fleet), "token_file": str(fleet.token_file)}, indent=2) + "\n")
    new_file.replace(file)
