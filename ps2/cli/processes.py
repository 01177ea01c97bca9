"""The server processes of ``ps2 launch`` on this host. They have no master; drivers attach to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ps2.certificates import TlsFiles
from ps2.coordinator.launchers.processes.child import Child, ForkServer, end, ending, last_lines
from ps2.processes import ProcessId


@dataclass(frozen=True)
class ServerOptions:
    """The options of a fleet's servers.

    Attributes:
        token_file: the file with the fleet's token.
        memory_limit_bytes: the memory limit of each server.
        advertise: the host by which clients reach the servers; None: the host of ``listen``.
        data_port: the data port of the first server, from which the others count up; None: any free ports.
        metrics_port: the metrics port of the first server, from which the others count up; None: no metrics.
        ops: modules that declare operations.
        tls: the servers' certificates; None: no TLS.
        exit_with_parent: True if servers end with this process.
    """

    token_file: Path
    memory_limit_bytes: int
    advertise: str | None = None
    data_port: int | None = None
    metrics_port: int | None = None
    ops: tuple[str, ...] = ()
    exit_with_parent: bool = False
    tls: TlsFiles | None = None


class ServerProcesses:
    """One process per server, each in its own session: neither Ctrl-C nor a closed terminal reaches it."""

    def __init__(self, listen: Sequence[str], folder: Path, options: ServerOptions) -> None:
        """Args:
        listen: ``host:port`` of each server.
        folder: folder for their logs.
        """
        self._listen = list(listen)
        self._folder = folder
        self._options = options
        self._forks = ForkServer()
        self._children: list[Child] = []

    def start(self) -> list[ProcessId]:
        """Start all servers; return without waiting for them."""
        for index in range(len(self._listen)):
            self._children.append(self._spawn(index))
        return [child.process for child in self._children]

    def exit_code(self, index: int) -> int | None:
        """Return the exit code of a server, or None while it runs."""
        return self._children[index].poll()

    def ending(self, index: int) -> str:
        """Return why a server ended, and the tail of its log."""
        return ending(self._children[index].wait(), last_lines(self._log(index)))

    def stop(self) -> None:
        """End the servers; kill those that take too long."""
        end(self._children)
        self.leave()

    def leave(self) -> None:
        """Let the servers run on after this process ends."""
        self._forks.close()

    def _spawn(self, index: int) -> Child:
        options = self._options
        arguments = [
            *("server", "--listen", self._listen[index]),
            *("--token-file", str(options.token_file), "--memory-limit", str(options.memory_limit_bytes)),
        ]
        if options.advertise is not None:
            arguments += ["--advertise", options.advertise]
        if options.data_port is not None:
            arguments += ["--data-port", str(options.data_port + index)]
        if options.metrics_port is not None:
            arguments += ["--metrics-port", str(options.metrics_port + index)]
        for module in options.ops:
            arguments += ["--ops", module]
        if options.tls is not None:
            arguments += options.tls.arguments()
        if options.exit_with_parent:
            arguments += ["--exit-with-parent", str(os.getpid())]
        return self._forks.start(f"server {index}", arguments, self._log(index))

    def _log(self, index: int) -> Path:
        return self._folder / f"server-{index}.log"
