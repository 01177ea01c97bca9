"""The supervisor of a launched fleet, which starts dead servers anew, and its guard.

``python -m ps2.cli.supervisor NAME RUN`` is the guard of a fleet in the background. It waits for the lock that the
supervisor holds until its end, then becomes the supervisor itself, and starts another guard. A supervisor replaces a
dead guard. So whichever of the two is killed, two processes go on, and servers never depend on either.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

from ps2.cli.contained import STOP_TOGETHER_S, StopRequest
from ps2.cli.processes import ServerProcesses
from ps2.errors import LaunchError
from ps2.guarded_loop import GuardedLoop
from ps2.launched_fleets import LaunchedFleet, ServerOptions, read, remove, write
from ps2.logs import TEXT, JsonLog, log_format
from ps2.processes import ProcessId
from ps2.programs import command, import_path

log = logging.getLogger("ps2.supervisor")

POLL_S = 0.2
# The pauses before a server is started anew: after its first death, and after further deaths soon after the start. The
# last one repeats.
PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0)
# A server that has run for this time does not die soon after its start.
STABLE_S = 10.0
# A server has failed after so many consecutive deaths before it listens, or soon after the start.
MAX_FAILED_STARTS = 6
MAX_EARLY_DEATHS = 20
# The minimum time between two starts of a guard.
GUARD_PAUSE_S = 2.0


class RestartPlan:
    """Decides when one server is started anew."""

    def __init__(self, now_s: float) -> None:
        self._started_s = now_s
        self._early_deaths = 0  # number of consecutive deaths within ``STABLE_S``
        self._failed_starts = 0  # number of consecutive deaths before the server listened

    def start_time(self, now_s: float, has_listened: bool) -> float | None:
        """Return when to start the server that ends now; None: never, because it dies again and again."""
        self._early_deaths = self._early_deaths + 1 if now_s - self._started_s < STABLE_S else 1
        self._failed_starts = 0 if has_listened else self._failed_starts + 1
        if self._failed_starts == MAX_FAILED_STARTS or self._early_deaths == MAX_EARLY_DEATHS:
            return None
        return now_s + PAUSES_S[min(self._early_deaths, len(PAUSES_S)) - 1]

    def begin(self, now_s: float) -> None:
        """The server is started now."""
        self._started_s = now_s


class Supervisor:
    """Starts dead servers of a fleet anew, until ``ps2 stop`` has ended them or all of them have failed.

    Attributes:
        failures: why servers are not started anew, by index.
        stopped: True if all servers were told to stop, and have ended.
    """

    def __init__(self, processes: ServerProcesses, options: ServerOptions) -> None:
        self.failures = {
            index: f"server {index} ({server.address}): {server.ending}"
            for index, server in enumerate(processes.fleet.servers)
            if server.failed
        }
        self.stopped = False
        self._processes = processes
        self._options = options
        now_s = time.monotonic()
        self._plans = {index: RestartPlan(now_s) for index in range(len(processes.fleet.servers))}
        self._start_times_s: dict[int, float] = {}  # index of an ended server -> when it is started anew
        self._start_errors: dict[int, str] = {}
        self._first_stop_s: float | None = None  # when the first server ended that was told to stop
        self._guard: subprocess.Popen[bytes] | None = None
        self._next_guard_s = now_s
        self._loop = GuardedLoop("supervisor")

    def watch(self, stop_request: StopRequest) -> None:
        """Supervise servers in the foreground, until the user requests to stop or ``ps2 stop`` has ended all servers.

        Raises:
            LaunchError: a server is not started anew; the message has the end of its log.
        """
        while not (stop_request.received or self.stopped):
            self._loop.run_once(self.poll)
            for text in self.failures.values():
                raise LaunchError(text)
            time.sleep(POLL_S)

    def watch_guarded(self) -> None:
        """Supervise servers in the background, together with a guard, until no server is left to supervise."""
        guard_loop = GuardedLoop("supervisor's guard")
        while not (self.stopped or len(self.failures) == len(self._processes.fleet.servers)):
            guard_loop.run_once(self._keep_guard)
            self._loop.run_once(self.poll)
            time.sleep(POLL_S)

    def poll(self) -> None:
        """Look at all servers once; start those that are due."""
        codes = self._processes.poll()
        stopped = [index for index in codes if index not in self.failures and self._processes.was_stopped(index)]
        is_stopping = self._processes.fleet.stop_file.exists()
        self.stopped = len(codes) == len(self._plans) and (is_stopping or len(stopped) == len(codes))
        if is_stopping or self.stopped:
            return
        now_s = time.monotonic()
        # 'ps2 stop --fleet' may be ending all servers: start none for a while.
        self._first_stop_s = None if not stopped else self._first_stop_s or now_s
        if self._first_stop_s is not None and now_s - self._first_stop_s < STOP_TOGETHER_S:
            return
        for index in codes:
            if index not in self.failures and index not in self._start_times_s:
                self._plan_start(index, now_s)
            if now_s >= self._start_times_s.get(index, now_s + 1):
                self._start(index, now_s)

    def _plan_start(self, index: int, now_s: float) -> None:
        fleet = self._processes.fleet
        server = fleet.servers[index]
        reason = self._start_errors.pop(index, "") or self._processes.reason(index)
        start_time_s = None
        if self._options.restart:
            start_time_s = self._plans[index].start_time(now_s, self._processes.has_listened(index))
        if start_time_s is not None:
            self._start_times_s[index] = start_time_s
            pause = f" in {start_time_s - now_s:.0f} s" if start_time_s > now_s else ""
            log.warning("server %d (%s): %s; it is started anew%s", index, server.address, reason, pause)
        else:
            again = " again and again" if self._options.restart else ""
            self.failures[index] = f"server {index} ({server.address}) died{again}: {self._processes.ending(index)}"
            log.error("server %d (%s) died%s: %s; it is not started again", index, server.address, again, reason)
        changed = replace(server, ending=reason, failed=start_time_s is None)
        self._processes.fleet = fleet.with_server(index, changed)

    def _start(self, index: int, now_s: float) -> None:
        del self._start_times_s[index]
        self._plans[index].begin(now_s)
        try:
            self._processes.start(index)
        except (LaunchError, OSError) as error:
            self._start_errors[index] = str(error)
            return
        server = self._processes.fleet.servers[index]
        log.warning("server %d (%s): started anew, as process %d", index, server.address, server.process.pid)

    def _keep_guard(self) -> None:
        """Start a guard if there is none."""
        now_s = time.monotonic()
        if now_s < self._next_guard_s or (self._guard is not None and self._guard.poll() is None):
            return
        if self._guard is not None:
            log.warning("the guard (process %d) has ended; another is started", self._guard.pid)
        self._next_guard_s = now_s + GUARD_PAUSE_S
        fleet = self._processes.fleet
        self._guard = subprocess.Popen(
            command("ps2.cli.supervisor", fleet.name, fleet.run),
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path())},
            start_new_session=True,
        )
        self._processes.fleet = write(replace(fleet, guard=ProcessId.from_pid(self._guard.pid)))


def lock(fleet: LaunchedFleet) -> None:
    """Wait until no other process supervises a fleet in the background, and exclude others until this process ends.

    The system ends the exclusion, even if this process is killed.
    """
    fcntl.flock(os.open(fleet.lock_file, os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX)


def supervise(processes: ServerProcesses, options: ServerOptions) -> None:
    """Supervise a fleet in the background. This process has the lock of the fleet."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the guard goes on
        signal.signal(number, signal.SIG_DFL)
    supervisor = Supervisor(processes, options)
    supervisor.watch_guarded()
    if supervisor.stopped:
        remove(processes.fleet)


def guard(name: str, run: str) -> None:
    """Wait for the end of a fleet's supervisor, and become the supervisor, unless the fleet has ended or is ending."""
    open_log()
    fleet = read(name)
    if fleet is None or fleet.run != run:
        return
    lock(fleet)
    fleet = read(name)
    if fleet is None or fleet.run != run or fleet.stop_file.exists() or all(server.failed for server in fleet.servers):
        return
    if (options := fleet.options) is not None:
        ended = fleet.launcher.pid
        # As the guard, too, so that 'ps2 stop' knows a fleet in the background before the next guard runs.
        process = ProcessId.from_pid(os.getpid())
        fleet = write(replace(fleet, launcher=process, guard=process))
        log.warning("the supervisor (process %d) has ended; process %d is the supervisor now", ended, process.pid)
        supervise(ServerProcesses(fleet, options), options)


def open_log() -> None:
    """Log to stderr, as text or JSON."""
    if log_format() == TEXT:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    else:
        JsonLog().open()


if __name__ == "__main__":
    guard(*sys.argv[1:])
