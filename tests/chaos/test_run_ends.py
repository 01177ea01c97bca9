"""A run that is ended from outside: nothing of it stays, neither tasks nor Python workers, threads or servers."""

from __future__ import annotations

import signal

import pytest
from faults import processes, run_app
from faults.programs import running

APP = run_app.__file__
START_S = 90
# Spark kills a Python worker two seconds after its task was told to end; a server looks for its parent twice a second.
END_S = 30

pytestmark = [pytest.mark.usefixtures("leaves_nothing"), pytest.mark.nightly]


def told(program, word):
    return [line for line in program.lines() if line.split(" ")[0] == word]


def pids_of(folder, program):
    """Python workers and servers."""
    servers = [int(pid) for pid in told(program, "running")[0].split()[1:]]
    return [*servers, *(int(path.name) for path in folder.iterdir())]


@pytest.mark.parametrize(
    ("how", "raised"),
    [("interrupt", "KeyboardInterrupt"), ("stop", "StoppedError"), ("spark", "StoppedError")],
)
def test_run_when_ended_from_outside_then_nothing_remains(how, raised, tmp_path, until):
    folder = tmp_path / "workers"
    folder.mkdir()
    with running(tmp_path / "out.txt", APP, folder, how) as driver:
        until(lambda: told(driver, "running"), "workers run", START_S)
        if how == "interrupt":
            driver.process.send_signal(signal.SIGINT)
        until(lambda: told(driver, "left"), "it has ended", END_S)
        assert told(driver, "raised") == [f"raised {raised}"]
        assert told(driver, "left") == ["left"]
        driver.process.wait(END_S)
        until(lambda: all(map(processes.is_dead, pids_of(folder, driver))), "all have ended", END_S)


def test_run_when_driver_is_killed_then_workers_and_servers_end(tmp_path, until):
    folder = tmp_path / "workers"
    folder.mkdir()
    with running(tmp_path / "out.txt", APP, folder) as driver:
        until(lambda: told(driver, "running"), "workers run", START_S)
        processes.kill(driver.pid)
        driver.process.wait()
        until(lambda: all(map(processes.is_dead, pids_of(folder, driver))), "all have ended", END_S)
