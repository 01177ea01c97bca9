"""What is remembered of launched fleets: a name belongs to one living fleet at most."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest
from click.testing import CliRunner

from ps2 import launched_fleets as state
from ps2 import processes
from ps2.cli.main import cli
from ps2.config import write_token
from ps2.errors import InputError, LaunchError, UnavailableError
from ps2.processes import ProcessId
from ps2.rpc import control

# Of this test's process: it is certainly alive.
ME = ProcessId.from_pid(os.getpid())
# A process that had the same pid before.
EARLIER = replace(ME, start=f"{ME.start}0")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "ps2"


def test_process_when_its_pid_was_reused_then_is_not_alive():
    assert (ME.alive(), EARLIER.alive()) == (True, False)


@pytest.mark.parametrize("step_s", [-3600, 1, 10])
def test_process_when_the_clock_was_set_then_it_is_the_same(monkeypatch, step_s):
    """The system tells when it was booted by that clock, and psutil when a process was started by both."""
    created_s, boot_s = psutil.Process().create_time(), psutil.boot_time() + step_s
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: boot_s)
    assert psutil.Process().create_time() == pytest.approx(created_s + step_s, abs=0.5)
    assert ME.alive()


def test_process_when_host_was_rebooted_then_is_not_alive(monkeypatch, tmp_path):
    (tmp_path / "boot_id").write_text("of the next boot\n")
    monkeypatch.setattr(processes, "BOOT", tmp_path / "boot_id")
    assert not ME.alive()


def test_process_when_its_name_looks_like_fields_then_is_known(tmp_path):
    program = tmp_path / "a) Z 1 (b"
    program.symlink_to(shutil.which("sleep"))
    with subprocess.Popen([program, "60"]) as child:
        process = ProcessId.from_pid(child.pid)
        assert process.alive()
        process.send(signal.SIGKILL)
    assert not process.alive()


def test_process_when_gone_before_first_look_then_is_not_alive():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    assert not ProcessId.from_pid(child.pid).alive()


def test_process_when_there_is_no_proc_then_psutil_knows_it(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "PROC", tmp_path)
    with subprocess.Popen(["sleep", "60"]) as child:
        process = ProcessId.from_pid(child.pid)
        alive = process.alive()
        child.kill()
    assert (alive, process.alive()) == (True, False)


def test_process_when_it_ended_unseen_then_is_not_alive(until):
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        process = ProcessId.from_pid(child.pid)
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
    with pytest.raises(UnavailableError, match="launched here: --name b"):
        state.find("a")


def test_find_when_the_file_is_broken_then_says_which(folder):
    state.claim("a", ME, None)
    (folder / "a" / "fleet.json").write_text("{")
    with pytest.raises(InputError, match=r"fleet\.json cannot be read"):
        state.find("a")


def test_find_when_written_by_older_version_then_gives_advice(folder):
    state.claim("a", ME, None)
    file = folder / "a" / "fleet.json"
    result = json.loads(file.read_text())
    result["launcher"] = {"pid": ME.pid, "created_s": 1.0}
    file.write_text(json.dumps(result))
    with pytest.raises(InputError, match=rf"earlier version of PS2.* \(pids {ME.pid}\), and remove {folder / 'a'}"):
        state.find("a")


def test_pipe_when_thousands_of_files_are_open_then_is_looked_at():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    reading, writing = os.pipe()
    high = fcntl.fcntl(reading, fcntl.F_DUPFD, 1024)
    before = processes.wait_readable(high, 0)
    os.write(writing, b"!")
    assert (before, processes.wait_readable(high, 10)) == (False, True)
    for descriptor in (reading, writing, high):
        os.close(descriptor)


def test_root_when_user_has_no_home_then_error_names_variable():
    # Only root may become a user whom the system does not know.
    become = "os.setuid(54321)" if os.getuid() == 0 else "pwd.getpwuid = {}.__getitem__"
    script = f"import os, pwd; from ps2 import launched_fleets as state; {become}; state.root()"
    bare = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_STATE_HOME")}
    finished = subprocess.run([sys.executable, "-c", script], env=bare, capture_output=True, text=True, check=False)
    message = finished.stderr.splitlines()[-1]
    assert message.startswith("ps2.errors.ConfigError")
    assert "XDG_STATE_HOME" in message


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        ("status", "1 of 1 servers unreachable: {address}: Deadline Exceeded"),
        ("stop", "1 of 1 servers unreachable: {address}: .*; the fleet's token stays in {folder}/ads$"),
    ],
)
def test_fleet_when_server_in_its_place_hangs_then_not_ended(folder, monkeypatch, verb, message):
    """A stopped process takes connections and answers nothing, as a socket that listens does."""
    monkeypatch.setattr(control, "SIGN_OF_LIFE_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        address = f"127.0.0.1:{hanging.getsockname()[1]}"
        fleet = state.claim("ads", EARLIER, None)
        write_token(fleet.token_file, "t" * 20)
        fleet.with_servers((state.LaunchedServer(address, EARLIER),))
        result = CliRunner().invoke(cli, [verb, "--name", "ads"])
    assert re.search(message.format(address=address, folder=folder), f"{result.stderr}{result.exception}")
    assert fleet.token_file.exists()
