"""Polls, while a worker computes, how far the other workers are, and reports what this worker has applied.

A worker reports its applied updates, and learns how far it may go, when it arrives at a clock. With additions under way
that is one clock too late for a worker that prefetches: see decision 19.
"""

from __future__ import annotations

import threading

from ps2.client.async_writer import AsyncWriter
from ps2.errors import PS2Error
from ps2.rpc.run_control import RunControl
from ps2.run.prefetch import Prefetches

# A thread checks this often whether its clock has ended.
CHECK_S = 0.1


class ProgressPoller:
    """Starts a thread for each clock, which ends with the clock at the latest."""

    def __init__(self, control: RunControl, async_writer: AsyncWriter, prefetches: Prefetches) -> None:
        self._control = control
        self._async_writer = async_writer
        self._prefetches = prefetches
        self._clock = -1
        self._threads: list[threading.Thread] = []

    def enter(self, clock: int, epoch: int) -> None:
        """The worker has entered a clock: from now on poll whether it can read for the next one."""
        self._clock = clock
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=self._poll, args=(clock, epoch), name="ps2-progress", daemon=True)
        self._threads.append(thread)
        thread.start()

    def leave(self) -> None:
        """Stop polling for this clock."""
        self._clock = -1

    def close(self) -> None:
        """Wait until polling has ended. The server answers a worker that leaves at once."""
        self.leave()
        for thread in self._threads:
            thread.join()

    def _poll(self, clock: int, epoch: int) -> None:
        settled = None
        while settled is None and self._clock == clock:
            settled = self._async_writer.has_settled_below(clock, CHECK_S)
        if settled is False:
            return  # the worker learns of it when its clock ends
        try:
            while self._clock == clock:
                progress = self._control.poll_progress(clock, clock + 1, epoch)
                if progress.epoch != epoch:
                    return
                self._prefetches.allow(progress.horizon, epoch)
                if progress.horizon > clock:
                    return
        except PS2Error:
            return  # the worker's own connection reports the error; reads begin a little later
