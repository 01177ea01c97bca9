"""Plots of vectors in a plane, with matplotlib. Needs no display."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ps2.array_types import Float64s, Int64s
from ps2.data.ids import Names
from ps2.plot_style import BLUE, GREEN, GREY, ORANGE, PINK, SKY, Points, axes_for, draw_points, label_points, style

WIDTH_IN, HEIGHT_IN = 7.5, 5.5
# The colours of the largest classes; other classes are grey.
COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY)
# The maximum number of points that are labelled by default, and the maximum number of points in a plot.
MAX_LABELLED, MAX_POINTS = 60, 50_000


@dataclass(frozen=True)
class Plane:
    """Vectors in the plane of their two largest principal components, shape (n, 2), the most frequent first."""

    names: Names
    points: Float64s
    variance_fractions: Float64s
    dim: int


def draw_plane(
    plane: Plane, classes: Mapping[Any, Any] | None = None, labels: Sequence[Any] | None = None, ax: Any = None
) -> Axes:
    """Plot vectors as points; arguments as in ``Embedding.plotEmbedding``."""
    names, points = plane.names, plane.points
    labelled = None if labels is None else names.known(labels)
    shown = np.arange(min(len(points), MAX_POINTS))
    axes = axes_for(ax, WIDTH_IN, HEIGHT_IN)
    groups = _groups(names, classes or {}, shown)
    draw_points(axes, [Points(label, points[positions], colour) for label, colour, positions in groups])
    if labelled is None:
        labelled = shown if len(shown) <= MAX_LABELLED else shown[:0]
    label_points(axes, points[labelled], [str(name) for name in names.named(labelled)], ring=labels is not None)
    axes.set_aspect("equal", adjustable="datalim")
    limit = "" if len(shown) == len(points) else f"; the {len(shown):,} most frequent"
    style(
        axes,
        f"{len(points):,} vectors of {plane.dim} numbers{limit}",
        f"first principal component, {plane.variance_fractions[0]:.0%} of the variance",
        f"second principal component, {plane.variance_fractions[1]:.0%}",
    )
    return axes


def _groups(names: Names, classes: Mapping[Any, Any], shown: Int64s) -> list[tuple[str, str, Int64s]]:
    """Return the label, the colour and the positions of each group: the largest classes, and all other vectors."""
    if not classes:
        return [("", BLUE, shown)]
    shown_classes = [classes.get(name) for name in names.named(shown)]
    counts = Counter(value for value in shown_classes if value is not None)
    largest = [value for value, _ in counts.most_common(len(COLOURS))]
    class_indices = np.array([largest.index(value) if value in largest else -1 for value in shown_classes])
    groups = [("others", GREY, shown[class_indices < 0])] if (class_indices < 0).any() else []
    return groups + [(str(value), COLOURS[i], shown[class_indices == i]) for i, value in enumerate(largest)]
