"""What is true of a fleet as long as it runs."""

from __future__ import annotations

import psutil

from ps2 import PS2Context


def test_get_or_create_when_running_then_the_same_context(ps):
    assert PS2Context.getOrCreate() is ps
    assert PS2Context.getOrCreate(servers=2) is ps


def test_server_when_started_then_token_not_in_argv_or_environ(ps):
    for pid in ps._coordinator.fleet.launcher.pids():
        process = psutil.Process(pid)
        assert ps._coordinator.token not in " ".join(process.cmdline())
        assert ps._coordinator.token not in " ".join(process.environ().values())
    assert ps._coordinator.fleet.launcher._token_file.stat().st_mode & 0o777 == 0o600
