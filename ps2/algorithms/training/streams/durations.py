"""Parses durations as Spark writes them ("5 minutes"), and numbers of batches ("10 batches")."""

from __future__ import annotations

from typing import Any

from ps2.errors import ConfigError
from ps2.number_checks import is_number

UNITS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0}


def batches_of(given: Any) -> int | None:
    """Return 3 for "3 batches"; None for anything else than a text of a positive number of batches."""
    words = given.split() if isinstance(given, str) else []
    if len(words) == 2 and words[1] in ("batch", "batches") and words[0].isdecimal() and int(words[0]):
        return int(words[0])
    return None


def seconds_of(given: Any, name: str) -> float:
    """Return the seconds of a duration: a text such as "5 minutes" or "30 seconds", or a number of seconds.

    Args:
        name: name of the setting, for the error.

    Raises:
        ConfigError: ``given`` is not a duration above 0.
    """
    seconds = -1.0
    if is_number(given):
        seconds = float(given)
    elif isinstance(given, str) and len(words := given.split()) == 2 and words[1].removesuffix("s") in UNITS:
        try:
            seconds = float(words[0]) * UNITS[words[1].removesuffix("s")]
        except ValueError:
            seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"{name}: expected a duration above 0 such as '5 minutes', got {given!r}")
    return seconds
