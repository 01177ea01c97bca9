"""The fleet of one context: its servers, and what starts, watches and ends them."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable

from ps2.config import FleetConfig, Place
from ps2.coordinator.beginning import start_from
from ps2.coordinator.checkpoints import Checkpoints
from ps2.coordinator.conf import PS2Conf
from ps2.coordinator.launchers.attach import AttachLauncher
from ps2.coordinator.launchers.launcher import Launcher
from ps2.coordinator.launchers.local import LocalLauncher
from ps2.coordinator.launchers.spark import ContainedServers, SparkLauncher
from ps2.coordinator.launchers.submission import DEFAULT_MEMORY_BYTES, Submission
from ps2.coordinator.master import Master
from ps2.coordinator.recovery import Policy
from ps2.coordinator.servicer import listen
from ps2.coordinator.supervisor import Supervisor
from ps2.coordinator.turns import Turns
from ps2.errors import LaunchError, UnavailableError
from ps2.ops.modules import check_loaded
from ps2.rpc.control import ServerControl
from ps2.rpc.transport import GrpcTransport

log = logging.getLogger(__name__)

MONITOR_INTERVAL_S = 0.1
ATTACHED_INTERVAL_S = 0.5
# It may be asking a server that does not answer; it ends by itself then.
WATCHER_TIMEOUT_S = 1.0
# Set by spark-submit, whose Java process is then this one's parent and all of Spark.
GATEWAY_VARIABLE = "PYSPARK_GATEWAY_PORT"


class Fleet:
    """Servers that have begun, with what ``conf`` asks for on them; if they cannot, none is left.

    Attributes:
        address: ``host:port`` by which tasks and servers reach the master.
        home: the same, for processes of this host.
        on_look: is called whenever somebody has looked after the servers.
    """

    def __init__(
        self,
        id: str,
        conf: PS2Conf,
        place: Place,
        token: str | None,
        transport: GrpcTransport,
        submission: Submission | None = None,
    ) -> None:
        """Args:
        place: where the master listens, and local servers.
        submission: how servers in containers are submitted; None: they are processes here, or run already.
        """
        self.on_look: Callable[[], None] = lambda: None
        self._is_attached = bool(conf.addresses)
        self._stopping = threading.Event()
        config = FleetConfig(conf.heartbeatS, conf.lostAfterS, conf.startWithinS, give_up_after_s=conf.retryTimeoutS)
        with contextlib.ExitStack() as undo:
            self.control = ServerControl(transport)
            self.master = Master(self.control, config, id, conf.replicas)
            self.face = listen(self.master, place.listen, token, conf.tls)
            self.address = place.reached(self.face.address)
            # With TLS it is to be reached by the name of its certificate.
            self.home = self.address if conf.tls is not None else place.near.reached(self.face.address)
            undo.callback(self.face.stop, 0)
            self.launcher: Launcher
            if conf.addresses:
                self.launcher = AttachLauncher(conf.addresses, self.control, self.master.roster.register, id)
            elif submission is not None:
                memory = conf.memoryLimit or DEFAULT_MEMORY_BYTES
                wanted = ContainedServers(conf.count, str(token), place, memory, conf.modules, tls=conf.tls)
                self.launcher = SparkLauncher(wanted, submission)
            else:
                self.launcher = LocalLauncher(conf.count, str(token), place, conf.memoryLimit, conf.modules, conf.tls)
            undo.callback(self.launcher.stop)
            self.checkpoints = Checkpoints(self.master, self.control, conf.checkpointDir, conf.keep)
            policy = Policy(conf.replicas, conf.recover)
            self.supervisor = Supervisor(self.master, self.launcher, self.control, self.checkpoints, policy)
            try:
                self.supervisor.start(self.address if submission is not None else self.home)
                for address in self.master.roster.addresses():
                    check_loaded(conf.modules, self.control.hello(address).operations, f"server {address}")
            except UnavailableError as error:
                if place.advertised == place.host or not isinstance(self.launcher, LocalLauncher):
                    raise
                raise LaunchError(
                    f"advertiseAddress: this host does not reach its own servers at {place.advertised}, by which tasks "
                    f"and the driver are to: {error}"
                ) from error
            start_from(self.master, self.supervisor, self.checkpoints, self.control, conf)
            undo.pop_all()
        self._watcher = threading.Thread(target=self._monitor, name="ps2-monitor", daemon=True)

    def watch(self) -> None:
        """Look after the servers from now on, until ``stop_watching``."""
        self._watcher.start()

    def stop_watching(self) -> None:
        self._stopping.set()

    def end(self) -> None:
        """End local servers; leave attached ones without our matrices."""
        self._watcher.join(WATCHER_TIMEOUT_S)
        try:
            if self._is_attached:
                self.master.free_all()
                self.supervisor.release()
        finally:
            self.launcher.stop()

    def _monitor(self) -> None:
        parent, turns = os.getppid(), Turns("ps2-monitor")
        while not self._stopping.wait(ATTACHED_INTERVAL_S if self._is_attached else MONITOR_INTERVAL_S):
            if GATEWAY_VARIABLE in os.environ and os.getppid() != parent:
                log.warning("spark-submit is gone: ending the servers")
                turns.take(self.launcher.stop)
                return
            turns.take(self.supervisor.poll)
            turns.take(self.on_look)
