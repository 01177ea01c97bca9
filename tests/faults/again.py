"""Servers that are killed again and again while a fit is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import psutil
from faults import processes

from ps2.coordinator.steps import Steps
from ps2.rpc.control import ServerControl


@dataclass
class Killed:
    """What was killed. Thread-safe: a checkpoint may be written while a clock ends.

    Attributes:
        every: servers are killed in every so many clocks and checkpoints.
        seen: folders of all checkpoints.
        clocks: at whose end a server was.
        checkpoints: folders in whose middle one was.
    """

    ps: Any
    every: int = 1
    seen: list[str] = field(default_factory=list)
    clocks: list[int] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def end_clock(self, clock: int) -> None:
        with self._lock:
            if clock % self.every == 0 and clock not in self.clocks and self._kill():
                self.clocks.append(clock)

    def write(self, folder: str) -> None:
        with self._lock:
            if folder not in self.seen:
                self.seen.append(folder)
            is_time = (self.seen.index(folder) + 1) % self.every == 0
            if is_time and folder not in self.checkpoints and self._kill():
                self.checkpoints.append(folder)

    def _kill(self) -> bool:
        """Kill the servers by turns; tell whether one was. That of the last time may not be replaced yet."""
        server = processes.servers_of(self.ps)[(len(self.clocks) + len(self.checkpoints)) % 2]
        if processes.is_dead(server):
            return False
        try:
            processes.kill(server)
        except psutil.NoSuchProcess:  # the coordinator was quicker
            return False
        return True


@contextmanager
def killing_at_each_clock_and_checkpoint(ps: Any, every: int = 1) -> Iterator[Killed]:
    """Kill one of two servers at the end of each clock, and in the middle of each checkpoint, once.

    Args:
        every: kill in every so many of them only.

    Before, a checkpoint is made: of what was never in one, nothing comes back.
    """
    ps.checkpoint()
    killed = Killed(ps, every)
    with ExitStack() as patched:
        for owner, name, act in (
            (Steps, "end_clock", lambda run, clock: killed.end_clock(clock)),
            (ServerControl, "write", lambda address, checkpoint, folder: killed.write(folder)),
        ):
            patched.enter_context(mock.patch.object(owner, name, _after(act, getattr(owner, name))))
        yield killed


def _after(act: Callable[..., None], call: Callable[..., Any]) -> Callable[..., Any]:
    def calling(self: Any, *args: Any) -> Any:
        act(*args)
        return call(self, *args)

    return calling
