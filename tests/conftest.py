"""Fixtures that all tests share: fleets of real server processes, and the check that nothing of them is left.

A process has one PS2Context at a time, so ``ps`` is a module's, and then the next one's if that wants as many servers.
A module says how many: ``pytestmark = pytest.mark.parametrize("ps", [1, 3], indirect=True, scope="module")``;
else it gets two.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from ps2.algorithms.embeddings.cost_probes import OFF, VARIABLE
from ps2.algorithms.frame.program import ProgramDriver
from ps2.cli import processes
from ps2.coordinator.launchers import local
from ps2.coordinator.launchers.processes.child import ForkServer

# The same examples in every run; how long one takes says nothing on a machine that is busy. What a test finds with so
# small inputs it finds in 50 examples; one that needs more says so.
settings.register_profile("ps2", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("ps2")

# A test measures costs itself, and leaves nothing in the user's folders.
os.environ[VARIABLE] = OFF

# Run each training's program again before every clock, which finds programs that cannot be.
ProgramDriver.always_replays = True

# pytest adds its handler to loggers that do not propagate, and pyspark's then make JSON of all that pytest captures.
with suppress(ImportError):  # Spark 3.5 has no such loggers
    from pyspark.logger import PySparkLogger

    PySparkLogger.addHandler = logging.Logger.addHandler

# A shell's background job, and all its children, ignore SIGINT: tests of Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

DEADLINE_S = 10.0
POLL_S = 0.02
SERVERS = 2


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


class KeptForkServer(ForkServer):
    """Starts the servers of all fleets: its imports cost more than all that most fleets do."""

    def close(self):
        pass

    def end(self):
        super().close()

    @property
    def pids(self):
        return [self._process.pid] if self._process else []


kept = KeptForkServer()


@pytest.fixture(scope="session", autouse=True)
def fork_server():
    """Each context has one, in the place of the launchers' own, which ends with it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local, "ForkServer", lambda: kept)
        patched.setattr(processes, "ForkServer", lambda: kept)
        yield
    kept.end()


@pytest.fixture(scope="session")
def forked(fork_server):
    """``forked(arguments, log)``: run ``ps2 ARGUMENTS`` as a process of its own, a ``Child``, that writes to a file.

    It is a fork of one that has imported what servers need: a new interpreter would import for two seconds.
    """
    return lambda arguments, log: kept.start("ps2", [*map(str, arguments)], log)


def _remains(folder):
    """Return what a fleet could leave behind: child processes, threads, temp folders."""
    children = psutil.Process().children(recursive=True)
    children = {f"process {p.pid}: {_command(p)}" for p in children if p.pid not in kept.pids}
    threads = {f"thread {t.name} ({t.ident})" for t in threading.enumerate()}
    return children | threads | {f"folder {path}" for path in Path(folder).glob("ps2-*")}


def _command(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "ended"


@contextmanager
def leaving_nothing(folder):
    """Fail unless every process, thread and ``ps2-*`` temp folder that appears meanwhile goes with it."""
    before, tempfile.tempdir = _remains(folder), str(folder)
    yield
    tempfile.tempdir = None
    gc.collect()
    deadline_s = time.monotonic() + DEADLINE_S
    while (left := _remains(folder) - before) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    assert not left


@pytest.fixture(scope="module")
def leaves_nothing(tmp_path_factory):
    """Fail unless every process, thread and ``ps2-*`` temp folder that appears during the module goes with it."""
    with leaving_nothing(tmp_path_factory.mktemp("tmp")):
        yield


class SharedFleet:
    """The fleet behind ``ps``: it stays for the next module, if that wants as many servers.

    Args:
        start: makes the context manager that a fleet of so many servers lives in.

    Attributes:
        folder: of the test that runs.
        next: the test that runs after it.
        context: the running one, of this process's only shared fleet.
    """

    folder = next = context = None

    def __init__(self, start):
        self._start = start
        self._ending = ExitStack()
        self._servers = None

    def of(self, servers):
        """Return a running context with so many servers."""
        from ps2 import PS2Context

        if servers != self._servers or PS2Context._active is not SharedFleet.context:
            self.end()
            SharedFleet.context = self._ending.enter_context(self._start(servers))
            self._servers = servers
        return SharedFleet.context

    def leave(self):
        """Stop it, unless the next test wants the same; a test of another folder wants another."""
        if self.next is None or servers_wanted(self.next) != self._servers or self.next.path.parent != self.folder:
            self.end()

    def end(self):
        """Stop it; nothing of it may be left."""
        self._servers = SharedFleet.context = None
        self._ending.close()


@pytest.fixture(scope="module", autouse=True)
def no_context_stays():
    """Fail if a module's fits started a context of their own: the next module's would be refused."""
    from ps2 import PS2Context

    yield
    assert PS2Context._active in (None, SharedFleet.context), "a context still runs: the module's fits need ``ps``"


@pytest.fixture(scope="session")
def sharing():
    """The class of shared fleets."""
    return SharedFleet


@pytest.fixture(scope="session")
def shared_fleet(tmp_path_factory):
    """A fleet without Spark; ``tests/spark`` has another."""
    from ps2 import PS2Context

    @contextmanager
    def start(servers):
        with leaving_nothing(tmp_path_factory.mktemp("tmp")), PS2Context.getOrCreate(servers=servers) as context:
            yield context

    fleet = SharedFleet(start)
    yield fleet
    fleet.end()


def servers_wanted(item):
    """Return how many servers a test wants of the shared fleet; 0 if it does not use it."""
    if "shared_fleet" not in getattr(item, "fixturenames", ()):
        return 0
    return item.callspec.params.get("ps", SERVERS) if hasattr(item, "callspec") else SERVERS


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Spare the collector of garbage the million objects that collection makes, which stay to the end.

    Each of its rounds would look through them: half a second after every fleet.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items):
    """In each folder, run together what wants as many servers of a shared fleet, and then what wants none."""
    items.sort(key=lambda item: (item.path.parent, servers_wanted(item) or float("inf"), item.path.name))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item, nextitem):
    SharedFleet.folder, SharedFleet.next = item.path.parent, nextitem


@pytest.fixture(scope="module")
def ps(request, shared_fleet):
    """A running PS2Context with ``request.param`` servers (2 unless parametrized)."""
    yield shared_fleet.of(getattr(request, "param", SERVERS))
    shared_fleet.leave()


@pytest.fixture(scope="module")
def statuses(ps):
    """``statuses()``: what each server tells of itself (a ServerStatus), by index."""
    from ps2.client.network import FleetNetwork
    from ps2.rpc.control import ServerControl

    transport = FleetNetwork(ps._coordinator.token)
    control = ServerControl(transport)
    yield lambda: [control.status(address) for address in ps.servers]
    transport.close()


@pytest.fixture
def matrices(statuses):
    """``matrices()``: ids of the matrices on any server.

    What is on the servers before may go meanwhile: models that earlier tests dropped. So compare by ``<=``.
    """
    return lambda: {matrix.matrix for status in statuses() for matrix in status.matrices}


@pytest.fixture
def requests_by(statuses):
    """``requests_by(fn)``: how many data requests each server got while ``fn`` ran."""

    def count(fn):
        before = [status.requests for status in statuses()]
        fn()
        return [status.requests - old for status, old in zip(statuses(), before, strict=True)]

    return count
