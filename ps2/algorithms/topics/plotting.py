"""Plots of topics. They need matplotlib, but no display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from ps2.array_types import Float64s
from ps2.plot_style import NOTE_COLOR, SKY, SMALL, TITLE, axes_for, shortened

# The maximum number of panels side by side.
COLUMNS = 4
# In inches: the width of a topic's panel, the height of a word, and the height of a panel's title and margins.
PANEL_IN, WORD_IN, MARGINS_IN = 2.4, 0.24, 0.42
# The length of the longest bar, as a fraction of its panel's width.
MAX_BAR_FRACTION = 0.9
# The maximum number of topics that are drawn by default.
MAX_TOPICS = 24


@dataclass(frozen=True)
class Topic:
    """A panel's topic: its index, its fraction of all tokens, its likeliest words (descending), their probabilities."""

    number: int
    fraction: float
    words: Sequence[str]
    weights: Float64s


def draw_topics(topics: Sequence[Topic], title: str, ax: Any = None) -> Axes:
    """Plot the words of topics as bars, with the same scale in all panels. Topics have equally many words."""
    words = len(topics[0].words)
    columns = min(COLUMNS, len(topics))
    lines = -(-len(topics) // columns)
    panel_in = MARGINS_IN + WORD_IN * words
    axes = axes_for(ax, PANEL_IN * columns, MARGINS_IN + lines * panel_in)
    axes.set_axis_off()
    longest = max(float(topic.weights.max()) for topic in topics)
    for number, topic in enumerate(topics):
        line, column = divmod(number, columns)
        corner = column / columns, 1 - (line + 1) / lines
        size = MAX_BAR_FRACTION / columns, WORD_IN * words / panel_in / lines
        _draw_panel(axes.inset_axes((*corner, *size)), topic, longest)
    axes.set_title(f"{title}; the longest bar is {longest:.1%} of its topic", loc="left", fontsize=TITLE)
    return axes


def _draw_panel(axes: Axes, topic: Topic, longest: float) -> None:
    """Draw the words of one topic, each on its bar; ``longest`` is the largest weight in all panels."""
    count = len(topic.words)
    axes.barh(range(count), topic.weights / longest, color=SKY, alpha=0.6, height=0.86)
    for line, name in enumerate(topic.words):
        axes.text(0.02, line, shortened(name), va="center", fontsize=SMALL, clip_on=True)
    axes.set_ylim(count - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.set_title(
        f"topic {topic.number} ({topic.fraction:.0%} of tokens)", loc="left", fontsize=SMALL, color=NOTE_COLOR
    )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
