"""Makes snapshots of the live page for all its viewers. A slow viewer skips snapshots, and gets the newest one next."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

from ps2.guarded_loop import GuardedLoop

# Seconds between two snapshots.
PERIOD_S = 1.0
MAX_VIEWERS = 100


class SnapshotPublisher:
    """Makes a frame (a snapshot as JSON) once a second while there are viewers. Use it in one event loop.

    Only ``close`` may be called from other threads.
    """

    def __init__(self, make: Callable[[], bytes], period_s: float = PERIOD_S) -> None:
        """``make`` returns the next frame. It is called in another thread, because it may be slow."""
        self._make = make
        self._period_s = period_s
        self._frame: tuple[int, bytes] = (0, b"")  # number and content of the newest frame
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.viewers = 0
        self.is_closed = False

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yield each new frame; skip frames that were made while the viewer was busy."""
        self._loop = asyncio.get_running_loop()
        self.viewers += 1
        try:
            if self._task is None or self._task.done():
                self._task = self._loop.create_task(self._publish())
            last_number = self._frame[0]
            while True:
                while self._frame[0] == last_number and not self.is_closed:
                    await self._changed.wait()
                if self.is_closed:
                    return
                last_number, frame = self._frame
                yield frame
        finally:
            self.viewers -= 1

    def close(self) -> None:
        """End all viewers' streams. Callable from any thread."""
        self.is_closed = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._wake)

    async def _publish(self) -> None:
        guarded = GuardedLoop("ps2-dashboard")
        while self.viewers and not self.is_closed:
            start_s = time.monotonic()
            await asyncio.to_thread(guarded.run_once, self._make_frame)
            self._wake()
            await asyncio.sleep(max(0.05, self._period_s - (time.monotonic() - start_s)))

    def _make_frame(self) -> None:
        self._frame = self._frame[0] + 1, self._make()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
