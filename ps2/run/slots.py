"""The task slots of one context's runs: a run gets all its slots at once, in the order of arrival.

Spark starts the tasks of several jobs as slots become free. Without this order, two runs could each get a part of their
slots, and wait forever for the rest: a worker keeps its slot until all workers of its run have finished.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ps2.errors import StoppedError
from ps2.interrupts import wait_for
from ps2.run.spark.backend import SparkBackend
from ps2.run.spark.backend_lookup import check_slots_limit, is_dynamic, max_slots, slots_missing
from ps2.run.timeline import count as count_of

log = logging.getLogger(__name__)

# The interval in which a waiting run counts Spark's running tasks.
POLL_S = 0.2
# Spark starts executors as jobs need them, up to an unknown number.
UNLIMITED = 2**31


class SlotLedger:
    """Which runs of a context hold task slots, and which wait for some. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[int] = []  # the numbers of waiting runs, in the order of arrival
        self._held: dict[int, int] = {}  # run -> the number of its slots
        self._is_stopped = False

    @property
    def num_held(self) -> int:
        """The number of slots that runs hold, even if their tasks have not started yet."""
        with self._changed:
            return sum(self._held.values())

    @contextmanager
    def holding(self, spark: SparkBackend, run: int, slots: int, timeout_s: float) -> Iterator[None]:
        """Wait until ``slots`` slots are free and no earlier run waits; hold them in the with-block.

        Raises:
            SlotsError: Spark can never have so many slots, or for ``timeout_s`` other jobs have used slots that the
                run would lack even after the end of all other runs.
            StoppedError: ``stop`` was called.
        """
        with self._changed:
            self._waiting.append(run)
        try:
            self._wait(spark, run, slots, timeout_s)
        finally:
            with self._changed:
                self._waiting.remove(run)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                del self._held[run]
                self._changed.notify_all()

    def stop(self) -> None:
        """Let waiting and later runs fail."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _wait(self, spark: SparkBackend, run: int, slots: int, timeout_s: float) -> None:
        check_slots_limit(spark, slots)
        began_s = time.monotonic()
        missing_since_s: float | None = None
        has_logged = False
        while True:
            held = self.num_held
            slots_now = count_slots(spark, held)
            with self._changed:
                if self._is_stopped:
                    raise StoppedError("run: this PS2Context was stopped")
                is_first = self._waiting[0] == run
                if is_first and slots_now.free >= slots:  # other runs can only have ended since ``held`` was read
                    self._held[run] = slots
                    return
            now_s = time.monotonic()
            missing_since_s = None if slots_now.free_later >= slots else missing_since_s or now_s
            if missing_since_s is not None and now_s - missing_since_s > timeout_s:
                raise slots_missing(spark, slots_now.free, now_s - began_s, slots)
            if not has_logged and missing_since_s is None and (held or not is_first):
                has_logged = True
                log.info("%s", self._reason(run, slots, slots_now.total))
            self._pause()

    def _pause(self) -> None:
        """Wait until a run begins, ends or gets its slots, or it is time to count Spark's tasks again."""
        with self._changed:
            before = dict(self._held), list(self._waiting)
            wait_for(self._changed, lambda: before != (self._held, self._waiting) or self._is_stopped, POLL_S)

    def _reason(self, run: int, slots: int, total: int) -> str:
        """Return for what a run waits, in words."""
        with self._changed:
            held, ahead = dict(self._held), self._waiting.index(run)
        reasons = [f"{sum(held.values())} of {total} are in use by {_list_runs(sorted(held))}"] if held else []
        reasons += [f"{_list_runs(self._waiting[:ahead])} came first"] if ahead else []
        return f"run: waits for {count_of(slots, 'task slot')}: {'; '.join(reasons)}"


class SlotCounts(NamedTuple):
    """Spark's task slots: all, the free ones, and those that would be free after the end of all runs."""

    total: int
    free: int
    free_later: int


def count_slots(spark: SparkBackend, held: int) -> SlotCounts:
    """Count the slots; ``held`` slots belong to runs, whose tasks may not have started yet."""
    if is_dynamic(spark):
        total = max_slots(spark) or UNLIMITED
        return SlotCounts(total, total - held, total)
    running = sum(spark.running_tasks())
    total = spark.total_slots()
    return SlotCounts(total, total - max(held, running), total - max(0, running - held))


def _list_runs(numbers: Sequence[int]) -> str:
    return f"run{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
