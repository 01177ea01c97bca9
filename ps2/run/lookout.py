"""Looks out, while a worker computes, for what the others have applied; tells them what this one has.

A worker tells what is on the servers, and is told how far it may go, when it comes to stand before a clock. With
additions under way that is a clock too late for who wants to read ahead: see decision 19.
"""

from __future__ import annotations

import threading

from ps2.client.async_writer import AsyncWriter
from ps2.errors import PS2Error
from ps2.rpc.run_control import RunControl
from ps2.run.prefetch import Prefetches

# After which a thread looks whether its clock has ended.
GLANCE_S = 0.1


class Lookout:
    """Has a thread for each clock, as long as that lasts at most."""

    def __init__(self, control: RunControl, async_writer: AsyncWriter, prefetches: Prefetches) -> None:
        self._control = control
        self._async_writer = async_writer
        self._prefetches = prefetches
        self._clock = -1
        self._threads: list[threading.Thread] = []

    def enter(self, clock: int, epoch: int) -> None:
        """The worker has entered a clock: bring about that it can read for the next one."""
        self._clock = clock
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._look, args=(clock, epoch), name="ps2-lookout", daemon=True)
        self._threads.append(thread)
        thread.start()

    def leave(self) -> None:
        """The worker goes on without it."""
        self._clock = -1

    def close(self) -> None:
        """Wait until it is over: a worker that leaves the run is answered at once."""
        self.leave()
        for thread in self._threads:
            thread.join()

    def _look(self, clock: int, epoch: int) -> None:
        settled = None
        while settled is None and self._clock == clock:
            settled = self._async_writer.has_settled_below(clock, GLANCE_S)
        if settled is False:
            return  # the worker is told when its clock ends
        try:
            while self._clock == clock:
                seen = self._control.ahead(clock, clock + 1, epoch)
                if seen.epoch != epoch:
                    return
                self._prefetches.allow(seen.horizon, epoch)
                if seen.horizon > clock:
                    return
        except PS2Error:
            return  # the worker's own connection tells it what is wrong; reads begin a little later
