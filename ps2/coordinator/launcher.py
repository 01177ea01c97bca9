"""The interface of launchers, which start and watch the servers of a fleet, and the search for a launcher by name."""

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

# Entry points of installed packages: the launcher's name, and its class.
GROUP = "ps2.launchers"


@dataclass(frozen=True)
class LaunchRequest:
    """The servers that a context asks its launcher for.

    Attributes:
        token: token that all processes of the fleet prove to know; None only with ``addresses``.
        binding: addresses at which the driver and local servers listen.
        memory_limit_bytes: maximum bytes of each server's arrays; None: the launcher's default.
        ops: names of modules that declare operations.
        addresses: ``host:port`` of servers that run already.
        control: calls to servers.
        register: called with index, server id and address of each server that runs already.
        spark_context: the driver's SparkContext, or None.
        spark_conf: Spark settings of a second Spark application.
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
        is_remote: True if servers run on other hosts, so that the driver must listen where they reach it.
        start_timeout_s: default for the seconds that all servers may take to start.
        replaces: True if the launcher can end a server that hangs and start another.
        leaving: indices of servers that another program has asked to stop.
    """

    is_remote: ClassVar[bool] = False
    start_timeout_s: ClassVar[float] = 60.0
    replaces: bool = True
    leaving: Collection[int] = frozenset()

    @classmethod  # noqa: B027 - most launchers need no check
    def check(cls, spark_context: Any, spark_conf: Mapping[str, str]) -> None:
        """Raise ConfigError if the launcher cannot be used in this environment; called before anything is started."""

    @classmethod
    @abstractmethod
    def of(cls, request: LaunchRequest) -> Launcher:
        """Return the launcher of a fleet; the caller then calls ``start`` for each server."""

    @staticmethod
    def ports_needed(servers: int) -> int:
        """Return the number of ports that servers and launcher take on the driver's host."""
        return 0

    @property
    @abstractmethod
    def servers(self) -> int:
        """Number of servers of the fleet."""

    @abstractmethod
    def start(self, index: int, master: str) -> None:
        """Start one server, in place of an earlier one, and return at once.

        Args:
            index: index of the server.
            master: ``host:port`` of the master, with which the server registers.

        Raises:
            LaunchError: the server cannot be started.
        """

    @abstractmethod
    def poll(self) -> dict[int, str | None]:
        """Return by index the reasons why servers have ended, and None for servers that have just answered."""

    def status_text(self) -> str:
        """Return a text about the servers that have not started yet, or ""."""
        return ""

    @abstractmethod
    def stop(self) -> None:
        """End all started servers, and leave nothing behind. A second call does nothing."""


def launcher_class(name: str) -> type[Launcher]:
    """Return a launcher by its name.

    Raises:
        ConfigError: there is no such launcher, or it cannot be imported.
    """
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
