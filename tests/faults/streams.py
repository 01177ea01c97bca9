"""Harm a stream's driver, servers, workers or query, and start the driver again until all rows are learned."""

from __future__ import annotations

import random
import signal
import time
from contextlib import suppress

import numpy as np
import psutil
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
                batches = [line.split() for line in driver.lines() if line.startswith("batch ")]
                if left and batches and harm(left[0], driver, [int(pid) for pid in batches[-1][3:]], chance):
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


def check_counts(found, files):
    assert np.array_equal(found["counts"], found["came"])
    assert (found["came"].sum(), found["tally"][0]) == (files * ROWS * stream_app.FIELDS, files * ROWS)
