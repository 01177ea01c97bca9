"""What methods that plot need before matplotlib, an optional package, is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ps2.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Where a plot is written; None: nowhere.
PlotPath = str | os.PathLike[str] | None


@contextmanager
def needs_matplotlib(what: str) -> Iterator[None]:
    """Turn a failed import of matplotlib into a ConfigError that names the extra to install.

    Args:
        what: the method or option that plots.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        raise ConfigError(f"{what}: matplotlib is not installed; pip install 'ps2-spark[plot]'") from error


def saved(axes: Axes, path: PlotPath) -> Axes:
    """Write the figure of a plot: PNG, or the format of the path's suffix (.svg, .pdf). Return the Axes."""
    if path is not None:
        axes.figure.canvas.figure.savefig(path)
    return axes
