"""Servers in containers of a cluster: the fleet is a second Spark application (paper, section 5)."""

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

# If a task fails this often before its host has reported, Python or ps2 is missing there.
MAX_ATTEMPTS = 3
LEAVE_TIMEOUT_S = 2.0
POLL_S = 0.05
THREADS = 4


class LauncherServicer:
    """Implements ``service Launcher`` of the contract: decodes a report, passes it on, encodes the order."""

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
    """How the servers of a fleet in containers are started.

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
    """One Spark job whose tasks each host a server, by the orders of this process; ``hosts`` has their reports.

    The cluster manager gives a lost container's task another container. Servers start by order only, so a new server
    never replaces one whose loss has not been noticed.
    """

    is_remote = True
    start_timeout_s = 120.0  # a cluster may have to end something else first

    def __init__(self, spec: ContainedServers, submission: Submission) -> None:
        self._spec = spec
        self._submission = submission
        self.hosts = Hosts(spec.servers, __version__, spec.keep_addresses)
        self._lock = threading.Lock()
        self._stopped = False
        self._application: FleetApplication | None = None
        self._generation = 0
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
        endings: dict[int, str | None] = {**self.hosts.ended()}
        for index, (count, message) in application.failures().items():
            if count >= MAX_ATTEMPTS and index in self.hosts.absent():
                endings.setdefault(index, f"{count} attempts of its task have failed, the last one with: {message}")
        return endings

    def status_text(self) -> str:
        application = self._application
        absent = self.hosts.absent()
        text = f"{self.servers} containers were asked for, and {self.servers - len(absent)} are at work"
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
            while not self.hosts.have_left() and time.monotonic() < deadline_s:
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
        home = ["--master", master, "--index", str(index)] if master else []
        ops = [word for module in self._spec.ops for word in ("--ops", module)]
        return ["server", *home, "--memory-limit", str(self._spec.memory_bytes), *ops]


def _submission(spark_context: Any, spark_conf: Mapping[str, str]) -> Submission:
    """Return how the fleet is submitted to the cluster of the driver's own Spark application."""
    if spark_context is None:
        raise ConfigError(
            "launcher='spark' needs a SparkSession with a SparkContext, whose cluster the fleet is for; from a client "
            "of Spark Connect, start servers with ps2 launch and give fleet="
        )
    return submission_for(dict(spark_context.getConf().getAll()), spark_conf, spark_context.pythonExec)
