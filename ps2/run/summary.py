"""A run's times as text, in 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy as np

from ps2.run.timeline import (
    CATEGORIES,
    NAMES,
    OTHER,
    ClockTable,
    WaitedFor,
    busy,
    count,
    count_clocks,
    discipline,
    ended,
    progress,
    shown_ranks,
    table_seconds,
    time_fractions,
    waited_for,
)
from ps2.text_tables import Column, Table

MAX_RANKS = 32
WIDTH = 80
# The categories in the table by rank; its last column, "rest", is the run's remaining time.
RANK_COLUMNS = ("compute", "pull", "push", "wait", "onClock", "kernels", "outside")
HEAD = f"{'rank':>4}{'clocks':>8}" + "".join(f"{name:>8}" for name in (*RANK_COLUMNS, "rest"))
# Categories with less time, in seconds, are not listed.
MIN_SHOWN_S = 5e-5
# From this time of imports before a worker's first clock on, in seconds, the summary gives ADVICE.
LONG_IMPORTS_S = 0.5
ADVICE = (
    "Python workers spent that on imports: set spark.python.daemon.module to ps2.run.daemon before the SparkSession "
    "is made, and later workers are forks of a process that has imported everything"
)


@dataclass(frozen=True)
class RunTimes:
    """The times of one run: a table for each rank, and the duration in seconds.

    ``has_daemon`` is True if Spark forks its Python workers from ``ps2.run.daemon``.
    """

    tables: Sequence[ClockTable]
    seconds: float
    staleness: int | None
    has_daemon: bool = True


def fractions_by_category(run: RunTimes) -> dict[str, float]:
    """Return the fractions of the categories, and of "other", in the time of all workers; they add up to 1."""
    seconds = sum((table_seconds(table) for table in run.tables), np.zeros(len(NAMES)))
    measured = time_fractions(seconds, run.seconds * len(run.tables))
    return dict(zip((*NAMES, OTHER.name), measured.tolist(), strict=True))


def summary(run: RunTimes) -> str:
    """Return the summary as lines of at most 80 characters."""
    tables = run.tables
    ranks = shown_ranks(tables, MAX_RANKS)
    header, duration = _header(run)
    fits = len(header) + 2 + len(duration) <= WIDTH
    lines = [
        *([f"{header}; {duration}"] if fits else [*wrap(header, WIDTH), duration]),
        "",
        "where the workers' time went, in seconds of all workers (or hours, h) and %:",
        *(f"{name:>13}{seconds:>9}{percent:>7}  {meaning}" for name, seconds, percent, meaning in _categories(run)),
        "",
        f"seconds by rank, of {_seconds(run.seconds)}:",
        HEAD,
        *(f"{rank:>4}" + "".join(f"{cell:>8}" for cell in _cells(rank, run)) for rank in ranks),
    ]
    if len(ranks) < len(tables):
        lines.append(f"      (the busiest and some others of {len(tables)} ranks)")
    lines += ["", *(line for remark in _remarks(run) for line in wrap(remark, WIDTH, subsequent_indent="  "))]
    return "\n".join(lines).rstrip()


def summary_parts(run: RunTimes) -> list[str | Table]:
    """Return the summary for a notebook, as paragraphs and tables."""
    heads = [Column("of the workers' time"), Column("seconds", right=True), Column("%", right=True), Column("")]
    titles = ("rank", "clocks", *RANK_COLUMNS, "rest")
    ranks = [[str(rank), *_cells(rank, run)] for rank in shown_ranks(run.tables, MAX_RANKS)]
    return [
        "; ".join(_header(run)),
        Table(heads, [list(row) for row in _categories(run)]),
        f"seconds by rank, of {_seconds(run.seconds)}:",
        Table([Column(title, right=True) for title in titles], ranks),
        *_remarks(run),
    ]


def _header(run: RunTimes) -> tuple[str, str]:
    header = f"{count(len(run.tables), 'worker')}, {discipline(run.staleness)}: {progress(run.tables)}"
    # The rate excludes the start of Spark's tasks and the reading of rows; this time includes them.
    return header, f"{_seconds(run.seconds)} s from call to return"


def _categories(run: RunTimes) -> list[tuple[str, str, str, str]]:
    """Return the name, seconds, percentage and meaning of each category that took any time, and of "other"."""
    fractions = fractions_by_category(run)
    total_s = run.seconds * len(run.tables)
    return [
        (category.name, _cell(fraction * total_s), f"{100 * fraction:.1f}", category.meaning)
        for category in (*CATEGORIES, OTHER)
        if (fraction := fractions[category.name]) * total_s >= MIN_SHOWN_S or category is OTHER
    ]


def _remarks(run: RunTimes) -> list[str]:
    tables = run.tables
    slow = [*_slowest(tables), *_longest_waits(waited_for(tables, run.staleness))]
    return [*_before_workers(run), *slow, *_repeated_clocks(tables), *_undone_work(tables)]


def _cells(rank: int, run: RunTimes) -> list[str]:
    """Return a rank's cells: the number of clocks, the seconds in ``RANK_COLUMNS``, and the rest of the time."""
    table = run.tables[rank]
    seconds = dict(zip(NAMES, table_seconds(table), strict=True))
    shown = [seconds[name] for name in RANK_COLUMNS]
    return [f"{count_clocks(table):,}", *map(_cell, (*shown, max(0.0, run.seconds - sum(shown))))]


def _before_workers(run: RunTimes) -> list[str]:
    """Describe the time before the last worker began to work: the first row of its table."""
    starts = [table[:1] for table in run.tables if len(table) and table.spark[0] > 0]
    if not starts:
        return []
    last = max(starts, key=lambda row: float(ended(row)[0]))
    parts = [
        f"{_seconds(last[name][0])} s {description}"
        for name, description in (
            ("spark", "of Spark's plan and tasks"),
            ("imports", "of Python's start and imports"),
            ("connect", "of connections"),
            ("checkpoint", "of a checkpoint"),
            ("coordinator", "of the coordinator"),
        )
        if last[name][0] >= MIN_SHOWN_S
    ]
    sentence = f"before workers: {_seconds(float(ended(last)[0]))} s: {', '.join(parts)}"
    advice = not run.has_daemon and last.imports[0] >= LONG_IMPORTS_S
    return [sentence, *([ADVICE] if advice else [])]


def _slowest(tables: Sequence[ClockTable]) -> list[str]:
    inside = [table[~table.outside] for table in tables]
    work = [busy(table) for table in inside]
    if not any(map(len, work)):
        return []
    rank = max((rank for rank in range(len(work)) if len(work[rank])), key=lambda rank: work[rank].max())
    row = int(work[rank].argmax())
    typical = float(np.median(np.concatenate(work)))
    return [
        f"slowest clock: {inside[rank].clock[row]} of rank {rank}, {_seconds(work[rank][row])} s without waiting; "
        f"the median is {_seconds(typical)} s"
    ]


def _longest_waits(waits: WaitedFor) -> list[str]:
    if not waits.times.any():
        return []
    rank = int(waits.seconds.argmax())
    return [
        f"most waited for: rank {rank}, {count(int(waits.times[rank]), 'time')}, {_seconds(waits.seconds[rank])} s "
        f"of all {_seconds(waits.seconds.sum())} s waited for others"
    ]


def _repeated_clocks(tables: Sequence[ClockTable]) -> list[str]:
    repeated = sum(int((~table.outside).sum()) - count_clocks(table) for table in tables)
    return [f"repeated: {count(repeated, 'clock')}, by restarted tasks or after a rollback"] if repeated else []


def _undone_work(tables: Sequence[ClockTable]) -> list[str]:
    """Describe the fraction of the turns' work that was not done within the budgets."""
    undone = [table.left[table.block >= 0] for table in tables]
    if not any(turns.any() for turns in undone):
        return []
    percentages = [100 * float(turns.mean()) if len(turns) else 0.0 for turns in undone]
    rank = int(np.argmax(percentages))
    return [
        f"left for the next rotation: {100 * float(np.concatenate(undone).mean()):.0f}% of the work, mostly by rank "
        f"{rank}: {percentages[rank]:.0f}%"
    ]


def _cell(value: float) -> str:
    """Format seconds with at most seven characters; a million seconds or more in hours."""
    return _seconds(value) if value < 1e6 else f"{value / 3600:.0f}h"


def _seconds(value: float) -> str:
    """Format seconds with at least four digits, without an exponent."""
    digits = 0 if value >= 1e4 else 4 if value < 1 else 3 if value < 10 else 2 if value < 100 else 1
    return f"{value:.{digits}f}"
