"""The checked arguments of ``ps.run``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ps2.errors import ConfigError
from ps2.number_checks import is_number, is_whole

MAX_WORKERS = 1 << 16
MAX_STALENESS = 1 << 31


@dataclass(frozen=True)
class RunOptions:
    """Arguments of ``PS2Context.run``, documented there."""

    workers: int | None = None
    staleness: int | None = 0
    on_clock: Callable[..., object] | None = None
    on_log: Callable[[int, int, str, float], object] | None = None
    timeout_s: float | None = None
    first_clock: int = 0
    seed: int = 0
    read: Callable[..., Any] | None = None
    on_end: Callable[[], object] | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None and (not is_whole(self.workers) or not 1 <= self.workers <= MAX_WORKERS):
            raise ConfigError(f"workers: expected an integer from 1 to {MAX_WORKERS}, got {self.workers!r}")
        if self.staleness is not None and (not is_whole(self.staleness) or not 0 <= self.staleness < MAX_STALENESS):
            raise ConfigError(
                f"staleness: expected 0 (BSP), a positive integer (SSP) or None (ASP), got {self.staleness!r}"
            )
        for name, function in (
            ("onClock", self.on_clock),
            ("onLog", self.on_log),
            ("read", self.read),
            ("onEnd", self.on_end),
        ):
            if function is not None and not callable(function):
                raise ConfigError(f"{name}: expected a function, got {function!r}")
        for name, value in (("firstClock", self.first_clock), ("seed", self.seed)):
            if not is_whole(value) or value < 0:
                raise ConfigError(f"{name}: expected an integer that is not negative, got {value!r}")
        if not isinstance(self.progress, bool):
            raise ConfigError(f"progress: expected True or False, got {self.progress!r}")
        if self.timeout_s is not None and (not is_number(self.timeout_s) or not self.timeout_s > 0):
            raise ConfigError(f"timeoutS: expected a positive number of seconds, got {self.timeout_s!r}")
