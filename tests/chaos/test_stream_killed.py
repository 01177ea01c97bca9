"""A stream whose driver, servers, workers and query are killed or stopped at random moments: each row counts once."""

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
# Longer than a server may be without a heartbeat; longer than the driver's requests usually take.
STOPPED_S = {"stopped server": 8.0, "stopped driver": 10.0}


def learned(folder, model, fleet, victims, seed=0):
    """Run drivers until all is learned; harm each of the victims in turn. Return the result and what was harmed.

    Args:
        fleet: servers, workers, batches between two snapshots, replicas.
    """
    chance, left, harmed = random.Random(seed), list(victims), []
    if left:
        (folder / stream_app.HARM_LEFT).touch()
    deadline_s = time.monotonic() + DEADLINE_S + 60 * len(left)
    for start in range(100):
        with running(folder / f"out-{start}.txt", APP, folder, model, *fleet) as driver:
            while driver.process.poll() is None:
                assert time.monotonic() < deadline_s, driver.lines()[-20:]
                time.sleep(chance.uniform(0.1, 1.5))
                said = [line.split() for line in driver.lines() if line.startswith("batch ")]
                if left and said and harm(left[0], driver, [int(pid) for pid in said[-1][3:]], chance):
                    harmed.append(left.pop(0))
                    if not left:
                        (folder / stream_app.HARM_LEFT).unlink()
            if driver.process.returncode == 0:
                break
            assert driver.process.returncode == -signal.SIGKILL, driver.lines()[-40:]
    return np.load(folder / "result.npz"), harmed


def harm(victim, driver, servers, chance):
    """Kill or stop it; return False if there is none now."""
    if victim == "query":
        driver.process.send_signal(signal.SIGUSR1)
        return True
    kind = victim.split()[-1]
    pids = {"driver": [driver.pid], "server": servers}.get(kind) or workers_of(driver)
    alive = [pid for pid in pids if not processes.is_dead(pid)]
    if alive and victim in STOPPED_S:
        processes.pause_for(STOPPED_S[victim])(chance.choice(alive))
    elif alive:
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


@pytest.fixture(scope="module", params=["linear", "deep"])
def undisturbed(tmp_path_factory, request):
    """The name of a model, and what it learns if nothing is killed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    stream_app.write_rows(folder / "in", 10, ROWS)
    return request.param, learned(folder, request.param, (1, 1, 1, 0), [])[0]


def check_counts(found, files):
    assert np.array_equal(found["counts"], found["came"])
    assert (found["came"].sum(), found["tally"][0]) == (files * ROWS * stream_app.FIELDS, files * ROWS)


def check_sums(found, folder):
    """With weights of 0 each probability is 1/2, and FTRL's sums z and n are multiples of 1/4, exact in any order."""
    rows = stream_app.table_of(folder / "in")
    keys = rows["keys"].combine_chunks().flatten().to_numpy()
    gradients = np.repeat(0.5 - rows["label"].to_numpy(), stream_app.FIELDS)
    expected = np.zeros((len(found["keys"]), 3), np.float32)
    places = np.searchsorted(found["keys"], keys)
    np.add.at(expected, (places, 1), gradients**2)
    np.add.at(expected, (places, 2), gradients)
    assert np.array_equal(found["state"], expected)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_stream_when_all_is_killed_then_each_row_counts_once(tmp_path):
    """Two servers and two workers, whose pushes come in any order: counts and FTRL's sums are exact."""
    stream_app.write_rows(tmp_path / "in", 60, ROWS)
    found, killed = learned(tmp_path, "sums", (2, 2, 3, 0), VICTIMS * 5, seed=1)
    assert len(killed) == 20
    check_counts(found, 60)
    check_sums(found, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("victim", VICTIMS)
def test_stream_when_one_is_killed_then_weights_are_equal(tmp_path, undisturbed, victim):
    """One server, one worker, a snapshot after each batch: the same steps in the same order, so the same bits."""
    model, expected = undisturbed
    stream_app.write_rows(tmp_path / "in", 10, ROWS)
    found, killed = learned(tmp_path, model, (1, 1, 1, 0), [victim] * 2, seed=2)
    assert killed == [victim] * 2
    check_counts(found, 10)
    assert np.array_equal(found["state"], expected["state"])


@pytest.mark.nightly
@pytest.mark.parametrize("victim", list(STOPPED_S))
def test_stream_when_one_is_stopped_then_each_row_counts_once(tmp_path, victim):
    stream_app.write_rows(tmp_path / "in", 40, ROWS)
    found, stopped = learned(tmp_path, "sums", (2, 2, 3, 0), [victim] * 2, seed=3)
    assert stopped == [victim] * 2
    check_counts(found, 40)
    check_sums(found, tmp_path)


@pytest.mark.nightly
def test_stream_when_copies_take_over_then_nothing_is_undone(tmp_path):
    stream_app.write_rows(tmp_path / "in", 40, ROWS)
    found, killed = learned(tmp_path, "sums", (2, 2, 40, 1), ["server"] * 2, seed=4)
    assert killed == ["server"] * 2
    check_counts(found, 40)
    check_sums(found, tmp_path)
    said = (tmp_path / "out-0.txt").read_text().splitlines()
    assert any(line.startswith("done 0 ") for line in said), said[-5:]
