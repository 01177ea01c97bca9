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
        raise ConfigError(f"plot: there is nothing to draw: no {words.step} was taken")
    axes = axes_for(ax)
    by_name = {"training": (history.objective, BLUE), "held out": (history.validation, ORANGE)}
    # The history can include a value from before the first step.
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
        axes.axvline(best, color=GREY, linestyle="--", linewidth=1, label=f"least: {words.step} {best}")
    style(axes, f"{words.objective} by {words.step}", words.step, words.objective, grid="y")
    if history.validation:
        axes.legend(frameon=False, fontsize=LABEL)
    return axes


def draw_importances(shares: npt.NDArray[np.float64], names: Sequence[str], limit: int, ax: Any = None) -> Axes:
    """Plot the most important features, at most ``limit``, as bars; raise ConfigError if no feature has a gain.

    ``shares`` has each feature's share of all gains. Without names, the plot shows the features' numbers.
    """
    if limit < 1:
        raise ConfigError(f"most: expected at least 1, got {limit!r}")
    used = np.count_nonzero(shares)
    # Features with equal shares are ordered by number.
    order = np.lexsort((np.arange(len(shares)), -shares))[: min(limit, used)]
    if not len(order):
        raise ConfigError("plotImportances: there is nothing to draw: trees split by no feature")
    axes = axes_for(ax, height_in=AROUND_BARS_IN + BAR_IN * len(order))
    draw_bars(axes, [names[index] if len(names) else f"feature {index}" for index in order], shares[order])
    used_text = f"trees split by {used:,} of {len(shares):,} features"
    title = used_text if used == len(order) else f"{used_text}; the first {len(order)}"
    style(axes, title, "share of all gains", "", grid="x")
    axes.tick_params(axis="y", length=0)
    return axes
