"""The plot of ``benchmarks.gigabit``: the speed-up of training on the servers, and from which size on it is faster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ps2.plot_extra import needs_matplotlib

Line = dict[str, Any]


def crossings(lines: Sequence[Line]) -> dict[str, str]:
    """Print for each size of the fleet from which size of vectors on the servers are faster."""
    return {str(servers): _told(*_curve(lines, servers)) for servers in _sizes(lines)}


def crossing(columns: Any, ratios: Any) -> float | None:
    """Return where a ratio reaches 1, interpolated linearly between logarithms; None: nowhere."""
    x, y = np.log(columns), np.log(ratios)
    for i in range(len(x) - 1):
        if y[i] <= 0 < y[i + 1]:
            return float(np.exp(x[i] - y[i] * (x[i + 1] - x[i]) / (y[i + 1] - y[i])))
    return None


def plot(lines: Sequence[Line], path: Path, title: str) -> None:
    """Plot the ratio of rows to servers over the size of vectors, as measured and as predicted.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    with needs_matplotlib("--plots"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for number, servers in enumerate(_sizes(lines)):
        color, name = f"C{number}", f"{servers} server{'s' if servers > 1 else ''}"
        columns, ratios = _curve(lines, servers)
        axes.plot(columns, ratios, color=color, marker="o", label=name)
        axes.plot(*_curve(lines, servers, "expected"), color=color, linestyle=":", linewidth=1)
        where = crossing(columns, ratios)
        if where is not None:
            axes.plot(where, 1, color=color, marker="x", markersize=11, markeredgewidth=2)
    axes.axhline(1, color="black", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(
        sorted({line["columns"] for line in lines}), [str(k) for k in sorted({line["columns"] for line in lines})]
    )
    marks = [mark for mark in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if axes.get_ylim()[0] < mark < axes.get_ylim()[1]]
    axes.set_yticks(marks, [f"{mark:g}" for mark in marks])
    axes.yaxis.minorticks_off()
    axes.set_xlabel("numbers of a vector")
    axes.set_ylabel("seconds on pulled rows / on the servers")
    axes.set_title(title, fontsize=9)
    axes.legend(title="dotted: as auto expects\nx: where they cross")
    figure.savefig(path, dpi=120)


def _sizes(lines: Sequence[Line]) -> list[int]:
    return sorted({line["servers"] for line in lines})


def _curve(lines: Sequence[Line], servers: int, of: str = "measured") -> tuple[Any, Any]:
    own = sorted((line for line in lines if line["servers"] == servers), key=lambda line: line["columns"])
    own = [line for line in own if line["ratio"] is not None]
    return (
        np.array([line["columns"] for line in own], float),
        np.array([line[of]["rows"] / line[of]["servers"] for line in own], float),
    )


def _told(columns: Any, ratios: Any) -> str:
    if not len(columns):
        return "not compared"
    where = crossing(columns, ratios)
    if where is not None:
        return f"from {where:.0f} numbers a vector on, the servers are faster"
    return f"{'the servers' if ratios[0] > 1 else 'rows'} are faster at all sizes"
