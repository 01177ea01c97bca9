"""Processes of this host: servers without a master that clients attach to, as ``ps2 launch`` starts them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ps2.coordinator.launchers.child import end, how_it_ended
from ps2.errors import LaunchError

# The clock may have been set since; the same pid is not taken again this soon.
SAME_START_S = 2.0


@dataclass(frozen=True)
class ProcessId:
    """A process of this host that cannot be mistaken for a later one with its pid.

    Attributes:
        pid: of the operating system.
        created_s: when it was started, in seconds since 1970.
    """

    pid: int
    created_s: float

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return cls(pid, time.time())

    def alive(self) -> bool:
        """Tell whether it runs; one that has ended and was not waited for does not."""
        try:
            process = psutil.Process(self.pid)
            return self._same(process) and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def _same(self, process: psutil.Process) -> bool:
        return abs(process.create_time() - self.created_s) < SAME_START_S


@dataclass(frozen=True)
class ServerOptions:
    """What all servers of the fleet are started with.

    Attributes:
        token_file: of the fleet.
        memory_limit_bytes: of each server.
        metrics_port: of the first server, the second has the next one, and so on; None is no metrics.
        ops: modules that declare operations.
        exit_with_parent: they end with this process, however it ends.
    """

    token_file: Path
    memory_limit_bytes: int
    metrics_port: int | None = None
    ops: tuple[str, ...] = ()
    exit_with_parent: bool = False


class ServerProcesses:
    """One process a server, in a session of its own: neither Ctrl-C nor a closed terminal reaches it."""

    def __init__(self, listen: Sequence[str], folder: Path, options: ServerOptions) -> None:
        """Args:
        listen: ``host:port`` of each server.
        folder: where their logs go.
        """
        self._listen = list(listen)
        self._folder = folder
        self._options = options
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self) -> list[ProcessId]:
        """Start all servers; return without waiting for them."""
        for index in range(len(self._listen)):
            self._children.append(self._spawn(index))
        return [ProcessId.of(child.pid) for child in self._children]

    def exit_code(self, index: int) -> int | None:
        """Return how a server ended, or None while it runs."""
        return self._children[index].poll()

    def ending(self, index: int) -> str:
        """Say why a server ended, with the tail of its log below."""
        return how_it_ended(self._children[index].wait(), self._log(index))

    def stop(self) -> None:
        """End the servers, by force if they take too long."""
        end(self._children)

    def _spawn(self, index: int) -> subprocess.Popen[bytes]:
        options = self._options
        command = [
            *(sys.executable, "-m", "ps2.cli.main", "server", "--listen", self._listen[index]),
            *("--token-file", str(options.token_file), "--memory-limit", str(options.memory_limit_bytes)),
        ]
        if options.metrics_port is not None:
            command += ["--metrics-port", str(options.metrics_port + index)]
        for module in options.ops:
            command += ["--ops", module]
        if options.exit_with_parent:
            command += ["--exit-with-parent", str(os.getpid())]
        try:
            with open(self._log(index), "wb") as log:
                return subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
        except OSError as error:
            raise LaunchError(f"server {index} cannot be started: {error}") from error

    def _log(self, index: int) -> Path:
        return self._folder / f"server-{index}.log"
