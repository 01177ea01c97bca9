"""A server process: binds its ports, registers with the master, and serves until it is stopped or loses the master."""

from __future__ import annotations

import faulthandler
import logging
import math
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ps2.config import ServerConfig, WireConfig, is_wildcard, join_address, split_address, split_listen, tls_warning
from ps2.errors import LaunchError, NotFoundError, PS2Error, TransientError
from ps2.listening import reachable_host
from ps2.logs import JSON, JsonLog, log_format
from ps2.ops import warm
from ps2.ops.ahead import compiling_process
from ps2.ops.modules import load_modules
from ps2.ops.parallel import set_cores
from ps2.processes import ProcessId
from ps2.protocol.pb import server_pb2
from ps2.rpc.control import Network
from ps2.rpc.master_control import MasterControl
from ps2.rpc.server_status import ServerStatus
from ps2.rpc.serving import RpcServer
from ps2.server import fast_path_compiled
from ps2.server.engine import Engine
from ps2.server.fence import now_s
from ps2.server.memory import available_bytes, keep_freed_memory
from ps2.server.namespaces import Namespaces
from ps2.server.servicer import ServerServicer
from ps2.transport.data_server import DataServer
from ps2.transport.proof import Tokens
from ps2.transport.tls import peer_refusal
from ps2.version import __version__

if TYPE_CHECKING:
    from ps2.transport.exposition import Exposition

log = logging.getLogger("ps2.server")

# Time that requests in flight have to end after the server was told to stop.
GRACE_S = 2.0
# The process exits this long after it was told to stop, even if a library's thread does not end.
END_S = 15.0
# Intervals of polling.
PARENT_CHECK_S = 0.5
PARENT_POLL_S = 0.1
ACTIVE_POLL_S = 0.1
LEAVE_POLL_S = 0.1
# Python code of a process that compiles the kernels missing in numba's cache, at low priority: workers need the cores.
COMPILE_FAST_PATH = "from ps2.server import fast_path_compiled; fast_path_compiled.load(); "
COMPILE = "from ps2.ops import warm; warm.warm()"
COMPILING_NICENESS = 10
# Maximum number of matrices in a heartbeat, which describes the largest matrices. ``ps2 status`` shows all.
MAX_REPORTED_MATRICES = 200
# Maximum delay of a signal's handler, which runs in the main thread.
SIGNAL_POLL_S = 0.5


@dataclass(frozen=True)
class Home:
    """A server's fleet: the address of the master, and the server's index in the fleet."""

    master: str
    index: int


@dataclass
class HeartbeatSender:
    """Sends a server's heartbeats to the master, with its status while somebody watches the fleet."""

    master: MasterControl
    home: Home
    server_id: str
    engine: Engine
    status: Callable[[], ServerStatus]
    _watched: bool = False

    def beat(self) -> None:
        """Send a heartbeat. After the answer, renew the lease from the time at which the heartbeat was sent."""
        sent_s = now_s()
        mutations = self.engine.meter.mutations
        was_watched, status = self._watched, self.status() if self._watched else None
        self._watched = self.master.heartbeat(self.home.index, self.server_id, mutations, status)
        self.engine.fence.renew_lease(sent_s)
        if self._watched and not was_watched:  # the new watcher has no status of this server yet
            self.master.heartbeat(self.home.index, self.server_id, mutations, self.status())


@dataclass(frozen=True)
class Parent:
    """The process that a server was started for; the server ends with it.

    Attributes:
        process: the identity of the parent process, which may end before the server first checks it.
        scratch: a folder of the parent to remove after its end; None if there is none.
    """

    process: ProcessId
    scratch: Path | None

    def ended_within(self, wait_s: float) -> bool:
        """Return True, and remove the scratch folder, if the process ends within ``wait_s``."""
        deadline_s = time.monotonic() + wait_s
        while self.process.alive():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(PARENT_POLL_S)
        log.warning("the parent process %d has ended", self.process.pid)
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)
        return True


def serve(
    config: ServerConfig,
    token: str | Tokens | None,
    home: Home | None,
    parent: Parent | None,
    connect: Callable[[WireConfig], Network],
) -> None:
    """Run a server until it is told to stop.

    ``home``: the fleet to register with; None for a server that a driver attaches to later. ``parent``: the server ends
    when this process ends or crashes. ``connect`` returns a network for calls to the master and to other servers.
    """
    stop, drain = threading.Event(), threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    signal.signal(signal.SIGTERM, lambda *_: drain.set() if config.drain_s and not drain.is_set() else stop.set())
    if parent is not None:
        _start_thread(_watch_parent, parent, stop)
    load_modules(config.ops)
    keep_freed_memory()
    if config.cores is not None:
        set_cores(config.cores)
    server_id = uuid.uuid4().hex
    wire = WireConfig(tls=config.tls)
    engine = Engine(config.memory_limit_bytes, config.allow_udf and token is not None)
    engine.fence.waits = home is not None
    namespaces = Namespaces(engine, lambda: connect(wire), wire)
    if log_format() == JSON:
        JsonLog(lambda: _log_fields(namespaces, server_id, home), logger="").open()
    host, _ = split_listen(config.listen)
    service = server_pb2.DESCRIPTOR.services_by_name["Server"]
    exposition: Exposition | None = None
    with ExitStack() as started:
        data = DataServer(namespaces, host, config.data_ports, token, server_id, wire)
        started.callback(data.stop, 0)
        servicer = ServerServicer(namespaces, server_id, wire, stop.set, data)
        if config.metrics_port is not None:  # may fail, so it comes before RpcServer, which answers calls
            info = {"version": __version__, "server_id": server_id, "index": str(home.index) if home else ""}
            exposition = _serve_metrics(servicer, namespaces, info, (host, config.metrics_port))
            started.callback(exposition.stop)
        server = RpcServer(service, servicer, config.listen, token, config.threads, wire)
        started.pop_all()
    address = _advertised_address(server.address, config.advertise)
    log.info(
        "listening on %s, advertised as %s, memory limit %s bytes", server.address, address, config.memory_limit_bytes
    )
    if config.announce is not None:
        with open(config.announce, "w") as file:
            file.write(address)
    if (warning := tls_warning(config.tls, address, server.address)) is not None:
        log.warning("%s", warning)
    if config.tls is not None and (reason := peer_refusal(config.tls, split_address(address)[0])) is not None:
        log.warning("peers will not trust this server's certificate: %s (%s)", reason, config.tls)
    if config.memory_limit_bytes > (available := available_bytes()):
        log.warning("the memory limit is more than the %s bytes that this process may take", f"{available:,}")
    with ExitStack() as undo:
        undo.callback(servicer.close)
        undo.callback(server.stop, GRACE_S)
        undo.callback(data.stop, GRACE_S)
        undo.callback(log.info, "stopping")
        if exposition is not None:
            undo.callback(exposition.stop)
        if home is not None:
            master = MasterControl(connect(wire), home.master)
            try:
                interval_s = _register(master, home, server_id, address)
            except LaunchError:
                if parent is not None:
                    parent.ended_within(GRACE_S)
                raise
            sender = HeartbeatSender(master, home, server_id, engine, lambda: servicer.status(MAX_REPORTED_MATRICES))
            # While the parent process exists, a silent master is only suspended, as on a sleeping laptop.
            orphan_timeout_s = config.orphan_timeout_s if parent is None else math.inf
            _start_thread(_heartbeat, sender, interval_s, orphan_timeout_s, stop)
        _start_thread(_warm_when_active, engine, wire.fast_path, stop)
        if config.drain_s:
            _start_thread(_drain, namespaces, config.drain_s, drain, stop)
        # Python runs signal handlers in the main thread, which a signal to another thread does not wake.
        while not stop.wait(SIGNAL_POLL_S):
            pass
        faulthandler.dump_traceback_later(END_S, exit=True)


def _log_fields(namespaces: Namespaces, server_id: str, home: Home | None) -> dict[str, object]:
    """Return the fields of every log line, which identify the fleet and this server."""
    return {"fleet": namespaces.coordinator or None, "server": server_id if home is None else home.index}


def _warm_when_active(engine: Engine, fast_paths: bool, stop: threading.Event) -> None:
    """Wait until the server has its shards, whose loading needs the CPU; then load or compile all kernels."""
    while engine.fence.waits:
        if stop.wait(ACTIVE_POLL_S):
            return
    if warm.is_missing() or (fast_paths and fast_path_compiled.is_missing()):
        # Compile in another process: here, requests would wait for the GIL and for numba's lock.
        process = compiling_process(COMPILE_FAST_PATH + COMPILE if fast_paths else COMPILE, COMPILING_NICENESS)
        while process.poll() is None:
            if stop.wait(ACTIVE_POLL_S):
                process.terminate()
                process.wait()
                return
    if fast_paths:
        engine.fast_paths.load()
    warm.warm()


def _drain(namespaces: Namespaces, drain_s: float, drain: threading.Event, stop: threading.Event) -> None:
    """When ``drain`` is set, wait until the server may end without loss of data, at most ``drain_s``; then stop."""
    drain.wait()
    namespaces.leaving = True
    deadline_s = time.monotonic() + drain_s
    log.info("about to end: handing over the shards first, for at most %.0f s", drain_s)
    while not namespaces.may_end and time.monotonic() < deadline_s:
        if stop.wait(LEAVE_POLL_S):
            return
    stop.set()


def _serve_metrics(
    servicer: ServerServicer, namespaces: Namespaces, info: dict[str, str], address: tuple[str, int]
) -> Exposition:
    from ps2.server.metrics import ServerCollector  # imported here because most servers have no metrics port
    from ps2.transport.exposition import Exposition

    collector, (host, port) = ServerCollector(servicer.status, info), address
    exposition = Exposition(collector, (host, range(port, port + 1)), "--metrics-port", lambda: namespaces.ready)
    log.info("metrics on http://%s/metrics", exposition.address)
    return exposition


def _start_thread(target: object, *args: object) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()  # type: ignore[arg-type]


def _watch_parent(parent: Parent, stop: threading.Event) -> None:
    """Stop the server when the parent ends. Polling detects this even if the parent is killed."""
    while not stop.is_set():
        if parent.ended_within(PARENT_CHECK_S):
            stop.set()


def _register(master: MasterControl, home: Home, server_id: str, address: str) -> float:
    try:
        interval_s = master.register(home.index, server_id, address)
    except TransientError as error:
        raise LaunchError(f"cannot register with the master at {home.master}: {error}") from error
    log.info("registered as server %d with %s", home.index, home.master)
    return interval_s


def _heartbeat(sender: HeartbeatSender, interval_s: float, orphan_timeout_s: float, stop: threading.Event) -> None:
    last_answer_s = time.monotonic()
    while not stop.wait(interval_s):
        sent_s = time.monotonic()  # this clock stands still while the machine is suspended
        try:
            sender.beat()
            last_answer_s = sent_s
        except NotFoundError as error:
            log.warning("the master no longer accepts this server: %s", error)
            stop.set()
        except PS2Error as error:  # for example, another process listens at the master's address now
            silent_s = time.monotonic() - last_answer_s
            if silent_s > orphan_timeout_s:
                log.warning("no answer from the master for %.0f s: %s", silent_s, error)
                stop.set()


def _advertised_address(bound: str, advertise: str | None) -> str:
    host, port = split_address(bound)
    if advertise is None and is_wildcard(host):
        advertise = reachable_host()
    return join_address(advertise or host, port)
