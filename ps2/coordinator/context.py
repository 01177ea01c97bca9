"""``PS2Context``: the coordinator in the driver (paper, sections 3.2 and 5.1)."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ps2.client.batch import batch
from ps2.client.fleet import FleetRef, seal
from ps2.client.session import Session, install, uninstall
from ps2.client.task import FLEET_VARIABLE, STOPPED_PROPERTY, task_context
from ps2.config import FleetConfig, is_loopback, join_address, new_token, read_token, split_address
from ps2.coordinator import master as masters
from ps2.coordinator.launchers.attach import AttachLauncher
from ps2.coordinator.launchers.launcher import Launcher
from ps2.coordinator.launchers.local import LocalLauncher
from ps2.coordinator.slots import wait_for_slots
from ps2.errors import ConfigError, LaunchError, PS2Error, StoppedError, UsageError
from ps2.wire.control import ServerControl
from ps2.wire.transport import GrpcTransport

log = logging.getLogger(__name__)

MONITOR_INTERVAL_S = 0.5
# It may be asking a server that does not answer; it ends by itself then.
WATCHER_TIMEOUT_S = 1.0
SLOTS_TIMEOUT_S = 60.0
MAX_SERVERS = 4096
# Set by spark-submit, whose Java process is then this one's parent and all of Spark.
GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"


@dataclass(frozen=True)
class _Fleet:
    """What ``getOrCreate`` was asked for; ``addresses`` is empty for a local fleet."""

    servers: int
    addresses: tuple[str, ...]
    token: str | None
    strict: bool
    bind: str
    memory_limit: int | None


class PS2Context:
    """A fleet of servers, driven from here. Made by ``PS2Context.getOrCreate``; one at a time in a process.

    It is also a context manager: ``with PS2Context.getOrCreate(spark, servers=2) as ps: ...``
    """

    _active: PS2Context | None = None
    _class_lock = threading.RLock()

    @classmethod
    def getOrCreate(  # noqa: PLR0913 - keywords, as Spark's builder has options
        cls,
        spark: Any = None,
        servers: int | None = None,
        *,
        fleet: str | Sequence[str] | None = None,
        tokenFile: str | None = None,
        strict: bool = False,
        bindAddress: str = "127.0.0.1",
        memoryLimit: int | None = None,
    ) -> PS2Context:
        """Return the running context, or start one.

        Args:
            spark: a SparkSession or SparkContext whose tasks are to reach the fleet; None takes the active one, and
                without any, vectors work in this process only.
            servers: start a local fleet of so many child processes (default 2).
            fleet: instead, attach to running servers: "host:port,host:port" or a list.
            tokenFile: the fleet's token, with ``fleet``.
            strict: make operations between vectors that are not co-located an error instead of a warning.
            bindAddress: host that the master and a local fleet listen on; tasks on other hosts need one they can reach.
            memoryLimit: bytes that each server of a local fleet may take; default: its share of the machine's memory.

        Raises:
            ConfigError: arguments that cannot be used, or differ from those of the running context.
            StoppedError: the SparkContext is stopped.
            LaunchError, UnavailableError, AuthError: the fleet cannot be started or reached.
        """
        if task_context() is not None:
            raise UsageError(
                "a PS2Context belongs into the driver; in a task, use the vectors that came with its closure"
            )
        with cls._class_lock:
            addresses = _addresses(fleet)
            if servers is not None and addresses:
                raise ConfigError("give either servers (start a local fleet) or fleet (attach to one), not both")
            if servers is not None and (isinstance(servers, bool) or not isinstance(servers, int)):
                raise ConfigError(f"servers: expected an integer, got {servers!r}")
            if servers is not None and not 1 <= servers <= MAX_SERVERS:
                raise ConfigError(f"servers: expected 1 to {MAX_SERVERS}, got {servers}")
            if tokenFile is not None and not addresses:
                raise ConfigError("tokenFile goes with fleet: a local fleet makes a token of its own")
            if memoryLimit is not None and (
                isinstance(memoryLimit, bool) or not isinstance(memoryLimit, int) or memoryLimit <= 0
            ):
                raise ConfigError(f"memoryLimit: expected a positive number of bytes, got {memoryLimit!r}")
            spark_context = _spark_context(spark)
            running = cls._active
            if running is not None:
                running._check_same(servers, addresses, strict, memoryLimit)
                if spark_context is not None:
                    running._reach_tasks(spark_context)
                return running
            token = read_token(tokenFile) if tokenFile is not None else None
            context = cls(
                spark_context, _Fleet(servers or 2, tuple(addresses), token, strict, bindAddress, memoryLimit)
            )
            cls._active = context
            return context

    def __init__(self, spark_context: Any, fleet: _Fleet) -> None:
        """Not for users: see ``getOrCreate``."""
        self._spark: Any = None
        self._stopped = False
        self._stopping = threading.Event()
        self._config = FleetConfig()
        self._fleet = fleet
        self._token = fleet.token if fleet.addresses else new_token()
        with contextlib.ExitStack() as undo:
            transport = GrpcTransport(self._token)
            undo.callback(transport.close)
            self._master = masters.Master(ServerControl(transport), self._config)
            self._face = masters.listen(self._master, join_address(fleet.bind, 0), self._token)
            undo.callback(self._face.stop, 0)
            self._launcher: Launcher
            if fleet.addresses:
                self._launcher = AttachLauncher(fleet.addresses, ServerControl(transport), self._master.register)
            else:
                self._launcher = LocalLauncher(fleet.servers, str(self._token), fleet.bind, fleet.memory_limit)
            undo.callback(self._launcher.stop)
            self._start_servers()
            self._session = Session(FleetRef(uuid.uuid4().hex[:12], self._face.address, fleet.strict), transport)
            undo.pop_all()
        install(self._session)
        self._watcher = threading.Thread(target=self._monitor, name="ps2-monitor", daemon=True)
        self._watcher.start()
        atexit.register(self._end_at_exit, os.getpid())
        if spark_context is not None:
            self._reach_tasks(spark_context)

    @property
    def servers(self) -> list[str]:
        """``host:port`` of each server."""
        return self._master.addresses()

    @property
    def sparkContext(self) -> Any:
        """The SparkContext whose tasks reach the fleet, or None."""
        return self._spark

    def batch(self) -> AbstractContextManager[None]:
        """Collect the calls issued in a ``with`` block into one request a server; see ``ps2.batch``."""
        self._check_running()
        return batch()

    def flush(self) -> None:
        """Wait until all additions made here with ``wait=False`` are applied; raise what failed of them."""
        self._check_running()
        self._session.flush()

    def waitForSlots(self, slots: int = 1, timeout: float = SLOTS_TIMEOUT_S) -> None:
        """Wait until Spark can run ``slots`` tasks at once.

        Raises:
            SlotsError: after ``timeout`` seconds it still cannot; names how many there are.
        StoppedError: this context or the SparkContext was stopped.
        """
        self._check_running()
        if self._spark is None:
            raise ConfigError("waitForSlots: this context has no SparkContext")
        _check_spark_runs(self._spark)
        wait_for_slots(self._spark, slots, timeout)

    def stop(self) -> None:
        """End a local fleet, or leave an attached one without our matrices. Calling it again changes nothing.

        Raises:
            PS2Error: additions made with ``wait=False`` had failed; everything is ended all the same.
        """
        with self._class_lock:
            if self._stopped:
                return
            self._stopped = True
            if PS2Context._active is self:
                PS2Context._active = None
        atexit.unregister(self._end_at_exit)
        try:
            try:
                self._session.flush()
            finally:
                # The fleet first: a local server asks for no goodbye from its clients.
                self._end_fleet()
        finally:
            uninstall(self._session.fleet.id)
            self._face.stop(0)
            if self._spark is not None and not _is_stopped(self._spark):
                self._leave_tasks(self._spark)

    def _end_fleet(self) -> None:
        self._stopping.set()
        self._watcher.join(WATCHER_TIMEOUT_S)
        try:
            if self._fleet.addresses:
                self._master.free_all()
        finally:
            self._launcher.stop()

    def _end_at_exit(self, pid: int) -> None:
        # A forked child inherits this call, and not the fleet. Connections end with the process: closing them would
        # wait for ever for a lock inside gRPC that Ctrl-C has left taken.
        if os.getpid() == pid:
            self._end_fleet()

    def __enter__(self) -> PS2Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else ", ".join(self.servers)
        return f"PS2Context({state})"

    def _start_servers(self) -> None:
        count = self._launcher.servers
        for index in range(count):
            self._launcher.start(index, self._face.address)
        deadline_s = time.monotonic() + self._config.start_timeout_s
        while not self._master.wait_registered(count, timeout_s=0.1):
            for index in range(count):
                if not self._master.registered(index) and (reason := self._launcher.gone(index)):
                    raise LaunchError(f"server {index} did not start: {reason}")
            if time.monotonic() > deadline_s:
                missing = [index for index in range(count) if not self._master.registered(index)]
                raise LaunchError(f"servers {missing} did not register within {self._config.start_timeout_s:.0f} s")

    def _monitor(self) -> None:
        """Watch the servers' processes until the context is stopped."""
        parent = os.getppid()
        while not self._stopping.wait(MONITOR_INTERVAL_S):
            if GATEWAY_VARIABLE in os.environ and os.getppid() != parent:
                log.warning("spark-submit is gone: ending the servers")
                self._launcher.stop()
                return
            for index in range(self._launcher.servers):
                try:
                    reason = self._launcher.gone(index)
                except PS2Error as error:
                    log.debug("server %d: %s", index, error)  # silence is judged by its length, in tick
                    continue
                if reason is not None:
                    self._master.ended(index, reason)
                elif self._fleet.addresses:
                    self._master.alive(index)
            self._master.tick()

    def _reach_tasks(self, spark_context: Any) -> None:
        """Hand the fleet's token to the Python workers of Spark's tasks, by Spark's own means."""
        self._spark = spark_context
        host, _ = split_address(self._face.address)
        if is_loopback(host) and not spark_context.master.startswith("local"):
            log.warning(
                "tasks of %s may run on other hosts and cannot reach the fleet on %s; give bindAddress",
                spark_context.master,
                host,
            )
        spark_context.environment[FLEET_VARIABLE] = seal(self._session.fleet, self._token)

    def _leave_tasks(self, spark_context: Any) -> None:
        spark_context.environment.pop(FLEET_VARIABLE, None)
        stopped = spark_context.getLocalProperty(STOPPED_PROPERTY)
        fleet_id = self._session.fleet.id
        spark_context.setLocalProperty(STOPPED_PROPERTY, f"{stopped} {fleet_id}" if stopped else fleet_id)

    def _check_same(self, servers: int | None, addresses: list[str], strict: bool, memory_limit: int | None) -> None:
        running = list(self._fleet.addresses) or self._fleet.servers
        asked = addresses or servers
        if asked is not None and asked != running:
            raise ConfigError(f"a context with {_named(running)} is running, {_named(asked)} came; stop() it first")
        if strict and not self._fleet.strict:
            raise ConfigError("a context that is not strict is running, strict=True came; stop() it first")
        if memory_limit is not None and memory_limit != self._fleet.memory_limit:
            running_limit = self._fleet.memory_limit
            raise ConfigError(f"memoryLimit: {running_limit} is that of the running context, {memory_limit} came")

    def _check_running(self) -> None:
        if self._stopped:
            raise StoppedError("this PS2Context was stopped")


def _addresses(fleet: str | Sequence[str] | None) -> list[str]:
    if fleet is None:
        return []
    given = fleet.split(",") if isinstance(fleet, str) else fleet
    if not isinstance(given, Sequence) or not all(isinstance(address, str) for address in given):
        raise ConfigError(f"fleet: expected HOST:PORT,HOST:PORT..., got {fleet!r}")
    addresses = [address.strip() for address in given if address.strip()]
    if not addresses:
        raise ConfigError(f"fleet: expected HOST:PORT,HOST:PORT..., got {fleet!r}")
    for address in addresses:
        split_address(address)
    return addresses


def _spark_context(spark: Any) -> Any:
    """Return the SparkContext meant; never imports pyspark where it is not loaded."""
    if spark is None:
        if "pyspark" not in sys.modules:
            return None
        from pyspark import SparkContext

        return SparkContext._active_spark_context
    context = getattr(spark, "sparkContext", spark)
    if not hasattr(context, "setLocalProperty"):
        raise ConfigError(f"spark: expected a SparkSession or SparkContext, got {type(spark).__name__}")
    _check_spark_runs(context)
    return context


def _check_spark_runs(context: Any) -> None:
    if _is_stopped(context):
        raise StoppedError("the SparkContext was stopped; make a new SparkSession first")


def _is_stopped(context: Any) -> bool:
    return context._jsc is None or context._jsc.sc().isStopped()


def _named(fleet: int | list[str]) -> str:
    return f"{fleet} local servers" if isinstance(fleet, int) else f"the fleet {','.join(fleet)}"
