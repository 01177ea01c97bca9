"""What plotting methods need before they import matplotlib, which is optional."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ps2.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The path of the file to which a plot is written; None: no file.
PlotPath = str | os.PathLike[str] | None


@contextmanager
def needs_matplotlib(feature: str) -> Iterator[None]:
    """Turn a failed import of matplotlib into a ConfigError. ``feature`` is the method or option that needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        raise ConfigError(f"{feature}: matplotlib is not installed; pip install 'ps2-spark[plot]'") from error


def save_plot(axes: Axes, path: PlotPath) -> Axes:
    """Write the figure of a plot to ``path`` as PNG, or in the format of its suffix (.svg, .pdf); return the Axes."""
    if path is not None:
        axes.figure.canvas.figure.savefig(path)
    return axes
