"""Fixtures of tests that need no fleet."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ps2.client import task
from ps2.client.fleet import fleet_text, seal
from ps2.rpc.run_control import ClockEntry
from ps2.run.clock_loop import ClockLoop, RunRef
from ps2.run.clocks import Clocks
from ps2.run.prefetch import Freshness, Prefetches
from ps2.run.state import RunState
from ps2.run.worker import Worker
from tests.blocking_run import BlockingRun
from tests.in_process import training_context


class ControlInProcess:
    """Asks a run of this process; ``arrivals`` holds (clock, applied), ``times`` what ends with each."""

    def __init__(self, run, rank, attempt):
        self.run = run
        self.lease = run.new_lease(rank, attempt)
        self.entry = None
        self.arrivals, self.times = [], []

    def join(self):
        return self.run.acquire_rank(self.lease)

    def join_again(self):
        self.lease = self.run.new_lease(self.lease.rank, self.lease.attempt)
        self.entry = None
        return self.join()

    def arrive(self, clock, applied, epoch, times, metrics=(), messages=0, reports=(), until=0):
        self.arrivals.append((clock, applied))
        self.times.append(times)
        self.run.record(self.lease, len(self.times), metrics, times)
        self.entry = self.run.arrive(self.lease, clock, applied, epoch)
        return self.entry

    def poll_progress(self, applied, clock, epoch):
        horizon, epoch = self.run.poll_progress(self.lease.rank, self.lease.attempt, applied, clock, epoch)
        return ClockEntry(clock, horizon, epoch)

    def barrier(self, phase, number, metrics=()):
        self.run.barrier(self.lease, (phase, number), self.entry.epoch if self.entry else 0)

    def once(self, phase, number, metrics=()):
        return self.run.once(self.lease, (phase, number), self.entry.epoch if self.entry else 0)

    def send_once(self, phase, number, value):
        return self.run.once_made(self.lease, (phase, number), value, self.entry.epoch if self.entry else 0)

    def leave(self):
        self.run.leave(self.lease, self.entry.clock, b"", self.entry.epoch)

    def die(self):
        self.run.release_rank(self.lease)


@pytest.fixture(scope="module")
def ps(request):
    """A context for vectors, with ``request.param`` servers (2 unless parametrized) in the test's process."""
    with training_context(getattr(request, "param", 2)) as context:
        yield context


@pytest.fixture(scope="module")
def statuses(ps):
    """``statuses()``: what each server tells of itself (a ServerStatus), by index."""
    return ps.statuses


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB that is full."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=False).returncode:
        pytest.skip("this user may not mount")
    with contextlib.suppress(OSError), open(folder / "filler", "wb") as file:
        file.write(bytes(2 << 20))
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture
def in_task(monkeypatch, tmp_path):
    """``in_task(stage, partition, attempt, access, fleet, stopped)``: be that Spark task from now on."""
    monkeypatch.setattr(task, "_function", task._Function())

    def become(stage=1, partition=0, attempt=0, access=None, fleet=None, stopped=None, tries=0):
        context = SimpleNamespace(
            stageId=lambda: stage,
            partitionId=lambda: partition,
            taskAttemptId=lambda: attempt,
            attemptNumber=lambda: tries,
            getLocalProperty={
                task.STOPPED_PROPERTY: stopped,
                task.FLEET_PROPERTY: None if fleet is None else fleet_text(fleet),
            }.get,
        )
        pyspark = SimpleNamespace(
            TaskContext=SimpleNamespace(get=lambda: context),
            SparkFiles=SimpleNamespace(getRootDirectory=lambda: str(tmp_path)),
        )
        monkeypatch.setitem(sys.modules, "pyspark", pyspark)
        if access is not None:
            monkeypatch.setenv(task.ACCESS_VARIABLE, seal(access))

    return become


@pytest.fixture
def prefetches(session):
    """Those of a worker in clock 5, which the others allow to go to clock 6."""
    prefetches = Prefetches(session, Freshness(clock=5, horizon=6, epoch=0))
    yield prefetches
    prefetches.close()


@pytest.fixture
def start_worker(session):
    """``start_worker(staleness, run)``: the next attempt of a run's only worker, as (worker, control)."""
    started, attempts = [], itertools.count()

    def begin(staleness=0, run=None):
        listener = SimpleNamespace(clock_due=lambda: None, logged=lambda *_: None, failed=lambda: None)
        run = run or BlockingRun(RunState(1, Clocks(1, staleness), listener))
        control = ControlInProcess(run, 0, next(attempts))
        ids = task.RunIds("fleet/runs", 0, 0)
        ref = RunRef(session.fleet, "run:1", 0, staleness, 0, 0)
        worker = Worker(ClockLoop(ref, 0, control.join(), control, session, ids))
        within = session.in_run(ids)
        within.__enter__()
        started.append(within)
        worker.end = lambda: started.pop().__exit__(None, None, None)
        return worker, control

    yield begin
    while started:
        started.pop().__exit__(None, None, None)
