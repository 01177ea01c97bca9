"""A run's times as text, in 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

import numpy as np

from ps2.run.timeline import (
    ClockTable,
    WaitedFor,
    busy,
    clocks_done,
    count,
    discipline,
    progress,
    some_ranks,
    waited,
    waited_for,
)
from ps2.text_tables import Column, Table

MAX_RANKS = 32
WIDTH = 80
SHOWN = ("compute", "pull", "push", "wait", "onClock")
HEAD = f"{'rank':>4}{'clocks':>8}{'outside':>8}" + "".join(f"{kind:>8}{'%':>4}" for kind in SHOWN)


def summary(tables: Sequence[ClockTable], seconds: float, staleness: int | None) -> str:
    """Return the text.

    Args:
        tables: by rank.
        seconds: that the run took.
    """
    shown = some_ranks(tables, MAX_RANKS)
    header, whole = _header(tables, seconds, staleness)
    lines = [
        *([f"{header}; {whole}"] if len(header) + 2 + len(whole) <= WIDTH else [*wrap(header, WIDTH), whole]),
        "",
        "seconds (or hours, h), and % of the time in clocks:",
        HEAD,
        *(_line(str(rank), [tables[rank]]) for rank in shown),
    ]
    if len(shown) < len(tables):
        lines.append(f"      (the busiest and some more of {len(tables)} ranks)")
    if len(tables) > 1:
        lines.append(_line("all", tables))
    lines += ["", *_remarks(tables, staleness)]
    return "\n".join(lines).rstrip()


def summary_parts(tables: Sequence[ClockTable], seconds: float, staleness: int | None) -> list[str | Table]:
    """Return the same for a notebook, as paragraphs and a table; arguments as of ``summary``."""
    groups = [(str(rank), [tables[rank]]) for rank in some_ranks(tables, MAX_RANKS)]
    if len(tables) > 1:
        groups.append(("all", list(tables)))
    header = "; ".join(_header(tables, seconds, staleness))
    return [header, "seconds (or hours, h), and % of the time in clocks:", _table(groups), *_remarks(tables, staleness)]


def _header(tables: Sequence[ClockTable], seconds: float, staleness: int | None) -> tuple[str, str]:
    header = f"{count(len(tables), 'worker')}, {discipline(staleness)}: {progress(tables)}"
    # Not part of the rate: it includes the start of Spark's tasks and the reading of rows.
    return header, f"{_seconds(seconds)} s from call to return"


def _remarks(tables: Sequence[ClockTable], staleness: int | None) -> list[str]:
    slow = [*_slowest(tables), *_most_waited_for(waited_for(tables, staleness))]
    return [*slow, *_done_again(tables), *_left(tables)]


def _table(groups: Sequence[tuple[str, Sequence[ClockTable]]]) -> Table:
    titles = ("rank", "clocks", "outside", *SHOWN)
    rows = []
    for name, tables in groups:
        clocks, outside_s, parts = _times(tables)
        whole_s = sum(parts) or 1.0
        shares = (f"{_cell(part)} ({100 * part / whole_s:.0f}%)" for part in parts)
        rows.append([name, f"{clocks:,}", _cell(outside_s), *shares])
    return Table([Column(title, right=True) for title in titles], rows)


def _line(name: str, tables: Sequence[ClockTable]) -> str:
    clocks, outside_s, parts = _times(tables)
    whole_s = sum(parts) or 1.0
    line = f"{name:>4}{clocks:>8}{_cell(outside_s):>8}"
    return line + "".join(f"{_cell(part):>8}{100 * part / whole_s:>4.0f}" for part in parts)


def _times(tables: Sequence[ClockTable]) -> tuple[int, float, list[float]]:
    """Return how many clocks were done, the seconds outside of them, and those inside by kind."""
    inside = [table[~table.outside] for table in tables]
    outside_s = sum(float((busy(table) + waited(table))[table.outside].sum()) for table in tables)
    return (
        sum(map(clocks_done, tables)),
        outside_s,
        [sum(float(table[kind].sum()) for table in inside) for kind in SHOWN],
    )


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


def _most_waited_for(waits: WaitedFor) -> list[str]:
    if not waits.times.any():
        return []
    rank = int(waits.seconds.argmax())
    return [
        f"most waited for: rank {rank}, {count(int(waits.times[rank]), 'time')}, {_seconds(waits.seconds[rank])} s "
        f"of all {_seconds(waits.seconds.sum())} s waited for others"
    ]


def _done_again(tables: Sequence[ClockTable]) -> list[str]:
    again = sum(int((~table.outside).sum()) - clocks_done(table) for table in tables)
    return (
        [f"done again: {count(again, 'clock')}, by tasks that were started again or from a checkpoint on"]
        if again
        else []
    )


def _left(tables: Sequence[ClockTable]) -> list[str]:
    """Return the share of the turns' work that was left when time was up."""
    left = [table.left[table.block >= 0] for table in tables]
    if not any(turns.any() for turns in left):
        return []
    shares = [100 * float(turns.mean()) if len(turns) else 0.0 for turns in left]
    rank = int(np.argmax(shares))
    return [
        f"left for the next rotation: {100 * float(np.concatenate(left).mean()):.0f}% of the work, mostly by rank "
        f"{rank}: {shares[rank]:.0f}%"
    ]


def _cell(value: float) -> str:
    """Format seconds in seven characters; long times as hours."""
    return _seconds(value) if value < 1e6 else f"{value / 3600:.0f}h"


def _seconds(value: float) -> str:
    """Format seconds with at least four digits, and never as a power."""
    digits = 0 if value >= 1e4 else 4 if value < 1 else 3 if value < 10 else 2 if value < 100 else 1
    return f"{value:.{digits}f}"
