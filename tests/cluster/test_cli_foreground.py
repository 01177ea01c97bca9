"""``ps2 launch`` in the foreground: how it ends, and what it leaves."""

from __future__ import annotations

import contextlib
import re
import signal
import socket

import psutil
import pytest

from tests.ports import free_port
from tests.shell import Shell, ended

GONE_WITHIN_S = 5.0


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    yield shell
    for folder in shell.folder.glob("*/fleet.json"):
        shell.run("stop", "--name", folder.parent.name)


@contextlib.contextmanager
def foreground(shell, servers, *options):
    """``ps2 launch`` in the foreground, once it has said that its servers answer, and their processes."""
    with shell.background("launch", "--servers", servers, "--port", free_port(servers), *options) as launcher:
        line = launcher.stdout.readline()
        assert "until Ctrl-C" in line, launcher.communicate()[1]
        processes = shell.processes()
        try:
            yield launcher, processes
        finally:
            launcher.kill()
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


@pytest.mark.parametrize(
    ("number", "servers", "code"),
    [(signal.SIGINT, 2, 130), pytest.param(signal.SIGTERM, 1, 0, marks=pytest.mark.nightly)],
)
def test_foreground_launch_when_interrupted_then_stops_servers(shell, number, servers, code):
    with foreground(shell, servers) as (launcher, processes):
        launcher.send_signal(number)
        _, errors = launcher.communicate(timeout=10)
        assert (launcher.returncode, errors.strip()) == (code, "")
        assert all(ended(process) for process in processes)
        assert not (shell.folder / "default").exists()


@pytest.mark.nightly
def test_foreground_launch_when_killed_then_servers_end(shell, until):
    with foreground(shell, 2) as (launcher, processes):
        launcher.kill()
        until(lambda: all(ended(process) for process in processes), "the servers ended", GONE_WITHIN_S)


def test_foreground_launch_when_server_dies_then_starts_it_anew(shell, until):
    with foreground(shell, 2) as (launcher, processes):
        processes[1].kill()
        until(lambda: shell.state()["servers"][1]["process"]["pid"] != processes[1].pid, "the server was replaced")
        until(lambda: shell.run("status").returncode == 0, "the server answers", 30)
        replaced = shell.processes()[1]
        launcher.send_signal(signal.SIGTERM)
        _, errors = launcher.communicate(timeout=10)
        assert launcher.returncode == 0
        assert re.search(r"server 1 \(127.0.0.1:\d+\): ended by SIGKILL; it is started anew", errors)
        assert f"started anew, as process {replaced.pid}" in errors
        assert ended(replaced)


@pytest.mark.nightly
def test_launch_when_server_dies_unrestarted_then_exits_1(shell):
    with foreground(shell, 2, "--no-restart") as (launcher, processes):
        processes[1].kill()
        _, errors = launcher.communicate(timeout=10)
        assert launcher.returncode == 1
        assert "server 1 (127.0.0.1:" in errors.splitlines()[0]
        assert "died: ended by SIGKILL" in errors.splitlines()[0]
        assert "listening on" in errors
        assert ended(processes[0])


@pytest.mark.nightly
def test_foreground_launch_when_server_never_starts_then_exits_1(shell, until):
    with foreground(shell, 1) as (launcher, processes):
        port = int(shell.state()["servers"][0]["address"].rpartition(":")[2])
        launcher.send_signal(signal.SIGSTOP)
        processes[0].kill()
        until(lambda: ended(processes[0]), "the server ended")
        with socket.create_server(("127.0.0.1", port)):
            launcher.send_signal(signal.SIGCONT)
            _, errors = launcher.communicate(timeout=120)
        assert launcher.returncode == 1
        assert f"server 0 (127.0.0.1:{port}) died again and again: cannot listen on" in errors


@pytest.mark.nightly
def test_launch_when_stopped_by_ps2_stop_then_exits_0(shell):
    with foreground(shell, 1) as (launcher, _):
        result = shell.run("stop")
        _, errors = launcher.communicate(timeout=10)
        assert (result.returncode, launcher.returncode, errors) == (0, 0, "")


@pytest.mark.nightly
def test_launch_when_interrupted_at_start_then_exits_130(shell, until):
    with shell.background("launch", "--servers", 1, "--detach", "--port", free_port()) as launcher:
        until((shell.folder / "default" / "server-0.log").exists, "the server was started")
        launcher.send_signal(signal.SIGINT)
        _, errors = launcher.communicate(timeout=60)  # what the server needs is being imported
        assert (launcher.returncode, errors.strip()) == (130, "")
        assert not (shell.folder / "default").exists()
