"""Helpers of methods that plot, without an import of matplotlib, which is optional."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ps2.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The file of a plot; None: the plot is not written.
PlotPath = str | os.PathLike[str] | None


@contextmanager
def needs_matplotlib(what: str) -> Iterator[None]:
    """Turn a failed import of matplotlib, by the method or option ``what``, into a ConfigError with advice."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        raise ConfigError(f"{what}: matplotlib is not installed; pip install 'ps2-spark[plot]'") from error


def saved(axes: Axes, path: PlotPath) -> Axes:
    """Write the figure of a plot as PNG, or in the format of the path's suffix (.svg, .pdf). Return the Axes."""
    if path is not None:
        axes.figure.canvas.figure.savefig(path)
    return axes
