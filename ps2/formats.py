"""Formats sizes, durations and other numbers for people."""

from __future__ import annotations

from typing import Any

SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(num_bytes: float) -> str:
    """Format a number of bytes: 1536 is "1.5 KiB"."""
    power = 0  # of 1024; 1023.95 rounds to 1024.0
    while num_bytes >= 1023.95 and power < len(SIZE_UNITS) - 1:
        num_bytes /= 1024
        power += 1
    return f"{num_bytes:.0f} B" if power == 0 else f"{num_bytes:.1f} {SIZE_UNITS[power]}"


def duration(time_s: float) -> str:
    """Format a duration in its two largest units: "42s", "3m 5s", "2h 0m", "4d 7h"."""
    seconds = int(time_s)
    units = [("d", seconds // 86400), ("h", seconds // 3600 % 24), ("m", seconds // 60 % 60), ("s", seconds % 60)]
    largest = next((i for i, (_, value) in enumerate(units) if value), len(units) - 1)
    return " ".join(f"{value}{unit}" for unit, value in units[largest : largest + 2])


def short_time(time_s: float) -> str:
    """Format a time with three digits: "12.3 us", "4.56 ms", "7.89 s". From a minute on, the form is ``duration``'s."""
    if time_s >= 59.95:  # rounds to 60.0
        return duration(time_s)
    unit, factor = next((pair for pair in (("s", 1.0), ("ms", 1e3)) if time_s * pair[1] >= 0.9995), ("us", 1e6))
    return f"{float(f'{time_s * factor:.3g}'):g} {unit}" if time_s else "0"


def plain(value: Any) -> str:
    """Format a scalar; a float has at most six digits."""
    return f"{value:g}" if isinstance(value, float) else str(value)
