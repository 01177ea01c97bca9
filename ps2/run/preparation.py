"""What the driver does of a run before its Spark job starts, and how long that takes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal


@dataclass
class Preparation:
    """What the driver does between the call of ``ps.run`` and the start of the Spark job.

    Attributes:
        began_s: when ``ps.run`` was called.
        last_s: when the last lap ended.
        seconds: by field of ``ClockTimes``.
    """

    began_s: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.last_s = self.began_s

    def lap(self, kind: Literal["spark", "coordinator", "checkpoint"]) -> None:
        """Count the time since the last lap."""
        before_s, self.last_s = self.last_s, time.monotonic()
        self.seconds[kind] = self.seconds.get(kind, 0.0) + self.last_s - before_s
