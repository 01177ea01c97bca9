"""Draws the workers' times as a Gantt chart. Needs matplotlib, but no display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from numpy.typing import NDArray

from ps2.errors import ConfigError
from ps2.plot_style import BLUE, GREEN, GREY, NOTE_COLOR, PINK, SKY, SMALL, TICK, axes_for, style
from ps2.run.timeline import (
    NAMES,
    ROW_ORDER,
    ClockTable,
    clocks_span,
    count,
    discipline,
    ended,
    progress,
    rounded,
    some_ranks,
    waited,
)

Floats = NDArray[np.float64]
Span = tuple[float, float]  # begin and end, in seconds

MAX_LANES = 32
WIDTH_IN = 12.0
# The maximum number of columns of shares, about the width of a lane in pixels; and the minimum number of rows in each.
COLUMNS = 1200
COLUMN_ROWS = 2
# If a lane has more rows, all lanes are drawn as columns of shares instead of bars.
MAX_BARS = 150
# If a lane has more rows, there are no lines between clocks.
MAX_BORDERS = 80
# If there are more lanes, clocks have no numbers. A number needs this share of the chart's width.
MAX_NUMBERED = 12
NUMBER_SHARE = 0.016
# Times before the first clock and after the last one, as shares of the time between: longer ones than LONG_MARGIN are
# cut to MARGIN.
MARGIN = 0.1
LONG_MARGIN = 0.25
# Warm colours are waits; pale colours are times before and after the work.
COLORS = {
    "compute": BLUE,
    "pull": SKY,
    "push": GREEN,
    "wait": "#F0B27A",
    "onClock": PINK,
    "checkpoint": "#8E4585",
    "coordinator": "#E7C4D8",
    "kernels": "#1B3A57",
    "outside": GREY,
    "connect": "#C9D6B8",
    "imports": "#B9C7D9",
    "spark": "#D9D9D9",
}
LABELS = {"outside": "outside of clocks"}
# The legend always has these categories, and others only if they occur.
ALWAYS = ("compute", "pull", "push", "wait", "onClock", "outside")
# The height of a lane's bars, as a share of the lane.
HEIGHT = 0.8
# The height of the band below the bars, with the colours of a rotation's blocks; colours repeat.
BAND = 0.08
BLOCK_COLORS = colormaps["Set3"].colors  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Bars:
    """The bars of one rank: bar i has the kind ``ORDER[kinds[i]]``, from ``begins[i]`` to ``ends[i]``."""

    kinds: NDArray[np.int64]
    begins: Floats
    ends: Floats


# The order of shares, from the bottom of a lane to its top.
ORDER = (
    *("compute", "kernels", "outside", "pull", "push", "connect", "imports", "spark"),
    *("coordinator", "checkpoint", "onClock", "wait"),
)


def draw(
    tables: Sequence[ClockTable],
    staleness: int | None,
    clocks: range | tuple[int, int] | None = None,
    ax: Any = None,
) -> Axes:
    """Draw a lane for each rank; see ``RunResult.plot``."""
    ranks = some_ranks(tables, MAX_LANES)
    shown = [_within(tables[rank], clocks) for rank in ranks]
    if not any(map(len, shown)):
        raise ConfigError("plot: there is nothing to draw" + ("" if clocks is None else f" in clocks {clocks}"))
    begin_s = min(float(table.began.min()) for table in shown if len(table))
    rows_s = begin_s, max(float(ended(table).max()) for table in shown if len(table))
    view_s = _view(rows_s, clocks_span(shown))

    height_in = 1.6 + max(0.28, 0.6 - 0.02 * len(ranks)) * len(ranks)
    axes = axes_for(ax, WIDTH_IN, height_in)
    max_rows = max(map(len, shown))
    edges = np.linspace(*view_s, min(COLUMNS, max_rows // COLUMN_ROWS) + 1)
    min_gap_s = NUMBER_SHARE * (view_s[1] - view_s[0]) if len(ranks) <= MAX_NUMBERED else np.inf
    for lane, table in enumerate(shown):
        if max_rows > MAX_BARS:
            _draw_shares(axes, lane, _bars(table), edges)
        else:
            _draw_bars(axes, lane, _bars(table))
            _draw_blocks(axes, lane, table)
            if max_rows <= MAX_BORDERS:
                _draw_borders(axes, lane, table, min_gap_s)
    explanation = ""
    if max_rows > MAX_BARS:
        explanation = "; heights are shares of the time"
    elif any((table.block >= 0).any() for table in shown):
        explanation = "; numbers and bands: clock, block of a rotation"
    style(axes, _title(tables, staleness, len(ranks)), f"seconds since the run began{explanation}", "rank", grid="x")
    _set_scales(axes, ranks, view_s)
    names_present = {
        ORDER[kind] for bars in map(_bars, shown) for kind in np.unique(bars.kinds[bars.ends > bars.begins])
    }
    _add_legend(axes, [name for name in NAMES if name in ALWAYS or name in names_present], is_own=ax is None)
    _label_cut_ends(axes, rows_s, view_s)
    _label_empty_lanes(axes, shown, view_s)
    return axes


def _view(rows_s: Span, clocks_s: Span | None) -> Span:
    """Return the range of the axis. Long times before and after the clocks are cut to a margin."""
    if clocks_s is None or clocks_s[0] == clocks_s[1]:
        return rows_s
    spent_s = clocks_s[1] - clocks_s[0]
    begin_s, end_s = rows_s
    if clocks_s[0] - begin_s > LONG_MARGIN * spent_s:
        begin_s = clocks_s[0] - MARGIN * spent_s
    if end_s - clocks_s[1] > LONG_MARGIN * spent_s:
        end_s = clocks_s[1] + MARGIN * spent_s
    return begin_s, end_s


def _within(table: ClockTable, clocks: range | tuple[int, int] | None) -> ClockTable:
    if clocks is None:
        return table
    try:
        first, end = (clocks.start, clocks.stop) if isinstance(clocks, range) else clocks
        return table[(table.clock >= first) & (table.clock < end) & ~table.outside]
    except (TypeError, ValueError):
        raise ConfigError(f"clocks: expected two numbers, such as (10, 20), got {clocks!r}") from None


def _bars(table: ClockTable) -> Bars:
    """Return the bars of a lane in order of time. Each row has a bar for each category, ordered as in ``ROW_ORDER``."""
    lengths = np.stack([table[kind] for kind in ROW_ORDER], axis=1)
    ends = table.began[:, None] + lengths.cumsum(axis=1)
    kinds = np.tile([ORDER.index(kind) for kind in ROW_ORDER], (len(table), 1))
    kinds[table.outside, ROW_ORDER.index("compute")] = ORDER.index("outside")
    return Bars(kinds.ravel(), (ends - lengths).ravel(), ends.ravel())


def _draw_bars(axes: Axes, lane: int, bars: Bars) -> None:
    for index, kind in enumerate(ORDER):
        is_kind = (bars.kinds == index) & (bars.ends > bars.begins)
        _draw_boxes(
            axes, bars.begins[is_kind], bars.ends[is_kind], (lane - HEIGHT / 2, lane + HEIGHT / 2), COLORS[kind]
        )


def _draw_boxes(axes: Axes, begins: Floats, ends: Floats, between: Span, colors: Any) -> None:
    """Draw boxes of one height; ``colors``: one colour for all boxes, or a sequence of them."""
    low, high = (np.full(len(begins), y) for y in between)
    corners = np.stack([begins, low, begins, high, ends, high, ends, low], axis=1).reshape(-1, 4, 2)
    axes.add_collection(PolyCollection(list(corners), facecolors=colors, linewidths=0), autolim=False)


def _draw_blocks(axes: Axes, lane: int, table: ClockTable) -> None:
    """Draw the rank's blocks of a rotation."""
    turns = table[table.block >= 0]
    if not len(turns):
        return
    bottom = lane + HEIGHT / 2
    colors = [BLOCK_COLORS[block % len(BLOCK_COLORS)] for block in turns.block]
    _draw_boxes(axes, turns.began + waited(turns), ended(turns), (bottom, bottom + BAND), colors)


def _draw_shares(axes: Axes, lane: int, bars: Bars, edges: Floats) -> None:
    """Draw stacked columns between neighbouring edges: the share of each kind in the column's time."""
    x = np.repeat(edges, 2)[1:-1]
    low = np.full(len(x), lane + HEIGHT / 2)  # the axis points down
    for kind, shares in zip(ORDER, _shares(bars, edges), strict=True):
        high = low - HEIGHT * np.repeat(shares, 2)
        axes.fill_between(x, low, high, color=COLORS[kind], linewidth=0)
        low = high


def _shares(bars: Bars, edges: Floats) -> Floats:
    """Return the share of each kind in the time between neighbouring edges, shape (kinds, columns)."""
    if not len(bars.kinds):
        return np.zeros((len(ORDER), len(edges) - 1))
    lengths = bars.ends - bars.begins
    # For each edge: the last bar that begins before the edge, and the time from its beginning, at most its length.
    bar = np.maximum(np.searchsorted(bars.begins, edges, side="right") - 1, 0)
    into = np.clip(edges - bars.begins[bar], 0.0, lengths[bar])
    until_edges = []
    for kind in range(len(ORDER)):
        kind_lengths = np.where(bars.kinds == kind, lengths, 0.0)
        until_edges.append(
            kind_lengths.cumsum()[bar] - kind_lengths[bar] + np.where(bars.kinds[bar] == kind, into, 0.0)
        )
    return np.asarray(np.diff(until_edges, axis=1) / np.diff(edges))


def _draw_borders(axes: Axes, lane: int, table: ClockTable, min_gap_s: float) -> None:
    """Draw a line at the beginning of each clock, and its number if the next clock is ``min_gap_s`` later."""
    inside = table[~table.outside]
    axes.vlines(inside.began, lane - 0.5, lane + HEIGHT / 2, colors="black", linewidths=0.8)
    for row, next_s in zip(inside, [*inside.began, np.inf][1:], strict=True):
        if next_s - row.began > min_gap_s:
            number = f"{row.clock}, {row.block}" if row.block >= 0 else str(row.clock)
            axes.annotate(number, (row.began, lane - HEIGHT / 2), (2, 1), textcoords="offset points", fontsize=7)


def _set_scales(axes: Axes, ranks: Sequence[int], view_s: Span) -> None:
    axes.set_xlim(view_s[0], view_s[1] + (0.002 * (view_s[1] - view_s[0]) or 1e-3))
    axes.set_ylim(len(ranks) - 0.4, -0.6)
    axes.set_yticks(range(len(ranks)), [str(rank) for rank in ranks])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.ticklabel_format(axis="x", style="plain", useOffset=False)


def _add_legend(axes: Axes, names: Sequence[str], is_own: bool) -> None:
    """Add the legend: below the figure if the chart has its own figure, else below the axis's label."""
    patches = [Patch(color=COLORS[name], label=LABELS.get(name, name)) for name in names]
    look = {"handles": patches, "ncols": min(len(patches), 8), "frameon": False, "fontsize": TICK}
    if is_own:
        axes.figure.legend(loc="outside lower center", **look)
    else:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), **look)


def _label_cut_ends(axes: Axes, rows_s: Span, view_s: Span) -> None:
    """Write the real beginning and end below the ends of the axis, where the axis is cut."""
    cut_off = []
    if rows_s[0] < view_s[0]:
        cut_off.append((0, "left", f"◀ setup from {rounded(rows_s[0])} s"))
    if rows_s[1] > view_s[1]:
        cut_off.append((1, "right", f"outside of clocks until {rounded(rows_s[1])} s ▶"))
    for x, side, label in cut_off:
        axes.annotate(
            label,
            (x, 0),
            (0, -22),
            "axes fraction",
            "offset points",
            ha=side,
            va="top",
            fontsize=SMALL,
            color=NOTE_COLOR,
        )


def _label_empty_lanes(axes: Axes, shown: Sequence[ClockTable], view_s: Span) -> None:
    """Label the lanes whose ranks were in no clock, or in none of the shown clocks."""
    for lane, table in enumerate(shown):
        if table.outside.all() and not ((ended(table) > view_s[0]) & (table.began < view_s[1])).any():
            when = f", at work from {rounded(table.began[0])} to {rounded(ended(table)[-1])} s" if len(table) else ""
            label = f"no clocks{when}"
            axes.annotate(label, (view_s[0], lane), (4, 0), textcoords="offset points", va="center", fontsize=SMALL)


def _title(tables: Sequence[ClockTable], staleness: int | None, lanes: int) -> str:
    title = f"{count(len(tables), 'worker')}, {discipline(staleness)}: {progress(tables)}"
    return title if lanes == len(tables) else f"{title} (the {MAX_LANES // 2} busiest ranks and some more)"
