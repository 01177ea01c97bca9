"""A stream whose driver, servers, workers and query are killed at random moments: each row counts once."""

from __future__ import annotations

import random
import signal
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest
from faults import processes, stream_app
from faults.programs import running

APP = stream_app.__file__
ROWS = 400
DEADLINE_S = 240
VICTIMS = ("driver", "server", "worker", "query")


def learned(folder, servers, workers, batches, victims, seed=0):
    """Run drivers until all is learned; kill each of the victims in turn. Return the result and what was killed."""
    chance, left, killed = random.Random(seed), list(victims), []
    deadline_s = time.monotonic() + DEADLINE_S + 60 * len(left)
    for start in range(100):
        with running(folder / f"out-{start}.txt", APP, folder, servers, workers, batches) as driver:
            while driver.process.poll() is None:
                assert time.monotonic() < deadline_s, driver.lines()[-20:]
                time.sleep(chance.uniform(0.1, 1.5))
                said = [line.split() for line in driver.lines() if line.startswith("batch ")]
                if left and said and harm(left[0], driver, [int(pid) for pid in said[-1][3:]], chance):
                    killed.append(left.pop(0))
            if driver.process.returncode == 0:
                break
            assert driver.process.returncode == -signal.SIGKILL, driver.lines()[-40:]
    return np.load(folder / "result.npz"), killed


def harm(victim, driver, servers, chance):
    """Kill it; return False if there is none now."""
    if victim == "query":
        driver.process.send_signal(signal.SIGUSR1)
        return True
    pids = {"driver": [driver.pid], "server": servers}.get(victim) or workers_of(driver)
    alive = [pid for pid in pids if not processes.is_dead(pid)]
    if alive:
        processes.kill(chance.choice(alive))
    return bool(alive)


def workers_of(driver):
    """The Python workers of Spark's tasks."""
    pids = []
    for process in psutil.Process(driver.pid).children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            if "daemon" in " ".join(process.parent().cmdline()):
                pids.append(process.pid)
    return pids


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What is learned if nothing is killed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    stream_app.write_rows(folder / "in", 10, ROWS)
    return learned(folder, 1, 1, 1, [])[0]


def check_counts(found, folder, files):
    keys, counts = stream_app.expected_counts(folder / "in")
    assert np.array_equal(found["keys"], keys)
    assert np.array_equal(found["counts"], counts)
    assert found["tally"][0] == files * ROWS


@pytest.mark.chaos
def test_stream_when_all_is_killed_then_each_row_counts_once(tmp_path):
    stream_app.write_rows(tmp_path / "in", 40, ROWS)
    found, killed = learned(tmp_path, 2, 2, 3, VICTIMS * 5, seed=1)
    assert len(killed) == 20
    check_counts(found, tmp_path, 40)


@pytest.mark.chaos
@pytest.mark.parametrize("victim", VICTIMS)
def test_stream_when_one_is_killed_then_weights_are_equal(tmp_path, undisturbed, victim):
    stream_app.write_rows(tmp_path / "in", 10, ROWS)
    # One server, one worker, a snapshot after each batch: the same steps in the same order.
    found, killed = learned(tmp_path, 1, 1, 1, [victim] * 2, seed=2)
    assert killed == [victim] * 2
    check_counts(found, tmp_path, 10)
    assert np.array_equal(found["weights"], undisturbed["weights"])
