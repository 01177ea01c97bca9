"""Fixtures that all tests share: fleets of real server processes, and the check that nothing of them is left.

A process has one PS2Context at a time, so ``ps`` lives as long as its module. A module says how many servers it wants:
``pytestmark = pytest.mark.parametrize("ps", [1, 2, 3, 4], indirect=True, scope="module")``; else it gets two.
"""

from __future__ import annotations

import gc
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

# The same examples in every run; how long one takes says nothing on a machine that is busy.
settings.register_profile("ps2", deadline=None, derandomize=True)
settings.load_profile("ps2")

DEADLINE_S = 10.0
POLL_S = 0.02


def wait_until(condition, what, deadline_s=DEADLINE_S):
    """Poll until ``condition()`` is true; fail with ``what`` after the deadline. Return the seconds it took."""
    started_s = time.monotonic()
    while not condition():
        assert time.monotonic() - started_s < deadline_s, f"after {deadline_s:.0f} s still not: {what}"
        time.sleep(POLL_S)
    return time.monotonic() - started_s


@pytest.fixture(scope="session")
def until():
    """``until(condition, what, deadline_s)``: poll with a deadline."""
    return wait_until


def _remains(folder):
    """Return what a fleet could leave behind: child processes, threads, temp folders."""
    children = {f"process {p.pid}: {_command(p)}" for p in psutil.Process().children(recursive=True)}
    threads = {f"thread {t.name} ({t.ident})" for t in threading.enumerate()}
    return children | threads | {f"folder {path}" for path in Path(folder).glob("ps2-*")}


def _command(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "ended"


@pytest.fixture(scope="module")
def leaves_nothing(tmp_path_factory):
    """Fail unless every process, thread and ``ps2-*`` temp folder that appears during the module goes with it."""
    folder = tmp_path_factory.mktemp("tmp")
    before, tempfile.tempdir = _remains(folder), str(folder)
    yield
    tempfile.tempdir = None
    gc.collect()
    deadline_s = time.monotonic() + DEADLINE_S
    while (left := _remains(folder) - before) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    assert not left


@pytest.fixture(scope="module")
def ps(request, leaves_nothing):
    """A running PS2Context with ``request.param`` servers (2 unless parametrized)."""
    from ps2 import PS2Context

    context = PS2Context.getOrCreate(servers=getattr(request, "param", 2))
    yield context
    context.stop()


@pytest.fixture(scope="module")
def statuses(ps):
    """``statuses()``: what each server tells of itself (a ServerStatus), by index."""
    from ps2.wire.control import ServerControl
    from ps2.wire.transport import GrpcTransport

    transport = GrpcTransport(ps._token)
    control = ServerControl(transport)
    yield lambda: [control.status(address) for address in ps.servers]
    transport.close()


@pytest.fixture
def requests_by(statuses):
    """``requests_by(fn)``: how many data requests each server got while ``fn`` ran."""

    def count(fn):
        before = [status.requests for status in statuses()]
        fn()
        return [status.requests - old for status, old in zip(statuses(), before, strict=True)]

    return count
