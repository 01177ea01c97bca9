"""``PS2Conf``: all settings of a ``PS2Context``, with their checks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args

from ps2.certificates import TlsFiles, tls_files
from ps2.config import (
    ANY_PORT,
    DEFAULT_NAMESPACE,
    MAX_BYTES,
    is_wildcard,
    ports_text,
    read_host,
    read_namespace,
    split_listen,
)
from ps2.coordinator import settings
from ps2.coordinator.launcher import Launcher, launcher_class
from ps2.coordinator.recovery import Recover
from ps2.dashboard.page_server import DEFAULT_LISTEN
from ps2.errors import ConfigError
from ps2.launched_fleets import NAME
from ps2.name_hints import hints_keywords
from ps2.number_checks import is_number, is_whole

# Maximum of the setting ``servers``.
MAX_SERVERS = 4096
# Value of ``restore`` for the newest checkpoint in checkpointDir, if there is one.
LATEST = "latest"
ALL_ADDRESSES = "0.0.0.0"


@dataclass(frozen=True)
class PS2Conf:
    """The settings of a fleet and of its driver, as SparkConf has those of an application.

    ``PS2Conf(...)`` takes settings as keywords. ``PS2Conf.load`` reads them from a YAML file and ``PS2_*`` variables.
    ``dataclasses.replace`` makes a changed copy. ``ps.conf`` has the running context's settings, and ``print(ps.conf)``
    shows them.

    Attributes:
        servers: number of servers; None: 2, or the servers of ``fleet``.
        fleet: addresses of running servers to attach to, instead of ``servers``: "host:port,host:port" or a list; or
            the name of a fleet that ``ps2 launch --name`` started on this host, with its token and certificates. The
            driver takes over the named vectors of the earlier driver of its namespace; see ``PS2Context.vector``.
        namespace: name of this application on the servers of ``fleet``. Drivers with different namespaces share the
            servers' memory, and nothing else. A driver takes over the named vectors of the earlier driver of its
            namespace. 1 to 63 characters out of a-z, 0-9, ".", "_" and "-". Default "default".
        tokenFile: file with the token of ``fleet``. A fleet that the driver starts gets a new token.
        launcher: name of the launcher, which starts the servers. "local", the default: child processes. "spark": a
            second Spark application on the same cluster, with one server per container (docs/deploy.md). Installed
            packages may add launchers (docs/contributing/launcher.md).
        sparkConf: Spark settings of that second application. They override settings that are copied from the driver's.
        memoryLimit: maximum bytes of each server's arrays. Default: for a local fleet, 80 % of the machine's available
            memory divided by the number of servers; in containers 1 GiB, because the memory is requested from the
            cluster.
        startTimeoutS: maximum seconds until all servers have started. Default: 60; in containers 120, because a cluster
            may first have to wait for free containers.
        ops: names of modules that declare your own operations (docs/kernels.md). The driver, tasks and started servers
            import them; servers of an attached fleet import the modules of ``ps2 launch --ops``.
        strict: True: operations between vectors that are not co-located are errors. Default: they give a warning,
            because they are slow, but their results are correct.
        bindAddress: host on which the master, runs and a local fleet listen. Default: on a cluster
            ``spark.driver.bindAddress``, else ``spark.driver.host``; if Spark runs only on this host, loopback, which
            other hosts cannot reach. ``::`` means all IPv4 and IPv6 addresses.
        advertiseAddress: host by which tasks and servers reach the driver, if it differs from bindAddress. Default: on
            a cluster ``spark.driver.host``; for a bindAddress of ``0.0.0.0`` or ``::``, the same or this host's name.
        ports: range of ports to listen on, such as "40000-40020": one port for the master, two for each server of a
            local fleet, one for a run. Default: any free ports; a firewall may need a fixed range.
        tlsCert: file of this driver's certificate (PEM), which a local fleet's servers use, too. With certificates, all
            connections between hosts are encrypted (docs/security.md). Spark sends the files to the tasks. Default: no
            TLS.
        tlsKey: file of the certificate's private key, readable only by its owner.
        tlsCa: file of the trusted authority's certificate.
        tlsName: name in all certificates of the fleet; default: the host of each process.
        replicas: 1: keep an up-to-date copy of each shard on another server. The loss of one server then loses no data.
            Default 0, because copies double the memory and slow down changes.
        checkpointDir: folder for checkpoints: a path or fsspec URL that driver and servers share. The replacement of a
            lost server loads its shards from the newest complete checkpoint.
        checkpointEveryS: seconds between two checkpoints. In a run or with ``step``, a checkpoint is made after the
            next clock or step.
        checkpointEverySteps: number of steps (``step``) between two checkpoints.
        keep: number of this context's complete checkpoints that stay in checkpointDir. Checkpoints of other drivers are
            never deleted. Default 3: two remain if the newest one cannot be read.
        restore: folder of the checkpoint to start from, or a folder of checkpoints, whose newest complete one is used;
            the number of servers may differ. "latest": the newest one in checkpointDir, if there is one. See also
            ``PS2Context.vector`` and ``nextStep``.
        recover: method of recovery if a lost server has no copies. "consistent": all servers and the clocks of a run
            roll back to the checkpoint; outside of a run, the driver's next call raises ``RolledBack``. "shard": only
            the replacement of the lost server loads the checkpoint (PS2 paper, section 5.3), so its shards are older
            than the others. "auto", the default: "consistent" during a ``run`` or ``step`` that can continue from the
            checkpoint, else "shard".
        heartbeatS: seconds between two heartbeats of a server. Default 1: the heartbeats of a thousand servers use a
            third of a core of the driver.
        lostAfterS: seconds without a heartbeat after which a server is lost; at least 2 * ``heartbeatS``. A server
            whose process has ended is lost at once. Default 5, longer than machines are usually suspended.
        retryTimeoutS: maximum seconds that calls wait for the recovery of a lost server. Default 600, because reading a
            large checkpoint takes minutes.
        dashboard: True: serve the live page of fleet, run and training (docs/dashboard.md). The driver prints its link;
            ``ps.dashboardUrl`` returns it, too. Default True: the page needs only a socket until somebody opens it.
        dashboardListen: address of the page: HOST:PORT, or HOST:FIRST-LAST for the first free port of a range; any free
            port if none of them is free. Default 127.0.0.1:4070-4169, which other hosts cannot reach.
        dashboardTokenFile: file with a token for all links (``ps2 token new FILE`` creates one). With it, an open page
            reconnects to a restarted driver. Default: each link has another token, which is valid for one browser.
        metricsListen: address at which Prometheus scrapes the driver (docs/metrics.md): HOST:PORT, or HOST:FIRST-LAST
            for the first free port of a range; ``ps.metricsUrl`` returns the URL. Default: none: scrapes need no token.
        tracing: True: create OpenTelemetry spans of fits, runs, clocks, checkpoints and recoveries (docs/tracing.md).
            Default False, because it needs ``pip install 'ps2-spark[tracing]'`` and the program's own TracerProvider.

    Raises:
        ConfigError: a setting has an invalid value. ``PS2Context.getOrCreate`` checks combinations.
    """

    servers: int | None = None
    fleet: str | Sequence[str] | None = None
    namespace: str = DEFAULT_NAMESPACE
    tokenFile: str | None = None
    launcher: str = "local"
    sparkConf: Mapping[str, str] = field(default_factory=dict)
    memoryLimit: int | None = None
    startTimeoutS: float | None = None
    ops: str | Sequence[str] = ()
    strict: bool = False
    bindAddress: str | None = None
    advertiseAddress: str | None = None
    ports: str | int | None = None
    tlsCert: str | None = None
    tlsKey: str | None = None
    tlsCa: str | None = None
    tlsName: str | None = None
    replicas: int = 0
    checkpointDir: str | None = None
    checkpointEveryS: float | None = None
    checkpointEverySteps: int | None = None
    keep: int = 3
    restore: str | None = None
    recover: Recover = "auto"
    heartbeatS: float = 1.0
    lostAfterS: float = 5.0
    retryTimeoutS: float = 600.0
    dashboard: bool = True
    dashboardListen: str = DEFAULT_LISTEN
    dashboardTokenFile: str | None = None
    metricsListen: str | None = None
    tracing: bool = False

    @classmethod
    def load(cls, file: str | os.PathLike[str] | None = None, **given: Any) -> PS2Conf:
        """Load settings. Keywords override ``PS2_*`` environment variables, and these variables override a YAML file.

        The file maps names of settings to values. A variable has the setting's name in capitals, with underscores
        between words: ``PS2_HEARTBEAT_S=0.5``, ``PS2_OPS=a.kernels,b.kernels``,
        ``PS2_SPARK_CONF='{spark.executor.cores: 4}'``.

        Args:
            file: path of the file; None: no file.
            given: settings by name.

        Raises:
            ConfigError: a setting is invalid; or the file cannot be read, or has an unknown setting.
        """
        from_file = {} if file is None else settings.from_file(os.fspath(file), NAMES)
        settings.check_known(given, NAMES, "PS2Conf")
        return cls(**(from_file | settings.from_variables(os.environ, NAMES, PARSED) | given))

    def __post_init__(self) -> None:
        self._normalise()
        if not isinstance(self.launcher, str):
            raise ConfigError(f"launcher: expected a name, got {self.launcher!r}")
        launcher_class(self.launcher)
        read_namespace(self.namespace)
        if not isinstance(self.sparkConf, Mapping) or not all(isinstance(name, str) for name in self.sparkConf):
            raise ConfigError(f"sparkConf: expected a dict of Spark's settings, got {self.sparkConf!r}")
        self._check_whole("servers", 1, MAX_SERVERS)
        self._check_whole("checkpointEverySteps", 1)
        self._check_whole("keep", 1)
        for name in ("strict", "dashboard", "tracing"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(f"{name}: expected True or False, got {value!r}")
        if self.memoryLimit is not None and (not is_whole(self.memoryLimit) or self.memoryLimit <= 0):
            raise ConfigError(f"memoryLimit: expected a positive number of bytes, got {self.memoryLimit!r}")
        if self.memoryLimit is not None and self.memoryLimit > MAX_BYTES:
            raise ConfigError(f"memoryLimit: expected at most {MAX_BYTES:,} bytes, got {self.memoryLimit:,}")
        for name in ("checkpointEveryS", "heartbeatS", "lostAfterS", "retryTimeoutS", "startTimeoutS"):
            value = getattr(self, name)
            if value is not None and (not is_number(value) or not value > 0):
                raise ConfigError(f"{name}: expected a positive number of seconds, got {value!r}")
        if self.recover not in get_args(Recover):
            raise ConfigError(f"recover: expected 'auto', 'shard' or 'consistent', got {self.recover!r}")
        for name in ("dashboardListen", "metricsListen"):
            self._check_listen(name)
        for name in ("checkpointDir", "restore"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ConfigError(f"{name}: expected a path or a URL, got {value!r}")
        if not is_whole(self.replicas) or self.replicas not in (0, 1):
            raise ConfigError(f"replicas: expected 0 or 1, got {self.replicas!r}")

    def check(self) -> None:
        """Raise ConfigError if the settings cannot be used together."""
        attached = self.fleet is not None
        if self.servers is not None and attached:
            raise ConfigError("give either servers (start a local fleet) or fleet (attach to one), not both")
        if self.restore == LATEST and self.checkpointDir is None:
            raise ConfigError("restore: 'latest' is the newest checkpoint in checkpointDir, which is not given")
        if self.namespace != DEFAULT_NAMESPACE and not attached:
            raise ConfigError("namespace needs fleet: servers that the driver starts serve no other driver")
        if self.tokenFile is not None and not attached:
            raise ConfigError("tokenFile needs fleet: a fleet that the driver starts gets a new token")
        if self.tls is not None and not (self.tls.cert and self.tls.ca):
            missing = "tlsCa" if self.tls.cert else "tlsCert and tlsKey"
            raise ConfigError(
                f"TLS: the driver is both a client and a server, so it needs all files; give {missing} as well"
            )
        if attached and self.launcher not in ("local", "attach"):
            raise ConfigError(
                f"launcher={self.launcher!r} starts servers, and fleet attaches to running servers: give only one"
            )
        if self.launcher == "attach" and not attached:
            raise ConfigError("launcher='attach' needs fleet, the addresses of running servers")
        if self.sparkConf and self.launcher != "spark":
            raise ConfigError("sparkConf needs launcher='spark': it configures the fleet's Spark application")
        if self.lostAfterS < 2 * self.heartbeatS:
            raise ConfigError(
                f"lostAfterS: expected at least two heartbeats of {self.heartbeatS} s, got {self.lostAfterS}"
            )
        if self.replicas and self.count < 2:
            raise ConfigError(f"replicas=1 needs at least two servers, got {self.count}")
        is_periodic = self.checkpointEveryS is not None or self.checkpointEverySteps is not None
        if is_periodic and self.checkpointDir is None:
            raise ConfigError("checkpointEveryS and checkpointEverySteps need a checkpointDir")
        self._check_ports()

    @property
    def addresses(self) -> tuple[str, ...]:
        """``host:port`` of each server to attach to; empty if the driver starts the servers."""
        return settings.addresses(self.fleet)

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the modules of ``ops``."""
        return tuple(self.ops.split(",") if isinstance(self.ops, str) else self.ops)

    @property
    def portRange(self) -> range:
        """Ports that the driver and a local fleet may listen on."""
        return settings.ports(self.ports)

    @property
    def tls(self) -> TlsFiles | None:
        """The certificate files; None: no TLS."""
        return tls_files(self.tlsCert, self.tlsKey, self.tlsCa, self.tlsName)

    @property
    def launcherClass(self) -> type[Launcher]:
        """The class that starts and watches the servers."""
        return launcher_class("attach" if self.fleet is not None else self.launcher)

    @property
    def startWithinS(self) -> float:
        """Maximum seconds until all servers have started."""
        return self.startTimeoutS or self.launcherClass.start_timeout_s

    @property
    def count(self) -> int:
        """Number of servers of the fleet."""
        return len(self.addresses) or self.servers or 2

    @property
    def portsNeeded(self) -> int:
        """Maximum number of ports that the context uses on this host."""
        # The master and a run have one port each.
        return 2 + self.launcherClass.ports_needed(self.count)

    def check_same(self, requested: PS2Conf) -> None:
        """Raise ConfigError if a setting in ``requested`` is neither its default nor the running context's value."""
        if requested.restore is not None:
            raise ConfigError("restore: a context is running; stop() it first")
        if (requested.servers or requested.fleet) and (requested.count, requested.fleet) != (self.count, self.fleet):
            raise ConfigError(
                f"a context with {_servers_text(self)} is running, not with {_servers_text(requested)}; stop() it first"
            )
        defaults = PS2Conf()
        for name in NAMES:
            running, new_value, default = (getattr(conf, name) for conf in (self, requested, defaults))
            if name not in ("servers", "fleet") and new_value not in (running, default):
                raise ConfigError(f"{name}: the running context has {running}, not {new_value}; stop() it first")

    def __str__(self) -> str:
        defaults = PS2Conf()
        lines = ((name, getattr(self, name), getattr(defaults, name)) for name in NAMES)
        return "\n".join(
            f"{name} = {value!r}{' (default)' if value == default else ''}" for name, value, default in lines
        )

    def _normalise(self) -> None:
        """Convert settings to a normal form. Settings with the same meaning then compare equal."""
        if isinstance(self.fleet, str) and NAME.fullmatch(self.fleet):
            for name, value in settings.of_launched_fleet(self.fleet).items():
                if value and (name == "fleet" or getattr(self, name) is None):
                    object.__setattr__(self, name, value)
        normal: dict[str, Any] = {"fleet": None if self.fleet is None else self.addresses}
        if self.ports is not None:
            normal["ports"] = ports_text(self.portRange)
        if not isinstance(self.ops, (str, Sequence)) or not all(
            isinstance(name, str) and name for name in self.modules
        ):
            raise ConfigError(f"ops: expected names of modules, got {self.ops!r}")
        normal["ops"] = self.modules
        for name in ("bindAddress", "advertiseAddress"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"{name}: expected a name or an address of a host, got {value!r}")
            normal[name] = None if value is None else read_host(value, name)
        if self.advertiseAddress is not None and is_wildcard(normal["advertiseAddress"]):
            raise ConfigError(
                f"advertiseAddress: expected a host name or address that other hosts reach, got {self.advertiseAddress}"
            )
        if (files := self.tls) is not None:
            normal |= {"tlsCert": files.cert or None, "tlsKey": files.key or None, "tlsCa": files.ca or None}
        for name, value in normal.items():
            object.__setattr__(self, name, value)

    def _check_ports(self) -> None:
        ports = self.portRange
        if ports != ANY_PORT and self.portsNeeded > len(ports):
            servers = self.portsNeeded - 2
            uses = "the master and a run" if not servers else f"the master, a run and {servers} for the servers"
            raise ConfigError(
                f"ports: {self.portsNeeded} are needed, for {uses}; got {len(ports)} ({ports[0]}-{ports[-1]})"
            )

    def _check_whole(self, name: str, low: int, high: int | None = None) -> None:
        value = getattr(self, name)
        if value is None:
            return
        if not is_whole(value):
            raise ConfigError(f"{name}: expected an integer, got {value!r}")
        object.__setattr__(self, name, int(value))
        if value < low or (high is not None and value > high):
            raise ConfigError(f"{name}: expected {f'{low} to {high}' if high else f'at least {low}'}, got {value}")

    def _check_listen(self, name: str) -> None:
        value = getattr(self, name)
        if value is None and name != "dashboardListen":
            return
        if not isinstance(value, str):
            raise ConfigError(f"{name}: expected HOST:PORT, got {value!r}")
        split_listen(value, name)


PS2Conf.__init__ = hints_keywords(PS2Conf.__init__)  # type: ignore[method-assign]
NAMES = tuple(setting.name for setting in fields(PS2Conf))
# Settings that are not strings. The values of their environment variables are parsed as YAML.
PARSED = [
    setting.name for setting in fields(PS2Conf) if str(setting.type).startswith(("int", "float", "bool", "Mapping"))
]


def with_overrides(conf: PS2Conf | None, moved: Mapping[str, Any], **given: Any) -> PS2Conf:
    """Return ``conf`` (None: the defaults) with the settings in ``given`` that are not None.

    Raises ConfigError if the settings cannot be used together, or if ``moved`` has entries: unknown keywords of
    ``PS2Context.getOrCreate``. For a setting of ``PS2Conf``, the message explains how to set it.
    """
    for name, value in moved.items():
        settings.check_known([name], [*NAMES, "spark", "conf", "driverHost"], "PS2Context.getOrCreate")
        raise ConfigError(
            f"PS2Context.getOrCreate: {name} is a setting of PS2Conf: give conf=PS2Conf({name}={value!r})"
        )
    if isinstance(conf, Mapping):
        raise ConfigError(
            "conf: expected a PS2Conf, got a dict; settings of the fleet's Spark application are "
            "conf=PS2Conf(sparkConf={...})"
        )
    if conf is not None and not isinstance(conf, PS2Conf):
        raise ConfigError(f"conf: expected a PS2Conf, got {conf!r}")
    result = replace(conf or PS2Conf(), **{name: value for name, value in given.items() if value is not None})
    result.check()
    return result


def driver_host_settings(conf: PS2Conf | None, driver_host: str | None) -> dict[str, str]:
    """Return the settings by which the driver listens on all addresses and advertises ``driver_host``; {} for None."""
    if driver_host is None:
        return {}
    bind_address = None if conf is None else conf.bindAddress
    return {"advertiseAddress": driver_host, "bindAddress": bind_address or ALL_ADDRESSES}


def _servers_text(conf: PS2Conf) -> str:
    if conf.fleet:
        return f"the fleet {','.join(conf.addresses)}"
    return f"{conf.count} {'local servers' if conf.launcher == 'local' else 'servers'}"
