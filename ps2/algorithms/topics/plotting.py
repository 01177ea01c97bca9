"""Plots of topics. Needs matplotlib, but no display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from ps2.array_types import Float64s
from ps2.plot_style import NOTE, SKY, SMALL, TITLE, axes_for, shortened

COLUMNS = 4
# The width of a topic's panel, the height of a word, and the height around the words of a panel, in inches.
PANEL_IN, WORD_IN, AROUND_WORDS_IN = 2.4, 0.24, 0.42
# The maximum share of its panel's width that a bar takes.
BARS_WIDE = 0.9
# The maximum number of topics that are drawn without a choice.
MAX_TOPICS = 24


@dataclass(frozen=True)
class Topic:
    """The topic of a panel.

    Attributes:
        share: the share of all tokens.
        words: the most likely ones first.
        weights: shape (words,): their probabilities in the topic.
    """

    number: int
    share: float
    words: Sequence[str]
    weights: Float64s


def draw_topics(topics: Sequence[Topic], title: str, ax: Any = None) -> Axes:
    """Plot the words of topics, equally many each, as bars; bars of all panels have one scale."""
    words = len(topics[0].words)
    columns = min(COLUMNS, len(topics))
    lines = -(-len(topics) // columns)
    panel_in = AROUND_WORDS_IN + WORD_IN * words
    axes = axes_for(ax, PANEL_IN * columns, AROUND_WORDS_IN + lines * panel_in)
    axes.set_axis_off()
    longest = max(float(topic.weights.max()) for topic in topics)
    for number, topic in enumerate(topics):
        line, column = divmod(number, columns)
        corner = column / columns, 1 - (line + 1) / lines
        size = BARS_WIDE / columns, WORD_IN * words / panel_in / lines
        _draw_panel(axes.inset_axes((*corner, *size)), topic, longest)
    axes.set_title(f"{title}; the longest bar is {longest:.1%} of its topic", loc="left", fontsize=TITLE)
    return axes


def _draw_panel(axes: Axes, topic: Topic, longest: float) -> None:
    """Draw the words of one topic: each stands on its bar."""
    count = len(topic.words)
    axes.barh(range(count), topic.weights / longest, color=SKY, alpha=0.6, height=0.86)
    for line, name in enumerate(topic.words):
        axes.text(0.02, line, shortened(name), va="center", fontsize=SMALL, clip_on=True)
    axes.set_ylim(count - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.set_title(f"topic {topic.number} ({topic.share:.0%} of tokens)", loc="left", fontsize=SMALL, color=NOTE)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
