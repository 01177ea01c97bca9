"""Processes that are killed, stopped and woken, now or at random times."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

SIGNAL_TIMEOUT_S = 20.0
POLL_S = 0.01
# Longest time between two processes that are woken together.
APART_S = 0.2


def kill(pid: int) -> None:
    """Kill a process (-9), and wait until it is dead."""
    _send(pid, signal.SIGKILL)
    _wait(pid, _is_dead, "dead")


def stop(pid: int) -> None:
    """Stop a process (SIGSTOP), and wait until all of its threads stand still."""
    _send(pid, signal.SIGSTOP)
    _wait(pid, lambda pid: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "stopped")


def wake(pid: int) -> None:
    """Let a stopped process go on (SIGCONT), and wait until it does."""
    _send(pid, signal.SIGCONT)
    _wait(pid, lambda pid: psutil.Process(pid).status() != psutil.STATUS_STOPPED, "awake")


def stop_all_for(seconds: float, pids: Sequence[int], chance: random.Random) -> None:
    """Stop processes, and let them go on after so long, both in random orders."""
    order = list(pids)
    chance.shuffle(order)
    for pid in order:
        stop(pid)
    time.sleep(seconds)
    chance.shuffle(order)
    for pid in order:
        wake(pid)
        time.sleep(chance.uniform(0, APART_S))


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for as long as this lasts; it may be killed meanwhile."""
    stop(pid)
    try:
        yield
    finally:
        if not is_dead(pid):
            wake(pid)


def is_dead(pid: int) -> bool:
    """Tell whether a process has ended, whether or not anybody has waited for it."""
    try:
        return _is_dead(pid)
    except psutil.NoSuchProcess:
        return True


def servers_of(ps: object) -> list[int]:
    """Return the pids of the servers of a local fleet, by index."""
    return ps._coordinator.fleet.launcher.pids()  # type: ignore[attr-defined,no-any-return]


def executors() -> list[int]:
    """Return the pids of the executors of a local cluster (JVMs) that this process, or one below it, has started."""
    return [
        process.pid
        for process in psutil.Process().children(recursive=True)
        if "CoarseGrainedExecutorBackend" in command_of(process)
    ]


def children() -> set[int]:
    """Return the pids of all processes below this one."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


@dataclass
class AtRandom:
    """A thread that does something to processes at random times, as long as the ``with`` block lasts.

    Attributes:
        act: what to do to a process: ``kill``, or ``pause_for(s)``.
        victims: asked each time; one of them is chosen. If there are none it asks again soon.
        times: how often. The block fails if it ends sooner.
        pause_s: between two times, at random between these.
        then: called after the last time.
        done: the pids that it was done to.
    """

    act: Callable[[int], None]
    victims: Callable[[], Sequence[int]]
    times: int = 1
    pause_s: tuple[float, float] = (0.2, 1.0)
    seed: int = 0
    then: Callable[[], None] = lambda: None
    done: list[int] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _error: BaseException | None = None

    def __enter__(self) -> AtRandom:
        self._thread = threading.Thread(target=self._run, name="at-random")
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if kind is None:
            if self._error is not None:
                raise self._error
            assert self._finished, f"all was over when {len(self.done)} of {self.times} processes had been disturbed"

    @property
    def _finished(self) -> bool:
        return len(self.done) == self.times

    def _run(self) -> None:
        chance = random.Random(self.seed)
        try:
            while not self._finished and not self._ended.wait(chance.uniform(*self.pause_s)):
                while not (result := self.victims()):
                    if self._ended.wait(POLL_S):
                        return
                victim = chance.choice(sorted(result))
                with suppress(psutil.NoSuchProcess):  # it has ended by itself: take another one
                    self.act(victim)
                    self.done.append(victim)
            if self._finished:
                self.then()
        except BaseException as error:
            self._error = error


def pause_for(seconds: float) -> Callable[[int], None]:
    """Return what stops a process for so long."""

    def pause(pid: int) -> None:
        with stopped(pid):
            time.sleep(seconds)

    return pause


def _send(pid: int, number: signal.Signals) -> None:
    psutil.Process(pid).send_signal(number)


def _wait(pid: int, reached: Callable[[int], bool], what: str) -> None:
    deadline_s = time.monotonic() + SIGNAL_TIMEOUT_S
    try:
        while not reached(pid):
            assert time.monotonic() < deadline_s, f"process {pid} is not {what} after {SIGNAL_TIMEOUT_S:.0f} s"
            time.sleep(POLL_S)
    except psutil.NoSuchProcess:
        if what != "dead":
            raise


def _is_dead(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def command_of(process: psutil.Process) -> str:
    """Return its command line; empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
