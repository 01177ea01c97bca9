"""What is remembered of launched fleets: a name belongs to one living fleet at most."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from ps2.cli import state
from ps2.errors import InputError, LaunchError, UnavailableError
from ps2.processes import ProcessId

# Of this test's process: it is certainly alive.
ME = ProcessId.of(os.getpid())
# A process that had the same pid before.
EARLIER = replace(ME, created_s=ME.created_s - 3600)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "ps2"


def test_process_when_its_pid_was_reused_then_is_not_alive():
    assert (ME.alive(), EARLIER.alive()) == (True, False)


def test_process_when_it_ended_unseen_then_is_not_alive(until):
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        process = ProcessId.of(child.pid)
        until(lambda: not process.alive(), "the zombie counts as ended")


def test_claim_when_the_name_is_free_then_is_found_as_written():
    fleet = state.claim("a", ME, None).with_servers((state.LaunchedServer("127.0.0.1:1", ME),))
    assert state.find("a") == fleet


def test_claim_when_made_then_only_its_owner_may_look(folder):
    state.claim("a", ME, None)
    assert (folder / "a").stat().st_mode & 0o777 == 0o700


def test_claim_when_its_fleet_lives_then_is_refused():
    state.claim("a", EARLIER, None).with_servers((state.LaunchedServer("127.0.0.1:1", ME),))
    with pytest.raises(LaunchError, match="ps2 stop --name a"):
        state.claim("a", ME, None)


def test_claim_when_its_fleet_has_ended_then_starts_afresh(folder):
    state.claim("a", EARLIER, None)
    (folder / "a" / "token").write_text("old")
    state.claim("a", ME, None)
    assert not (folder / "a" / "token").exists()


def test_claim_when_its_fleet_is_on_another_host_then_is_refused(folder):
    file = folder / "a" / "fleet.json"
    state.claim("a", EARLIER, None)
    file.write_text(file.read_text().replace(f'"host": "{state.socket.gethostname()}"', '"host": "elsewhere"'))
    with pytest.raises(LaunchError, match="elsewhere"):
        state.claim("a", ME, None)


def test_remove_when_a_later_fleet_has_the_name_then_leaves_it():
    earlier = state.claim("a", EARLIER, None)
    later = state.claim("a", ME, None)
    state.remove(earlier)
    assert state.find("a") == later


def test_find_when_only_others_are_there_then_names_them():
    state.claim("b", ME, None)
    with pytest.raises(UnavailableError, match="known here: --name b"):
        state.find("a")


def test_find_when_the_file_is_broken_then_says_which(folder):
    state.claim("a", ME, None)
    (folder / "a" / "fleet.json").write_text("{")
    with pytest.raises(InputError, match=r"fleet\.json cannot be read"):
        state.find("a")
