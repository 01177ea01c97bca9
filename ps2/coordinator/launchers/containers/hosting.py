"""The host in a container: a task of the fleet's Spark application that runs one server as the launcher orders."""

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

# Spark sets these environment variables in the Python workers of the fleet's application.
TOKEN_VARIABLE = "PS2_HOST_TOKEN"
TLS_VARIABLE = "PS2_HOST_TLS"
# Variables that a server process does not inherit, because it reads the secrets from pipes.
HIDDEN = (TOKEN_VARIABLE, TLS_VARIABLE, *VARIABLES)
# Environment variables in which cluster managers name a container.
CONTAINER_NAMES = ("CONTAINER_ID",)  # set by YARN
# Seconds between two reports to the launcher.
REPORT_S = 0.25
# Maximum bytes of a server's ``host:port``.
MAX_ADDRESS_BYTES = 300


def host(index: int, launcher: str, generation: int) -> None:
    """Run server ``index`` of a fleet in this container until the launcher lets the host leave.

    ``launcher`` is the launcher's ``host:port``. ``generation`` is the number of Spark applications that the fleet had
    before this one. Raises UnavailableError if the launcher has been silent for too long.
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
    """Return the cluster manager's name of this container; ``folder``: its working folder."""
    name = next((environment[variable] for variable in CONTAINER_NAMES if variable in environment), None)
    if name is not None:
        return name
    # A standalone executor's working folder is APPLICATION/EXECUTOR.
    if folder.name.isdecimal() and folder.parent.name.startswith("app-"):
        return f"{folder.parent.name}/{folder.name}"
    return socket.gethostname()


def node_name(environment: Mapping[str, str]) -> str:
    """Return the cluster manager's name of this machine; on YARN, the node manager's address."""
    if "NM_HOST" in environment:
        return join_address(environment["NM_HOST"], int(environment.get("NM_PORT", "0")))
    return socket.gethostname()


def own_address(launcher: str) -> str:
    """Return the address of this machine's network interface that reaches the launcher. Clients connect to it."""
    host, port = split_address(launcher)
    try:
        with socket.create_connection((host, port), timeout=10) as probe:
            return str(probe.getsockname()[0])
    except OSError as error:
        raise unreachable_error("the fleet's launcher", launcher, error) from error


def listen_address(own_host: str, previous: str) -> str:
    """Return a server's address: the previous server's if that ran on this host, else port 0 for any free port."""
    host, port = split_address(previous) if previous else ("", 0)
    return join_address(own_host, port if host == own_host else 0)


def _follow_orders(report: ContainerReport, launcher: LauncherControl, secrets: Secrets, address: str) -> None:
    """Report to the launcher, and start or end servers as its answers order, until it lets this host leave."""
    server: Server | None = None
    answer_s = time.monotonic()
    try:
        while True:
            if server is not None and report.exit_code is None and (code := server.poll()) is not None:
                report = replace(report, exit_code=code, said=server.output_tail())
            elif server is not None and not report.address:
                report = replace(report, address=server.address())
            try:
                order = launcher.report(report)
                answer_s = time.monotonic()
            except PS2Error as error:  # the launcher is silent, or another program listens at its address
                if time.monotonic() - answer_s > ServerConfig.orphan_timeout_s:
                    raise UnavailableError(f"the launcher does not answer: {error}") from error
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
    """The credentials of the fleet's processes. ``tls`` None: connections are not encrypted."""

    token: str
    tls: Pems | None

    def options(self) -> dict[str, str]:
        """Return the content of each file of credentials, by the option of ``ps2 server`` that names the file."""
        tls = self.tls or Pems()
        texts = {"--token-file": self.token, "--tls-cert": tls.cert, "--tls-key": tls.key, "--tls-ca": tls.ca}
        return {option: text for option, text in texts.items() if text}


class Server:
    """A server process in this container. It ends when this process ends, and prints to the container's log."""

    def __init__(self, arguments: Sequence[str], secrets: Secrets, environment: Mapping[str, str]) -> None:
        # The server writes its ``host:port`` to this pipe as soon as it listens.
        self._address_pipe, address_writer = os.pipe()
        self._address = ""
        with contextlib.ExitStack() as open_pipes:
            open_pipes.callback(os.close, address_writer)
            # Pass secrets through pipes: other users can read files, arguments and environments of processes.
            pipes = {option: open_pipes.enter_context(_pipe(text)) for option, text in secrets.options().items()}
            self._process = subprocess.Popen(
                [
                    *command("ps2.cli.main", *arguments),
                    *(argument for option, pipe in pipes.items() for argument in (option, f"/dev/fd/{pipe}")),
                    *(("--tls-name", secrets.tls.name) if secrets.tls is not None and secrets.tls.name else ()),
                    *("--exit-with-parent", str(os.getpid()), "--announce", str(address_writer)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**_environment(), **environment},
                pass_fds=[*pipes.values(), address_writer],
                text=True,
                errors="replace",
            )
        self._lines: deque[str] = deque(maxlen=LOG_TAIL_LINES)
        self._reader = threading.Thread(target=self._copy_output, daemon=True)
        self._reader.start()

    def poll(self) -> int | None:
        """Return the exit code, or None while the server runs."""
        return self._process.poll()

    def address(self) -> str:
        """Return ``host:port`` of the server; "" if it does not listen yet."""
        if not self._address and wait_readable(self._address_pipe, 0):
            self._address = os.read(self._address_pipe, MAX_ADDRESS_BYTES).decode()
        return self._address

    def output_tail(self) -> str:
        """Return the last ``LOG_TAIL_LINES`` lines that a server has printed. Call it when the server has ended."""
        self._reader.join(1.0)
        return "\n".join(self._lines)

    def end(self) -> None:
        """End the server; kill it after ``END_TIMEOUT_S``."""
        self._process.terminate()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(1.0)
        os.close(self._address_pipe)

    def _copy_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip("\n"))
            sys.stderr.write(line)
            sys.stderr.flush()


@contextlib.contextmanager
def _pipe(text: str) -> Iterator[int]:
    """Yield the file descriptor from which a text can be read."""
    reader, writer = os.pipe()
    try:
        os.write(writer, text.encode())
        os.close(writer)
        yield reader
    finally:
        os.close(reader)


def _environment() -> dict[str, str]:
    """Return the environment of servers. Its PYTHONPATH includes a ps2 package that Spark has sent to the executors."""
    variables = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    return {**variables, "PYTHONPATH": os.pathsep.join(import_path())}
