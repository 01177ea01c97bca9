"""A fleet of ``ps2 launch --detach``, with its supervisor and its guard."""

from __future__ import annotations

import json
import os
import signal

import psutil

from ps2.processes import ProcessId
from tests.ports import free_port
from tests.shell import Shell, ended

REPLACED_WITHIN_S = 30.0


class SupervisedFleet(Shell):
    """Servers in the background, with a supervisor and a guard."""

    def __init__(self, home, servers=2):
        super().__init__(home)
        self.servers = servers
        self.port, self.data_port, self.metrics_port = (free_port(servers) for _ in range(3))
        self.start()

    def start(self):
        ports = ("--port", self.port, "--data-port", self.data_port, "--metrics-port", self.metrics_port)
        launching = self.launch("--servers", self.servers, *ports, "--memory-limit", "64m")
        assert launching.returncode == 0, launching.stderr

    def rows(self):
        """What ``ps2 status`` tells of the processes: supervisor, guard, servers."""
        status = json.loads(self.run("status", "-o", "json").stdout)
        return [
            {**row, "status": server} for row, server in zip(status["processes"][2:], status["servers"], strict=True)
        ]

    def process(self, name):
        """The supervisor, the guard, or a server by its index."""
        state = self.state()
        record = {"supervisor": state["launcher"], "guard": state["guard"]}.get(name)
        return ProcessId(**(state["servers"][name]["process"] if record is None else record))

    def kill(self, name, number=signal.SIGKILL):
        process = self.process(name)
        process.send(number)
        return process

    def whole(self):
        """Whether all processes of the fleet run, two of them as supervisor and guard."""
        state = self.state()
        if state["guard"] is None:
            return False
        pids = [state["launcher"]["pid"], state["guard"]["pid"]]
        servers = [server["process"]["pid"] for server in state["servers"]]
        alive = all(self.process(name).alive() for name in ("supervisor", "guard", *range(self.servers)))
        return alive and len({*pids, *servers}) == 2 + self.servers and self.run("status").returncode == 0

    def server_pids(self, index):
        """The processes that write to the log of a server: the server, and nothing else."""
        log = str(self.folder / "default" / f"server-{index}.log")
        pids = []
        for process in psutil.process_iter():
            try:
                if os.readlink(f"/proc/{process.pid}/fd/1") == log and not ended(process):
                    pids.append(process.pid)
            except OSError:
                continue
        return pids
