"""The server processes of ``ps2 launch`` on this host. They have no coordinator until a driver attaches to them."""

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
        advertise: the host by which clients reach the servers; None: the host of ``listen``.
        data_port: the data port of the first server; each further server has the next port; None: any free ports.
        metrics_port: the metrics port of the first server; each further server has the next port; None: no metrics.
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
    """The processes of a fleet's servers. Each has its own session: Ctrl-C or a closed terminal does not end it."""

    def __init__(self, listen: Sequence[str], folder: Path, options: ServerOptions) -> None:
        """``listen``: the ``host:port`` of each server; ``folder``: the folder for the servers' logs."""
        self._listen = list(listen)
        self._folder = folder
        self._options = options
        self._fork_server = ForkServer()
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
        """Wait for a server's end; return the reason, and the last lines of its log."""
        return ending(self._children[index].wait(), last_lines(self._log_file(index)))

    def stop(self) -> None:
        """Terminate the servers; kill those that take too long."""
        end(self._children)
        self.leave()

    def leave(self) -> None:
        """End the fork server. Servers without ``exit_with_parent`` continue when this process ends."""
        self._fork_server.close()

    def _spawn(self, index: int) -> Child:
        options = self._options
        arguments = [
            *("server", "--listen", self._listen[index]),
            *("--token-file", str(options.token_file), "--memory-limit", str(options.memory_limit_bytes)),
        ]
        if options.advertise is not None:
            arguments += ["--advertise", options.advertise]
        for option, first_port in (("--data-port", options.data_port), ("--metrics-port", options.metrics_port)):
            if first_port is not None:
                arguments += [option, str(first_port + index)]
        for module in options.ops:
            arguments += ["--ops", module]
        if options.tls is not None:
            arguments += options.tls.arguments()
        if options.exit_with_parent:
            arguments += ["--exit-with-parent", str(os.getpid())]
        return self._fork_server.start(f"server {index}", arguments, self._log_file(index))

    def _log_file(self, index: int) -> Path:
        return self._folder / f"server-{index}.log"
