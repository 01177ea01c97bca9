"""The host in a container: a task of the fleet's Spark application that runs one server by the launcher's orders."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ps2.certificates import VARIABLES, Pems
from ps2.client.network import FleetNetwork
from ps2.client.task import task_context
from ps2.config import CONTAINER_VARIABLE, NODE_VARIABLE, ServerConfig, WireConfig, join_address, split_address
from ps2.coordinator.launchers.processes.child import END_TIMEOUT_S, LOG_TAIL_LINES
from ps2.errors import ConfigError, PS2Error, UnavailableError
from ps2.processes import wait_readable
from ps2.programs import command, import_path
from ps2.rpc.launcher_control import ContainerReport, LauncherControl
from ps2.transport.connection import unreachable_error
from ps2.version import __version__

log = logging.getLogger(__name__)

# Spark hands these variables to the Python workers of the fleet's application (decision 3).
TOKEN_VARIABLE = "PS2_HOST_TOKEN"
TLS_VARIABLE = "PS2_HOST_TLS"
# Variables that servers do not inherit: they get the secrets through pipes.
HIDDEN = (TOKEN_VARIABLE, TLS_VARIABLE, *VARIABLES)
# Environment variables in which cluster managers name a container.
CONTAINERS = ("CONTAINER_ID",)  # YARN's
REPORT_S = 0.25
MAX_ADDRESS = 300


def host(index: int, launcher: str, generation: int) -> None:
    """Host server ``index`` of a fleet in this container until the launcher ends it.

    ``generation`` is the number of the fleet's earlier Spark applications. Raises UnavailableError if the launcher
    has been silent for too long.
    """
    context = task_context()
    assert context is not None
    tls = Pems(**json.loads(os.environ[TLS_VARIABLE])) if TLS_VARIABLE in os.environ else None
    secrets = Secrets(os.environ[TOKEN_VARIABLE], tls)
    report = ContainerReport(
        index,
        (generation << 32) + context.taskAttemptId(),
        container_name(os.environ, Path.cwd()),
        node_name(os.environ),
        __version__,
    )
    transport = FleetNetwork(secrets.token, WireConfig(tls=tls))
    try:
        _follow_orders(report, LauncherControl(transport, launcher), secrets, own_address(launcher))
    finally:
        transport.close()


def container_name(environment: Mapping[str, str], folder: Path) -> str:
    """Return the cluster manager's name of this container. Standalone executors work in APPLICATION/EXECUTOR."""
    name = next((environment[variable] for variable in CONTAINERS if variable in environment), None)
    if name is not None:
        return name
    if folder.name.isdecimal() and folder.parent.name.startswith("app-"):
        return f"{folder.parent.name}/{folder.name}"
    return socket.gethostname()


def node_name(environment: Mapping[str, str]) -> str:
    """Return the cluster manager's name of this machine. On YARN that is the node manager's address."""
    if "NM_HOST" in environment:
        return join_address(environment["NM_HOST"], int(environment.get("NM_PORT", "0")))
    return socket.gethostname()


def own_address(launcher: str) -> str:
    """Return this machine's address in the network of the launcher, by which clients reach the server."""
    host, port = split_address(launcher)
    try:
        with socket.create_connection((host, port), timeout=10) as probe:
            return str(probe.getsockname()[0])
    except OSError as error:
        raise unreachable_error("the fleet's launcher", launcher, error) from error


def listen_address(own_host: str, previous: str) -> str:
    """Return where a server listens: at the previous server's address if it is on this host, else at a free port."""
    host, port = split_address(previous) if previous else ("", 0)
    return join_address(own_host, port if host == own_host else 0)


def _follow_orders(report: ContainerReport, launcher: LauncherControl, secrets: Secrets, address: str) -> None:
    server: Server | None = None
    answered_s = time.monotonic()
    try:
        while True:
            if server is not None and report.exit_code is None and (code := server.poll()) is not None:
                report = replace(report, exit_code=code, said=server.output_tail())
            elif server is not None and not report.address:
                report = replace(report, address=server.address())
            try:
                order = launcher.report(report)
                answered_s = time.monotonic()
            except PS2Error as error:  # or another program listens there now
                if time.monotonic() - answered_s > ServerConfig.orphan_timeout_s:
                    raise UnavailableError(f"no answer from the launcher: {error}") from error
            else:
                if order.refused:
                    raise ConfigError(order.refused)
                if order.leave:
                    return
                if order.number > report.order:
                    if server is not None:
                        server.end()
                    environment = {CONTAINER_VARIABLE: report.container, NODE_VARIABLE: report.node}
                    listen = listen_address(address, order.address)
                    server = Server([*order.arguments, "--listen", listen], secrets, environment)
                    report = replace(report, order=order.number, exit_code=None, said="", address="")
            time.sleep(REPORT_S)
    finally:
        if server is not None:
            server.end()


@dataclass(frozen=True)
class Secrets:
    """The credentials of the fleet's processes."""

    token: str
    tls: Pems | None

    def options(self) -> dict[str, str]:
        """Return the content of each file that an option of ``ps2 server`` names."""
        tls = self.tls or Pems()
        texts = {"--token-file": self.token, "--tls-cert": tls.cert, "--tls-key": tls.key, "--tls-ca": tls.ca}
        return {option: text for option, text in texts.items() if text}


class Server:
    """A server process in this container. It ends with this process, and prints to the container's log."""

    def __init__(self, arguments: Sequence[str], secrets: Secrets, environment: Mapping[str, str]) -> None:
        self._announced, announcing = os.pipe()
        self._address = ""
        with contextlib.ExitStack() as open_pipes:
            open_pipes.callback(os.close, announcing)
            # Through pipes the secrets are on no disk, in no argv and in no environment.
            pipes = {option: open_pipes.enter_context(_pipe(text)) for option, text in secrets.options().items()}
            self._process = subprocess.Popen(
                [
                    *command("ps2.cli.main", *arguments),
                    *(word for option, pipe in pipes.items() for word in (option, f"/dev/fd/{pipe}")),
                    *(("--tls-name", secrets.tls.name) if secrets.tls is not None and secrets.tls.name else ()),
                    *("--exit-with-parent", str(os.getpid()), "--announce", str(announcing)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**_environment(), **environment},
                pass_fds=[*pipes.values(), announcing],
                text=True,
                errors="replace",
            )
        self._lines: deque[str] = deque(maxlen=LOG_TAIL_LINES)
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()

    def poll(self) -> int | None:
        """Return the exit code, or None while the server runs."""
        return self._process.poll()

    def address(self) -> str:
        """Return ``host:port`` of the server; "" if it does not listen yet."""
        if not self._address and wait_readable(self._announced, 0):
            self._address = os.read(self._announced, MAX_ADDRESS).decode()
        return self._address

    def output_tail(self) -> str:
        """Return the tail of the output of an ended server."""
        self._reader.join(1.0)
        return "\n".join(self._lines)

    def end(self) -> None:
        """End the server; kill it if that takes too long."""
        self._process.terminate()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(1.0)
        os.close(self._announced)

    def _pass_on(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip("\n"))
            sys.stderr.write(line)
            sys.stderr.flush()


@contextlib.contextmanager
def _pipe(text: str) -> Iterator[int]:
    """Yield the reading end of a pipe that holds a text."""
    reading, writing = os.pipe()
    try:
        os.write(writing, text.encode())
        os.close(writing)
        yield reading
    finally:
        os.close(reading)


def _environment() -> dict[str, str]:
    """Return the environment of servers, with which they find a ps2 that Spark has shipped, too."""
    variables = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    return {**variables, "PYTHONPATH": os.pathsep.join(import_path())}
