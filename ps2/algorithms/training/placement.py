"""Where a training runs: how many workers read the rows, and where the model is between their clocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# "local": the only worker, which has all rows, keeps the model. "servers": the servers keep the model and compute with
# it. "rows" (embeddings): the servers keep the model, and workers compute with rows of it.
Via = Literal["local", "rows", "servers"]
ViaName = Literal["auto", "local", "servers"]


@dataclass(frozen=True)
class Placement:
    """Where a training runs, and why.

    Attributes:
        workers: number of tasks that train.
        threads: threads of each worker.
        via: where the model is: in the only worker's process, or on the servers.
        reason: why this placement was chosen, in words.
    """

    workers: int
    threads: int
    via: Via
    reason: str

    def __str__(self) -> str:
        each = f"{self.workers} worker{'s' * (self.workers != 1)} of {self.threads} thread{'s' * (self.threads != 1)}"
        return f"{self.via}, {each}: {self.reason}"
