"""Plots of vectors. Needs matplotlib, but no display."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.embeddings.model import Embedding
from ps2.run.chart import BLUE, DPI, GREEN, GREY, ORANGE, PINK, SKY, Chart

SIDE_IN = 7.0
# Colours of the largest classes; all others are grey.
COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY)
# Up to FEW points are labelled; up to MAX_POINTS are drawn.
FEW, MAX_POINTS = 60, 50_000


def draw_plane(embedding: Embedding, classes: Mapping[Any, Any]) -> Chart:
    """Plot vectors in the plane of their two largest principal components.

    Args:
        classes: name -> class; each class has its colour, and names without a class are grey.
    """
    points, share = embedding.plane()
    shown = np.arange(min(len(points), MAX_POINTS))
    chart = Chart(figsize=(SIDE_IN, SIDE_IN), dpi=DPI, layout="constrained")
    axes = chart.subplots()
    size = float(np.clip(40_000 / max(len(shown), 1), 2, 30))
    for label, colour, some in _groups(embedding, classes, shown):
        axes.scatter(points[some, 0], points[some, 1], s=size, color=colour, alpha=0.7, linewidths=0, label=label)
    if len(shown) <= FEW:
        for at, name in zip(shown, embedding.names.named(shown), strict=True):
            axes.annotate(str(name), points[at], xytext=(3, 3), textcoords="offset points", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(f"first component, {share[0]:.0%} of the variance")
    axes.set_ylabel(f"second component, {share[1]:.0%}")
    of_all = "" if len(shown) == len(points) else f"; the {len(shown):,} most frequent"
    axes.set_title(f"{len(points):,} vectors of {embedding.dim} numbers{of_all}", loc="left", fontsize=11)
    if classes:
        axes.legend(frameon=False, markerscale=2, fontsize=8)
    return chart


def _groups(
    embedding: Embedding, classes: Mapping[Any, Any], shown: npt.NDArray[np.int64]
) -> list[tuple[str, str, npt.NDArray[np.int64]]]:
    """Return each coloured group: label, colour, positions of its vectors."""
    if not classes:
        return [("", BLUE, shown)]
    found = [classes.get(name) for name in embedding.names.named(shown)]
    counts = Counter(kind for kind in found if kind is not None)
    largest = [kind for kind, _ in counts.most_common(len(COLOURS))]
    kinds = np.array([largest.index(kind) if kind in largest else -1 for kind in found])
    groups = [("others", GREY, shown[kinds < 0])] if (kinds < 0).any() else []
    return groups + [(str(kind), COLOURS[at], shown[kinds == at]) for at, kind in enumerate(largest)]
