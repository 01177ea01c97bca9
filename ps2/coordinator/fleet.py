"""The fleet of one context: its master, launcher and monitor thread, and the initial state of its servers."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem

from ps2.client.network import FleetNetwork
from ps2.config import Binding, FleetConfig
from ps2.coordinator.checkpoints import Checkpoints, Newest
from ps2.coordinator.conf import LATEST, PS2Conf
from ps2.coordinator.fleet_control import FleetControl
from ps2.coordinator.launcher import LaunchRequest
from ps2.coordinator.master import Master
from ps2.coordinator.published_catalog import matrices_to_adopt
from ps2.coordinator.servicer import listen
from ps2.errors import CheckpointMissingError, ConfigError, LaunchError, UnavailableError, UsageError
from ps2.guarded_loop import GuardedLoop
from ps2.interrupts import sleep
from ps2.ops.modules import check_loaded
from ps2.rpc.control import ServerControl, ServerInfo
from ps2.run.host import ActiveRuns
from ps2.storage import folders
from ps2.storage.files import resolve_url, shared_url

log = logging.getLogger(__name__)

# Seconds between two checks whether an earlier driver still uses attached servers.
POLL_S = 0.2


def with_restore(conf: PS2Conf) -> PS2Conf:
    """Replace ``restore="latest"`` by checkpointDir, or by None if that folder has no checkpoint yet."""
    if conf.restore != LATEST or conf.checkpointDir is None:
        return conf
    folders.prepare(conf.checkpointDir)
    try:
        folders.newest(conf.checkpointDir)
    except CheckpointMissingError as error:
        log.info("restore: there is no checkpoint yet: %s", error)
        return replace(conf, restore=None)
    return replace(conf, restore=conf.checkpointDir)


def load_initial_state(fleet: FleetControl, checkpoints: Checkpoints, conf: PS2Conf) -> None:
    """Load the state with which the context starts into its servers: a checkpoint, or an earlier driver's matrices."""
    master = fleet.master
    if conf.checkpointDir is not None:
        if isinstance(resolve_url(conf.checkpointDir, "checkpointDir")[0], MemoryFileSystem):
            raise ConfigError(
                f"checkpointDir: expected a folder that the servers and this process share, got {conf.checkpointDir}, "
                "the memory of one process"
            )
        folders.prepare(conf.checkpointDir)
    restored = None
    if conf.restore is not None:  # check the checkpoint before changing servers
        folder = folders.newest(shared_url(conf.restore))
        restored = Newest(folder, folders.read_manifest(folder), {})
        if not restored.manifest.number:
            raise UsageError(
                f"restore: expected a checkpoint of a fleet, got {folder}, a saved vector or matrix for DCV.load"
            )
        checkpoints.resume_from(restored, shared_url(conf.restore))
    if conf.fleet:
        _take_over(fleet, conf, adopt=restored is None)
    else:
        fleet.activate()
    if restored is not None:
        master.adopt(restored.manifest.matrices, repartition=True)
        indices = range(conf.count)
        fleet.load(restored, indices, ids=False)
        fleet.take_loaded(indices)
        master.registry.expect_recovery()
    if conf.replicas:
        master.registry.expect_recovery()


def _take_over(fleet: FleetControl, conf: PS2Conf, adopt: bool) -> None:
    """Coordinate a namespace once its coordinator was silent for ``lostAfterS``; free all matrices unless ``adopt``."""
    master, servers = fleet.master, fleet.control
    servers_info = _wait_for_earlier_driver(fleet, conf)
    servers.route_version = max(info.route_version for info in servers_info)
    fleet.activate()
    fleet.discard_checkpoints()
    matrices = matrices_to_adopt(servers_info) if adopt else ()
    named = {matrix.id for matrix in matrices}
    for address in master.registry.addresses():
        for status in servers.status(address).matrices:
            if status.matrix not in named:  # no program can find a matrix without a name
                servers.free_matrix(address, status.matrix)
    if matrices:
        master.adopt(matrices, repartition=False)
        log.info("took over %d matrices of the previous driver of namespace %r", len(matrices), conf.namespace)


def _wait_for_earlier_driver(fleet: FleetControl, conf: PS2Conf) -> list[ServerInfo]:
    """Wait until no other driver uses the namespace; return the servers' descriptions. Raise UsageError if one runs."""
    start_s = time.monotonic()
    while True:
        servers_info = [fleet.control.hello(address) for address in fleet.master.registry.addresses()]
        in_use = [info for info in servers_info if info.coordinator and info.silent_s < conf.lostAfterS]
        if not in_use:
            return servers_info
        # A driver that has sent a heartbeat after the start of this wait is running.
        alive = [info for info in in_use if info.silent_s < time.monotonic() - start_s - POLL_S]
        if alive:
            raise UsageError(
                f"namespace {conf.namespace!r} of this fleet has a driver (coordinator {alive[0].coordinator}), which "
                f"sent its last heartbeat {alive[0].silent_s:.1f} s ago; a namespace has one driver at a time: stop "
                "that driver first, or give this one a namespace of its own: namespace='...'"
            )
        sleep(POLL_S)


# Seconds between two checks of the servers. Each check calls every attached server, but no started server.
MONITOR_INTERVAL_S = 0.1
ATTACHED_INTERVAL_S = 0.5
# Maximum time that ``end`` waits for the monitor thread. A thread that waits for a silent server ends after that call.
WATCHER_TIMEOUT_S = 1.0
# spark-submit sets this variable. The driver is then a child of spark-submit's Java process, in which Spark runs.
GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"


class Fleet:
    """The servers of one context. If one of them cannot start, all of them are ended.

    Attributes:
        address: the master's ``host:port`` for tasks and servers.
        local_address: the master's ``host:port`` for processes of this host.
        is_attached: True if another program has started the servers.
    """

    def __init__(  # noqa: PLR0913 - parts of one context
        self,
        id: str,
        conf: PS2Conf,
        binding: Binding,
        token: str | None,
        transport: FleetNetwork,
        active: ActiveRuns,
        spark_context: Any = None,
    ) -> None:
        """Start the master and the servers. ``spark_context``: the driver's, for the launcher."""
        self.is_attached = bool(conf.addresses)
        self.replicas = conf.replicas
        self._stopping = threading.Event()
        config = FleetConfig(conf.heartbeatS, conf.lostAfterS, conf.startWithinS, give_up_after_s=conf.retryTimeoutS)
        with contextlib.ExitStack() as undo:
            self.control = ServerControl(transport, conf.namespace)
            self.master = Master(self.control, config, id, conf.replicas, active, self.is_attached)
            self.master_server = listen(self.master, binding.listen, token, conf.tls)
            self.address = binding.advertised_address(self.master_server.address)
            # With TLS, clients must use the host name of the master's certificate.
            self.local_address = (
                self.address if conf.tls is not None else binding.local.advertised_address(self.master_server.address)
            )
            undo.callback(self.master_server.stop, 0)
            request = LaunchRequest(
                *(id, conf.count, token, binding, conf.memoryLimit, conf.modules, conf.tls, conf.addresses),
                *(self.control, self.master.registry.register, spark_context, conf.sparkConf),
            )
            self.launcher = conf.launcherClass.of(request)
            undo.callback(self.launcher.stop)
            self.checkpoints = Checkpoints(self.master, self.control, conf.checkpointDir, conf.keep)
            self.fleet_control = FleetControl(self.master, self.launcher, self.control, conf.replicas)
            try:
                self.fleet_control.start(self.address if self.launcher.is_remote else self.local_address)
                for address in self.master.registry.addresses():
                    check_loaded(conf.modules, self.control.hello(address).operations, f"server {address}")
            except UnavailableError as error:
                if self.is_attached or self.launcher.is_remote or binding.advertised == binding.host:
                    raise
                raise LaunchError(
                    f"advertiseAddress: this host does not reach its own servers at {binding.advertised}, the host "
                    f"by which tasks and the driver connect to them: {error}"
                ) from error
            load_initial_state(self.fleet_control, self.checkpoints, conf)
            undo.pop_all()
        self._watcher: threading.Thread | None = None

    def watch(self, *polls: Callable[[], None]) -> None:
        """Call all ``polls`` repeatedly in the monitor thread, until ``stop_watching``."""
        self._watcher = threading.Thread(target=self._monitor, args=polls, name="ps2-monitor", daemon=True)
        self._watcher.start()

    def stop_watching(self) -> None:
        self._stopping.set()

    def end(self) -> None:
        """End started servers. On attached servers, free this context's matrices."""
        if self._watcher is not None:
            self._watcher.join(WATCHER_TIMEOUT_S)
        try:
            if self.is_attached:
                self.master.free_all()
                self.fleet_control.release()
        finally:
            self.launcher.stop()

    def _monitor(self, *polls: Callable[[], None]) -> None:
        parent, loop = os.getppid(), GuardedLoop("ps2-monitor")
        while not self._stopping.wait(ATTACHED_INTERVAL_S if self.is_attached else MONITOR_INTERVAL_S):
            if GATEWAY_VARIABLE in os.environ and os.getppid() != parent:
                log.warning("spark-submit has ended: ending the servers")
                loop.run_once(self.launcher.stop)
                return
            for poll in polls:
                loop.run_once(poll)
