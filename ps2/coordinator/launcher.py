"""The interface of launchers, which start and watch the servers of a fleet. Finds a launcher by its name."""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

from ps2.certificates import TlsFiles
from ps2.config import Binding
from ps2.coordinator import launchers
from ps2.errors import ConfigError
from ps2.programs import installed_entry_points
from ps2.rpc.control import ServerControl

# Group of entry points by which installed packages add launchers: the launcher's name, and its class.
GROUP = "ps2.launchers"


@dataclass(frozen=True)
class LaunchRequest:
    """A context's request to its launcher.

    Attributes:
        fleet: the fleet's id.
        token: the secret that authenticates all processes of the fleet; None only with ``addresses``.
        binding: addresses at which the driver and local servers listen.
        memory_limit_bytes: maximum bytes of each server's arrays; None: the launcher's default.
        ops: names of modules that declare operations.
        tls: files of certificates and keys; None: connections are not encrypted.
        addresses: ``host:port`` of servers that run already; empty: the launcher starts all servers.
        register: function that registers a server that runs already: (index, server id, address).
        spark_context: the driver's SparkContext, or None.
        spark_conf: settings of the fleet's own Spark application, if servers run in containers.
    """

    fleet: str
    servers: int
    token: str | None
    binding: Binding
    memory_limit_bytes: int | None
    ops: tuple[str, ...]
    tls: TlsFiles | None
    addresses: tuple[str, ...]
    control: ServerControl
    register: Callable[[int, str, str], None]
    spark_context: Any = None
    spark_conf: Mapping[str, str] = field(default_factory=dict)


class Launcher(ABC):
    """Starts, watches and ends the servers of one fleet, by index.

    Attributes:
        is_remote: True if servers run on other hosts. The driver then listens at an address that they can reach.
        start_timeout_s: default of the maximum time until all servers have registered.
        replaces: True if the launcher can replace a lost server by a new process.
        leaving: indices of servers that are shutting down, because another program has asked them to.
    """

    is_remote: ClassVar[bool] = False
    start_timeout_s: ClassVar[float] = 60.0
    replaces: bool = True
    leaving: Collection[int] = frozenset()

    @classmethod  # noqa: B027 - most launchers need no check
    def check(cls, spark_context: Any, spark_conf: Mapping[str, str]) -> None:
        """Raise ConfigError if the launcher cannot be used in this environment. Called before any process starts."""

    @classmethod
    @abstractmethod
    def of(cls, request: LaunchRequest) -> Launcher:
        """Return a launcher for a fleet. The caller then calls ``start`` for each server."""

    @staticmethod
    def ports_needed(servers: int) -> int:
        """Return the number of ports that servers and launcher use on the driver's host."""
        return 0

    @property
    @abstractmethod
    def servers(self) -> int:
        """Number of servers of the fleet."""

    @abstractmethod
    def start(self, index: int, master: str) -> None:
        """Start one server, in place of an earlier server with this index; do not wait until it has registered.

        Args:
            master: ``host:port`` of the master, with which the server registers.

        Raises:
            LaunchError: the server cannot be started.
        """

    @abstractmethod
    def poll(self) -> dict[int, str | None]:
        """Return, by index, the reason why a server has ended, or None if the server has just answered.

        Servers of which the launcher knows nothing new are missing from the result.
        """

    def status_text(self) -> str:
        """Return a text that explains why servers have not started yet; "": nothing is known."""
        return ""

    @abstractmethod
    def stop(self) -> None:
        """End all servers that the launcher has started, and delete its files. A second call does nothing."""


def launcher_class(name: str) -> type[Launcher]:
    """Return a launcher's class by its name; raise ConfigError if no package has it, or if its import fails."""
    if name in _built_in():
        return _class_in(f"{launchers.__name__}.{name}")
    for entry in installed_entry_points(GROUP):
        if entry.name != name:
            continue
        try:
            cls = entry.load()
        except Exception as error:  # importing runs users' code
            raise ConfigError(f"launcher: {name!r} cannot be imported: {type(error).__name__}: {error}") from error
        if not (isinstance(cls, type) and issubclass(cls, Launcher)):
            raise ConfigError(f"launcher: {name!r}: expected {entry.value} to be a class of Launcher, got {cls!r}")
        return cls
    names = [*_built_in(), *sorted(entry.name for entry in installed_entry_points(GROUP))]
    raise ConfigError(f"launcher: expected one of {', '.join(map(repr, names))}, got {name!r}")


def _built_in() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(launchers.__path__) if not module.ispkg]


def _class_in(module: str) -> type[Launcher]:
    classes = vars(import_module(module)).values()
    return next(
        cls for cls in classes if isinstance(cls, type) and issubclass(cls, Launcher) and cls.__module__ == module
    )
