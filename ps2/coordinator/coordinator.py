"""``Coordinator``: the parts of one running context. It starts them in order, and ends them in the reverse order."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import uuid
from dataclasses import dataclass
from typing import Any

from ps2.client.dispatch import check_process
from ps2.client.fleet import FleetRef, derived_token, token_id
from ps2.client.network import FleetNetwork
from ps2.client.session import Session
from ps2.client.sessions import install, uninstall
from ps2.config import Binding, WireConfig, join_address, read_token, tls_warning
from ps2.coordinator.application import Application, driver_binding, driver_secret, start_python
from ps2.coordinator.conf import PS2Conf
from ps2.coordinator.fleet import Fleet, with_restore
from ps2.coordinator.key_clock import KeyClock
from ps2.coordinator.monitoring import Monitoring
from ps2.coordinator.recovery import Policy, RecoveryLog
from ps2.coordinator.steps import Steps
from ps2.coordinator.supervisor import Supervisor
from ps2.errors import PS2Error, StoppedError, UsageError
from ps2.interrupts import join, shielded
from ps2.logs import JSON, JsonLog, log_format
from ps2.ops.modules import load_modules
from ps2.run.host import ActiveRuns, RunHost
from ps2.run.options import RunOptions
from ps2.run.result import RunResult
from ps2.run.runs import Runs
from ps2.run.spark.backend import SparkBackend
from ps2.transport.tls import check_serving

log = logging.getLogger(__name__)

# Maximum time to wait for the Spark job that starts Python workers. It takes about two seconds, and should end before
# the user's jobs start.
PYTHON_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class _Tokens:
    """The secrets of one context; None: there is no token.

    ``attached``: from the file ``tokenFile``. ``fleet``: for calls between servers and clients. ``run``: for workers
    that call the driver.
    """

    attached: str | None
    fleet: str | None
    run: str

    @classmethod
    def of(cls, conf: PS2Conf, id: str) -> _Tokens:
        attached = read_token(conf.tokenFile) if conf.fleet and conf.tokenFile is not None else None
        derived = derived_token(driver_secret(), id)
        fleet = attached if conf.fleet else derived
        # The driver unpickles what workers send, so workers need a token even if the servers have none.
        return cls(attached, fleet, fleet or derived)


class Coordinator:
    """The parts of one running context. Programs use it through ``PS2Context``."""

    def __init__(self, spark: SparkBackend | None, conf: PS2Conf) -> None:
        """Start or attach to a fleet, and let Spark's tasks use it. If a part fails to start, end the started parts."""
        self.conf = conf = with_restore(conf)
        self.is_stopped = False
        self._stop_lock = threading.Lock()
        self._pid = os.getpid()
        id = uuid.uuid4().hex[:12]
        tokens = _Tokens.of(conf, id)
        self.token = tokens.fleet
        load_modules(conf.modules)
        conf.launcherClass.check(spark_context := None if spark is None else spark.context, conf.sparkConf)
        binding = driver_binding(conf, spark, tokens.fleet is not None)
        self.active_runs = ActiveRuns()
        with contextlib.ExitStack() as undo:
            active = self.active_runs
            self._log = JsonLog(lambda: {"fleet": id, **active.log_fields()})
            undo.callback(self._log.close)
            if log_format() == JSON:  # the loggers ``ps2.*`` of this process print JSON
                self._log.open()
            if conf.tls is not None:
                check_serving(conf.tls, binding.advertised)
            elif (warning := tls_warning(None, join_address(binding.host, 0), *conf.addresses)) is not None:
                log.warning("%s", warning)
            python_start = start_python(spark, conf)
            network = FleetNetwork(tokens.fleet, WireConfig(tls=conf.tls))
            undo.callback(network.close)
            self.fleet = Fleet(id, conf, binding, tokens.fleet, network, self.active_runs, spark_context)
            undo.callback(self.fleet.master_server.stop, 0)
            undo.callback(self.fleet.launcher.stop)
            self._connect_parts(id, tokens, binding, network)
            undo.callback(self.steps.close)
            self.monitoring = Monitoring(conf, self.fleet, self.active_runs, self.recoveries)
            undo.pop_all()
        self._key_clock = KeyClock(self.fleet.master, network, f"{id}/keys")
        try:
            self._start_threads(spark)
            if python_start is not None:
                join(python_start, PYTHON_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def _connect_parts(self, id: str, tokens: _Tokens, binding: Binding, network: FleetNetwork) -> None:
        """Create the parts that need a started fleet, and give each part the parts that it uses."""
        conf, fleet = self.conf, self.fleet
        fleet_token_id = token_id(driver_secret(), tokens.fleet)
        ref = FleetRef(id, fleet.address, conf.strict, conf.retryTimeoutS, conf.modules, fleet_token_id)
        self.application = Application(ref, tokens.attached, conf.tls, fleet.master, fleet.control)
        self.session = Session(
            *(ref, network),
            on_rollback=self._on_rollback,
            master_address=fleet.local_address,
            server_addresses=fleet.master.registry.addresses,
        )
        self.recoveries = RecoveryLog()
        self.steps = Steps(
            *(fleet.checkpoints, self.session, fleet.master, fleet.control, conf, self.active_runs, self.recoveries)
        )
        host = RunHost(
            *(self.session, fleet.control, fleet.master, self.steps, self.active_runs),
            *(binding, tokens.run, WireConfig(tls=conf.tls)),
        )
        self.runs = Runs(host)
        policy = Policy(conf.replicas, conf.recover)
        self._supervisor = Supervisor(fleet.fleet_control, fleet.checkpoints, policy, self.steps, self.recoveries)

    def _start_threads(self, spark: SparkBackend | None) -> None:
        """Start the threads; let this process and Spark's tasks connect to the fleet."""
        install(self.session)
        self.fleet.watch(self._supervisor.poll, self.application.renew)
        self._key_clock.start()
        atexit.register(self._end_at_exit)
        if spark is not None:
            self.application.give_access(spark)

    @property
    def is_of_this_process(self) -> bool:
        """True in the process that created this object; False in a forked child, which must not end the fleet."""
        return os.getpid() == self._pid

    def check_running(self) -> None:
        """Raise StoppedError if ``stop`` was called, UsageError in a forked child."""
        check_process(self._pid)
        if self.is_stopped:
            raise StoppedError("this PS2Context was stopped")

    def memory(self) -> list[tuple[int, int]]:
        """Return (memory limit, used memory) of each server, in bytes; see ``PS2Context.memory``."""
        control, addresses = self.fleet.control, self.fleet.master.registry.addresses()
        statuses = self.session.ask(lambda: [control.status(address) for address in addresses])
        return [(status.memory_limit_bytes, status.memory_bytes) for status in statuses]

    def roll_back(self, timeout_s: float) -> None:
        """Roll the fleet back to its newest checkpoint; see ``PS2Context.rollBack``."""
        if self.active_runs.all():
            raise UsageError("rollBack: a run is in progress, and would lose clocks: wait for its end")
        with contextlib.suppress(PS2Error):  # errors of asynchronous additions, which the rollback undoes
            self.session.dispatch.flush()
        self._supervisor.roll_back(timeout_s)
        self.steps.acknowledge_rollback()

    def run(self, data: Any, worker_fn: Any, options: RunOptions) -> RunResult:
        """Run workers until they have ended; see ``PS2Context.run``."""

        def run() -> RunResult:
            return self.runs.run(self.application.running("run"), data, worker_fn, options)

        return self.monitoring.record_run(run, worker_fn)

    def stop(self) -> None:
        """End a started fleet, or disconnect from an attached one (``PS2Context.stop``). A second call does nothing."""
        with self._stop_lock:
            if self.is_stopped:
                return
            self.is_stopped = True
        atexit.unregister(self._end_at_exit)
        with contextlib.ExitStack() as shutdown:  # runs the callbacks in reverse order, all of them even if one raises
            shutdown.callback(self._log.close)
            shutdown.callback(self.application.leave)
            shutdown.callback(self.fleet.master_server.stop, 0)
            shutdown.callback(uninstall, self.session.fleet.id)
            # End the fleet before the session: servers that have ended need no message that the session ends.
            shutdown.callback(self._end_fleet)
            shutdown.callback(self.session.dispatch.flush)

    def _end_fleet(self) -> None:
        with contextlib.ExitStack() as shutdown:
            shutdown.callback(self.fleet.end)
            shutdown.callback(self.application.stop)
            shutdown.callback(self.steps.close)
            shutdown.callback(self.runs.stop)
            shutdown.callback(self.monitoring.stop)
            shutdown.callback(self.fleet.stop_watching)
            shutdown.callback(self._key_clock.stop)

    @shielded
    def _end_at_exit(self) -> None:
        if self.is_of_this_process:  # a forked child inherits the registration of this function
            self._end_fleet()

    def _on_rollback(self, epoch: int, step: int | None) -> None:
        """Let the driver's loop continue from ``step``, and the next Spark jobs of this thread use the new epoch."""
        self.steps.roll_back(epoch, step or 0)
        self.application.roll_back(epoch)
