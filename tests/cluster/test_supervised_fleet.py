"""``ps2 launch --detach``: its supervisor starts dead servers anew, and its guard the supervisor."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import urllib.request
from contextlib import ExitStack

import pytest

from ps2.cli.processes import ServerProcesses, append_tail
from ps2.config import new_token, write_token
from ps2.launched_fleets import ServerOptions, claim
from ps2.processes import ProcessId, oom_kills
from tests.ports import free_port
from tests.supervised import REPLACED_WITHIN_S, SupervisedFleet


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


def occupies(port, resources):
    """Return True if this process listens at a port from now on, until the end of ``resources``."""
    try:
        resources.enter_context(socket.create_server(("127.0.0.1", port)))
    except OSError:
        return False
    return True


def test_server_when_its_port_is_taken_then_returns_once_free(fleet, until):
    supervisor = fleet.kill("supervisor", signal.SIGSTOP)
    killed = fleet.kill(0)
    until(lambda: not killed.alive(), "the server ended")
    with ExitStack() as occupied:
        until(lambda: occupies(fleet.port, occupied), "the system has closed the server's port")
        supervisor.send(signal.SIGCONT)
        refused = "cannot listen on 127.0.0.1"
        until(lambda: refused in fleet.state()["servers"][0]["ending"], "it cannot listen", REPLACED_WITHIN_S)
    until(fleet.whole, "the server runs", REPLACED_WITHIN_S)


def test_stop_when_token_is_wrong_then_supervision_continues(fleet, tmp_path):
    write_token(tmp_path / "token", "not-the-token-of-this-fleet")
    supervisor = fleet.process("supervisor")
    assert fleet.run("stop", "--token-file", tmp_path / "token").returncode == 6
    assert fleet.whole()
    assert fleet.process("supervisor") == supervisor


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


@pytest.mark.nightly
def test_servers_when_stopped_by_address_then_supervision_ends(tmp_path, until):
    """One is started anew after a while, also by a supervisor that cannot read its exit code; all together are not."""
    fleet = SupervisedFleet(tmp_path)
    until(fleet.whole, "all processes run", REPLACED_WITHIN_S)
    fleet.kill("supervisor")
    until(fleet.whole, "the guard supervises", REPLACED_WITHIN_S)
    token = ("--token-file", fleet.folder / "default" / "token")
    addresses = [server["address"] for server in fleet.state()["servers"]]
    stopped = fleet.process(0)
    assert fleet.run("stop", "--fleet", addresses[0], *token).returncode == 0
    until(lambda: fleet.process(0) != stopped and fleet.whole(), "the server is back", REPLACED_WITHIN_S)
    processes = [fleet.process(name) for name in ("supervisor", "guard", 0, 1)]
    assert fleet.run("stop", "--fleet", ",".join(addresses), *token).returncode == 0
    until(lambda: not any(process.alive() for process in processes), "all ended")
    assert not (fleet.folder / "default").exists()


@pytest.mark.nightly
def test_server_when_it_never_starts_then_fails_with_reason(tmp_path, until):
    fleet = SupervisedFleet(tmp_path, servers=1)
    until(fleet.whole, "all processes run", REPLACED_WITHIN_S)
    processes = [fleet.kill("supervisor", signal.SIGSTOP), fleet.process("guard")]
    killed = fleet.kill(0)
    until(lambda: not killed.alive(), "the server ended")
    with ExitStack() as occupied:
        until(lambda: occupies(fleet.port, occupied), "the system has closed the server's port")
        processes[0].send(signal.SIGCONT)
        until(lambda: not any(process.alive() for process in processes), "they have given up", 120)
        result = fleet.run("status")
    assert result.returncode == 4
    address = f"127.0.0.1:{fleet.port}"
    assert f"1 of 1 servers unreachable: {address}: failed: cannot listen on {address}" in result.stderr
    assert "'ps2 launch' starts a new fleet" in result.stderr
    assert [row["state"] for row in fleet.rows()] == ["failed"]
    fleet.start()
    until(fleet.whole, "a new fleet runs", REPLACED_WITHIN_S)
    assert fleet.run("stop").returncode == 0


@pytest.mark.parametrize(("kills", "reason"), [(0, ""), (1, ": the system ran out of memory")])
def test_server_when_killed_by_system_then_reason_says_so(tmp_path, monkeypatch, until, kills, reason):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    write_token(tmp_path / "token", new_token())
    options = ServerOptions((f"127.0.0.1:{free_port()}",), 1 << 30, exit_with_parent=True)
    servers = ServerProcesses(
        claim("ads", ProcessId.from_pid(os.getpid()), tmp_path / "token", options=options), options
    )
    servers.start(0)
    servers.fleet.servers[0].process.send(signal.SIGKILL)
    monkeypatch.setattr("ps2.cli.processes.oom_kills", itertools.count(oom_kills(), kills).__next__)
    until(servers.poll, "the server ended")
    assert servers.reason(0) == f"ended by SIGKILL{reason}"


def test_log_when_servers_end_often_then_old_one_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("ps2.cli.processes.OLD_LOG_BYTES", 10)
    log, old_log = tmp_path / "log", tmp_path / "old"
    for text in ("first", "second", "third"):
        log.write_text(text)
        append_tail(log, old_log)
    assert old_log.read_text() == "econdthird"
