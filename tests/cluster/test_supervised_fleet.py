"""``ps2 launch --detach``: its supervisor starts dead servers anew, and its guard the supervisor."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request

import psutil
import pytest

from ps2.processes import ProcessId
from tests.ports import free_port
from tests.shell import Shell, ended

REPLACED_WITHIN_S = 30.0


class SupervisedFleet(Shell):
    """Two servers in the background, with a supervisor and a guard."""

    def __init__(self, home):
        super().__init__(home)
        self.port, self.data_port, self.metrics_port = (free_port(2) for _ in range(3))
        ports = ("--port", self.port, "--data-port", self.data_port, "--metrics-port", self.metrics_port)
        self.launching = self.launch("--servers", 2, *ports, "--memory-limit", "64m")
        assert self.launching.returncode == 0, self.launching.stderr

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
        alive = all(self.process(name).alive() for name in ("supervisor", "guard", 0, 1))
        return alive and len({*pids, *servers}) == 4 and self.run("status").returncode == 0

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


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    fleet = SupervisedFleet(tmp_path_factory.mktemp("state"))
    yield fleet
    fleet.run("stop")


@pytest.fixture
def fleet(running, until):
    until(running.whole, "all processes run", REPLACED_WITHIN_S)
    return running


def test_server_when_killed_then_same_address_and_options(fleet, until):
    before = fleet.rows()[1]
    killed = fleet.kill(1)
    until(lambda: fleet.whole() and fleet.process(1) != killed, "the server was replaced", REPLACED_WITHIN_S)
    row = fleet.rows()[1]
    assert (row["process"], row["state"], row["restarts"]) == (before["process"], "running", before["restarts"] + 1)
    assert row["last_end"] == "ended by SIGKILL"
    assert row["status"]["server_id"] != before["status"]["server_id"]
    assert row["status"]["memory_limit_bytes"] == 64 << 20
    with urllib.request.urlopen(f"http://127.0.0.1:{fleet.metrics_port + 1}/metrics", timeout=10) as answer:
        assert f'server_id="{row["status"]["server_id"]}"' in answer.read().decode()
    with socket.create_connection(("127.0.0.1", fleet.data_port + 1), timeout=10):
        pass
    log = (fleet.folder / "default" / "launcher.log").read_text()
    assert f"server 1 (127.0.0.1:{fleet.port + 1}): ended by SIGKILL" in log
    assert f"started anew, as process {row['pid']}" in log
    assert (fleet.folder / "default" / "server-1.old.log").read_text().count("listening on") == row["restarts"]


def test_supervisor_when_killed_then_guard_takes_over(fleet, until):
    guard, servers = fleet.process("guard"), [fleet.process(index) for index in range(2)]
    fleet.kill("supervisor")
    until(lambda: fleet.process("supervisor") == guard and fleet.whole(), "the guard supervises", REPLACED_WITHIN_S)
    assert fleet.process("guard") != guard
    assert [fleet.process(index) for index in range(2)] == servers
    killed = fleet.kill(0)
    until(lambda: fleet.whole() and fleet.process(0) != killed, "the server was replaced", REPLACED_WITHIN_S)
    assert fleet.rows()[0]["last_end"] == "ended, with an unknown exit code"


def test_guard_when_killed_then_another_is_started(fleet, until):
    supervisor, guard = fleet.process("supervisor"), fleet.kill("guard")
    until(lambda: fleet.process("guard") != guard and fleet.whole(), "there is another guard", REPLACED_WITHIN_S)
    assert fleet.process("supervisor") == supervisor


@pytest.mark.parametrize("is_recorded", [False, True])
def test_supervisor_when_killed_while_replacing_then_one_server(fleet, until, is_recorded):
    killed = fleet.kill(0)
    until(lambda: not is_recorded or fleet.process(0) != killed, "the new process is recorded")
    fleet.kill("supervisor")
    until(lambda: fleet.whole() and fleet.process(0) != killed, "the server was replaced", REPLACED_WITHIN_S)
    assert fleet.server_pids(0) == [fleet.process(0).pid]


def test_server_when_suspended_then_no_second_is_started(fleet, until):
    suspended, restarts = fleet.kill(1, signal.SIGSTOP), fleet.rows()[1]["restarts"]
    try:
        result = fleet.run("status")
        assert result.returncode == 4
        address = f"127.0.0.1:{fleet.port + 1}"
        assert f"{address}: no answer from process {suspended.pid}, which is suspended" in result.stderr
        assert (fleet.rows()[1]["state"], fleet.rows()[1]["restarts"]) == ("no answer", restarts)
        assert fleet.process(1) == suspended
    finally:
        suspended.send(signal.SIGCONT)
    until(fleet.whole, "the server answers again")
    assert fleet.server_pids(1) == [suspended.pid]


def test_server_when_its_port_is_taken_then_returns_once_free(fleet, until):
    supervisor = fleet.kill("supervisor", signal.SIGSTOP)
    killed = fleet.kill(0)
    until(lambda: not killed.alive(), "the server ended")
    with socket.create_server(("127.0.0.1", fleet.port)):
        supervisor.send(signal.SIGCONT)
        refused = "cannot listen on 127.0.0.1"
        until(lambda: refused in fleet.state()["servers"][0]["ending"], "it cannot listen", REPLACED_WITHIN_S)
    until(fleet.whole, "the server runs", REPLACED_WITHIN_S)


def test_stop_when_all_three_were_killed_then_nothing_is_left(fleet, until):
    server = fleet.process(1)
    killed = [fleet.kill(name) for name in ("supervisor", "guard", 0)]
    until(lambda: not any(process.alive() for process in killed), "they ended")
    result = fleet.run("status")
    assert result.returncode == 4
    assert f"1 of 2 servers unreachable: 127.0.0.1:{fleet.port}: its process has ended" in result.stderr
    states = [row["state"] for row in json.loads(fleet.run("status", "-o", "json").stdout)["processes"]]
    assert states == ["ended", "ended", "ended", "running"]
    result = fleet.run("stop")
    assert (result.returncode, result.stdout) == (0, f"stopped fleet 'default': 127.0.0.1:{fleet.port + 1}\n")
    assert not server.alive()
    assert not (fleet.folder / "default").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_stop_when_server_is_being_replaced_then_all_end(tmp_path, until, number):
    """The supervisor is about to start the server, or was suspended before it could."""
    fleet = SupervisedFleet(tmp_path)
    until(fleet.whole, "all processes run", REPLACED_WITHIN_S)
    names = ("supervisor", "guard", 0, 1)
    processes = [fleet.process(name) for name in names]
    if number == signal.SIGSTOP:
        fleet.kill("supervisor", number)
    fleet.kill(0)
    result = fleet.run("stop")
    assert (result.returncode, result.stderr) == (0, "")
    assert not any(process.alive() for process in processes)
    assert not (fleet.folder / "default").exists()
    until(lambda: not any(fleet.server_pids(index) for index in range(2)), "no server is left")
