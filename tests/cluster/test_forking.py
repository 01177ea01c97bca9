"""The process that forks servers is nothing that a fleet depends on."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import psutil
import pytest

from ps2 import DCV, PS2Context
from ps2.coordinator.launchers import local
from ps2.coordinator.launchers.processes.child import UNKNOWN, ForkServer
from tests.shell import ended

VALUES = np.arange(1000.0)
# A program that starts a server, prints its pid, and is killed (-9) before it has recorded the server.
KILLED_BEFORE_RECORD = """
import os, pathlib, signal, sys
from ps2.coordinator.launchers.processes.child import ForkServer

def record(process):
    print(process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

ForkServer().start("server", ["server", "--insecure"], pathlib.Path(sys.argv[1]), record)
"""
# As people name their files, in the folder where their notebooks are; all of them are imported by a new process.
HIDING = ("types.py", "random.py", "queue.py", "logging.py")


@pytest.fixture
def forks(leaves_nothing, monkeypatch):
    """The fork server of the fleet that the test starts, which ends with it."""
    forks = ForkServer()
    monkeypatch.setattr(local, "ForkServer", lambda: forks)
    return forks


@pytest.mark.nightly
def test_fleet_when_forkserver_is_killed_then_replaces_servers(forks):
    with PS2Context.getOrCreate(servers=2, replicas=1) as ps:
        weight = DCV.dense(1000, dtype="float64").push(VALUES)
        killed = forks._process
        killed.kill()
        assert np.array_equal(weight.add(1).pull(), VALUES + 1)
        ps._coordinator.fleet.launcher._children[0].kill()
        assert np.array_equal(weight.add(1).pull(), VALUES + 2)
        assert f"exit code {UNKNOWN}" in ps.recoveries[0].reason
        assert forks._process is not killed


def test_fleet_when_files_shadow_stdlib_or_are_many_then_starts(forks, tmp_path, monkeypatch):
    """Files of the driver's folder hide modules of Python, and the driver has a thousand files open."""
    for name in HIDING:
        (tmp_path / name).write_text("raise ImportError('this is no module of Python')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as in a notebook
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            opened.enter_context(open(os.devnull))
        with PS2Context.getOrCreate(servers=1):
            assert DCV.dense(3).fill(2).sum() == 6


def test_server_when_parent_dies_unrecorded_then_does_nothing(tmp_path, until):
    command = [sys.executable, "-c", KILLED_BEFORE_RECORD, str(tmp_path / "log")]
    pid = int(subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False).stdout)
    until(lambda: not psutil.pid_exists(pid) or ended(psutil.Process(pid)), "the process ended")
    assert (tmp_path / "log").read_text() == ""


def test_server_when_record_fails_then_its_process_is_killed(tmp_path):
    processes = []

    def record(process):
        processes.append(process)
        raise OSError("no space left")

    forks = ForkServer()
    try:
        with pytest.raises(OSError, match="no space left"):
            forks.start("server", ["server", "--insecure"], tmp_path / "log", record)
        assert forks.read_exit_code(processes[0].pid) == -signal.SIGKILL
    finally:
        forks.close()
