"""The fleet of one context: its master, its launcher, and the monitor thread."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from ps2.client.network import FleetNetwork
from ps2.config import Binding, FleetConfig
from ps2.coordinator.checkpoints import Checkpoints
from ps2.coordinator.conf import PS2Conf
from ps2.coordinator.fleet_control import FleetControl
from ps2.coordinator.launcher import LaunchRequest
from ps2.coordinator.master import Master
from ps2.coordinator.servicer import listen
from ps2.coordinator.startup import start_from
from ps2.errors import LaunchError, UnavailableError
from ps2.guarded_loop import GuardedLoop
from ps2.ops.modules import check_loaded
from ps2.rpc.control import ServerControl
from ps2.run.host import ActiveRun

log = logging.getLogger(__name__)

MONITOR_INTERVAL_S = 0.1
ATTACHED_INTERVAL_S = 0.5
# How long to wait for the monitor thread. If it waits for a silent server, it ends by itself later.
WATCHER_TIMEOUT_S = 1.0
# spark-submit sets this variable. Spark then runs in spark-submit's Java process, which is this process's parent.
GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"


class Fleet:
    """The started servers of one context. If they cannot start, no process is left.

    Attributes:
        address: ``host:port`` by which tasks and servers reach the master.
        home: ``host:port`` by which processes of this host reach the master.
        is_attached: True if another program runs the servers.
        replicas: number of copies of each shard.
        master_server: the gRPC server that answers calls to the master.
    """

    def __init__(  # noqa: PLR0913 - parts of one context
        self,
        id: str,
        conf: PS2Conf,
        binding: Binding,
        token: str | None,
        transport: FleetNetwork,
        active: ActiveRun,
        spark_context: Any = None,
    ) -> None:
        """Start the master and the servers.

        Args:
            binding: addresses at which the master and local servers listen.
            spark_context: the servers may run on its cluster; None: there is none.
        """
        self.is_attached = bool(conf.addresses)
        self.replicas = conf.replicas
        self._stopping = threading.Event()
        config = FleetConfig(conf.heartbeatS, conf.lostAfterS, conf.startWithinS, give_up_after_s=conf.retryTimeoutS)
        with contextlib.ExitStack() as undo:
            self.control = ServerControl(transport)
            self.master = Master(self.control, config, id, conf.replicas, active, self.is_attached)
            self.master_server = listen(self.master, binding.listen, token, conf.tls)
            self.address = binding.reached(self.master_server.address)
            # With TLS, clients need the host that the master's certificate names.
            self.home = self.address if conf.tls is not None else binding.near.reached(self.master_server.address)
            undo.callback(self.master_server.stop, 0)
            request = LaunchRequest(
                *(id, conf.count, token, binding, conf.memoryLimit, conf.modules, conf.tls, conf.addresses),
                *(self.control, self.master.registry.register, spark_context, conf.sparkConf),
            )
            self.launcher = conf.launcherClass.of(request)
            undo.callback(self.launcher.stop)
            self.checkpoints = Checkpoints(self.master, self.control, conf.checkpointDir, conf.keep)
            self.orders = FleetControl(self.master, self.launcher, self.control, conf.replicas)
            try:
                self.orders.start(self.address if self.launcher.is_remote else self.home)
                for address in self.master.registry.addresses():
                    check_loaded(conf.modules, self.control.hello(address).operations, f"server {address}")
            except UnavailableError as error:
                if self.is_attached or self.launcher.is_remote or binding.advertised == binding.host:
                    raise
                raise LaunchError(
                    f"advertiseAddress: this host does not reach its own servers at {binding.advertised}, the host "
                    f"that tasks and the driver are told: {error}"
                ) from error
            start_from(self.orders, self.checkpoints, conf)
            undo.pop_all()
        self._watcher: threading.Thread | None = None

    def watch(self, *polls: Callable[[], None]) -> None:
        """Call ``polls`` repeatedly, in a thread, until ``stop_watching``."""
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
                self.orders.release()
        finally:
            self.launcher.stop()

    def _monitor(self, *polls: Callable[[], None]) -> None:
        parent, loop = os.getppid(), GuardedLoop("ps2-monitor")
        while not self._stopping.wait(ATTACHED_INTERVAL_S if self.is_attached else MONITOR_INTERVAL_S):
            if GATEWAY_VARIABLE in os.environ and os.getppid() != parent:
                log.warning("spark-submit is gone: ending the servers")
                loop.run_once(self.launcher.stop)
                return
            for poll in polls:
                loop.run_once(poll)
