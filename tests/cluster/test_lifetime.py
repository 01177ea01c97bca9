"""How fleets begin and end: nothing outlives its driver, and a server that is gone is named, never waited for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from faults import flows
from forks import in_child

from ps2 import DCV, PS2Conf, PS2Context
from ps2.config import RetryConfig, WireConfig
from ps2.errors import StoppedError, UnavailableError

GONE_S = 20.0
START_S = 60.0

DRIVER = """
import os, signal, sys, threading, time
from ps2 import DCV, PS2Context

ps = PS2Context.getOrCreate(servers=2, dashboard=False)
u = DCV.dense(10).fill(1)
assert u.sum() == 10
print(ps._coordinator.fleet.launcher._folder, *ps._coordinator.fleet.launcher.pids(), flush=True)
"""
NIGHTLY = pytest.mark.nightly


@pytest.fixture
def driver(tmp_path):
    """``driver(ending)``: run a script that starts two servers and then ``ending``; return (process, pids, folder)."""
    started = []

    def run(ending):
        script = tmp_path / "driver.py"
        script.write_text(DRIVER + textwrap.dedent(ending))
        environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        log = open(tmp_path / "stderr", "w")  # noqa: SIM115 - closed below
        process = subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
        log.close()
        started.append(process)
        folder, *pids = process.stdout.readline().split()
        return process, [int(pid) for pid in pids], folder

    yield run
    for process in started:
        process.kill()
        process.stdout.close()
        process.wait()


@pytest.fixture
def fresh(leaves_nothing):
    """A fleet of this test's own, with two servers."""
    with PS2Context.getOrCreate(servers=2) as context:
        yield context


@pytest.fixture
def stop_process(until):
    """``stop_process(pid)``: SIGSTOP, and wait until no thread of the process runs: the signal alone is not at once."""

    def stop(pid):
        os.kill(pid, signal.SIGSTOP)
        stats = list(Path(f"/proc/{pid}/task").glob("*/stat"))
        until(lambda: all(stat.read_text().rpartition(") ")[2].startswith("T") for stat in stats), f"{pid} stopped")

    return stop


def gone(pids, folder):
    return not any(map(psutil.pid_exists, pids)) and not os.path.exists(folder)


# Servers call once a second; what is registered last is called first at the end, when no thread may begin any more.
RETURNS = "import atexit; atexit.register(time.sleep, 2)"
FORKS = """
child = os.fork()
if not child:
    sys.exit(0)
os.waitpid(child, 0)
assert u.add(1).sum() == 20
print("lives", flush=True)
os._exit(4)
"""


@pytest.mark.parametrize(
    ("ending", "code", "said", "output"),
    [
        (RETURNS, 0, r"\Z", ""),
        pytest.param("raise ValueError('mine')", 1, "(?s).*ValueError: mine", "", marks=NIGHTLY),
        pytest.param(FORKS, 4, "", "lives\n", marks=NIGHTLY),
    ],
    ids=["return", "exception", "os_exit_after_a_child"],
)
def test_servers_when_driver_exits_then_gone_with_folder(driver, until, tmp_path, ending, code, said, output):
    process, pids, folder = driver(ending)
    assert process.wait(START_S) == code
    until(lambda: gone(pids, folder), "servers and temp folder gone", GONE_S)
    assert process.stdout.read() == output
    assert re.match(said, (tmp_path / "stderr").read_text())


@pytest.mark.parametrize(
    "sent", [pytest.param(signal.SIGINT, marks=NIGHTLY), pytest.param(signal.SIGTERM, marks=NIGHTLY), signal.SIGKILL]
)
def test_servers_when_driver_is_killed_then_gone_with_folder(driver, until, tmp_path, sent):
    process, pids, folder = driver("while True: u.add(1)")
    assert [os.getsid(pid) for pid in pids] == pids  # Ctrl-C in a terminal does not reach them
    process.send_signal(sent)
    assert process.wait(GONE_S) in (-sent, 1 if sent == signal.SIGINT else -sent)
    until(lambda: gone(pids, folder), "servers and temp folder gone", GONE_S)
    assert ("KeyboardInterrupt" in (tmp_path / "stderr").read_text()) == (sent == signal.SIGINT)


def test_fleet_when_killed_while_starting_then_nothing_is_left(tmp_path, until):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    code = "from ps2 import PS2Context; PS2Context.getOrCreate(servers=2)"
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    until(lambda: list(tmp_path.glob("ps2-*/server-1.log")), "the second server started", START_S)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    until(lambda: not any(child.is_running() for child in children), "servers gone", START_S)
    until(lambda: not list(tmp_path.glob("ps2-*")), "temp folder gone", START_S)


def test_get_or_create_when_called_then_running_within_seconds(leaves_nothing):
    started_s = time.monotonic()
    with PS2Context.getOrCreate(servers=2) as ps:
        assert DCV.dense(10).sum() == 0
        assert len(ps.servers) == 2
    assert time.monotonic() - started_s < START_S


def test_get_or_create_when_stopped_then_a_new_fleet(fresh):
    old, u = fresh.servers, DCV.dense(3)
    fresh.stop()
    with PS2Context.getOrCreate(servers=1) as again:
        assert again is not fresh
        assert again.servers != old
        assert DCV.dense(3).fill(1).sum() == 3
        with pytest.raises(StoppedError, match="was stopped"):
            u.sum()


def test_stop_when_called_twice_then_nothing_happens(fresh):
    fresh.stop()
    fresh.stop()
    assert repr(fresh) == "PS2Context(stopped)"


def test_stop_when_another_thread_works_then_it_errors_not_hangs(fresh):
    u, raised = DCV.dense(100), []

    def work():
        try:
            while True:
                u.add(1)
        except (StoppedError, UnavailableError) as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    fresh.stop()
    thread.join(GONE_S)
    assert len(raised) == 1


def test_context_when_its_block_raises_then_stopped(leaves_nothing):
    with pytest.raises(KeyError, match="mine"), PS2Context.getOrCreate(servers=1) as ps:
        raise KeyError("mine")
    assert repr(ps) == "PS2Context(stopped)"


def test_server_when_it_runs_then_pyspark_is_not_imported(fresh):
    def modules(a):
        import sys

        return {name.partition(".")[0] for name in sys.modules}

    for loaded in DCV.dense(10).zip().mapPartitions(modules):
        assert "ps2" in loaded
        assert loaded.isdisjoint({"pyspark", "py4j", "pandas", "pyarrow"})


@pytest.mark.parametrize(
    "use",
    [lambda u: u.add(1), lambda u: u.derive().derive().derive().derive(), lambda u: DCV.dense(10)],
    ids=["add", "grow", "dense"],
)
def test_operation_when_server_was_killed_then_names_signal(fresh, use):
    u = DCV.dense(10).fill(1)
    assert u.sum() == 10
    os.kill(fresh._coordinator.fleet.launcher.pids()[1], signal.SIGKILL)
    started_s = time.monotonic()
    with pytest.raises(UnavailableError, match=rf"server 1 \({fresh.servers[1]}\): ended by SIGKILL"):
        use(u)
    assert time.monotonic() - started_s < GONE_S
    fresh.stop()


def test_operation_when_server_dies_during_it_then_names_it(fresh):
    u, pid = DCV.dense(10).fill(1), fresh._coordinator.fleet.launcher.pids()[0]

    def end_myself(a):
        import os
        import signal

        if os.getpid() == pid:
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(UnavailableError, match=r"server 0 \(.*\): ended by SIGKILL"):
        u.zip().mapPartitions(end_myself)


def test_vectors_when_another_server_was_killed_then_still_work(fresh):
    u = DCV.dense(1).fill(3)
    (mine,) = u._route.servers
    os.kill(fresh._coordinator.fleet.launcher.pids()[1 - fresh.servers.index(mine)], signal.SIGKILL)
    assert u.add(1).sum() == 4


def test_free_when_a_server_was_killed_then_no_error(fresh):
    u = DCV.dense(10)
    os.kill(fresh._coordinator.fleet.launcher.pids()[0], signal.SIGKILL)
    u.free()


def test_operation_when_a_server_stopped_answering_then_bounded(leaves_nothing, stop_process, monkeypatch):
    """A stopped process keeps its connections: only keepalive finds out."""
    quick = partial(WireConfig, keepalive_s=1.0, keepalive_timeout_s=0.5)
    monkeypatch.setattr("ps2.coordinator.coordinator.WireConfig", quick)
    with PS2Context.getOrCreate(servers=2, conf=PS2Conf(heartbeatS=0.2, lostAfterS=2.0)) as ps:
        u, pid = DCV.dense(10).fill(1), ps._coordinator.fleet.launcher.pids()[1]
        stop_process(pid)
        started_s = time.monotonic()
        try:
            with pytest.raises(UnavailableError, match=rf"{ps.servers[1]}.*"):
                u.add(1)
            took_s = time.monotonic() - started_s
        finally:
            os.kill(pid, signal.SIGCONT)
        assert took_s < START_S


@pytest.mark.nightly
def test_calls_when_all_connections_drop_then_each_counts_once(leaves_nothing, monkeypatch):
    """As a firewall does that forgets what it has let through: nobody is told, and new connections work."""
    quick = partial(WireConfig, keepalive_s=1.0, keepalive_timeout_s=1.0, unix_sockets=False)
    monkeypatch.setattr("ps2.coordinator.coordinator.WireConfig", quick)
    # A busy machine may notice late that a heartbeat's connection is dead.
    with PS2Context.getOrCreate(servers=2, conf=PS2Conf(lostAfterS=15)) as ps:
        u = DCV.dense(10, dtype="int64").fill(1)
        pids = [os.getpid(), *ps._coordinator.fleet.launcher.pids()]
        for number in range(3):
            assert flows.drop(*pids)
            u.add(np.ones(10, np.int64))
            assert u.pull().tolist() == [2 + number] * 10
        assert not ps.recoveries


def test_keepalive_when_not_configured_then_fifteen_seconds():
    assert (WireConfig().keepalive_s, WireConfig().keepalive_timeout_s) == (10.0, 5.0)


def test_stop_when_a_server_does_not_react_then_it_is_killed(fresh, stop_process, monkeypatch):
    monkeypatch.setattr("ps2.coordinator.launchers.processes.child.END_TIMEOUT_S", 0.5)
    pid = fresh._coordinator.fleet.launcher.pids()[1]
    stop_process(pid)
    started_s = time.monotonic()
    fresh.stop()
    assert not psutil.pid_exists(pid)
    assert time.monotonic() - started_s < START_S


def test_operation_when_server_pauses_briefly_then_succeeds_once(fresh, stop_process):
    u, pid = DCV.dense(10), fresh._coordinator.fleet.launcher.pids()[0]
    stop_process(pid)
    timer = threading.Timer(0.5, os.kill, (pid, signal.SIGCONT))
    timer.start()
    u.add(1)
    timer.join()
    assert u.sum() == 10


def test_session_when_server_is_unreachable_then_gives_up(fresh):
    from ps2.client.sessions import session_of

    u = DCV.dense(10)
    session = session_of(u._fleet)
    session.dispatch.retry = RetryConfig(total_s=0.5)
    u._route = type(u._route)(u._route.version, u._route.bounds, ("127.0.0.1:1",) * 2)
    session.routes.store(u._matrix, u._route)
    started_s = time.monotonic()
    assert u.sum() == 0  # the master knows better
    assert time.monotonic() - started_s < GONE_S


@pytest.mark.parametrize(
    "call", [lambda v: v.pull([3]), lambda v: v.sum(), lambda v: v.add(np.ones(10)), lambda v: DCV.dense(9)]
)
def test_call_when_its_server_stands_still_then_ctrl_c_ends_it(fresh, stop_process, call):
    vector = DCV.dense(10).fill(1)
    pids = fresh._coordinator.fleet.launcher.pids()
    for pid in pids:
        stop_process(pid)
    interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call(vector)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    interrupt.join()
    assert vector.pull([3])[0] in (1, 2)


def test_context_when_a_forked_child_leaves_it_then_stays(fresh):
    u = DCV.dense(2).fill(1)

    def leave():
        try:
            with fresh:
                raise SystemExit
        except SystemExit:
            fresh.stop()
        PS2Context.getOrCreate(servers=2)

    assert in_child(leave).startswith("UsageError: vectors work in a task or a driver itself")
    assert in_child(fresh.status).startswith("UsageError: vectors work in a task or a driver itself")
    assert (u.sum(), PS2Context.getActive()) == (2, fresh)
