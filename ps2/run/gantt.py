"""Draws the workers' times as a Gantt chart, with a lane for each rank. Needs matplotlib, but no display."""

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
    shown_ranks,
    waited,
)

Floats = NDArray[np.float64]
Span = tuple[float, float]  # begin and end, in seconds

MAX_LANES = 32  # with more ranks, ``shown_ranks`` selects some
WIDTH_IN = 12.0
# The maximum number of columns in a lane, about its width in pixels; the minimum number of rows in a column.
MAX_COLUMNS = 1200
MIN_COLUMN_ROWS = 2
# If a lane has more rows, all lanes are drawn as stacked columns (the categories' fractions of the time), not as bars.
MAX_BARS = 150
# If a lane has more rows, there are no lines between clocks.
MAX_BORDERS = 80
# If there are more lanes, clocks have no numbers. A number needs this fraction of the chart's width.
MAX_NUMBERED_LANES = 12
NUMBER_WIDTH = 0.016
# The times before the first clock and after the last clock, as fractions of the time between them: a time above
# LONG_MARGIN is cut to MARGIN.
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
# The legend always has these categories. Other categories are in it only if they occur.
ALWAYS_IN_LEGEND = ("compute", "pull", "push", "wait", "onClock", "outside")
# The height of a lane's bars, as a fraction of the lane.
HEIGHT = 0.8
# The height of the band below the bars, whose colours show the blocks of a rotation; colours repeat.
BAND = 0.08
BLOCK_COLORS = colormaps["Set3"].colors  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Bars:
    """The bars of one rank: bar i shows category ``ORDER[kinds[i]]`` from ``begins[i]`` to ``ends[i]``, in seconds."""

    kinds: NDArray[np.int64]
    begins: Floats
    ends: Floats


# The order of the categories in stacked columns, from the bottom of a lane to its top.
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
    ranks = shown_ranks(tables, MAX_LANES)
    shown = [_within(tables[rank], clocks) for rank in ranks]
    if not any(map(len, shown)):
        raise ConfigError("plot: there is nothing to draw" + ("" if clocks is None else f" in clocks {clocks}"))
    begin_s = min(float(table.began.min()) for table in shown if len(table))
    rows_s = begin_s, max(float(ended(table).max()) for table in shown if len(table))
    view_s = _view(rows_s, clocks_span(shown))

    height_in = 1.6 + max(0.28, 0.6 - 0.02 * len(ranks)) * len(ranks)
    axes = axes_for(ax, WIDTH_IN, height_in)
    max_rows = max(map(len, shown))
    edges = np.linspace(*view_s, min(MAX_COLUMNS, max_rows // MIN_COLUMN_ROWS) + 1)
    min_gap_s = NUMBER_WIDTH * (view_s[1] - view_s[0]) if len(ranks) <= MAX_NUMBERED_LANES else np.inf
    for lane, table in enumerate(shown):
        if max_rows > MAX_BARS:
            _draw_columns(axes, lane, _bars(table), edges)
        else:
            _draw_bars(axes, lane, _bars(table))
            _draw_blocks(axes, lane, table)
            if max_rows <= MAX_BORDERS:
                _draw_borders(axes, lane, table, min_gap_s)
    explanation = ""
    if max_rows > MAX_BARS:
        explanation = "; heights are fractions of the time"
    elif any((table.block >= 0).any() for table in shown):
        explanation = "; numbers and bands: clock, block of a rotation"
    style(axes, _title(tables, staleness, len(ranks)), f"seconds since the run began{explanation}", "rank", grid="x")
    _set_scales(axes, ranks, view_s)
    names_present = {
        ORDER[kind] for bars in map(_bars, shown) for kind in np.unique(bars.kinds[bars.ends > bars.begins])
    }
    shown_names = [name for name in NAMES if name in ALWAYS_IN_LEGEND or name in names_present]
    _add_legend(axes, shown_names, has_own_figure=ax is None)
    _label_cut_ends(axes, rows_s, view_s)
    _label_empty_lanes(axes, shown, view_s)
    return axes


def _view(rows_s: Span, clocks_s: Span | None) -> Span:
    """Return the range of the time axis. Long times before and after the clocks are cut to a margin."""
    if clocks_s is None or clocks_s[0] == clocks_s[1]:
        return rows_s
    duration_s = clocks_s[1] - clocks_s[0]
    begin_s, end_s = rows_s
    if clocks_s[0] - begin_s > LONG_MARGIN * duration_s:
        begin_s = clocks_s[0] - MARGIN * duration_s
    if end_s - clocks_s[1] > LONG_MARGIN * duration_s:
        end_s = clocks_s[1] + MARGIN * duration_s
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
    durations = np.stack([table[kind] for kind in ROW_ORDER], axis=1)
    ends = table.began[:, None] + durations.cumsum(axis=1)
    kinds = np.tile([ORDER.index(kind) for kind in ROW_ORDER], (len(table), 1))
    kinds[table.outside, ROW_ORDER.index("compute")] = ORDER.index("outside")
    return Bars(kinds.ravel(), (ends - durations).ravel(), ends.ravel())


def _draw_bars(axes: Axes, lane: int, bars: Bars) -> None:
    for index, kind in enumerate(ORDER):
        is_kind = (bars.kinds == index) & (bars.ends > bars.begins)
        _draw_boxes(
            axes, bars.begins[is_kind], bars.ends[is_kind], (lane - HEIGHT / 2, lane + HEIGHT / 2), COLORS[kind]
        )


def _draw_boxes(axes: Axes, begins: Floats, ends: Floats, bottom_top: Span, colors: Any) -> None:
    """Draw boxes between two heights. ``colors``: one colour for all boxes, or a colour for each."""
    low, high = (np.full(len(begins), y) for y in bottom_top)
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


def _draw_columns(axes: Axes, lane: int, bars: Bars, edges: Floats) -> None:
    """Draw stacked columns between neighbouring edges: the fraction of each category in the column's time."""
    x = np.repeat(edges, 2)[1:-1]
    low = np.full(len(x), lane + HEIGHT / 2)  # the axis points down
    for kind, fractions in zip(ORDER, _time_fractions(bars, edges), strict=True):
        high = low - HEIGHT * np.repeat(fractions, 2)
        axes.fill_between(x, low, high, color=COLORS[kind], linewidth=0)
        low = high


def _time_fractions(bars: Bars, edges: Floats) -> Floats:
    """Return the fraction of each category in the time between neighbouring edges, shape (categories, columns)."""
    if not len(bars.kinds):
        return np.zeros((len(ORDER), len(edges) - 1))
    durations = bars.ends - bars.begins
    # For each edge: the last bar that begins before the edge, and the part of the bar's duration before the edge.
    bar = np.maximum(np.searchsorted(bars.begins, edges, side="right") - 1, 0)
    elapsed = np.clip(edges - bars.begins[bar], 0.0, durations[bar])
    until_edges = []  # for each category, its seconds before each edge
    for kind in range(len(ORDER)):
        kind_durations = np.where(bars.kinds == kind, durations, 0.0)
        until_edges.append(
            kind_durations.cumsum()[bar] - kind_durations[bar] + np.where(bars.kinds[bar] == kind, elapsed, 0.0)
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


def _add_legend(axes: Axes, names: Sequence[str], has_own_figure: bool) -> None:
    """Add the legend: below the figure if the chart has its own figure, else below the axis's label."""
    patches = [Patch(color=COLORS[name], label=LABELS.get(name, name)) for name in names]
    options = {"handles": patches, "ncols": min(len(patches), 8), "frameon": False, "fontsize": TICK}
    if has_own_figure:
        axes.figure.legend(loc="outside lower center", **options)
    else:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), **options)


def _label_cut_ends(axes: Axes, rows_s: Span, view_s: Span) -> None:
    """Write the uncut beginning and end of the run below the ends of the axis, if the axis is cut there."""
    labels = []
    if rows_s[0] < view_s[0]:
        labels.append((0, "left", f"◀ setup from {rounded(rows_s[0])} s"))
    if rows_s[1] > view_s[1]:
        labels.append((1, "right", f"outside of clocks until {rounded(rows_s[1])} s ▶"))
    for x, side, label in labels:
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
    """Label the lanes of ranks that have no clock in the shown time."""
    for lane, table in enumerate(shown):
        if table.outside.all() and not ((ended(table) > view_s[0]) & (table.began < view_s[1])).any():
            period = f", at work from {rounded(table.began[0])} to {rounded(ended(table)[-1])} s" if len(table) else ""
            label = f"no clocks{period}"
            axes.annotate(label, (view_s[0], lane), (4, 0), textcoords="offset points", va="center", fontsize=SMALL)


def _title(tables: Sequence[ClockTable], staleness: int | None, lanes: int) -> str:
    title = f"{count(len(tables), 'worker')}, {discipline(staleness)}: {progress(tables)}"
    return title if lanes == len(tables) else f"{title} (the {MAX_LANES // 2} busiest ranks and others)"
