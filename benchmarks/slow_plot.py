"""The plot of ``benchmarks.slow``: what falls over time, for each way to train."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ps2.plot_extra import needs_matplotlib


def plot(parts: Mapping[str, Any], path: Path) -> None:
    """Plot a report's curves, a part beside the other.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    with needs_matplotlib("--plots"):
        from matplotlib.figure import Figure
    ways = dict.fromkeys(way for part in parts.values() for curves in part["curves"].values() for way in curves)
    colors = {way: f"C{number}" for number, way in enumerate(ways)}
    figure = Figure(figsize=(6 * len(parts), 4.5), layout="constrained")
    for axes, (name, part) in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts.items(), strict=True):
        ((unit, curves),) = part["curves"].items()
        for way, (seconds, losses) in curves.items():
            axes.plot(seconds, losses, color=colors[way], marker=".", markersize=4, linewidth=1.2, label=way)
        axes.set_xlabel("seconds")
        axes.set_ylabel(unit)
        axes.set_title(f"{name}: workers {part['facts']['workers']}", fontsize=9)
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
