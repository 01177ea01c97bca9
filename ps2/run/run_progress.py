"""The line that shows a run under way: its clocks, its workers, and what they log."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ps2.progress_line import ShowProgress
from ps2.rpc.run_control import Logged
from ps2.run.options import RunOptions
from ps2.run.spark.backend import SparkBackend
from ps2.run.state import RunState
from ps2.run.timeline import count, discipline, rounded

INTERVAL_S = 0.2


class RunProgress:
    """Shows a run now and then; its methods are called by one thread."""

    def __init__(self, line: ShowProgress, run: RunState, options: RunOptions, spark: SparkBackend) -> None:
        self._line, self._run, self._options = line, run, options
        self._hide_bar = spark.progress_bar_hider()
        self._shown_s = 0.0
        self._began_s: float | None = None  # when workers were first seen in their clocks

    def show(self) -> None:
        """Show the run as it is now, unless that was just done."""
        now_s = time.monotonic()
        if now_s - self._shown_s < INTERVAL_S:
            return
        self._shown_s = now_s
        self._hide_bar()
        applied = self._run.applied()
        if self._began_s is None and max(applied) > self._run.first:
            self._began_s = now_s
        if self._began_s is None:
            return
        newest = self._run.metrics[-1][1] if len(self._run.metrics) else None
        took_s = now_s - self._began_s
        words = describe(applied, self._run.first, self._options.staleness, took_s, newest)
        self._line(min(applied) - self._run.first, words)


def describe(
    applied: Sequence[int], first: int, staleness: int | None, seconds: float, newest: Logged | None
) -> list[str]:
    """Describe a run, the most important part first. ``applied``: for each rank, the first clock not finished."""
    lowest, highest = min(applied), max(applied)
    slowest = applied.index(lowest)
    return [
        f"clock {lowest}",
        f"{count(len(applied), 'worker')}, {discipline(staleness)}",
        *([] if newest is None else [f"{newest.name} {newest.value:.6g}"]),
        *([f"{rounded((lowest - first) / seconds)} clocks/s"] if seconds >= 1 else []),
        *([f"rank {slowest} is {count(highest - lowest, 'clock')} behind"] if highest > lowest else []),
    ]
