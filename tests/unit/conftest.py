"""Fixtures of tests that need no fleet."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ps2.client import task
from ps2.run.prefetch import Freshness, Prefetches


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
def in_task(monkeypatch):
    """``in_task(stage, partition, attempt, fleet, stopped)``: be that Spark task from now on."""
    monkeypatch.setattr(task, "_function", task._Function())

    def become(stage=1, partition=0, attempt=0, fleet=None, stopped=None):
        context = SimpleNamespace(
            stageId=lambda: stage,
            partitionId=lambda: partition,
            taskAttemptId=lambda: attempt,
            getLocalProperty=lambda key: stopped if key == task.STOPPED_PROPERTY else None,
        )
        monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(TaskContext=SimpleNamespace(get=lambda: context)))
        if fleet is not None:
            monkeypatch.setenv(task.FLEET_VARIABLE, fleet)

    return become


@pytest.fixture
def prefetches(session):
    """Those of a worker in clock 5, which the others allow to go to clock 6."""
    prefetches = Prefetches(session, Freshness(clock=5, horizon=6, epoch=0))
    yield prefetches
    prefetches.close()
