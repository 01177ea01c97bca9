"""The error of charts without matplotlib, an optional package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ps2.errors import ConfigError


@contextmanager
def needs_matplotlib(what: str) -> Iterator[None]:
    """Turn a failed import of matplotlib into a ConfigError that names the package to install.

    Args:
        what: wants to draw.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        raise ConfigError(f"{what}: matplotlib is not installed; pip install 'ps2-spark[plot]'") from error
