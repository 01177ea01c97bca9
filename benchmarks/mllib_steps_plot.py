"""The plot of ``benchmarks.mllib_steps``: seconds of a step, and their shares, by the size of the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.mllib_steps_records import PARTS
from ps2.plot_extra import needs_matplotlib


def plot(sizes: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot the rows of the report's table, like the paper's Figure 1.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    with needs_matplotlib("--plots"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    taken, shares = figure.subplots(1, 2)
    names = [size["features"] for size in sizes]
    totals = [float(size["ms a step"]) / 1e3 for size in sizes]
    bars = taken.bar(names, totals, color="0.5", width=0.6)
    taken.bar_label(bars, [f"{total:.2g}" for total in totals])
    taken.set_ylabel("seconds a step")
    taken.set_title("(a) a step", fontsize=10)
    below = [0.0] * len(sizes)
    for number, part in enumerate(PARTS):
        heights = [100 * float(size[part]) / 1e3 / total for size, total in zip(sizes, totals, strict=True)]
        shares.bar(names, heights, bottom=below, color=f"C{number}", width=0.6, label=part)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    shares.set_ylim(0, 100)
    shares.set_ylabel("% of a step")
    shares.set_title("(b) where it is spent", fontsize=10)
    shares.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    for axes in (taken, shares):
        axes.set_xlabel("features")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
