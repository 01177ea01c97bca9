"""Plots of a training. Needs matplotlib, but no display."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ps2.algorithms.training.by_step import best_step
from ps2.algorithms.training.record import TrainingHistory
from ps2.errors import ConfigError
from ps2.run.chart import BLUE, DPI, GREY, GRID, ORANGE, Chart

WIDTH_IN, HEIGHT_IN = 8.0, 4.5
# Inches: the height of one feature's bar, and the margin above and below all bars.
BAR_IN, AROUND_IN = 0.28, 1.2
# A plot of fewer steps marks each one with a dot.
FEW_STEPS = 30
NAME_CHARS = 40


def draw_losses(history: TrainingHistory) -> Chart:
    """Plot the objective and the validation loss by step.

    Raises:
        ConfigError: no step was taken.
    """
    if not history.steps:
        raise ConfigError(f"plot: there is nothing to draw: no {history.words.step} was taken")
    chart = Chart(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DPI, layout="constrained")
    axes = chart.subplots()
    lines = {"training": (history.objective, BLUE), "held out": (history.validation, ORANGE)}
    for name, (values, color) in lines.items():
        if values:
            # The history may include a value from before the first step.
            steps = np.arange(len(values)) + history.steps - len(values) + 1
            dots = "o" if history.steps <= FEW_STEPS else ""
            axes.plot(steps, values, color=color, label=name, linewidth=1.8, marker=dots, markersize=4)
    best = best_step(history)
    if best is not None:
        axes.axvline(best, color=GREY, linestyle="--", linewidth=1, label=f"least: {history.words.step} {best}")
    _dress(axes)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if history.steps == 1:
        axes.set_xlim(-0.5, 2.5)
    axes.set_xlabel(history.words.step)
    axes.set_ylabel(history.words.objective)
    axes.set_title(f"{history.words.objective} by {history.words.step}", loc="left", fontsize=11)
    if history.validation:
        axes.legend(frameon=False)
    return chart


def draw_importances(shares: npt.NDArray[np.float64], names: Sequence[str], most: int) -> Chart:
    """Plot the most important features as bars.

    Args:
        shares: shape (features,), each feature's share of all gains.
        names: of the features; empty: the plot shows their numbers.
        most: the largest number of bars.

    Raises:
        ConfigError: no feature has a gain.
    """
    # Features with equal shares are ordered by number.
    order = np.lexsort((np.arange(len(shares)), -shares))[: min(most, np.count_nonzero(shares))]
    if not len(order):
        raise ConfigError("plot: there is nothing to draw: trees split by no feature")
    chart = Chart(figsize=(WIDTH_IN, AROUND_IN + BAR_IN * len(order)), dpi=DPI, layout="constrained")
    axes = chart.subplots()
    bars = axes.barh(np.arange(len(order)), shares[order], color=BLUE, height=0.7)
    axes.bar_label(bars, [f"{share:.1%}" for share in shares[order]], padding=3, fontsize=8)
    labels = [_shown(names[at]) if len(names) else f"feature {at}" for at in order]
    axes.set_yticks(range(len(order)), labels, fontsize=9)
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.set_xlim(0, 1.12 * float(shares[order[0]]))
    axes.tick_params(axis="y", length=0)
    _dress(axes)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.3g}%"))
    axes.set_xlabel("share of all gains")
    used = np.count_nonzero(shares)
    of_all = f"trees split by {used:,} of {len(shares):,} features"
    axes.set_title(of_all if used == len(order) else f"{of_all}; the first {len(order)}", loc="left", fontsize=11)
    return chart


def _dress(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)


def _shown(name: str) -> str:
    return name if len(name) <= NAME_CHARS else f"{name[: NAME_CHARS - 3]}..."
