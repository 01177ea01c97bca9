"""The workers' times as tables and by category, and the ranks for which other workers waited. Pure.

A worker's total time is the run's duration, from the call of ``ps.run`` to its return. The worker's rows contain the
measured times. The unmeasured time is the category "other"; it is never distributed over other categories.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps2.array_types import Float64s
from ps2.rpc.run_control import ClockTimes
from ps2.run.records import COLUMNS

# A table has a row for each period of a worker in a clock or between clocks, in order of time.
ClockTable = Any  # np.recarray; numpy's type annotations do not describe its columns
IN_CLOCKS = ("compute", "pull", "push", "wait", "onClock", "checkpoint", "coordinator", "kernels", "imports")
AROUND_TASKS = ("connect", "spark")
FIELDS = np.dtype(
    [("clock", "i8"), ("began", "f8"), *((name, "f8") for name in IN_CLOCKS), ("block", "i8"), ("left", "f8")]
)
ALL_FIELDS = np.dtype([*FIELDS.descr, *((name, "f8") for name in AROUND_TASKS), ("outside", "?")])
OUTSIDE_FIELDS = np.dtype(ALL_FIELDS.descr[:-1])
TIMES = attrgetter(*(name if name != "onClock" else "on_clock" for name in ALL_FIELDS.names or ()))


def to_table(times: Iterable[ClockTimes]) -> ClockTable:
    return np.array([*map(TIMES, times)], ALL_FIELDS).view(np.recarray)


def rows(table: ClockTable, outside: bool) -> ClockTable:
    """Return the rows inside clocks, or those outside of clocks, without the column ``outside``."""
    selected = table[table.outside == outside]
    fields = OUTSIDE_FIELDS if outside else FIELDS
    result = np.empty(len(selected), fields)
    for name in fields.names or ():
        result[name] = selected[name]
    return result.view(np.recarray)


def busy(table: ClockTable) -> NDArray[np.float64]:
    """Return the seconds of each row that were no waits."""
    return np.asarray(table.compute + table.pull + table.push + table.kernels + table.imports)


def waited(table: ClockTable) -> NDArray[np.float64]:
    """Return the seconds of waiting in each row, for other workers and for the driver."""
    return np.asarray(table.wait + table.onClock + table.checkpoint + table.coordinator)


def ended(table: ClockTable) -> NDArray[np.float64]:
    """Return the end of each row, in seconds since the run began."""
    return np.asarray(table.began + waited(table) + busy(table) + table.connect + table.spark)


def count_clocks(table: ClockTable) -> int:
    """Return the number of a rank's clocks; a repeated clock counts once."""
    clocks = table.clock[~table.outside]
    return len(clocks) if (np.diff(clocks) > 0).all() else len(np.unique(clocks))


@dataclass(frozen=True)
class WaitedFor:
    """The seconds and the number of times that the other ranks waited for each rank."""

    seconds: NDArray[np.float64]
    times: NDArray[np.int64]


def waited_for(tables: Sequence[ClockTable], staleness: int | None) -> WaitedFor:
    """Return how long and how often other ranks waited for each rank.

    A worker waits before clock t until the last worker ends clock t - staleness - 1. Waits at barriers and for the
    coordinator's answer do not count.
    """
    seconds, times = np.zeros(len(tables)), np.zeros(len(tables), np.int64)
    clocks = np.concatenate([table.clock for table in tables])
    if staleness is None or not len(clocks):
        return WaitedFor(seconds, times)
    first = int(clocks.min())
    # For each clock, the time at which the last worker ended it, and the worker's rank.
    last_s = np.full(int(clocks.max()) - first + 1, -np.inf)
    last_rank = np.zeros(len(last_s), np.int64)
    for rank, table in enumerate(tables):
        inside = table[~table.outside]
        rank_s = np.full(len(last_s), -np.inf)
        rank_s[inside.clock - first] = ended(inside)  # the last end of a repeated clock
        is_later = rank_s > last_s
        last_s[is_later], last_rank[is_later] = rank_s[is_later], rank
    for rank, table in enumerate(tables):
        needed = table.clock - first - staleness - 1
        table, needed = table[needed >= 0], needed[needed >= 0]
        waited_s = np.clip(last_s[needed] - table.began, 0.0, table.wait)
        for_others = (waited_s > 0) & (last_rank[needed] != rank)
        blocking_ranks = last_rank[needed][for_others]
        seconds += np.bincount(blocking_ranks, waited_s[for_others], len(tables))
        times += np.bincount(blocking_ranks, minlength=len(tables))
    return WaitedFor(seconds, times)


def clocks_span(tables: Sequence[ClockTable]) -> tuple[float, float] | None:
    """Return the beginning of all workers' first clock and the end of their last clock; None: no clocks."""
    inside = [table[~table.outside] for table in tables if not table.outside.all()]
    if not inside:
        return None
    return float(min(table.began.min() for table in inside)), float(max(ended(table).max() for table in inside))


def progress(tables: Sequence[ClockTable]) -> str:
    """Format the number of clocks and their rate: "30 clocks at 52.1 a second"."""
    counts = [*map(count_clocks, tables)]
    lowest, highest, span_s = min(counts), max(counts), clocks_span(tables)
    if span_s is None:
        return "no clocks"
    if lowest == highest:
        text, number = count(highest, "clock"), highest
    else:
        number = sum(counts)
        text = f"{lowest:,} to {count(highest, 'clock')} a worker, {number:,} in all,"
    spent_s = span_s[1] - span_s[0]
    return f"{text} at {rounded(number / spent_s)} a second" if spent_s > 0 else text.rstrip(",")


def shown_ranks(tables: Sequence[ClockTable], limit: int) -> list[int]:
    """Return at most ``limit`` ranks: the busiest ranks, and evenly spaced ranks of the others."""
    if len(tables) <= limit:
        return list(range(len(tables)))
    by_work = sorted(range(len(tables)), key=lambda rank: -busy(tables[rank]).sum())
    busiest = by_work[: limit // 2]
    others = sorted(by_work[limit // 2 :])
    spread = np.linspace(0, len(others) - 1, limit - len(busiest)).astype(int)
    return sorted([*busiest, *(others[index] for index in spread)])


def count(number: int, noun: str) -> str:
    """Format a count: "1 clock", "1,000 clocks"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def rounded(value: float) -> str:
    """Format a number with at least three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def discipline(staleness: int | None) -> str:
    """Return the name of a synchronisation: BSP, SSP with its staleness, or ASP."""
    return "ASP" if staleness is None else "BSP" if staleness == 0 else f"SSP, staleness {staleness}"


@dataclass(frozen=True)
class Category:
    """A category of time: the name that users see, the field of ``ClockTimes``, and the meaning in a few words."""

    name: str
    field: str
    meaning: str


# In the order in which they are shown.
CATEGORIES = (
    Category("compute", "compute", "the function's own work in clocks"),
    Category("pull", "pull", "reading vectors"),
    Category("push", "push", "changing vectors"),
    Category("wait", "wait", "for other workers"),
    Category("onClock", "on_clock", "for the driver's functions between clocks"),
    Category("checkpoint", "checkpoint", "for checkpoints between clocks"),
    Category("coordinator", "coordinator", "for messages and the coordinator's own work"),
    Category("kernels", "kernels", "loading or compiling numba's functions"),
    Category("outside", "compute", "outside of clocks, such as reading rows"),
    Category("connect", "connect", "opening a task's connections"),
    Category("imports", "imports", "starting Python, importing modules"),
    Category("spark", "spark", "Spark plans, starts and ends tasks"),
)
OTHER = Category("other", "", "unmeasured time")
NAMES = tuple(category.name for category in CATEGORIES)
# The categories within a row, roughly in order of time. The compute time of a row outside of clocks is "outside".
ROW_ORDER = (
    *("spark", "imports", "connect", "wait", "onClock", "checkpoint", "coordinator"),
    *("kernels", "pull", "compute", "push"),
)
OUTSIDE = NAMES.index("outside")
COMPUTE = NAMES.index("compute")

_FIELDS = {category.name: COLUMNS.index(category.field) for category in CATEGORIES}
# For each category of ``ROW_ORDER``, its column in ``Timeline.since``.
ROW_PARTS = [_FIELDS[name] for name in ROW_ORDER]
_OUTSIDE_COLUMN = COLUMNS.index("outside")
_CATEGORY_COLUMNS = [_FIELDS[name] for name in NAMES]


def by_category(rows: Float64s) -> Float64s:
    """Return the seconds by category, shape (n, len(CATEGORIES)), of rows of ``Timeline.since``."""
    seconds = rows[:, _CATEGORY_COLUMNS]
    is_outside = rows[:, _OUTSIDE_COLUMN] != 0
    seconds[is_outside, COMPUTE] = 0.0
    seconds[~is_outside, OUTSIDE] = 0.0
    return seconds


def table_seconds(table: ClockTable) -> Float64s:
    """Return a rank's measured seconds by category, shape (len(CATEGORIES),)."""
    inside = ~table.outside
    sums = {name: float(table[name].sum()) for name in NAMES if name != "outside"}
    sums["compute"] = float(table.compute[inside].sum())
    sums["outside"] = float(table.compute[~inside].sum())
    return np.array([sums[name] for name in NAMES])


def time_fractions(seconds: Sequence[float] | Float64s, total_s: float) -> Float64s:
    """Return the fractions of the categories, and of the unmeasured time, in ``total_s``; they add up to 1.

    The clocks of several machines can make the categories add up to more; then their sum is the total.
    """
    seconds = np.asarray(seconds, np.float64)
    total_s = max(total_s, float(seconds.sum()))
    if not total_s:
        return np.append(np.zeros(len(seconds)), 1.0)
    measured = seconds / total_s
    return np.append(measured, max(0.0, 1.0 - float(measured.sum())))
