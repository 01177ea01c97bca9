"""The server processes of ``ps2 launch`` on this host. They have no coordinator until a driver attaches to them."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

from ps2.coordinator.launchers.processes.child import UNKNOWN, Child, ForkServer, end, ending, last_lines
from ps2.launched_fleets import LaunchedFleet, LaunchedServer, ServerOptions
from ps2.processes import ProcessId, oom_kills

# The maximum size of the file with the logs of a server's ended processes.
OLD_LOG_BYTES = 1 << 20
# A server that is told to stop logs this word near the end of its log, which is all that tells its end if the exit code
# is lost.
STOPPING = "stopping"
STOPPING_LINES = 3
# A server that listens logs these words near the beginning of its log.
LISTENING = b"listening on"
LISTENING_BYTES = 1 << 16


class ServerProcesses:
    """The processes of a fleet's servers. Each has its own session: Ctrl-C or a closed terminal does not end it.

    Attributes:
        fleet: the fleet, as ``fleet.json`` records it.
    """

    def __init__(self, fleet: LaunchedFleet, options: ServerOptions) -> None:
        """Adopt the processes that the fleet has; this process cannot read their exit codes."""
        self.fleet = fleet
        self._options = options
        self._fork_server = ForkServer()
        read_code = self._fork_server.read_exit_code
        self._children = {index: Child(server.process, read_code) for index, server in enumerate(fleet.servers)}
        self._oom_kills = oom_kills()
        self._memory_ran_out = False

    def start(self, index: int) -> None:
        """Start the next server, or start an ended one anew; return without waiting for it.

        The process is recorded before it does anything: if this process is killed meanwhile, no server is unknown.
        """
        log, server = self._log_file(index), None
        if index in self._children:
            self._children[index].wait()
            server = self.fleet.servers[index]
            append_tail(log, log.with_name(f"server-{index}.old.log"))

        def record(process: ProcessId) -> None:
            if server is None:
                successor = LaunchedServer(self._options.address(index), process)
            else:
                successor = replace(server, process=process, restarts=server.restarts + 1)
            self.fleet = self.fleet.with_server(index, successor)

        self._children[index] = self._fork_server.start(f"server {index}", self._arguments(index), log, record)

    def exit_code(self, index: int) -> int | None:
        """Return the exit code of a server, or None while it runs."""
        return self._children[index].poll()

    def poll(self) -> dict[int, int]:
        """Return the exit codes of all servers that have ended, by index."""
        codes = {index: code for index, child in self._children.items() if (code := child.poll()) is not None}
        previous_kills, self._oom_kills = self._oom_kills, oom_kills()
        self._memory_ran_out = self._oom_kills > previous_kills
        return codes

    def has_listened(self, index: int) -> bool:
        """Return True if a server's last process has listened at its address."""
        try:
            with open(self._log_file(index), "rb") as log:
                return LISTENING in log.read(LISTENING_BYTES)
        except FileNotFoundError:
            return False

    def was_stopped(self, index: int) -> bool:
        """Return True if an ended server was told to stop."""
        code = self._children[index].wait()
        lines = last_lines(self._log_file(index)) if code == UNKNOWN else []
        return code == 0 or any(STOPPING in line for line in lines[-STOPPING_LINES:])

    def ending(self, index: int) -> str:
        """Wait for a server's end; return the reason, and the last lines of its log."""
        return ending(self._children[index].wait(), last_lines(self._log_file(index)))

    def reason(self, index: int) -> str:
        """Return in one line why a server ended that the last ``poll`` was the first to report."""
        code = self._children[index].wait()
        reason = self.ending(index).partition("; its log ends:")[0]
        if code == -signal.SIGKILL and self._memory_ran_out:
            return f"{reason}: the system ran out of memory"
        return "ended, with an unknown exit code" if reason == f"ended with exit code {UNKNOWN}" else reason

    def stop(self) -> None:
        """Terminate the servers; kill those that take too long."""
        end(self._children.values())
        self.leave()

    def leave(self) -> None:
        """End the fork server. Servers without ``exit_with_parent`` continue when this process ends."""
        self._fork_server.close()

    def _arguments(self, index: int) -> list[str]:
        fleet, options = self.fleet, self._options
        arguments = [
            *("server", "--listen", options.listen[index]),
            *("--token-file", str(fleet.token_file), "--memory-limit", str(options.memory_limit_bytes)),
        ]
        if options.advertise is not None:
            arguments += ["--advertise", options.advertise]
        for option, first_port in (("--data-port", options.data_port), ("--metrics-port", options.metrics_port)):
            if first_port is not None:
                arguments += [option, str(first_port + index)]
        for module in options.ops:
            arguments += ["--ops", module]
        if fleet.tls is not None:
            arguments += fleet.tls.arguments()
        if options.exit_with_parent:
            arguments += ["--exit-with-parent", str(os.getpid())]
        return arguments

    def _log_file(self, index: int) -> Path:
        return self.fleet.folder / f"server-{index}.log"


def append_tail(log: Path, old_log: Path) -> None:
    """Append a log to a file of which at most the last ``OLD_LOG_BYTES`` stay."""
    tail = b""
    for file in (old_log, log):
        if file.exists():
            with open(file, "rb") as opened:
                opened.seek(max(0, file.stat().st_size - OLD_LOG_BYTES))
                tail += opened.read()
    old_log.write_bytes(tail[-OLD_LOG_BYTES:])
