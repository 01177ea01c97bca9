"""The style of all plots, and their elements: lines, bars and points. Needs matplotlib, but no display."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ps2.array_types import Float64s
from ps2.errors import ConfigError

DPI = 120
WIDTH_IN, HEIGHT_IN, MARGIN_IN = 8.0, 4.5, 0.1
# Okabe and Ito's palette, for colour-blind readers.
BLUE, SKY, GREEN, ORANGE, PINK, GREY = "#0072B2", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#999999"
GRID_COLOR, NOTE_COLOR = "#DDDDDD", "#555555"
# Font sizes, in points.
TITLE, LABEL, TICK, SMALL = 11, 10, 9, 8
# The height of a bar and the gap above it, and the height of title, axis and margins together, in inches.
BAR_IN, AROUND_BARS_IN = 0.28, 1.2
# Lines with more points have no dots.
MAX_DOTS = 30
# The maximum length of a bar's name; longer names are cut.
NAME_CHARS = 40


class PlotAxes(Axes):
    """Axes of a figure without a window and pyplot. A notebook shows the figure."""

    def _repr_png_(self) -> bytes:
        return png_of(self)


@dataclass(frozen=True)
class Line:
    """A line of a plot."""

    label: str
    x: Float64s
    y: Float64s
    color: str


@dataclass(frozen=True)
class Points:
    """Points of one colour.

    Attributes:
        label: the label in the legend; "": the points are not in the legend.
        positions: the coordinates, shape (n, 2).
    """

    label: str
    positions: Float64s
    color: str


def axes_for(ax: Any, width_in: float = WIDTH_IN, height_in: float = HEIGHT_IN) -> Axes:
    """Return ``ax``, or the Axes of a new figure if ``ax`` is None; raise ConfigError if it is something else."""
    if ax is None:
        layout = ConstrainedLayoutEngine(w_pad=MARGIN_IN, h_pad=MARGIN_IN)
        figure = Figure(figsize=(width_in, height_in), dpi=DPI, layout=layout)
        return figure.add_subplot(axes_class=PlotAxes)
    if not isinstance(ax, Axes):
        raise ConfigError(f"ax: expected Axes of matplotlib, such as plt.gca(), got {type(ax).__name__}")
    return ax


def png_of(axes: Axes) -> bytes:
    buffer = io.BytesIO()
    axes.figure.canvas.figure.savefig(buffer, format="png")
    return buffer.getvalue()


def style(axes: Axes, title: str, x: str, y: str, grid: Literal["x", "y"] | None = None) -> None:
    """Give Axes a title, labels, and a grid along one axis."""
    axes.set_title(title, loc="left", fontsize=TITLE)
    axes.set_xlabel(x, fontsize=LABEL)
    axes.set_ylabel(y, fontsize=LABEL)
    axes.tick_params(labelsize=TICK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    if grid is not None:
        axes.grid(axis=grid, color=GRID_COLOR, linewidth=0.6)


def draw_lines(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw lines whose x are integers, such as steps. Short lines have a dot at each point."""
    max_length = max(len(line.x) for line in lines)
    dots = "o" if max_length <= MAX_DOTS else ""
    for line in lines:
        axes.plot(line.x, line.y, color=line.color, label=line.label, linewidth=1.8, marker=dots, markersize=4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def draw_bars(axes: Axes, names: Sequence[str], fractions: Float64s) -> None:
    """Draw a horizontal bar for each fraction, the first bar on top, with its name and its percentage."""
    bars = axes.barh(np.arange(len(fractions)), fractions, color=BLUE, height=0.7)
    axes.bar_label(bars, [f"{fraction:.1%}" for fraction in fractions], padding=3, fontsize=SMALL)
    axes.set_yticks(range(len(fractions)), [shortened(name) for name in names])
    axes.set_ylim(len(fractions) - 0.4, -0.6)
    axes.set_xlim(0, 1.12 * float(fractions.max()))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda fraction, _: f"{100 * fraction:.3g}%"))


def draw_points(axes: Axes, groups: Sequence[Points]) -> None:
    """Draw groups of points, and a legend if groups have labels. The more points, the smaller they are."""
    count = sum(len(group.positions) for group in groups)
    area = float(np.clip(40_000 / max(count, 1), 2, 30))  # of a point, in square points of typography
    for group in groups:
        x, y = group.positions.T
        axes.scatter(x, y, s=area, color=group.color, alpha=0.7, linewidths=0, label=group.label or None)
    if any(group.label for group in groups):
        legend = axes.legend(frameon=False, fontsize=SMALL, loc="upper left", bbox_to_anchor=(1, 1))
        for handle in legend.legend_handles:
            handle.set_sizes([30.0])  # type: ignore[union-attr]


def label_points(axes: Axes, positions: Float64s, names: Sequence[str], ring: bool) -> None:
    """Write names next to their points, with a white outline; if ``ring``, draw rings around these points."""
    if ring:
        axes.scatter(positions[:, 0], positions[:, 1], s=40, facecolors="none", edgecolors="black", linewidths=1.0)
    for position, name in zip(positions, names, strict=True):
        text = axes.annotate(name, position, xytext=(4, 4), textcoords="offset points", fontsize=SMALL)
        text.set_path_effects([withStroke(linewidth=2, foreground="white")])


def shortened(name: str) -> str:
    """Return a name cut to ``NAME_CHARS``."""
    return name if len(name) <= NAME_CHARS else f"{name[: NAME_CHARS - 3]}..."
