"""What ``PS2Context.getOrCreate`` is asked for, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from ps2.certificates import TlsFiles
from ps2.config import ANY_PORT, MAX_BYTES, host_of, is_wildcard, ports_of, split_address
from ps2.coordinator.recovery import Recover
from ps2.errors import ConfigError

MAX_SERVERS = 4096
LaunchedBy = Literal["local", "spark"]
START_TIMEOUT_S = 60.0
# A cluster may have to end something else first.
CONTAINERS_TIMEOUT_S = 120.0
# Names of fields as callers know them, where they differ.
CALLED = {
    "bind": "bindAddress",
    "advertise": "advertiseAddress",
    "memory_limit": "memoryLimit",
    "checkpoint_dir": "checkpointDir",
    "checkpoint_every_s": "checkpointEveryS",
    "checkpoint_every_steps": "checkpointEverySteps",
    "heartbeat_s": "heartbeatS",
    "lost_after_s": "lostAfterS",
    "retry_timeout_s": "retryTimeoutS",
    "start_timeout_s": "startTimeoutS",
    "token_file": "tokenFile",
    "tls": "tlsCert, tlsKey, tlsCa, tlsName",
}


@dataclass(frozen=True)
class Options:
    """Arguments of ``getOrCreate``, documented there. ``servers`` is None, and ``fleet`` empty, if not given."""

    servers: int | None = None
    fleet: tuple[str, ...] = ()
    token_file: str | None = None
    strict: bool = False
    bind: str | None = None
    advertise: str | None = None
    ports: range = ANY_PORT
    memory_limit: int | None = None
    checkpoint_dir: str | None = None
    checkpoint_every_s: float | None = None
    checkpoint_every_steps: int | None = None
    keep: int = 3
    recover: Recover = "auto"
    replicas: int = 0
    restore: str | None = None
    heartbeat_s: float = 1.0
    lost_after_s: float = 5.0
    retry_timeout_s: float = 600.0
    ops: tuple[str, ...] = ()
    launcher: LaunchedBy = "local"
    conf: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float | None = None
    tls: TlsFiles | None = None

    def __post_init__(self) -> None:
        if self.servers is not None and self.fleet:
            raise ConfigError("give either servers (start a local fleet) or fleet (attach to one), not both")
        if self.token_file is not None and not self.fleet:
            raise ConfigError("tokenFile goes with fleet: a local fleet makes a token of its own")
        if self.tls is not None and not (self.tls.cert and self.tls.ca):
            missing = "tlsCa" if self.tls.cert else "tlsCert and tlsKey"
            raise ConfigError(f"a driver connects to servers and is connected to by tasks; give {missing} as well")
        self._check_launcher()
        self._check_place()
        self._check_whole("servers", 1, MAX_SERVERS)
        self._check_whole("checkpoint_every_steps", 1)
        self._check_whole("keep", 1)
        if self.memory_limit is not None and (not is_whole(self.memory_limit) or self.memory_limit <= 0):
            raise ConfigError(f"memoryLimit: expected a positive number of bytes, got {self.memory_limit!r}")
        if self.memory_limit is not None and self.memory_limit > MAX_BYTES:
            raise ConfigError(f"memoryLimit: expected at most {MAX_BYTES:,} bytes, got {self.memory_limit:,}")
        for name in ("checkpoint_every_s", "heartbeat_s", "lost_after_s", "retry_timeout_s", "start_timeout_s"):
            self._check_seconds(name)
        if self.lost_after_s < 2 * self.heartbeat_s:
            raise ConfigError(
                f"lostAfterS: expected at least two heartbeats of {self.heartbeat_s} s, got {self.lost_after_s}"
            )
        if self.recover not in get_args(Recover):
            raise ConfigError(f"recover: expected 'auto', 'shard' or 'consistent', got {self.recover!r}")
        for name in ("checkpoint_dir", "restore"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigError(f"{CALLED.get(name, name)}: expected a path or a URL, got {value!r}")
        if not all(isinstance(module, str) and module for module in self.ops):
            raise ConfigError(f"ops: expected names of modules, got {list(self.ops)!r}")
        if not is_whole(self.replicas) or self.replicas not in (0, 1):
            raise ConfigError(f"replicas: expected 0 or 1, got {self.replicas!r}")
        if self.replicas and self.count < 2:
            raise ConfigError(f"replicas=1 needs two servers at least, got {self.count}")
        every = self.checkpoint_every_s is not None or self.checkpoint_every_steps is not None
        if every and self.checkpoint_dir is None:
            raise ConfigError("checkpointEveryS and checkpointEverySteps need a checkpointDir")

    @property
    def start_within_s(self) -> float:
        """How long servers may take to start."""
        return self.start_timeout_s or (CONTAINERS_TIMEOUT_S if self.launcher == "spark" else START_TIMEOUT_S)

    @property
    def count(self) -> int:
        """How many servers there are to be."""
        return len(self.fleet) or self.servers or 2

    def check_same(self, asked: Options) -> None:
        """Raise ConfigError if another call asks for something else than what is running."""
        if asked.restore is not None:
            raise ConfigError("restore: a context is running; stop() it first")
        if (asked.servers or asked.fleet) and (asked.count, asked.fleet) != (self.count, self.fleet):
            raise ConfigError(f"a context with {_named(self)} is running, not with {_named(asked)}; stop() it first")
        unsaid = Options()
        for name in (each.name for each in fields(self)):
            running, came = getattr(self, name), getattr(asked, name)
            if name not in ("servers", "fleet") and came not in (running, getattr(unsaid, name)):
                called = CALLED.get(name, name)
                raise ConfigError(f"{called}: {running} is that of the running context, not {came}; stop() it first")

    def _check_launcher(self) -> None:
        if self.launcher not in get_args(LaunchedBy):
            raise ConfigError(f"launcher: expected 'local' or 'spark', got {self.launcher!r}")
        if self.launcher == "spark" and self.fleet:
            raise ConfigError("launcher='spark' starts servers, and fleet attaches to some that run: give one of them")
        if not isinstance(self.conf, Mapping) or not all(isinstance(name, str) for name in self.conf):
            raise ConfigError(f"conf: expected a dict of Spark's settings, got {self.conf!r}")
        if self.conf and self.launcher != "spark":
            raise ConfigError("conf goes with launcher='spark': it is that of the fleet's Spark application")

    def _check_place(self) -> None:
        for name in ("bind", "advertise"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"{CALLED[name]}: expected a name or an address of a host, got {value!r}")
            if value is not None and host_of(value, CALLED[name]) != value:
                object.__setattr__(self, name, host_of(value, CALLED[name]))
        if self.advertise is not None and is_wildcard(self.advertise):
            raise ConfigError(f"advertiseAddress: expected a host that others reach this one by, got {self.advertise}")
        if self.ports != ANY_PORT and self.ports_needed > len(self.ports):
            raise ConfigError(
                f"ports: {self.ports_needed} are needed, for the master, a run{self._ports_for}; got {len(self.ports)} "
                f"({self.ports[0]}-{self.ports[-1]})"
            )

    @property
    def ports_needed(self) -> int:
        """How many ports are taken on this host, at most."""
        if self.fleet:
            return 2
        return 3 if self.launcher == "spark" else 2 + 2 * self.count

    @property
    def _ports_for(self) -> str:
        if self.fleet:
            return ""
        return " and what containers report to" if self.launcher == "spark" else " and two for each server"

    def _check_whole(self, name: str, low: int, high: int | None = None) -> None:
        value, called = getattr(self, name), CALLED.get(name, name)
        if value is None:
            return
        if not is_whole(value):
            raise ConfigError(f"{called}: expected an integer, got {value!r}")
        if value < low or (high is not None and value > high):
            raise ConfigError(f"{called}: expected {low} {f'to {high}' if high else 'at least'}, got {value}")

    def _check_seconds(self, name: str) -> None:
        value = getattr(self, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
            raise ConfigError(f"{CALLED[name]}: expected a positive number of seconds, got {value!r}")


def addresses(fleet: str | Sequence[str] | Any | None) -> tuple[str, ...]:
    """Return the servers of a fleet: "host:port,host:port", or a list of them."""
    if fleet is None:
        return ()
    given = fleet.split(",") if isinstance(fleet, str) else fleet
    wrong = ConfigError(f"fleet: expected HOST:PORT,HOST:PORT..., got {fleet!r}")
    if not isinstance(given, Sequence) or not all(isinstance(address, str) for address in given):
        raise wrong
    found = tuple(address.strip() for address in given if address.strip())
    if not found:
        raise wrong
    for address in found:
        host, port = split_address(address, "fleet")
        if is_wildcard(host) or not port:
            raise ConfigError(f"fleet: {address} is where a server may listen; expected what it is reached by")
    return found


def ports(given: object) -> range:
    """Return the ports that the driver may take: 40000, "40000-40020"; None: any."""
    if given is None:
        return ANY_PORT
    if not isinstance(given, str) and not is_whole(given):
        raise ConfigError(f"ports: expected a text such as '40000-40020', got {given!r}")
    found = ports_of(str(given).strip(), "ports")
    if found == ANY_PORT:
        raise ConfigError("ports: expected the first and the last of some (40000-40020), got 0; leave it out for any")
    return found


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _named(options: Options) -> str:
    if options.fleet:
        return f"the fleet {','.join(options.fleet)}"
    return f"{options.count} {'local servers' if options.launcher == 'local' else 'servers'}"
