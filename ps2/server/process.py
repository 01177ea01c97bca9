"""A server process: bind, register, answer until told to stop or left alone."""

from __future__ import annotations

import faulthandler
import logging
import math
import shutil
import signal
import threading
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ps2.config import ServerConfig, WireConfig, is_wildcard, join_address, split_address, split_listen, unencrypted
from ps2.errors import LaunchError, NotFoundError, PS2Error, TransientError
from ps2.ops.modules import load_modules
from ps2.ops.parallel import set_cores
from ps2.ops.warm import warm
from ps2.processes import ProcessId
from ps2.protocol.pb import server_pb2
from ps2.rpc.master_control import MasterControl
from ps2.rpc.network import FleetNetwork
from ps2.rpc.serving import RpcServer
from ps2.server.engine import Engine
from ps2.server.fence import now_s
from ps2.server.memory import available_bytes, keep_freed_memory
from ps2.server.servicer import ServerServicer
from ps2.transport.data_server import DataServer
from ps2.transport.proof import Tokens
from ps2.transport.sockets import reachable_host
from ps2.transport.tls import fault_of
from ps2.version import __version__

if TYPE_CHECKING:
    from ps2.server.exposition import Exposition

log = logging.getLogger("ps2.server")

GRACE_S = 2.0
# After that a server that was told to end does so, whatever a library of its waits for.
END_S = 15.0
PARENT_CHECK_S = 0.5
PARENT_POLL_S = 0.1
ACTIVE_POLL_S = 0.1
LEAVE_POLL_S = 0.1


@dataclass(frozen=True)
class Home:
    """Where a server belongs: which server of whose fleet."""

    master: str
    index: int


@dataclass(frozen=True)
class Heart:
    """What a server's signs of life are made of."""

    master: MasterControl
    home: Home
    server_id: str
    engine: Engine

    def beat(self) -> None:
        """Give a sign of life; once it is answered, the lease runs from when it was sent."""
        sent_s = now_s()
        self.master.heartbeat(self.home.index, self.server_id, self.engine.meter.mutations)
        self.engine.fence.answered(sent_s)


@dataclass(frozen=True)
class Parent:
    """The process that a server was started for, and that takes it along when it ends.

    Attributes:
        process: that one; it may be gone before the server looks for the first time.
        scratch: a folder of its, if any, to remove when it is gone.
    """

    process: ProcessId
    scratch: Path | None

    def go_with(self, wait_s: float) -> bool:
        """Return whether it is gone, or goes within a time; then its folder goes too."""
        deadline_s = time.monotonic() + wait_s
        while self.process.alive():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(PARENT_POLL_S)
        log.warning("the parent process %d is gone", self.process.pid)
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)
        return True


def serve(config: ServerConfig, token: str | Tokens | None, home: Home | None, parent: Parent | None) -> None:
    """Run a server until it is told to stop.

    Args:
        config: where to listen, and within what limits.
        token: of the fleet, which may be another one later; None only on loopback.
        home: the master to register with; None for a server that clients attach to.
        parent: end when this process is gone, however it went.
    """
    stop, told = threading.Event(), threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    signal.signal(signal.SIGTERM, lambda *_: told.set() if config.drain_s and not told.is_set() else stop.set())
    if parent is not None:
        _background(_watch_parent, parent, stop)
    load_modules(config.ops)
    keep_freed_memory()
    if config.cores is not None:
        set_cores(config.cores)
    server_id = uuid.uuid4().hex
    wire = WireConfig(tls=config.tls)
    engine = Engine(config.memory_limit_bytes, config.allow_udf and token is not None)
    engine.fence.waits = home is not None
    host, _ = split_listen(config.listen)
    service = server_pb2.DESCRIPTOR.services_by_name["Server"]
    exposition: Exposition | None = None
    with ExitStack() as begun:
        data = DataServer(engine, host, config.data_ports, token, server_id, wire)
        begun.callback(data.stop, 0)
        servicer = ServerServicer(engine, server_id, wire, stop.set, data, token)
        if config.metrics_port is not None:  # before anybody is answered, and takes it that all is well
            info = {"version": __version__, "server_id": server_id, "index": str(home.index) if home else ""}
            exposition = _expose(servicer, engine, info, (host, config.metrics_port))
            begun.callback(exposition.stop)
        server = RpcServer(service, servicer, config.listen, token, config.threads, wire)
        begun.pop_all()
    address = _advertised(server.address, config.advertise)
    log.info(
        "listening on %s, advertised as %s, memory limit %s bytes", server.address, address, config.memory_limit_bytes
    )
    if config.announce is not None:
        with open(config.announce, "w") as file:
            file.write(address)
    if (warning := unencrypted(config.tls, address, server.address)) is not None:
        log.warning("%s", warning)
    if config.tls is not None and (wrong := fault_of(config.tls, split_address(address)[0])) is not None:
        log.warning("others will not believe this server's certificate: %s (%s)", wrong, config.tls)
    if config.memory_limit_bytes > (there := available_bytes()):
        log.warning("the memory limit is more than the %s bytes that this process may take", f"{there:,}")
    with ExitStack() as undo:
        undo.callback(servicer.close)
        undo.callback(server.stop, GRACE_S)
        undo.callback(data.stop, GRACE_S)
        undo.callback(log.info, "stopping")
        if exposition is not None:
            undo.callback(exposition.stop)
        if home is not None:
            master = MasterControl(FleetNetwork(token, wire), home.master)
            try:
                interval_s = _register(master, home, server_id, address)
            except LaunchError:
                if parent is not None:
                    parent.go_with(GRACE_S)
                raise
            heart = Heart(master, home, server_id, engine)
            # A parent that is there and silent has only stopped for a while: a laptop that sleeps, say.
            orphan_timeout_s = config.orphan_timeout_s if parent is None else math.inf
            _background(_heartbeat, heart, interval_s, orphan_timeout_s, stop)
        _background(_warm_when_active, engine, wire.fast_path, stop)
        if config.drain_s:
            _background(_drain, engine, config.drain_s, told, stop)
        stop.wait()
        faulthandler.dump_traceback_later(END_S, exit=True)


def _warm_when_active(engine: Engine, fast_paths: bool, stop: threading.Event) -> None:
    """Load the fast path and compile kernels, but not while shards of a lost server come: clients wait for those."""
    while engine.fence.waits:
        if stop.wait(ACTIVE_POLL_S):
            return
    if fast_paths:
        engine.fast_paths.load()
    warm()


def _drain(engine: Engine, drain_s: float, told: threading.Event, stop: threading.Event) -> None:
    """Once told to end, wait until the coordinator has brought to safety what is here; at most so long."""
    told.wait()
    engine.fence.leaving = True
    deadline_s = time.monotonic() + drain_s
    log.info("told to end: what is here is handed over first, for at most %.0f s", drain_s)
    while engine.shards() and not engine.fence.may_end and time.monotonic() < deadline_s:
        if stop.wait(LEAVE_POLL_S):
            return
    stop.set()


def _expose(servicer: ServerServicer, engine: Engine, info: dict[str, str], place: tuple[str, int]) -> Exposition:
    from ps2.server.exposition import Exposition, ServerCollector  # most servers need nothing of it

    exposition = Exposition(ServerCollector(servicer.status, info), *place, lambda: engine.fence.ready)
    log.info("metrics on http://%s/metrics", exposition.address)
    return exposition


def _background(target: object, *args: object) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()  # type: ignore[arg-type]


def _watch_parent(parent: Parent, stop: threading.Event) -> None:
    """No signal, pipe or cooperation of the parent is needed."""
    while not stop.is_set():
        if parent.go_with(PARENT_CHECK_S):
            stop.set()


def _register(master: MasterControl, home: Home, server_id: str, address: str) -> float:
    try:
        interval_s = master.register(home.index, server_id, address)
    except TransientError as error:
        raise LaunchError(f"cannot register with the master at {home.master}: {error}") from error
    log.info("registered as server %d with %s", home.index, home.master)
    return interval_s


def _heartbeat(heart: Heart, interval_s: float, orphan_timeout_s: float, stop: threading.Event) -> None:
    heard_s = time.monotonic()
    while not stop.wait(interval_s):
        sent_s = time.monotonic()  # a master is not silent while this machine sleeps
        try:
            heart.beat()
            heard_s = sent_s
        except NotFoundError as error:
            log.warning("the master does not want this server any more: %s", error)
            stop.set()
        except PS2Error as error:  # also of an unauthenticated peer that listens there now
            alone_s = time.monotonic() - heard_s
            if alone_s > orphan_timeout_s:
                log.warning("no answer from the master for %.0f s: %s", alone_s, error)
                stop.set()


def _advertised(bound: str, advertise: str | None) -> str:
    host, port = split_address(bound)
    if advertise is None and is_wildcard(host):
        advertise = reachable_host()
    return join_address(advertise or host, port)
