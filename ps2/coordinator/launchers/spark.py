"""Servers in containers of a cluster: the fleet is a second Spark application, as in section 5 of the PS2 paper."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ps2.certificates import Tls, TlsFiles
from ps2.config import Binding, WireConfig
from ps2.coordinator.launcher import Launcher, LaunchRequest
from ps2.coordinator.launchers.containers.hosts import Hosts
from ps2.coordinator.launchers.containers.submission import (
    DEFAULT_MEMORY_BYTES,
    FleetApplication,
    Submission,
    submission_for,
)
from ps2.errors import ConfigError, LaunchError
from ps2.protocol.pb import launcher_pb2 as pb
from ps2.rpc.launcher_control import order_to_pb, report_from_pb
from ps2.rpc.serving import RpcServer
from ps2.version import __version__

# A task that fails this often before it has reported to the launcher counts as ended: usually Python or ps2 is missing.
MAX_ATTEMPTS = 3
# Maximum time that ``stop`` waits for the hosts' next reports, which get the order to leave.
LEAVE_TIMEOUT_S = 2.0
POLL_S = 0.05
# Threads that answer the hosts' reports.
THREADS = 4


class LauncherServicer:
    """Implements ``service Launcher`` of ``proto/ps2/v1/launcher.proto``: gets reports, and replies with orders."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts

    def Report(self, request: pb.ReportRequest) -> pb.ReportReply:
        return order_to_pb(self.hosts.report(report_from_pb(request)))


def listen(hosts: Hosts, bind: str, token: str, tls: Tls | None = None) -> RpcServer:
    """Start the launcher's gRPC server."""
    service = pb.DESCRIPTOR.services_by_name["Launcher"]
    return RpcServer(service, LauncherServicer(hosts), bind, token, THREADS, WireConfig(tls=tls))


@dataclass(frozen=True)
class ContainedServers:
    """The settings of servers in containers.

    ``keep_addresses``: a replacement on the same machine listens at the address of the lost server.
    """

    servers: int
    token: str
    binding: Binding
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    ops: tuple[str, ...] = ()
    keep_addresses: bool = False
    tls: TlsFiles | None = None


class SparkLauncher(Launcher):
    """Submits one Spark job. Each task runs one server as this process orders; ``hosts`` stores the tasks' reports.

    After the loss of a container, the cluster manager starts the task in another one. The task starts a server only on
    order. So no server is replaced before the coordinator has noticed the loss.
    """

    is_remote = True
    start_timeout_s = 120.0  # the cluster may have to wait for free containers

    def __init__(self, spec: ContainedServers, submission: Submission) -> None:
        self._spec = spec
        self._submission = submission
        self.hosts = Hosts(spec.servers, __version__, spec.keep_addresses)
        self._lock = threading.Lock()
        self._stopped = False
        self._application: FleetApplication | None = None
        self._generation = 0  # number of submitted Spark applications
        self._folder = Path(tempfile.mkdtemp(prefix="ps2-"))
        try:
            self._server = listen(self.hosts, spec.binding.listen, spec.token, spec.tls)
        except Exception:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    @classmethod
    def check(cls, spark_context: Any, spark_conf: Mapping[str, str]) -> None:
        _submission(spark_context, spark_conf)

    @classmethod
    def of(cls, request: LaunchRequest) -> SparkLauncher:
        spec = ContainedServers(
            *(request.servers, str(request.token), request.binding),
            *(request.memory_limit_bytes or DEFAULT_MEMORY_BYTES, request.ops),
            tls=request.tls,
        )
        return cls(spec, _submission(request.spark_context, request.spark_conf))

    @staticmethod
    def ports_needed(servers: int) -> int:
        return 1

    @property
    def servers(self) -> int:
        return self._spec.servers

    def start(self, index: int, master: str) -> None:
        with self._lock:
            if self._stopped:
                raise LaunchError(f"server {index} cannot be started: the fleet was stopped")
            if self._application is not None and self._application.ended() is not None:
                self._application.stop()
                self._application = None
            if self._application is None:
                self._application = self._submit()
            self.hosts.order(index, self._arguments(index, master))

    def poll(self) -> dict[int, str | None]:
        application = self._application
        if self._stopped or application is None:
            return dict.fromkeys(range(self.servers), "the fleet was stopped")
        if (reason := application.ended()) is not None:
            return dict.fromkeys(range(self.servers), reason)
        reasons: dict[int, str | None] = {**self.hosts.ended()}
        for index, (count, message) in application.failures().items():
            if count >= MAX_ATTEMPTS and index in self.hosts.absent():
                reasons.setdefault(index, f"{count} attempts of its task have failed, the last one with: {message}")
        return reasons

    def status_text(self) -> str:
        application = self._application
        absent = self.hosts.absent()
        text = f"{self.servers - len(absent)} of {self.servers} requested containers have reported"
        if application is None:
            return text
        failures = application.failures()
        failed = [f"server {index}: {failures[index][1]}" for index in absent if index in failures]
        return "; ".join([text, application.status_text(), *failed])

    def stop(self) -> None:
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        self.hosts.leave()
        if self._application is not None:
            deadline_s = time.monotonic() + LEAVE_TIMEOUT_S
            while not self.hosts.are_released() and time.monotonic() < deadline_s:
                time.sleep(POLL_S)
            self._application.stop()
        self._server.stop(0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _submit(self) -> FleetApplication:
        program_input = {
            "servers": self.servers,
            "memory_bytes": self._spec.memory_bytes,
            "launcher": self._spec.binding.advertised_address(self._server.address),
            "token": self._spec.token,
            "tls": asdict(self._spec.tls.current()) if self._spec.tls is not None else None,
            "tag": f"ps2-{uuid.uuid4().hex[:12]}",
            "generation": self._generation,
        }
        self._generation += 1
        return FleetApplication(self._submission, program_input, self._folder / "spark.log")

    def _arguments(self, index: int, master: str) -> Sequence[str]:
        registration = ["--master", master, "--index", str(index)] if master else []
        ops = [argument for module in self._spec.ops for argument in ("--ops", module)]
        return ["server", *registration, "--memory-limit", str(self._spec.memory_bytes), *ops]


def _submission(spark_context: Any, spark_conf: Mapping[str, str]) -> Submission:
    """Return the fleet's submission to the cluster of the driver's Spark application."""
    if spark_context is None:
        raise ConfigError(
            "launcher='spark' needs a SparkSession with a SparkContext, because the fleet runs in the same cluster; "
            "from a client of Spark Connect, start servers with ps2 launch and give fleet="
        )
    return submission_for(dict(spark_context.getConf().getAll()), spark_conf, spark_context.pythonExec)
