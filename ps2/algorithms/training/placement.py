"""Where a training runs: how many workers read the rows, and what works on the model between their clocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# "local": the one worker that has all rows keeps the model, too; "servers": the servers do. "rows", of embeddings:
# servers keep it, and workers compute with rows of it.
Via = Literal["local", "rows", "servers"]
ViaName = Literal["auto", "local", "servers"]


@dataclass(frozen=True)
class Placement:
    """Where a training runs, and why.

    Attributes:
        workers: tasks that train.
        threads: of each worker.
        via: what works on the model between clocks: the only worker's own process, or the servers.
        reason: of this choice, in words.
    """

    workers: int
    threads: int
    via: Via
    reason: str

    def __str__(self) -> str:
        each = f"{self.workers} worker{'s' * (self.workers != 1)} of {self.threads} thread{'s' * (self.threads != 1)}"
        return f"{self.via}, {each}: {self.reason}"
