"""Plots of a training and of the importances of features. They need matplotlib, but no display."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from ps2.algorithms.training.record import TrainingHistory, best_step
from ps2.errors import ConfigError
from ps2.plot_style import (
    AROUND_BARS_IN,
    BAR_IN,
    BLUE,
    GREY,
    LABEL,
    ORANGE,
    Line,
    axes_for,
    draw_bars,
    draw_lines,
    style,
)


def draw_losses(history: TrainingHistory, ax: Any = None) -> Axes:
    """Plot the objective and the validation loss by step; raise ConfigError if no step was taken."""
    words = history.words
    if not history.steps:
        raise ConfigError(f"plot: there is nothing to draw: the training took no {words.step}")
    axes = axes_for(ax)
    by_name = {"training": (history.objective, BLUE), "held out": (history.validation, ORANGE)}
    # The history can begin with a value before the first step, which is drawn at step 0.
    lines = [
        Line(name, np.arange(1.0 - len(values), 1.0) + history.steps, np.array(values, np.float64), color)
        for name, (values, color) in by_name.items()
        if len(values)
    ]
    draw_lines(axes, lines)
    if history.steps == 1:
        axes.set_xlim(-0.5, 2.5)
    best = best_step(history)
    if best is not None:
        axes.axvline(best, color=GREY, linestyle="--", linewidth=1, label=f"minimum: {words.step} {best}")
    style(axes, f"{words.objective} by {words.step}", words.step, words.objective, grid="y")
    if history.validation:
        axes.legend(frameon=False, fontsize=LABEL)
    return axes


def draw_importances(fractions: npt.NDArray[np.float64], names: Sequence[str], limit: int, ax: Any = None) -> Axes:
    """Plot the most important features, at most ``limit``, as bars; raise ConfigError if no feature has a gain.

    ``fractions`` has each feature's fraction of the total gain. If ``names`` is empty, features are named by index.
    """
    if limit < 1:
        raise ConfigError(f"most: expected at least 1, got {limit!r}")
    num_used = np.count_nonzero(fractions)
    # Features with equal fractions are ordered by index.
    order = np.lexsort((np.arange(len(fractions)), -fractions))[: min(limit, num_used)]
    if not len(order):
        raise ConfigError("plotImportances: there is nothing to draw: trees split by no feature")
    axes = axes_for(ax, height_in=AROUND_BARS_IN + BAR_IN * len(order))
    draw_bars(axes, [names[index] if len(names) else f"feature {index}" for index in order], fractions[order])
    used_text = f"trees split by {num_used:,} of {len(fractions):,} features"
    title = used_text if num_used == len(order) else f"{used_text}; the first {len(order)}"
    style(axes, title, "share of all gains", "", grid="x")
    axes.tick_params(axis="y", length=0)
    return axes
