"""The categories of the workers' time, for summary, chart, live page and metrics. Pure.

Each worker has the run's whole time, from the call of ``ps.run`` to its return. A worker's rows say what was measured
of it. What nobody measured is "other", and is never spread over the categories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ps2.array_types import Float64s
from ps2.run.records import COLUMNS
from ps2.run.timeline import ClockTable


@dataclass(frozen=True)
class Category:
    """One category: the name that users see, the field of ``ClockTimes``, and the meaning in a few words."""

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
OTHER = Category("other", "", "measured by nobody")
NAMES = tuple(category.name for category in CATEGORIES)
# The parts of a row in the order of time, as far as there is one. Compute of a row outside of clocks is "outside".
ROW_ORDER = (
    *("spark", "imports", "connect", "wait", "onClock", "checkpoint", "coordinator"),
    *("kernels", "pull", "compute", "push"),
)
OUTSIDE = NAMES.index("outside")
COMPUTE = NAMES.index("compute")

_FIELDS = {category.name: COLUMNS.index(category.field) for category in CATEGORIES}
# Where a row of ``Timeline.since`` has the parts in the order of ``ROW_ORDER``.
ROW_PARTS = [_FIELDS[name] for name in ROW_ORDER]
_OUTSIDE_COLUMN = COLUMNS.index("outside")
_SHOWN = [_FIELDS[name] for name in NAMES]


def by_category(rows: Float64s) -> Float64s:
    """Return the seconds of rows of ``Timeline.since``, shape (n, len(COLUMNS)), by category: (n, len(CATEGORIES))."""
    seconds = rows[:, _SHOWN]
    is_outside = rows[:, _OUTSIDE_COLUMN] != 0
    seconds[is_outside, COMPUTE] = 0.0
    seconds[~is_outside, OUTSIDE] = 0.0
    return seconds


def table_seconds(table: ClockTable) -> Float64s:
    """Return a rank's seconds by category, and what nobody measured left out: shape (len(CATEGORIES),)."""
    inside = ~table.outside
    sums = {name: float(table[name].sum()) for name in NAMES if name != "outside"}
    sums["compute"] = float(table.compute[inside].sum())
    sums["outside"] = float(table.compute[~inside].sum())
    return np.array([sums[name] for name in NAMES])


def shares(seconds: Sequence[float] | Float64s, whole_s: float) -> Float64s:
    """Return the share of each category, and of what nobody measured, in the whole; they add up to 1.

    Clocks of several machines may make the categories longer than ``whole_s``; then their sum is the whole.
    """
    seconds = np.asarray(seconds, np.float64)
    whole_s = max(whole_s, float(seconds.sum()))
    if not whole_s:
        return np.append(np.zeros(len(seconds)), 1.0)
    measured = seconds / whole_s
    return np.append(measured, max(0.0, 1.0 - float(measured.sum())))
