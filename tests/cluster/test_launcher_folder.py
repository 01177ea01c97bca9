"""The folder with the servers' logs and their token goes, as in /tmp they do: servers can be replaced all the same."""

from __future__ import annotations

import shutil
import tempfile

import numpy as np
import pytest

from ps2 import DCV, PS2Context

VALUES = np.arange(1000.0)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where the launcher makes its folder."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_server_when_log_folder_is_gone_then_replaced_once_back(temporary, caplog, until):
    with PS2Context.getOrCreate(servers=2, replicas=1) as ps:
        weight = DCV.dense(1000, dtype="float64").push(VALUES)
        shutil.rmtree(temporary)
        ps._coordinator.fleet.launcher._children[0].kill()
        until(lambda: "servers [0] are not restored yet" in caplog.text, "it could not be started")
        assert f"No such file or directory: '{temporary}/ps2-" in caplog.text
        temporary.mkdir()
        assert np.array_equal(weight.pull(), VALUES)
        assert [recovery.servers for recovery in ps.recoveries] == [(0,)]
        (created,) = temporary.iterdir()
        assert {file.name for file in created.iterdir()} == {"server-0.log", "token"}
    assert list(temporary.iterdir()) == []


def test_server_when_log_cannot_open_then_replaced_once_it_can(temporary, caplog, until):
    with PS2Context.getOrCreate(servers=2, replicas=1) as ps:
        weight = DCV.dense(1000, dtype="float64").push(VALUES)
        log = ps._coordinator.fleet.launcher._log(1)
        log.unlink()
        log.mkdir()
        ps._coordinator.fleet.launcher._children[1].kill()
        until(lambda: "servers [1] are not restored yet" in caplog.text, "it could not be started")
        assert f"server 1 cannot be started: [Errno 21] Is a directory: '{log}'" in caplog.text
        log.rmdir()
        assert np.array_equal(weight.pull(), VALUES)


def failing():
    raise OSError("nobody can look")


def test_monitor_when_check_fails_then_failures_are_still_seen(temporary, caplog, until):
    with PS2Context.getOrCreate(servers=2, replicas=1) as ps:
        weight = DCV.dense(1000, dtype="float64").push(VALUES)
        poll = ps._coordinator.fleet.launcher.poll
        ps._coordinator.fleet.launcher.poll = failing
        until(lambda: "ps2-monitor: unexpected error" in caplog.text, "it has failed")
        ps._coordinator.fleet.launcher.poll = poll
        ps._coordinator.fleet.launcher._children[0].kill()
        assert np.array_equal(weight.pull(), VALUES)
